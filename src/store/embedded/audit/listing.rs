//! The files of the audit as they were looked at last: a folder has a file for each month and writer, and is not read
//! for each message.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::copies::{AuditFile, Writer, files};

/// How long what was looked at counts. Until then, what others have changed in the folder is not noticed.
const COUNTS_FOR: Duration = Duration::from_secs(10);

/// Files with their lengths in bytes.
type Files = Arc<BTreeMap<AuditFile, u64>>;

/// The folder of an audit, and what was found in it last.
pub(super) struct Listing {
    folder: PathBuf,
    found: Mutex<Option<(Instant, Files)>>,
}

impl Listing {
    /// Returns the files of a folder, which nobody has looked at.
    pub(super) fn of(folder: PathBuf) -> Self {
        Self { folder, found: Mutex::default() }
    }

    /// Returns the folder that has the files.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the files in the folder of an audit whose own files are those of `own`, as they were lately.
    ///
    /// # Errors
    /// An error when the folder cannot be read.
    pub(super) fn files(&self, own: Writer) -> io::Result<Files> {
        let found = self.found.lock().clone();
        match found.filter(|(at, _)| at.elapsed() < COUNTS_FOR) {
            Some((_, files)) => Ok(files),
            None => self.look(own),
        }
    }

    /// Returns the same as they are now. It reads the disk.
    ///
    /// # Errors
    /// An error when the folder cannot be read.
    pub(super) fn look(&self, own: Writer) -> io::Result<Files> {
        let found = Arc::new(files(&self.folder, own)?);
        *self.found.lock() = Some((Instant::now(), Arc::clone(&found)));
        Ok(found)
    }

    /// Takes note of how long a file is now.
    pub(super) fn has(&self, file: &AuditFile, length: u64) {
        if let Some((_, files)) = &mut *self.found.lock() {
            Arc::make_mut(files).insert(file.clone(), length);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_is_not_read_again_for_each_message() {
        let (place, own) = (tempfile::tempdir().expect("a folder"), Writer(7));
        let listing = Listing::of(place.path().to_owned());
        let file = |month: &str| AuditFile { month: month.to_owned(), writer: own };
        fs::write(file("2030-01").path(place.path(), own), b"line\n").expect("written");
        assert_eq!(*listing.files(own).expect("readable"), BTreeMap::from([(file("2030-01"), 5)]));
        fs::write(file("2030-02").path(place.path(), own), b"line").expect("written");
        assert_eq!(listing.files(own).expect("readable").len(), 1, "it was read again");
        listing.has(&file("2030-01"), 9);
        assert_eq!(listing.files(own).expect("readable")[&file("2030-01")], 9);
        let now = BTreeMap::from([(file("2030-01"), 5), (file("2030-02"), 4)]);
        assert_eq!(*listing.look(own).expect("readable"), now);
        assert_eq!(*listing.files(own).expect("readable"), now);
    }
}
