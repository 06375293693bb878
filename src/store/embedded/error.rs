//! What can be wrong with a data directory.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::{Path, PathBuf};

use crate::job::shell::leasehold;
use crate::store::StoreError;

/// Returns the refusal of a store that is closed.
pub(super) fn closed() -> StoreError {
    StoreError::Unavailable("it is closed".to_owned())
}

/// Returns the refusal of a store while it is opened again: with the state of the member that leads, or since there is
/// room on its disk again.
pub(super) fn replaced() -> StoreError {
    StoreError::Unavailable("it is being opened again".to_owned())
}

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
        /// The path of the data directory.
        directory: PathBuf,
        /// The id of that process, if it is known.
        holder: Option<u32>,
    },
    /// The directory has files of something else, and none of a store.
    #[error(
        "the data directory {} has no store in it, but other files, such as `{entry}`: choose an empty one",
        directory.display()
    )]
    Foreign {
        /// The path of the data directory.
        directory: PathBuf,
        /// One of the files.
        entry: String,
    },
    /// Another user owns the data directory, or something in it.
    #[error(
        "{} belongs to the user {owner}, who can change what is in it: give it to the user of this process, or to root",
        path.display()
    )]
    OfAnother {
        /// The path of the data directory, or of what is in it.
        path: PathBuf,
        /// The number of the user.
        owner: u32,
    },
    /// Another version wrote the directory, in a format that this one does not read.
    #[error(
        "the data directory {} has format {found}, and this version reads format {known} only: use the version that \
         wrote it, or choose another directory",
        directory.display()
    )]
    UnknownFormat {
        /// The path of the data directory.
        directory: PathBuf,
        /// The format of the directory.
        found: u32,
        /// The format that this version reads.
        known: u32,
    },
    /// The directory has a database, and no readable file that says in which format.
    #[error(
        "the data directory {} has a database but no readable file `leasehold.format` beside it: it is not one of this \
         program's, or is damaged ({}), or choose another directory",
        directory.display(),
        advice(directory)
    )]
    NoFormat {
        /// The path of the data directory.
        directory: PathBuf,
    },
    /// The directory is new, and a group cannot be founded with so many members.
    #[error(
        "the data directory {} is new, and a cluster is founded with three or five members, not with {members}: with \
         three of them one may fail, with five two; a member that joins a cluster which there is needs `--join`",
        directory.display()
    )]
    Founders {
        /// The path of the data directory.
        directory: PathBuf,
        /// How many members were given.
        members: usize,
    },
    /// The directory is a copy of that of a member.
    #[error(
        "the data directory {} is a copy: the member may have acknowledged more than it has, and others count on that. \
         While another member leads, move the copy away, start this one with an empty directory and `--join`, and run \
         `leasehold cluster replace`; where all members are to start on copies that were made while none of them ran, \
         run `leasehold cluster accept-copy` for each",
        directory.display()
    )]
    Copied {
        /// The path of the data directory.
        directory: PathBuf,
    },
    /// The directory is that of another member, or of a store of its own.
    #[error(
        "the data directory {} is that of {found}, and was opened as that of {given}: start it with the settings that \
         it had, or choose an empty directory",
        directory.display()
    )]
    OtherGroup {
        /// The path of the data directory.
        directory: PathBuf,
        /// What it is the directory of.
        found: String,
        /// What it was opened as.
        given: String,
    },
    /// Files of the directory are damaged. None of what they hold was changed.
    #[error("the data directory {} is damaged: {} ({})", directory.display(), listed(damages), advice(directory))]
    Damaged {
        /// The path of the data directory.
        directory: PathBuf,
        /// What is damaged; at least one.
        damages: Vec<Damage>,
    },
    /// The directory holds something that this program does not write.
    #[error("the data directory {} is damaged: {what} ({})", directory.display(), advice(directory))]
    Corrupt {
        /// The path of the data directory.
        directory: PathBuf,
        /// A description of what is damaged, and how.
        what: String,
    },
    /// A file of the directory could not be read or written.
    #[error("cannot {doing} the data directory {}: {source}", directory.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The path of the data directory.
        directory: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// There is no room for the first writes.
    #[error(
        "the disk of the data directory {} is full ({source}): free space on it, and start again",
        directory.display()
    )]
    Full {
        /// The path of the data directory.
        directory: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The database in the directory could not be opened.
    #[error(
        "cannot open the database in the data directory {}: {source} ({})",
        directory.display(),
        advice(directory)
    )]
    Database {
        /// The path of the data directory.
        directory: PathBuf,
        /// The error of the database.
        source: fjall::Error,
    },
}

impl OpenError {
    /// Returns whether a directory cannot be opened for want of room.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Io { source, .. } => is_full(source),
            Self::Database { source, .. } => is_for_want_of_room(source),
            _ => false,
        }
    }
}

/// Returns whether a write failed for want of room.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Returns whether a database failed for want of room.
pub(super) fn is_for_want_of_room(error: &fjall::Error) -> bool {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => is_full(error),
        _ => false,
    }
}

/// The most damages that an error lists.
const LISTED_DAMAGES: usize = 5;

fn listed(damages: &[Damage]) -> String {
    let listed: Vec<String> = damages.iter().take(LISTED_DAMAGES).map(ToString::to_string).collect();
    let more = damages.len() - listed.len();
    listed.join("; ") + &if more > 0 { format!("; and {more} more") } else { String::new() }
}

fn advice(directory: &Path) -> String {
    let verify = leasehold("verify").option("--data-dir", &directory.to_string_lossy());
    format!(
        "`{verify}` checks all of it; keep a copy, and restore the whole directory from a backup, or, of a member of a \
         cluster, begin again with an empty one and `leasehold cluster replace`"
    )
}

/// A damaged file or folder of a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The path of the file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub what: String,
}

impl Damage {
    pub(super) fn of(path: &Path, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), what: what.into() }
    }

    pub(super) fn missing(path: &Path) -> Self {
        Self::of(path, "it is missing")
    }

    pub(super) fn unreadable(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::missing(path),
            _ => Self::of(path, format!("it cannot be read: {error}")),
        }
    }
}

impl Display for Damage {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path.display(), self.what)
    }
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
