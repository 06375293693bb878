//! The data directory of a run.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cli::failure::Failure;

/// The file that says which run a directory belongs to. Jobs that are not in the list are cancelled in it, so a run
/// never uses another's.
const MARKER: &str = "run.json";

#[derive(Serialize, Deserialize)]
struct Marker {
    source: String,
}

/// Claims the directory for this run.
///
/// # Errors
/// The directory belongs to another run, or to a server.
pub(super) fn occupy(directory: &Path, identity: &str) -> Result<PathBuf, Failure> {
    let failed = |error: std::io::Error| {
        Failure::Failed(format!("cannot use the data directory {}: {error}", directory.display()))
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let directory = directory.canonicalize().map_err(failed)?;
    let taken = |by: &str| {
        let directory = directory.display();
        Err(Failure::Usage(format!("the data directory {directory} is that of {by}; choose another with --data-dir")))
    };
    let marker = directory.join(MARKER);
    match fs::read(&marker) {
        Ok(bytes) => match serde_json::from_slice::<Marker>(&bytes) {
            Ok(found) if found.source == identity => Ok(directory),
            Ok(found) => taken(&format!("another run ({})", found.source)),
            Err(_) => taken("something else"),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // A marker that was not finished is a former start of a run's, which was killed.
            let foreign = |entry: fs::DirEntry| !entry.file_name().to_string_lossy().starts_with(MARKER);
            if fs::read_dir(&directory).map_err(failed)?.flatten().any(foreign) {
                return taken("a server, or of something else");
            }
            let text = serde_json::to_vec(&Marker { source: identity.to_owned() })?;
            let unfinished = directory.join(format!("{MARKER}.{}", std::process::id()));
            fs::write(&unfinished, text).map_err(failed)?;
            fs::rename(&unfinished, &marker).map_err(failed)?;
            Ok(directory)
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_found_again_by_its_own_run_and_by_no_other() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = parent.path().join("a/b");
        let first = occupy(&directory, "file /x").expect("free");
        assert_eq!(occupy(&directory, "file /x").expect("its own"), first);
        assert!(matches!(occupy(&directory, "file /y"), Err(Failure::Usage(said)) if said.contains("file /x")));
    }

    #[test]
    fn a_directory_with_other_data_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("leasehold.format"), "1").expect("written");
        assert!(matches!(occupy(directory.path(), "file /x"), Err(Failure::Usage(_))));
        assert!(!directory.path().join(MARKER).exists());
    }
}
