//! What can be wrong with a data directory.

use std::io;
use std::path::PathBuf;

use crate::store::StoreError;

/// Why a data directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the directory open.
    #[error(
        "the data directory {} is in use by {}: stop that one first, or choose another directory",
        directory.display(),
        holder.map_or_else(|| "another process".to_owned(), |pid| format!("the process {pid}"))
    )]
    InUse {
        /// The data directory.
        directory: PathBuf,
        /// The id of that process, if it is known.
        holder: Option<u32>,
    },
    /// Another version wrote the directory, in a format that this one does not read.
    #[error(
        "the data directory {} has format {found}, and this version reads format {known} only: use the version that \
         wrote it, or choose another directory",
        directory.display()
    )]
    UnknownFormat {
        /// The data directory.
        directory: PathBuf,
        /// The format of the directory.
        found: u32,
        /// The format that this version reads.
        known: u32,
    },
    /// The directory has a database, and no readable file that says in which format.
    #[error(
        "the data directory {} has a database but no readable format file beside it: it is not one of this program's, \
         or is damaged; restore it from a backup, or choose another directory",
        directory.display()
    )]
    NoFormat {
        /// The data directory.
        directory: PathBuf,
    },
    /// The directory holds something that this program does not write.
    #[error("the data directory {} is damaged: {what}", directory.display())]
    Corrupt {
        /// The data directory.
        directory: PathBuf,
        /// A description of what is damaged, and how.
        what: String,
    },
    /// A file of the directory could not be read or written.
    #[error("cannot {doing} the data directory {}: {source}", directory.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The data directory.
        directory: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The database in the directory could not be opened.
    #[error("cannot open the database in the data directory {}: {source}", directory.display())]
    Database {
        /// The data directory.
        directory: PathBuf,
        /// The error of the database.
        source: fjall::Error,
    },
}

/// Stored bytes are not what this program writes. Holds a description of what is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Corrupt(pub(super) String);

impl From<Corrupt> for StoreError {
    fn from(Corrupt(what): Corrupt) -> Self {
        Self::Corrupt(what)
    }
}
