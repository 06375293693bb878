//! The limit of open files, and the number of connections that it leaves room for.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The files that a process needs beside its connections, at most: the tables of its store above all.
const OTHER_FILES: usize = 1024;

/// Raises the soft limit to the hard one: thousands of workers wait on a connection each, and the soft limit is often
/// only 1,024. Keeps the limit when raising it is not allowed. Returns the limit.
pub(super) fn raise_open_files() -> usize {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(OTHER_FILES as u64, |(soft, _)| soft);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Returns how many connections a process may have that may open this many files.
pub(super) fn connections(files: usize) -> usize {
    files - OTHER_FILES.min(files / 2)
}
