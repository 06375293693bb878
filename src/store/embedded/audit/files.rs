//! Pages of the audit's files: the months from the newest back, each file from its end.
//!
//! The order is that of writing, the last entry first. It is that of time but for the pass's own: a pass copies the
//! jobs' entries job by job, so that entries of one pass can change places. A line that is cut short, or is no entry,
//! is passed over. A page ends when it is full, when so many bytes were read for it, or when its time is over, and the
//! next one goes on from there; so reading needs little memory, and ends soon, however large the files are.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::backwards::{Backwards, Step};
use super::{FOLDER, month};
use crate::clock::Timestamp;
use crate::store::StoreError;
use crate::store::audit::{AuditEntry, AuditPage, AuditPlace, AuditSearch, text};
use crate::store::embedded::budget::Budget;

/// How much is read for one page, in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// How many lines are read between two looks at the time.
const LINES_BETWEEN_CHECKS: usize = 256;

/// The files of an audit, to read.
pub(crate) struct AuditFiles {
    folder: PathBuf,
    member: Option<u64>,
}

impl AuditFiles {
    /// Returns the files in a data directory, which is that of this member where there are others.
    pub(crate) fn in_directory(directory: &Path, member: Option<u64>) -> Self {
        Self { folder: directory.join(FOLDER), member }
    }

    /// Reads the page that a search selects, within a time.
    pub(crate) fn read(&self, search: &AuditSearch, budget: &Budget) -> Result<AuditPage, StoreError> {
        let after = match &search.after {
            None => None,
            Some(AuditPlace::InFile { member, month, offset }) if *member == self.member.unwrap_or(0) => {
                Some((month.as_str(), *offset))
            }
            Some(_) => {
                let what = "the cursor is of another audit, such as that of a member that led before; begin anew";
                return Err(StoreError::Unsupported(what));
            }
        };
        self.page(search, after, budget, MAX_BYTES).map_err(|error| {
            StoreError::Unavailable(format!("the audit in {} cannot be read: {error}", self.folder.display()))
        })
    }

    fn page(
        &self,
        search: &AuditSearch,
        after: Option<(&str, u64)>,
        budget: &Budget,
        max_bytes: u64,
    ) -> io::Result<AuditPage> {
        let mut months = self.months()?;
        let is_there = !months.is_empty();
        let (first, last) = (search.from.map(month), search.to.map(month));
        months.retain(|month| {
            let is_from_then_on = first.as_ref().is_none_or(|first| first <= month);
            let is_until_then = last.as_ref().is_none_or(|last| month <= last);
            is_from_then_on && is_until_then && after.is_none_or(|(after, _)| month.as_str() <= after)
        });
        let mut page = Page::of(search, budget, max_bytes);
        let mut months = months.iter().rev().peekable();
        while let Some(month) = months.next() {
            let file = File::open(self.folder.join(format!("{month}.ndjson")))?;
            let length = file.metadata()?.len();
            let end = after.filter(|(after, _)| after == month).map_or(length, |(_, offset)| offset.min(length));
            let Some(offset) = page.take(Backwards::new(file, end))? else { continue };
            // At the beginning of the last file, there is nothing more.
            if offset > 0 || months.peek().is_some() {
                let member = self.member.unwrap_or(0);
                page.next = Some(AuditPlace::InFile { member, month: month.clone(), offset });
            }
            break;
        }
        Ok(AuditPage { entries: page.entries, next: page.next, is_there, member: self.member })
    }

    /// Returns the months that have a file, the oldest first.
    fn months(&self) -> io::Result<Vec<String>> {
        let files = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            files => files?,
        };
        let mut months = Vec::new();
        for file in files {
            let name = file?.file_name();
            months.extend(
                name.to_str().and_then(|name| name.strip_suffix(".ndjson")).filter(is_month).map(str::to_owned),
            );
        }
        months.sort_unstable();
        Ok(months)
    }
}

/// Returns whether a file of this name is one of the audit's.
fn is_month(name: &&str) -> bool {
    Timestamp::parse_rfc3339(&format!("{name}-01T00:00:00Z")).is_ok_and(|at| month(at) == **name)
}

/// A page that is being read.
struct Page<'a> {
    search: &'a AuditSearch,
    budget: &'a Budget,
    /// How many bytes may still be read.
    left: u64,
    /// What a line that is selected has in it, as it is written there: one of each row.
    signs: Vec<Vec<String>>,
    lines: usize,
    ids: HashSet<String>,
    entries: Vec<AuditEntry>,
    next: Option<AuditPlace>,
}

impl<'a> Page<'a> {
    fn of(search: &'a AuditSearch, budget: &'a Budget, max_bytes: u64) -> Self {
        let written = |value: &String| Value::from(value.as_str()).to_string();
        let signs = search.terms.iter().map(|(_, values)| values.iter().map(written).collect()).collect();
        let (lines, ids, entries) = (0, HashSet::new(), Vec::new());
        Self { search, budget, left: max_bytes, signs, lines, ids, entries, next: None }
    }

    /// Takes what is selected of a file. Returns the place in the file at which the page ends, if it does.
    fn take(&mut self, mut file: Backwards<File>) -> io::Result<Option<u64>> {
        // Ends: every step goes further back.
        loop {
            let offset = match file.step()? {
                Step::Beginning => break,
                Step::Part(offset) => offset,
                Step::Line(offset, line) => {
                    if let Some(entry) = self.selected(&line)
                        && self.ids.insert(entry.id.clone())
                    {
                        self.entries.push(entry);
                    }
                    offset
                }
            };
            self.lines += 1;
            let is_over = || self.lines.is_multiple_of(LINES_BETWEEN_CHECKS) && self.budget.check().is_err();
            if self.entries.len() >= self.search.limit || file.bytes_read() >= self.left || is_over() {
                return Ok(Some(offset));
            }
        }
        self.left = self.left.saturating_sub(file.bytes_read());
        Ok(None)
    }

    /// Reads a line if it is an entry that is selected.
    fn selected(&self, line: &[u8]) -> Option<AuditEntry> {
        let line = std::str::from_utf8(line).ok()?;
        // Most lines are found not to be selected without being read.
        if !self.signs.iter().all(|values| values.iter().any(|value| line.contains(value.as_str()))) {
            return None;
        }
        let document: Map<String, Value> = serde_json::from_str(line).ok()?;
        let (id, at) = (text(&document, "event.id")?.to_owned(), text(&document, "@timestamp")?);
        let at = Timestamp::parse_rfc3339(at).ok()?;
        self.search.selects(at, &document).then_some(AuditEntry { id, at, document })
    }
}

#[cfg(test)]
mod tests;
