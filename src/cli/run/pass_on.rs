//! Writes what a job has written to where it is shown, in bounded memory.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use crate::cli::output::clean;

/// How many bytes are read at a time.
const CHUNK: usize = 64 << 10;
/// How long a full pipe whose writers are not to wait in the system is left alone.
const PAUSE: Duration = Duration::from_millis(5);

/// Where output is shown. It is not buffered, so what was written is known.
#[derive(Debug)]
pub(super) struct Target {
    /// `None` where there is none.
    file: Option<File>,
    is_terminal: bool,
    name: &'static str,
}

/// What of a file could not be written, and why.
#[derive(Debug)]
pub(super) struct Unwritten {
    pub(super) bytes: u64,
    pub(super) error: io::Error,
}

impl Target {
    /// Creates the target that this process has as `name`.
    pub(super) fn new(fd: &(impl std::os::fd::AsFd + io::IsTerminal), name: &'static str) -> Self {
        let file = fd.as_fd().try_clone_to_owned().ok().map(File::from);
        Self { file, is_terminal: fd.is_terminal(), name }
    }

    /// Returns its name in messages.
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns whether this failure means that nobody reads any more: the pipe is closed, or the terminal is gone.
    pub(super) fn is_closed_after(&self, error: &io::Error) -> bool {
        let is_gone = self.is_terminal && error.raw_os_error() == Some(nix::errno::Errno::EIO as i32);
        error.kind() == io::ErrorKind::BrokenPipe || is_gone
    }

    /// Writes all bytes, or says how many were written before the failure.
    fn write(&self, mut bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        let Some(mut file) = self.file.as_ref() else { return Ok(()) };
        let all = bytes.len();
        while !bytes.is_empty() {
            match file.write(bytes) {
                Ok(0) => return Err((all - bytes.len(), io::ErrorKind::WriteZero.into())),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                Err(error) => return Err((all - bytes.len(), error)),
            }
        }
        Ok(())
    }

    /// Writes a text whole, or says how many of its bytes were not written.
    pub(super) fn text(&self, text: &[u8]) -> Result<(), Unwritten> {
        self.write(text).map_err(|(written, error)| Unwritten { bytes: (text.len() - written) as u64, error })
    }

    /// Writes a file of output, each line behind the tag. On a terminal what could control it is replaced, and the last
    /// line ends.
    pub(super) fn pass_on(&self, path: &Path, tag: Option<&str>) -> Result<(), Unwritten> {
        let mut file = File::open(path).map_err(|error| Unwritten { bytes: 0, error })?;
        let mut left = file.metadata().map_or(0, |metadata| metadata.len());
        let mut chunk = vec![0; CHUNK];
        let mut lines = Lines { tag, is_terminal: self.is_terminal, is_inside: false, held: Vec::new() };
        let is_plain = tag.is_none() && !self.is_terminal;
        loop {
            let read = match file.read(&mut chunk) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Unwritten { bytes: left, error }),
            };
            let written = match is_plain {
                true => self.write(&chunk[..read]),
                false => self.write(&lines.next(&chunk[..read])).map_err(|(_, error)| (0, error)),
            };
            written.map_err(|(written, error)| Unwritten { bytes: left - written as u64, error })?;
            left = left.saturating_sub(read as u64);
            if read == 0 {
                return Ok(());
            }
        }
    }
}

/// Output on its way, line by line.
struct Lines<'a> {
    tag: Option<&'a str>,
    is_terminal: bool,
    /// Whether a line has begun.
    is_inside: bool,
    /// The last bytes, which mean something only with those behind them.
    held: Vec<u8>,
}

impl Lines<'_> {
    /// Returns what is written for the next bytes; empty ones are the end.
    fn next(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        if self.is_terminal {
            if !bytes.is_empty() {
                self.held = all.split_off(all.len() - unfinished(&all));
            }
            all = clean(&String::from_utf8_lossy(&all).replace("\r\n", "\n")).into_bytes();
        }
        let mut out = Vec::with_capacity(all.len() + 64);
        for line in all.split_inclusive(|byte| *byte == b'\n') {
            if let Some(tag) = self.tag.filter(|_| !self.is_inside) {
                out.extend_from_slice(tag.as_bytes());
                out.push(b'\t');
            }
            out.extend_from_slice(line);
            self.is_inside = !line.ends_with(b"\n");
        }
        // The next tag begins a line.
        if bytes.is_empty() && self.is_inside {
            out.push(b'\n');
        }
        out
    }
}

/// Returns how many of the last bytes are the beginning of a character, or of a line's end, that is not there yet.
fn unfinished(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let needs = match bytes[bytes.len() - back] {
            0x80..=0xbf => continue,
            0xf0.. => 4,
            0xe0.. => 3,
            0xc0.. => 2,
            b'\r' if back == 1 => 2,
            _ => 1,
        };
        return if needs > back { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows the bytes in parts of every size, which must make no difference.
    fn shown(bytes: &[u8], tag: Option<&str>, is_terminal: bool) -> Vec<u8> {
        let shown = |size: usize| {
            let mut lines = Lines { tag, is_terminal, is_inside: false, held: Vec::new() };
            let mut out: Vec<u8> = bytes.chunks(size).flat_map(|part| lines.next(part)).collect();
            out.extend(lines.next(&[]));
            out
        };
        let whole = shown(bytes.len().max(1));
        for size in 1..=bytes.len() {
            assert_eq!(shown(size), whole, "in parts of {size}");
        }
        whole
    }

    #[test]
    fn a_terminal_gets_nothing_that_could_control_it() {
        let text = String::from_utf8(shown(b"a\x1b[2Jb\xff\r\nc", None, true)).expect("text");
        assert_eq!(text, "a\u{fffd}[2Jb\u{fffd}\nc\n");
        let text = "\u{20ac}\r\n\u{1f680}\r\u{e9}";
        assert_eq!(shown(text.as_bytes(), None, true), "\u{20ac}\n\u{1f680}\u{fffd}\u{e9}\n".as_bytes());
    }

    #[test]
    fn a_tag_begins_every_line() {
        assert_eq!(shown(b"a\n\nb", Some("t"), false), b"t\ta\nt\t\nt\tb\n");
        assert_eq!(shown(b"\xff\r\n", Some("t"), false), b"t\t\xff\r\n");
        assert_eq!(shown(b"", Some("t"), false), b"");
    }

    #[test]
    fn a_file_gets_every_byte_and_what_it_cannot_take_is_counted() {
        let from = tempfile::NamedTempFile::new().expect("a file");
        let bytes: Vec<u8> = (0..3 * CHUNK).map(|byte| byte as u8).collect();
        std::fs::write(from.path(), &bytes).expect("written");
        let to = tempfile::NamedTempFile::new().expect("a file");
        let target = |file: File| Target { file: Some(file), is_terminal: false, name: "a file" };
        let good = target(File::create(to.path()).expect("opened"));
        good.pass_on(from.path(), None).expect("passed on");
        assert_eq!(std::fs::read(to.path()).expect("read"), bytes);
        let full = target(File::options().write(true).open("/dev/full").expect("opened"));
        for tag in [None, Some("t")] {
            let unwritten = full.pass_on(from.path(), tag).expect_err("full");
            assert_eq!(unwritten.bytes, bytes.len() as u64);
            assert_eq!(unwritten.error.kind(), io::ErrorKind::StorageFull);
        }
    }
}
