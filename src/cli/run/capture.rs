//! What the attempts write, in files.
//!
//! What is passed on waits in a file, whole, until it was. What is kept of a stream is of bounded size: its beginning
//! and its end, with a line between them that says how much is left out. Of output that nobody is shown no more than
//! that is written: while the attempt runs the last half of a full file is a ring, which is turned when it has ended.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::job::JobId;
use crate::store::output::left_out;
use crate::worker::output::Stream;
use crate::worker::{AttemptSink, ClaimedJob, OutputSink};

/// The longest name that is made of a text.
const MAX_NAME: usize = 180;
/// How many bytes may wait to be shown before no more is read of what commands write.
const MAX_WAITING: u64 = 16 << 20;
/// How many bytes are copied at a time.
const CHUNK: usize = 64 << 10;
/// The end of the name of a file that is passed on whole.
const WHOLE: &str = "whole";

/// An attempt of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ran {
    pub(super) id: JobId,
    fence: u64,
    pub(super) attempt: u32,
}

impl Ran {
    /// Returns the attempt that a job was claimed for.
    pub(super) fn of(job: &ClaimedJob) -> Self {
        Self { id: job.id.clone(), fence: job.fence.get(), attempt: job.attempt }
    }
}

/// What is missing of a stream.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    pub(super) stream: Stream,
    pub(super) bytes: u64,
    /// Where it could not be written, and why.
    pub(super) error: String,
}

/// The output of an attempt that has ended.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The files to pass on, by stream.
    pub(super) whole: Vec<(Stream, PathBuf)>,
    pub(super) losses: Vec<Loss>,
    /// How many bytes wait to be passed on.
    bytes: u64,
}

/// The files of a run's attempts.
#[derive(Debug)]
pub(super) struct Outputs {
    folder: PathBuf,
    /// How many bytes of a stream are kept.
    limit: u64,
    /// Whether output is passed on.
    whole: bool,
    shared: Arc<Shared>,
}

/// What attempts have left that have ended.
#[derive(Debug)]
struct Shared {
    ended: Mutex<HashMap<Ran, Written>>,
    /// How many bytes wait to be passed on.
    waiting: watch::Sender<u64>,
}

impl Outputs {
    /// Creates the files' folder, in which `limit` bytes are kept of each stream. With `whole` everything is there
    /// until it was passed on. What a killed start has left there is brought into its last form, but for what `left`
    /// attempts wrote that is still to be passed on.
    pub(super) fn create(folder: PathBuf, limit: u64, whole: bool, left: &[(usize, Ran)]) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let shared = Shared { ended: Mutex::default(), waiting: watch::Sender::new(0) };
        let outputs = Self { folder, limit: limit.max(2), whole, shared: Arc::new(shared) };
        let left = left.iter().filter(|_| whole).flat_map(|(_, ran)| outputs.whole(ran));
        settle(&outputs.folder, limit, &left.map(|(_, file)| file).collect());
        Ok(outputs)
    }

    /// Returns the files of an attempt that wait to be passed on, whole.
    pub(super) fn whole(&self, ran: &Ran) -> Vec<(Stream, PathBuf)> {
        let streams = [Stream::Stdout, Stream::Stderr].into_iter().filter(|_| self.whole);
        let files = streams.map(|stream| (stream, with_end(&self.file(ran, stream))));
        files.filter(|(_, file)| file.exists()).collect()
    }

    /// Returns the file of what is kept of a stream. It is there only if something was written to the stream.
    fn file(&self, ran: &Ran, stream: Stream) -> PathBuf {
        self.folder.join(format!("{}.{}.{}", file_name(ran.id.as_str()), ran.fence, stream.as_str()))
    }

    /// Returns the file of what is kept of a stream to which something was written. It is there once the output was
    /// passed on.
    pub(super) fn written(&self, ran: &Ran, stream: Stream) -> Option<PathBuf> {
        Some(self.file(ran, stream)).filter(|file| file.exists() || with_end(file).exists())
    }

    /// Returns what an attempt that has ended has left to be passed on.
    pub(super) fn take(&self, ran: &Ran) -> Written {
        let mut written = self.shared.ended.lock().remove(ran).unwrap_or_default();
        written.whole = self.whole(ran);
        written
    }

    /// Notes that the output of an attempt was passed on, or waits for that of other jobs.
    pub(super) fn is_handled(&self, written: &Written) {
        self.shared.waiting.send_modify(|waiting| *waiting = waiting.saturating_sub(written.bytes));
    }

    /// Brings what was passed on into its last form.
    pub(super) fn passed_on(&self, files: &[(Stream, PathBuf)]) {
        for (_, file) in files {
            settle_file(file, self.limit);
        }
    }
}

