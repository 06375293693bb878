//! The user that a server runs as: ours, or an unprivileged one when we are root, whom Elasticsearch refuses.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The user and group `nobody` of Linux systems; nothing depends on the name.
const UNPRIVILEGED: u32 = 65_534;

/// What is the same for every server: whom it runs as.
pub(crate) struct ServerUser;

impl ServerUser {
    /// Whether servers run as somebody else than we do.
    fn is_other() -> bool {
        nix::unistd::geteuid().is_root()
    }

    /// Whether the server's user may pass through every folder above `path` and read it.
    pub(super) fn reaches(path: &Path) -> bool {
        let open = |folder: &Path| {
            std::fs::metadata(folder).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 == 0o001)
        };
        !Self::is_other() || path.ancestors().filter(|ancestor| ancestor.exists()).all(open)
    }

    /// The first usual folder for temporary files that the server's user can reach.
    pub(crate) fn reachable_temp_dir() -> PathBuf {
        let candidates = [std::env::temp_dir(), PathBuf::from("/var/tmp")];
        candidates.into_iter().find(|folder| Self::reaches(folder)).unwrap_or_else(|| PathBuf::from("/tmp"))
    }

    /// Gives `folder` and all in it to the server's user.
    pub(crate) fn own(folder: &Path) -> Result<(), String> {
        if !Self::is_other() {
            return Ok(());
        }
        let owner = format!("{UNPRIVILEGED}:{UNPRIVILEGED}");
        run(Command::new("chown").arg("--recursive").arg(owner).arg(folder))
    }

    /// Lets everybody read `folder` and all in it.
    pub(crate) fn open(folder: &Path) -> Result<(), String> {
        run(Command::new("chmod").args(["-R", "a+rX"]).arg(folder))
    }

    /// The words that run `command` as the server's user.
    pub(crate) fn command_line(command: &Command) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if Self::is_other() {
            let id = UNPRIVILEGED.to_string();
            words.extend(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--"].map(OsString::from));
        }
        words.push(command.get_program().to_owned());
        words.extend(command.get_args().map(OsString::from));
        words
    }
}

/// Runs a command to its end, and tells its output when it fails.
pub(super) fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run `{program}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(format!("`{program}` failed ({}):\n{out}{err}", output.status))
}
