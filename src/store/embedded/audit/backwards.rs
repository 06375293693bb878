//! The lines of a file from its end to its beginning, in blocks, with memory for one block and one line.

use std::io::{self, Read, Seek, SeekFrom};

/// How much is read at a time, in bytes.
const BLOCK: u64 = 64 << 10;
/// The longest line that is returned, in bytes. The audit writes none that is nearly as long.
const LONGEST: usize = 1 << 20;

/// Reads a file backwards.
pub(super) struct Backwards<F> {
    file: F,
    /// Where in the file `held` begins.
    begin: u64,
    /// What was read and is not returned yet: the end of the file without the lines that were returned.
    held: Vec<u8>,
    /// Whether the line that `held` ends with is too long, and what was read of it is dropped.
    is_dropping: bool,
    read: u64,
}

/// What one step back has met.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A line without its end, and where in the file it begins.
    Line(u64, Vec<u8>),
    /// A part of a line that is too long. Whoever goes on from its beginning later meets the rest of it.
    Part(u64),
    /// The beginning of the file.
    Beginning,
}

impl<F: Read + Seek> Backwards<F> {
    /// Begins before the byte `end` of a file.
    pub(super) fn new(file: F, end: u64) -> Self {
        Self { file, begin: end, held: Vec::new(), is_dropping: false, read: 0 }
    }

    /// Returns how many bytes were read.
    pub(super) const fn bytes_read(&self) -> u64 {
        self.read
    }

    /// Goes one step back.
    pub(super) fn step(&mut self) -> io::Result<Step> {
        // How many bytes at the end of `held` are known to be without the end of the line before.
        let mut looked_at = usize::from(self.held.last() == Some(&b'\n'));
        // Ends: every round goes a block further back.
        loop {
            let rest = self.held.len() - looked_at;
            if let Some(at) = self.held[..rest].iter().rposition(|byte| *byte == b'\n') {
                let line = self.held.split_off(at + 1);
                let start = self.begin + at as u64 + 1;
                if std::mem::take(&mut self.is_dropping) {
                    return Ok(Step::Part(start));
                }
                return Ok(Step::Line(start, without_end(line)));
            }
            looked_at = self.held.len();
            if self.begin == 0 {
                let line = std::mem::take(&mut self.held);
                let is_dropped = std::mem::take(&mut self.is_dropping);
                return Ok(if line.is_empty() || is_dropped {
                    Step::Beginning
                } else {
                    Step::Line(0, without_end(line))
                });
            }
            if self.held.len() > LONGEST {
                self.held.clear();
                self.is_dropping = true;
                return Ok(Step::Part(self.begin));
            }
            let is_first = self.held.is_empty() && !self.is_dropping;
            self.read_block()?;
            if is_first {
                looked_at = usize::from(self.held.last() == Some(&b'\n'));
            }
        }
    }

    /// Reads the block before what is held.
    fn read_block(&mut self) -> io::Result<()> {
        let length = BLOCK.min(self.begin);
        self.begin -= length;
        self.file.seek(SeekFrom::Start(self.begin))?;
        let mut block = Vec::with_capacity(usize::try_from(length).unwrap_or_default() + self.held.len());
        let read = self.file.by_ref().take(length).read_to_end(&mut block)?;
        if (read as u64) < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read += length;
        block.append(&mut self.held);
        self.held = block;
        Ok(())
    }
}

fn without_end(mut line: Vec<u8>) -> Vec<u8> {
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    line
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn lines(text: &[u8]) -> Vec<(u64, String)> {
        let mut file = Backwards::new(Cursor::new(text), text.len() as u64);
        let mut lines = Vec::new();
        loop {
            match file.step().expect("read") {
                Step::Line(start, line) => lines.push((start, String::from_utf8(line).expect("a text"))),
                Step::Part(_) => {}
                Step::Beginning => return lines,
            }
        }
    }

    #[test]
    fn lines_come_from_the_last_to_the_first_with_their_places() {
        let expected = |lines: &[(u64, &str)]| -> Vec<(u64, String)> {
            lines.iter().map(|(start, line)| (*start, (*line).to_owned())).collect()
        };
        assert_eq!(lines(b"one\ntwo\nthree\n"), expected(&[(8, "three"), (4, "two"), (0, "one")]));
        assert_eq!(lines(b"one\n\ntw"), expected(&[(5, "tw"), (4, ""), (0, "one")]), "one that is cut short");
        assert_eq!((lines(b""), lines(b"\n")), (Vec::new(), expected(&[(0, "")])));
    }

    #[test]
    fn every_place_of_a_line_is_one_to_go_on_from_however_the_blocks_fall() {
        let text: String = (0..5_000).map(|number| format!("{number:>width$}\n", width = 1 + number % 97)).collect();
        let all = lines(text.as_bytes());
        assert_eq!(all.len(), 5_000);
        assert!(all.iter().rev().enumerate().all(|(number, (_, line))| line.trim() == number.to_string()));
        for (place, (start, _)) in all.iter().enumerate().step_by(311) {
            let rest = lines(&text.as_bytes()[..usize::try_from(*start).expect("small")]);
            assert_eq!(rest, all[place + 1..], "from {start}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over_in_parts_and_those_around_it_are_not() {
        let text = format!("first\n{}\nlast\n", "x".repeat(3 * LONGEST));
        let mut file = Backwards::new(Cursor::new(text.as_bytes()), text.len() as u64);
        let (mut parts, mut found) = (Vec::new(), Vec::new());
        loop {
            assert!(file.held.len() <= LONGEST + 2 * usize::try_from(BLOCK).expect("small"), "{}", file.held.len());
            match file.step().expect("read") {
                Step::Line(_, line) => found.push(String::from_utf8(line).expect("a text")),
                Step::Part(start) => parts.push(start),
                Step::Beginning => break,
            }
        }
        assert_eq!(found, ["last", "first"]);
        assert!(parts.len() >= 3 && parts.is_sorted_by(|one, other| one > other), "{parts:?}");
        assert_eq!(file.bytes_read(), text.len() as u64);
    }
}