/// Returns the last of these jobs' attempts of which a killed start has left something in a folder of output that was
/// not passed on.
pub(super) fn left<'a>(folder: &Path, jobs: impl Iterator<Item = (usize, &'a JobId)>) -> Vec<(usize, Ran)> {
    let mut fences: HashMap<String, u64> = HashMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| {
            let (of, _stream) = name.strip_suffix(WHOLE)?.strip_suffix('.')?.rsplit_once('.')?;
            let (job, fence) = of.rsplit_once('.')?;
            Some((job.to_owned(), fence.parse::<u64>().ok()?))
        });
        if let Some((job, fence)) = parts {
            fences.entry(job).and_modify(|last| *last = fence.max(*last)).or_insert(fence);
        }
    }
    if fences.is_empty() {
        return Vec::new();
    }
    let attempts = jobs.filter_map(|(index, id)| {
        let fence = *fences.get(&file_name(id.as_str()))?;
        Some((index, Ran { id: id.clone(), fence, attempt: 0 }))
    });
    attempts.collect()
}

/// Brings what a killed start has left in a folder of output into its last form, and returns the number of the files.
/// Those of `but` are left as they are.
pub(super) fn settle(folder: &Path, limit: u64, but: &HashSet<PathBuf>) -> usize {
    let mut settled = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.path();
        if file.extension().is_some_and(|end| end == WHOLE) && !but.contains(&file) {
            settle_file(&file, limit.max(2));
            settled += 1;
        }
    }
    settled
}

/// Makes what is kept of a whole file, and removes that. What cannot be kept, as on a full disk, is removed as well: it
/// is in nobody's way then.
fn settle_file(whole: &Path, limit: u64) {
    if let Err(error) = keep(whole, &whole.with_extension(""), limit) {
        tracing::warn!(file = %whole.display(), %error, "what a job wrote cannot be kept, and is removed");
    }
    if let Err(error) = remove(whole) {
        tracing::warn!(file = %whole.display(), %error, "what a job wrote cannot be removed");
    }
}

/// Makes what is kept of the file at `whole`, if it is there: at most `limit` bytes beside a line.
fn keep(whole: &Path, kept: &Path, limit: u64) -> io::Result<()> {
    let file = match File::open(whole) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let total = file.metadata()?.len();
    if total <= limit {
        return fs::rename(whole, kept);
    }
    let (head, tail) = halves(limit);
    let marker = left_out(total - limit);
    let to = File::create(kept)?;
    copy(&file, 0, &to, 0, head)?;
    to.write_all_at(marker.as_bytes(), head)?;
    copy(&file, total - tail, &to, head + marker.len() as u64, tail)
}

/// Copies so many bytes.
fn copy(from: &File, mut at: u64, to: &File, mut to_at: u64, mut left: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        from.read_exact_at(&mut chunk[..part], at)?;
        to.write_all_at(&chunk[..part], to_at)?;
        (at, to_at, left) = (at + part as u64, to_at + part as u64, left - part as u64);
    }
    Ok(())
}

fn with_end(kept: &Path) -> PathBuf {
    let mut name = kept.as_os_str().to_owned();
    name.push(".");
    name.push(WHOLE);
    name.into()
}

