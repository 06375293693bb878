//! The setting of the secret that processes share, which is given as a text or as a file. A file is read again while
//! the process runs, so that the secret can be changed without a restart.

use std::path::{Path, PathBuf};

use tokio_util::task::AbortOnDropHandle;

use super::failure::Failure;
use super::settled_file::{Found, PERIOD, SettledFile};
use crate::peers::PeerSecret;

/// The longest file, in bytes: two secrets have less.
const MAX_FILE_BYTES: u64 = 4096;

/// How an example of a secret is made.
pub(super) const HOW_TO: &str = "set LEASEHOLD_CLUSTER_SECRET (`cluster_secret` in the settings file) to what `openssl \
                                 rand -base64 32` prints, or name a file with that (`--cluster-secret-file`)";

/// The secret that processes share, and the file that it is read from.
#[derive(Debug)]
pub(super) struct SharedSecret {
    pub(super) secret: PeerSecret,
    file: Option<PathBuf>,
}

impl SharedSecret {
    /// Checks what is given on the command line and in the settings file, each as a text and as a file's path, and
    /// reads the first that is there; `None` when there is nothing.
    pub(super) fn of(places: [(Option<&str>, Option<&Path>); 2]) -> Result<Option<Self>, Failure> {
        for place in places {
            return match place {
                (None, None) => continue,
                (Some(_), Some(_)) => Err(Failure::Usage(
                    "`cluster_secret` and `cluster_secret_file` (--cluster-secret-file, \
                     LEASEHOLD_CLUSTER_SECRET_FILE) are two ways to give one thing: take one away"
                        .to_owned(),
                )),
                (Some(text), None) => parse(text).map(|secret| Some(Self { secret, file: None })),
                (None, Some(path)) => Self::in_file(path).map(Some),
            };
        }
        Ok(None)
    }

    fn in_file(path: &Path) -> Result<Self, Failure> {
        let cannot = |why: String| {
            let path = path.display();
            Failure::Usage(format!(
                "`cluster_secret_file` (--cluster-secret-file, LEASEHOLD_CLUSTER_SECRET_FILE): {path} {why}"
            ))
        };
        let text = std::fs::read_to_string(path).map_err(|error| cannot(format!("cannot be read: {error}")))?;
        let secret = text.parse().map_err(|error| cannot(format!("{error}")))?;
        Ok(Self { secret, file: Some(path.to_owned()) })
    }

    /// Has the file read again from time to time, if there is one, until the handle is dropped.
    pub(super) fn keep_read(&self) -> Option<AbortOnDropHandle<()>> {
        let (secret, path) = (self.secret.clone(), self.file.clone()?);
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let mut looks = Looks::default();
            loop {
                tokio::time::sleep(PERIOD).await;
                looks.look(&secret, &path).await;
            }
        })))
    }
}

/// What was seen of the file.
#[derive(Default)]
struct Looks {
    file: SettledFile,
    /// Whether it is said that the file is of no use.
    is_failing: bool,
}

impl Looks {
    /// Reads the file, and takes over what is new in it once two looks in a row have found the same.
    async fn look(&mut self, secret: &PeerSecret, path: &Path) -> Found {
        let Some(read) = self.file.read(path, MAX_FILE_BYTES, false).await else { return Found::Unsettled };
        let renewed = read.map_err(|error| error.to_string());
        let renewed = renewed.and_then(|text| secret.renew(&text).map_err(|error| error.to_string()));
        let was_failing = std::mem::replace(&mut self.is_failing, renewed.is_err());
        match renewed {
            Ok(true) => {
                tracing::info!(secrets = secret.count(), "the secret of the cluster was changed");
                Found::Changed
            }
            Ok(false) => Found::Same,
            Err(why) => {
                if !was_failing {
                    let path = path.display();
                    tracing::warn!(%path, why, "the secret of the cluster cannot be read again: the one before stays");
                }
                Found::Useless
            }
        }
    }
}

fn parse(text: &str) -> Result<PeerSecret, Failure> {
    text.parse().map_err(|error| {
        Failure::Usage(format!("`cluster_secret` (--cluster-secret, LEASEHOLD_CLUSTER_SECRET) {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    const ONE: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    const OTHER: &str = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=";

    fn refused(given: (Option<&str>, Option<&Path>)) -> String {
        match SharedSecret::of([given, (None, None)]) {
            Err(Failure::Usage(said)) => said,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_file_is_read_again_and_what_is_no_secret_changes_nothing() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("secret");
        assert!(refused((None, Some(&path))).contains("cannot be read"));
        std::fs::write(&path, "nothing").expect("written");
        let said = refused((None, Some(&path)));
        assert!(said.contains("base64") && !said.contains("nothing"), "{said}");

        std::fs::write(&path, format!("{ONE}\n")).expect("written");
        let shared = SharedSecret::of([(None, Some(&path)), (None, None)]).expect("good").expect("given");
        let secret = &shared.secret;
        let mut looks = Looks::default();
        let mut found = async |text: &str| {
            std::fs::write(&path, text).expect("written");
            (looks.look(secret, &path).await, looks.look(secret, &path).await)
        };
        assert_eq!(found(ONE).await, (Found::Unsettled, Found::Same));
        assert_eq!(found(&format!("{OTHER}\n{ONE}\n")).await, (Found::Unsettled, Found::Changed));
        assert_eq!(secret.count(), 2);
        for wrong in ["", "nothing", &"x".repeat(10_000)] {
            assert_eq!(found(wrong).await, (Found::Unsettled, Found::Useless), "{wrong}");
            assert_eq!(secret.count(), 2);
        }
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(looks.look(secret, &path).await, Found::Useless);
        std::fs::write(&path, OTHER).expect("written");
        assert_eq!(
            [looks.look(secret, &path).await, looks.look(secret, &path).await],
            [Found::Unsettled, Found::Changed]
        );
        assert_eq!(secret.count(), 1);
    }

    #[tokio::test]
    async fn a_file_that_is_being_written_changes_nothing_before_it_is_whole() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("secret");
        std::fs::write(&path, ONE).expect("written");
        let shared = SharedSecret::of([(None, Some(&path)), (None, None)]).expect("good").expect("given");
        let former: PeerSecret = ONE.parse().expect("a secret");
        let (mut looks, whole) = (Looks::default(), format!("{OTHER}\n{ONE}\n"));
        looks.look(&shared.secret, &path).await;
        // A part of a secret decodes, and the first of two lines is a secret of its own.
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).expect("written");
            assert_eq!(looks.look(&shared.secret, &path).await, Found::Unsettled);
        }
        let now = Timestamp::from_millis(0);
        assert_eq!(shared.secret.verify(&former.sign(b"a", now), b"a", now), Ok(()), "the former one is in use");
        std::fs::write(&path, &whole).expect("written");
        looks.look(&shared.secret, &path).await;
        assert_eq!((looks.look(&shared.secret, &path).await, shared.secret.count()), (Found::Changed, 2));
    }

    #[test]
    fn the_secret_is_given_in_one_way_and_the_command_line_goes_before_the_settings_file() {
        let (path, none) = (Path::new("/nowhere"), (None, None));
        assert!(refused((Some(ONE), Some(path))).contains("take one away"));
        assert!(SharedSecret::of([(Some(ONE), None), (None, Some(path))]).is_ok_and(|given| given.is_some()));
        let two = format!("{ONE},{OTHER}");
        let shared = SharedSecret::of([none, (Some(&two), None)]).expect("good").expect("given");
        assert_eq!(shared.secret.count(), 2);
        assert!(SharedSecret::of([none, none]).is_ok_and(|given| given.is_none()));
    }
}
