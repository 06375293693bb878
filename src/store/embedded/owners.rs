//! Whose a data directory is, and who else can use it.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::error::OpenError;

/// The mode of folders that are created.
pub(super) const FOLDER_MODE: u32 = 0o700;

/// Checks that the directory, the links in its path's last part and what is in it belong to this process's user or to
/// root: another user could have a link lead to files that are written in this one's name.
pub(super) fn check(directory: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { doing: "look at", directory: directory.to_owned(), source };
    let own = nix::unistd::geteuid().as_raw();
    let check_one = |path: PathBuf, found: fs::Metadata| match found.uid() {
        owner if owner == own || owner == 0 => Ok(()),
        owner => Err(OpenError::OfAnother { path, owner }),
    };
    check_one(directory.to_owned(), fs::symlink_metadata(directory).map_err(failed)?)?;
    check_one(directory.to_owned(), fs::metadata(directory).map_err(failed)?)?;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        match entry.metadata() {
            Ok(found) => check_one(entry.path(), found)?,
            // Another process removes what it has made there.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

pub(super) fn warn_if_open_to_others(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o777;
    if mode & !FOLDER_MODE != 0 {
        tracing::warn!(
            directory = %path.display(),
            mode = format!("{mode:o}"),
            "other users of this machine have access to the data directory: close it to them with `chmod 700`"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::lchown;

    use super::*;

    /// A user that nobody is.
    const ANOTHER: u32 = 54_321;

    #[test]
    fn what_belongs_to_another_user_is_not_used() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("left out: only root can give files to another user");
        }
        let place = tempfile::tempdir().expect("a directory");
        let data = place.path().join("data");
        fs::create_dir(&data).expect("created");
        fs::write(data.join("leasehold.format"), "8").expect("written");
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&data, &link).expect("linked");
        assert!(check(&data).is_ok() && check(&link).is_ok());
        std::os::unix::fs::symlink("/etc/passwd", data.join("leasehold.seal")).expect("linked");
        for path in [&link, &data.join("leasehold.seal"), &data.join("leasehold.format"), &data] {
            lchown(path, Some(ANOTHER), None).expect("given away");
            let used = if *path == link { &link } else { &data };
            match check(used) {
                Err(OpenError::OfAnother { path: found, owner: ANOTHER }) => assert_eq!(found, *path),
                other => panic!("{}: {other:?}", path.display()),
            }
            lchown(path, Some(0), None).expect("taken back");
        }
        assert!(check(&link).is_ok());
    }
}
