//! What the attempts write, in files of bounded size.
//!
//! A stream's file has its beginning and its end. While the attempt runs the last half of a full file is a ring; when
//! it has ended the ring is turned, and a line between the halves says how much is left out.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::store::output::left_out;
use crate::worker::output::Stream;
use crate::worker::{AttemptSink, ClaimedJob, OutputSink};

/// The longest name that is made of a text.
const MAX_NAME: usize = 180;

/// The files of a run's attempts.
#[derive(Debug)]
pub(super) struct Outputs {
    folder: PathBuf,
    /// How many bytes of a stream are kept.
    limit: u64,
    /// Whether it was said already that a file cannot be written.
    complained: Arc<AtomicBool>,
}

impl Outputs {
    /// Creates the files' folder.
    pub(super) fn create(folder: PathBuf, limit: u64) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, limit: limit.max(2), complained: Arc::default() })
    }

    /// Returns the file of a stream. It is there only if something was written to the stream.
    pub(super) fn file(&self, job: &ClaimedJob, stream: Stream) -> PathBuf {
        let name = file_name(job.id.as_str());
        self.folder.join(format!("{name}.{}.{}", job.fence.get(), stream.as_str()))
    }

    /// Returns the file of a stream to which something was written.
    pub(super) fn written(&self, job: &ClaimedJob, stream: Stream) -> Option<PathBuf> {
        Some(self.file(job, stream)).filter(|file| file.exists())
    }
}

impl OutputSink for Outputs {
    fn begin(&self, job: &ClaimedJob) -> Arc<dyn AttemptSink> {
        let kept = |stream| Mutex::new(Kept::new(self.file(job, stream), self.limit));
        let (stdout, stderr) = (kept(Stream::Stdout), kept(Stream::Stderr));
        Arc::new(AttemptFiles { stdout, stderr, complained: self.complained.clone() })
    }
}

/// The files of one attempt.
struct AttemptFiles {
    stdout: Mutex<Kept>,
    stderr: Mutex<Kept>,
    complained: Arc<AtomicBool>,
}

impl AttemptFiles {
    fn with(&self, kept: &Mutex<Kept>, what: impl FnOnce(&mut Kept) -> io::Result<()>) {
        let mut kept = kept.lock();
        if let Err(error) = what(&mut kept)
            && !self.complained.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(file = %kept.path.display(), %error, "what jobs write cannot be kept");
        }
    }
}

#[async_trait]
impl AttemptSink for AttemptFiles {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        let kept = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        self.with(kept, |kept| kept.write(bytes));
    }

    async fn end(&self) {
        self.with(&self.stdout, Kept::finish);
        self.with(&self.stderr, Kept::finish);
    }
}

/// What is kept of a stream.
struct Kept {
    path: PathBuf,
    limit: u64,
    /// The file, once something was written.
    file: Option<File>,
    /// How many bytes were written to the stream.
    total: u64,
}

impl Kept {
    fn new(path: PathBuf, limit: u64) -> Self {
        Self { path, limit, file: None, total: 0 }
    }

    fn write(&mut self, mut chunk: &[u8]) -> io::Result<()> {
        let (head, ring) = halves(self.limit);
        let file = match &mut self.file {
            Some(file) => file,
            none @ None => {
                let file = File::options().create(true).truncate(true).read(true).write(true).open(&self.path)?;
                none.insert(file)
            }
        };
        while !chunk.is_empty() {
            let (at, room) = match self.total.checked_sub(head) {
                None => (self.total, head - self.total),
                Some(beyond) => (head + beyond % ring, ring - beyond % ring),
            };
            let (now, later) = chunk.split_at(chunk.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            file.write_all_at(now, at)?;
            self.total += now.len() as u64;
            chunk = later;
        }
        Ok(())
    }

    /// Brings the file into its last form.
    fn finish(&mut self) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let missing = self.total.saturating_sub(self.limit);
        if missing == 0 {
            return Ok(());
        }
        let (head, ring) = halves(self.limit);
        let mut tail = vec![0; usize::try_from(ring).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut tail, head)?;
        let oldest = usize::try_from((self.total - head) % ring).unwrap_or(0);
        let marker = left_out(missing);
        file.write_all_at(marker.as_bytes(), head)?;
        let after = head + marker.len() as u64;
        file.write_all_at(&tail[oldest..], after)?;
        file.write_all_at(&tail[..oldest], after + (tail.len() - oldest) as u64)
    }
}

const fn halves(limit: u64) -> (u64, u64) {
    (limit / 2, limit - limit / 2)
}

/// Returns a name for a file or folder that a text has: as GNU parallel writes it, with `+z` for a slash, and with a
/// hash at its end where it would be too long.
pub(super) fn file_name(text: &str) -> String {
    if text.is_empty() || text == "." || text == ".." {
        return format!("+{}", text.len());
    }
    let name: String = text
        .chars()
        .map(|c| match c {
            '+' => "++".to_owned(),
            '/' => "+z".to_owned(),
            '\\' => "+b".to_owned(),
            '\t' => "+t".to_owned(),
            '\n' => "+n".to_owned(),
            c if c.is_control() => format!("+x{:02x}", u32::from(c)),
            c => c.to_string(),
        })
        .collect();
    if name.len() <= MAX_NAME {
        return name;
    }
    let hash: String = Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let end = (0..=MAX_NAME - hash.len() - 1).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    format!("{}+{hash}", &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(limit: u64, chunks: &[&[u8]]) -> String {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut kept = Kept::new(file.path().to_owned(), limit);
        for chunk in chunks {
            kept.write(chunk).expect("written");
            assert!(file.path().metadata().expect("there").len() <= limit);
        }
        kept.finish().expect("written");
        fs::read_to_string(file.path()).expect("text")
    }

    #[test]
    fn a_short_output_is_kept_whole_and_of_a_long_one_both_ends() {
        assert_eq!(kept(8, &[b"abc", b"defgh"]), "abcdefgh");
        assert_eq!(kept(8, &[b"abcdefghi"]), "abcd\n[1 bytes left out]\nfghi");
        assert_eq!(kept(8, &[b"abc", b"defg", b"h", b"ijklmnopqrstu"]), "abcd\n[13 bytes left out]\nrstu");
        assert_eq!(kept(7, &[b"0123456789".as_slice(); 20]), "012\n[193 bytes left out]\n6789");
    }

    #[test]
    fn any_text_has_a_file_name_of_its_own() {
        assert_eq!(
            ["a/b", "a+b", "", ".", "..", "a\nb\u{1b}"].map(file_name),
            ["a+zb", "a++b", "+0", "+1", "+2", "a+nb+x1b"]
        );
        let (a, b) = (file_name(&"\u{e9}".repeat(500)), file_name(&"\u{e9}".repeat(501)));
        assert!(a.len() <= MAX_NAME && a != b);
    }
}