fn remove(file: &Path) -> io::Result<()> {
    fs::remove_file(file).or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

impl OutputSink for Outputs {
    fn begin(&self, job: &ClaimedJob) -> Arc<dyn AttemptSink> {
        let ran = Ran::of(job);
        let kept = |stream| {
            let file = self.file(&ran, stream);
            let limit = if self.whole { u64::MAX } else { self.limit };
            Mutex::new(Kept::new(if self.whole { with_end(&file) } else { file }, limit))
        };
        let (stdout, stderr) = (kept(Stream::Stdout), kept(Stream::Stderr));
        Arc::new(AttemptFiles { stdout, stderr, whole: self.whole, shared: self.shared.clone(), ran })
    }
}

/// The files of one attempt.
struct AttemptFiles {
    stdout: Mutex<Kept>,
    stderr: Mutex<Kept>,
    whole: bool,
    shared: Arc<Shared>,
    ran: Ran,
}

#[async_trait]
impl AttemptSink for AttemptFiles {
    async fn ready(&self) {
        if *self.shared.waiting.borrow() > MAX_WAITING {
            // The sender is here, so there is an answer.
            let _ = self.shared.waiting.subscribe().wait_for(|waiting| *waiting <= MAX_WAITING).await;
        }
    }

    fn write(&self, stream: Stream, bytes: &[u8]) {
        match stream {
            Stream::Stdout => self.stdout.lock().write(bytes),
            Stream::Stderr => self.stderr.lock().write(bytes),
        }
    }

    async fn end(&self) {
        let mut written = Written::default();
        for (stream, kept) in [(Stream::Stdout, &self.stdout), (Stream::Stderr, &self.stderr)] {
            let mut kept = kept.lock();
            kept.end();
            if self.whole {
                written.bytes += kept.total - kept.lost;
            }
            if let Some(error) = kept.error.take().filter(|_| kept.lost > 0) {
                let error = format!("{}: {error}", kept.path.display());
                written.losses.push(Loss { stream, bytes: kept.lost, error });
            }
        }
        if written.bytes > 0 || !written.losses.is_empty() {
            self.shared.waiting.send_modify(|waiting| *waiting += written.bytes);
            self.shared.ended.lock().insert(self.ran.clone(), written);
        }
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
    /// How many of them are missing in the file: those from the first failure on.
    lost: u64,
    error: Option<io::Error>,
}

impl Kept {
    fn new(path: PathBuf, limit: u64) -> Self {
        Self { path, limit, file: None, total: 0, lost: 0, error: None }
    }

    fn write(&mut self, chunk: &[u8]) {
        let end = self.total + chunk.len() as u64;
        if self.error.is_none()
            && let Err(error) = self.try_write(chunk)
        {
            self.error = Some(error);
        }
        if self.error.is_some() {
            self.lost += end - self.total;
            self.total = end;
        }
    }

    /// Writes as much as can be, all of which is counted.
    fn try_write(&mut self, mut chunk: &[u8]) -> io::Result<()> {
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
            let now = &chunk[..chunk.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
            match file.write_at(now, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.total += written as u64;
                    chunk = &chunk[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings the file into its last form, and closes it.
    fn end(&mut self) {
        let finished = if self.error.is_none() { self.finish() } else { Ok(()) };
        if let Err(error) = finished {
            tracing::warn!(file = %self.path.display(), %error, "what a job wrote cannot be kept");
        }
        self.file = None;
    }

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
            kept.write(chunk);
            assert_eq!(kept.lost, 0);
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
    fn of_what_was_passed_on_the_same_is_kept_and_what_a_kill_has_left_as_well() {
        let folder = tempfile::tempdir().expect("a directory");
        let whole = |name: &str| folder.path().join(format!("{name}.1.stdout.whole"));
        for (name, text) in [("short", "abcdefgh"), ("long", "abcdefghijklmnopqrstu")] {
            fs::write(whole(name), text).expect("written");
        }
        let outputs = Outputs::create(folder.path().to_owned(), 8, true, &[]).expect("created");
        let kept = |name: &str| fs::read_to_string(outputs.folder.join(format!("{name}.1.stdout"))).expect("kept");
        assert_eq!((kept("short").as_str(), kept("long").as_str()), ("abcdefgh", "abcd\n[13 bytes left out]\nrstu"));
        assert!(!whole("short").exists() && !whole("long").exists());
    }

    #[test]
    fn what_a_kill_has_left_and_cannot_be_kept_is_removed() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("long.1.stdout.whole"), "abcdefghijklmnopqrstu").expect("written");
        std::os::unix::fs::symlink("/dev/full", path("long.1.stdout")).expect("linked");
        Outputs::create(folder.path().to_owned(), 8, true, &[]).expect("created");
        assert!(!path("long.1.stdout.whole").exists());
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let full = File::options().write(true).open("/dev/full").expect("it is there");
        let mut kept = Kept::new("/dev/full".into(), u64::MAX);
        kept.file = Some(full);
        for _ in 0..3 {
            kept.write(b"1234567");
        }
        assert_eq!((kept.total, kept.lost), (21, 21));
        assert!(kept.error.is_some());
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
