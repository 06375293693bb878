//! The renewal of the tokens that a server accepts while it runs: at SIGHUP, and when the settings file has changed.

use std::path::{Path, PathBuf};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::task::AbortOnDropHandle;

use super::failure::Failure;
use super::permissions::closed_to_others;
use super::settings::Settings;
use super::settled_file::{Found, PERIOD, SettledFile};
use crate::api::access::Access;

/// The longest file, in bytes: tens of thousands of tokens have less.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// What tokens are renewed from.
pub(super) struct Renewal {
    file: Option<PathBuf>,
    access: Access,
    hangups: Signal,
}

impl Renewal {
    /// Has SIGHUP no longer end the process, and remembers what is read at it.
    pub(super) fn of(file: Option<PathBuf>, access: Access) -> Result<Self, Failure> {
        let cannot = |error| Failure::Failed(format!("cannot listen for signals: {error}"));
        let hangups = signal(SignalKind::hangup()).map_err(cannot)?;
        // What is no file, such as the end of a pipe, is read but once.
        Ok(Self { file: file.filter(|file| file.is_file()), access, hangups })
    }

    /// Renews the tokens until the handle is dropped.
    pub(super) fn start(mut self) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(async move {
            let Some(file) = self.file else {
                while self.hangups.recv().await.is_some() {
                    tracing::info!("SIGHUP: there is no settings file to read tokens from");
                }
                return;
            };
            let mut looks = Looks::default();
            loop {
                tokio::select! {
                    Some(()) = self.hangups.recv() => looks.look(&self.access, &file, Why::Asked).await,
                    () = tokio::time::sleep(PERIOD) => looks.look(&self.access, &file, Why::Time).await,
                };
            }
        }))
    }
}

/// Why the file is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Somebody asks for it, and so has written the file.
    Asked,
    /// It was some time ago that it was looked at.
    Time,
}

/// What was seen of the file.
#[derive(Default)]
struct Looks {
    file: SettledFile,
    /// What is said of the file that is of no use.
    failing: Option<String>,
}

impl Looks {
    /// Reads the file, and takes over its tokens: at once where somebody asks for it, otherwise once two looks in a row
    /// have found the same.
    async fn look(&mut self, access: &Access, file: &Path, why: Why) -> Found {
        let renewed = match closed_to_others(file) {
            Ok(()) => {
                let read = self.file.read(file, MAX_FILE_BYTES, why == Why::Asked).await;
                let Some(read) = read else { return Found::Unsettled };
                read.map_err(|error| error.to_string()).and_then(|text| renew(access, &text))
            }
            Err(error) => {
                self.file.forget();
                Err(error.to_string())
            }
        };
        match renewed {
            Ok(is_changed) => {
                self.failing = None;
                if is_changed {
                    tracing::info!(file = %file.display(), "the tokens were renewed");
                } else if why == Why::Asked {
                    tracing::info!(file = %file.display(), "SIGHUP: the tokens are as before");
                }
                if is_changed { Found::Changed } else { Found::Same }
            }
            Err(why_not) => {
                if why == Why::Asked || self.failing.as_ref() != Some(&why_not) {
                    let file = file.display();
                    tracing::warn!(%file, why = why_not, "the tokens cannot be renewed: those before stay");
                    self.failing = Some(why_not);
                }
                Found::Useless
            }
        }
    }
}

fn renew(access: &Access, text: &str) -> Result<bool, String> {
    // The whole error shows the line at fault, and the log is for more readers than the file is.
    let settings = Settings::parse(text).map_err(|error| error.message().to_owned())?;
    access.renew(settings.tokens).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::access::{Token, token_hash};

    fn written(names: &[&str]) -> String {
        let lines = names.iter().map(|name| {
            format!("[[tokens]]\nname = {name:?}\nroles = [\"read\"]\nsha256 = \"{}\"\n", token_hash(name))
        });
        lines.collect()
    }

    fn access(text: &str) -> Access {
        Access::new(Settings::parse(text).expect("settings").tokens).expect("tokens")
    }

    #[tokio::test]
    async fn a_file_is_read_again_once_it_is_settled_and_at_once_where_it_is_asked_for() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("leasehold.toml");
        let access = access(&written(&["a"]));
        let mut looks = Looks::default();
        std::fs::write(&file, written(&["a"])).expect("written");
        assert_eq!(looks.look(&access, &file, Why::Time).await, Found::Unsettled);
        assert_eq!(looks.look(&access, &file, Why::Time).await, Found::Same);
        std::fs::write(&file, written(&["a", "b"])).expect("written");
        assert_eq!(looks.look(&access, &file, Why::Time).await, Found::Unsettled);
        assert_eq!(looks.look(&access, &file, Why::Time).await, Found::Changed);
        std::fs::write(&file, written(&["b"])).expect("written");
        assert_eq!(looks.look(&access, &file, Why::Asked).await, Found::Changed);
    }

    #[tokio::test]
    async fn what_cannot_be_read_or_meant_leaves_the_tokens_as_they_are() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("leasehold.toml");
        let access = access(&written(&["a"]));
        let mut looks = Looks::default();
        let wrong_hash = written(&["a"]).replace("sha256 = \"", "sha256 = \"x");
        for wrong in ["", "[[tokens]", "lisetn = 3", &wrong_hash, &written(&["a", "a"])] {
            std::fs::write(&file, wrong).expect("written");
            assert_eq!(looks.look(&access, &file, Why::Asked).await, Found::Useless, "{wrong}");
        }
        std::fs::remove_file(&file).expect("removed");
        for why in [Why::Time, Why::Asked] {
            assert_eq!(looks.look(&access, &file, why).await, Found::Useless);
        }
        let same = vec![Token {
            name: crate::job::Actor::new("a").expect("a name"),
            roles: [crate::api::access::Role::Read].into(),
            sha256: token_hash("a"),
            may_edit_others: false,
        }];
        assert_eq!(access.renew(same), Ok(false), "it is the one that it was");
    }
}
