//! The files of the audit by who wrote them: a member's own, and its copies of those of others.
//!
//! A file only grows, so that a copy of it is its beginning, and goes on with the bytes behind that. The copies of what
//! another directory wrote lie in a folder of their own, which has the number of that directory: a member that begins
//! again with an empty directory is another writer.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::month;
use crate::clock::Timestamp;
use crate::store::embedded::directory::{create_durably, own_file, sync_directory};

/// What the name of a folder of copies begins with.
const COPIES_OF: &str = "of-";

/// Who wrote a file: the number of the data directory; 0 for a store of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Writer(pub(crate) u64);

impl Display for Writer {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// A file of the audit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct AuditFile {
    pub(crate) month: String,
    pub(crate) writer: Writer,
}

impl AuditFile {
    /// Returns where the file lies in the folder of an audit whose own files are those of `own`.
    pub(super) fn path(&self, folder: &Path, own: Writer) -> PathBuf {
        let name = format!("{}.ndjson", self.month);
        if self.writer == own {
            folder.join(name)
        } else {
            folder.join(format!("{COPIES_OF}{}", self.writer)).join(name)
        }
    }
}

/// Returns the files in the folder of an audit, with their lengths in bytes.
///
/// # Errors
/// An error when the folder cannot be read.
pub(super) fn files(folder: &Path, own: Writer) -> io::Result<BTreeMap<AuditFile, u64>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![(folder.to_owned(), own)];
    while let Some((folder, writer)) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let (entry, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            let Some(name) = name.to_str() else { continue };
            if let Some(month) = name.strip_suffix(".ndjson").filter(|month| is_month(month)) {
                let length = fs::metadata(&entry)?.len();
                found.insert(AuditFile { month: month.to_owned(), writer }, length);
            } else if let Some(of) = name.strip_prefix(COPIES_OF).filter(|_| writer == own)
                && let Ok(of) = u64::from_str_radix(of, 16)
                && Writer(of) != own
            {
                folders.push((entry, Writer(of)));
            }
        }
    }
    Ok(found)
}

/// Returns whether a file of this name is one of the audit's.
fn is_month(name: &str) -> bool {
    Timestamp::parse_rfc3339(&format!("{name}-01T00:00:00Z")).is_ok_and(|at| month(at) == *name)
}

/// Reads the bytes of a file from `from` on, `most` of them at most.
///
/// # Errors
/// An error when it cannot be read.
pub(super) fn read(path: &Path, from: u64, most: u64) -> io::Result<Vec<u8>> {
    let (mut file, mut bytes) = (File::open(path)?, Vec::new());
    file.seek(SeekFrom::Start(from))?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Adds bytes to a copy, where they begin at its end, and returns how long it is then. All of it is on the disk.
///
/// # Errors
/// An error when it cannot be written. A part may have been.
pub(super) fn add(folder: &Path, own: Writer, file: &AuditFile, from: u64, bytes: &[u8]) -> io::Result<u64> {
    if file.writer == own || !is_month(&file.month) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no copy of another one's file"));
    }
    let path = file.path(folder, own);
    let of_writer = path.parent().unwrap_or(folder);
    create_durably(of_writer)?;
    let is_new = !path.exists();
    let mut copy = own_file().append(true).create(true).open(&path)?;
    let length = copy.metadata()?.len();
    if length != from {
        return Ok(length);
    }
    copy.write_all(bytes)?;
    copy.sync_data()?;
    if is_new {
        sync_directory(of_writer)?;
    }
    Ok(length + bytes.len() as u64)
}
