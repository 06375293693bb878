//! A file that is read again while the process runs, and whose text counts once it is settled.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::AsyncReadExt;

/// The time between two looks at such a file.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// What a look at the file has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It has something else than is in use, which is taken over.
    Changed,
    /// It has what is in use.
    Same,
    /// It is not as it was at the last look: somebody may be writing it, and a part of it can be right by itself.
    Unsettled,
    /// It cannot be read, or has nothing in it that can be meant.
    Useless,
}

/// What the file had at the last look, where it could be read.
#[derive(Default)]
pub(super) struct SettledFile(Option<String>);

impl SettledFile {
    /// Reads at most so many bytes of the file. Returns `None` while the text is not settled: it is not that of the
    /// last look, and the file is not read `at_once`.
    pub(super) async fn read(&mut self, path: &Path, max_bytes: u64, at_once: bool) -> Option<io::Result<String>> {
        let read = async {
            let mut text = String::new();
            tokio::fs::File::open(path).await?.take(max_bytes).read_to_string(&mut text).await?;
            Ok::<_, io::Error>(text)
        };
        let read = read.await;
        let before = std::mem::replace(&mut self.0, read.as_ref().ok().cloned());
        (at_once || read.is_err() || before == self.0).then_some(read)
    }

    /// Forgets the text, since the file is not to be read.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}
