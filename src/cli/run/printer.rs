//! Shows what jobs have written, each job's whole, and copies it for `--results`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::capture::{Outputs, file_name};
use super::options::Shown;
use super::screen::Screen;
use super::source::Planned;
use crate::cli::output::{clean, shorten};
use crate::worker::ClaimedJob;
use crate::worker::output::Stream;

/// How many characters of a job's arguments stand before each line.
const TAG_CHARACTERS: usize = 100;

/// Shows the output of jobs.
pub(super) struct Printer {
    outputs: Arc<Outputs>,
    shown: Shown,
    tag: bool,
    results: Option<PathBuf>,
    order: Option<Order>,
}

/// The order in which output is shown, by the places of the jobs in the list.
struct Order {
    /// The jobs whose output was not shown yet.
    left: BTreeSet<usize>,
    /// The jobs among them that have ended, with what is to be shown.
    ended: BTreeMap<usize, Option<Output>>,
}

/// The output of a job.
struct Output {
    tag: String,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Printer {
    /// Creates a printer. With `order` the output of these jobs is shown in their order.
    pub(super) fn new(
        outputs: Arc<Outputs>,
        shown: Shown,
        tag: bool,
        results: Option<PathBuf>,
        order: Option<BTreeSet<usize>>,
    ) -> Self {
        let order = order.map(|left| Order { left, ended: BTreeMap::new() });
        Self { outputs, shown, tag, results, order }
    }

    /// Returns the files that a job has written to.
    pub(super) fn written(&self, job: &ClaimedJob) -> Vec<(Stream, PathBuf)> {
        let streams = [Stream::Stdout, Stream::Stderr].into_iter();
        streams.filter_map(|stream| Some((stream, self.outputs.written(job, stream)?))).collect()
    }

    /// Shows and copies the output of a job that has ended; `ran` is its last attempt, if it had one.
    pub(super) fn ended(&mut self, screen: &Screen, index: usize, job: &Planned, ran: Option<&ClaimedJob>, well: bool) {
        if let (Some(results), Some(ran)) = (&self.results, ran)
            && let Err(error) = self.copy(results, job, ran)
        {
            screen.line(&format!("cannot write the results of #{}: {error}", job.number));
        }
        let is_shown = match self.shown {
            Shown::None => false,
            Shown::Failed => !well,
            Shown::All => true,
        };
        let output = ran.filter(|_| is_shown).map(|ran| Output {
            tag: job.tag(),
            stdout: self.outputs.file(ran, Stream::Stdout),
            stderr: self.outputs.file(ran, Stream::Stderr),
        });
        let Some(order) = &mut self.order else { return self.show(screen, output.as_ref()) };
        order.ended.insert(index, output);
        let mut next = Vec::new();
        while let Some(first) = order.left.first().copied() {
            let Some(output) = order.ended.remove(&first) else { break };
            order.left.remove(&first);
            next.extend(output);
        }
        for output in &next {
            self.show(screen, Some(output));
        }
    }

    /// Shows the output that waits for jobs before it, which have not ended.
    pub(super) fn rest(&mut self, screen: &Screen) {
        let rest = self.order.as_mut().map(|order| std::mem::take(&mut order.ended)).unwrap_or_default();
        for output in rest.values() {
            self.show(screen, output.as_ref());
        }
    }

    fn show(&self, screen: &Screen, output: Option<&Output>) {
        let Some(output) = output else { return };
        let tag = if self.tag { Some(output.tag.as_str()) } else { None };
        let is_there = output.stdout.exists() || output.stderr.exists();
        if is_there {
            screen.write(|out, errors| {
                show(out, &output.stdout, tag, io::stdout().is_terminal())?;
                show(errors, &output.stderr, tag, io::stderr().is_terminal())
            });
        }
    }

    fn copy(&self, results: &Path, job: &Planned, ran: &ClaimedJob) -> io::Result<()> {
        let mut folder = results.to_owned();
        for (index, argument) in job.arguments_or_label().enumerate() {
            folder = folder.join((index + 1).to_string()).join(file_name(argument));
        }
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("seq"), job.number.to_string())?;
        for stream in [Stream::Stdout, Stream::Stderr] {
            let copy = folder.join(stream.as_str());
            match self.outputs.written(ran, stream) {
                Some(file) => drop(fs::copy(file, copy)?),
                None => fs::write(copy, "")?,
            }
        }
        Ok(())
    }
}

impl Planned {
    /// Returns what `--tag` puts before each line of the job's output.
    fn tag(&self) -> String {
        shorten(&self.arguments_or_label().collect::<Vec<_>>().join(" "), TAG_CHARACTERS)
    }

    fn arguments_or_label(&self) -> impl Iterator<Item = &str> {
        let label = Some(self.label.as_str()).filter(|_| self.arguments.is_empty());
        self.arguments.iter().map(AsRef::as_ref).chain(label)
    }
}

/// Writes a file of output, if it is there. On a terminal what could control it is replaced, and the last line ends.
fn show(to: &mut dyn Write, file: &Path, tag: Option<&str>, is_terminal: bool) -> io::Result<()> {
    let mut file = match File::open(file) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if tag.is_none() && !is_terminal {
        return io::copy(&mut file, to).map(drop);
    }
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
        if let Some(tag) = tag {
            write!(to, "{tag}\t")?;
        }
        if is_terminal {
            let text = String::from_utf8_lossy(&line).replace("\r\n", "\n");
            to.write_all(clean(text.strip_suffix('\n').unwrap_or(&text)).as_bytes())?;
            to.write_all(b"\n")?;
        } else {
            to.write_all(&line)?;
            // The next tag begins a line.
            if !line.ends_with(b"\n") {
                to.write_all(b"\n")?;
            }
        }
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8], tag: Option<&str>, is_terminal: bool) -> Vec<u8> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), bytes).expect("written");
        let mut out = Vec::new();
        show(&mut out, file.path(), tag, is_terminal).expect("shown");
        out
    }

    #[test]
    fn a_file_gets_every_byte_and_a_terminal_none_that_could_control_it() {
        assert_eq!(shown(b"a\x1b[2Jb\xff\r\nc", None, false), b"a\x1b[2Jb\xff\r\nc");
        let text = String::from_utf8(shown(b"a\x1b[2Jb\xff\r\nc", None, true)).expect("text");
        assert_eq!(text, "a\u{fffd}[2Jb\u{fffd}\nc\n");
    }

    #[test]
    fn a_tag_begins_every_line() {
        assert_eq!(shown(b"a\n\nb", Some("t"), false), b"t\ta\nt\t\nt\tb\n");
        assert_eq!(shown(b"", Some("t"), false), b"");
    }
}
