//! Who else on this machine can read what a process relies on, or write to it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::worker::shell;

/// Hides the process's environment and memory from other processes of its user, or says that they can read it.
pub(super) fn hide_settings() {
    if let Err(error) = shell::hide_settings() {
        tracing::warn!(%error, "other processes of this user can read the settings of this one in /proc");
    }
}

/// Checks that nobody but its owner, and who has the group of this process, can write to the settings file, which says
/// who may call a server.
pub(super) fn closed_to_others(file: &Path) -> Result<(), String> {
    match others(file, 0o2)? {
        Some(who) => Err(format!("{who} can write to it: close it with `chmod go-w`")),
        None => Ok(()),
    }
}

/// Checks that nobody but its owner, and who has the group of this process, can read or write a file that is as good as
/// the secrets that it keeps.
pub(super) fn hidden_from_others(file: &Path) -> Result<(), String> {
    match others(file, 0o6)? {
        Some(who) => Err(format!("{who} can read or write it: close it with `chmod go-rw`")),
        None => Ok(()),
    }
}

/// Returns who else has one of these permissions, of the three bits for reading, writing and executing.
fn others(file: &Path, permissions: u32) -> Result<Option<&'static str>, String> {
    let found = std::fs::metadata(file).map_err(|error| error.to_string())?;
    let is_of_own_group = found.gid() == nix::unistd::getegid().as_raw();
    Ok(match found.mode() {
        mode if found.is_file() && mode & permissions != 0 => Some("every user of this machine"),
        mode if found.is_file() && mode & (permissions << 3) != 0 && !is_of_own_group => Some("another group"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_is_neither_read_nor_written_by_others_and_settings_are_not_written() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("key");
        std::fs::write(&file, "").expect("written");
        // The file has the group of this process, which may do what the owner lets it.
        for (mode, is_closed, is_hidden) in
            [(0o600, true, true), (0o660, true, true), (0o604, true, false), (0o602, false, false)]
        {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("set");
            assert_eq!(closed_to_others(&file).is_ok(), is_closed, "{mode:o}");
            assert_eq!(hidden_from_others(&file).is_ok(), is_hidden, "{mode:o}");
        }
        assert!(hidden_from_others(&place.path().join("missing")).is_err());
    }
}
