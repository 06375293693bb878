//! Pages of the audit's files: the months from the newest back, the files of each from their ends.
//!
//! Of a file the order is that of writing, the last entry first. It is that of time but for the pass's own: a pass
//! copies the jobs' entries job by job, so that entries of one pass can change places. Where several members have
//! written in a month, the latest of the entries that are next in their files comes first. A line that is cut short,
//! or is no entry, is passed over. A page ends when it is full, when so many bytes were read for it, or when its time
//! is over, and the next one goes on from there; so reading needs little memory, and ends soon, however large the
//! files are.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::backwards::{Backwards, Step};
use super::copies::{AuditFile, Writer, files};
use super::{FOLDER, month};
use crate::clock::Timestamp;
use crate::store::StoreError;
use crate::store::audit::{AuditEntry, AuditPage, AuditPlace, AuditSearch, of_another_store, text};
use crate::store::embedded::budget::Budget;

/// How much is read for one page, in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// How many lines are read between two looks at the time.
const LINES_BETWEEN_CHECKS: usize = 256;

/// The files of an audit, to read.
pub(crate) struct AuditFiles {
    folder: PathBuf,
    own: Writer,
}

impl AuditFiles {
    /// Returns the files in a data directory, of which those that were not copied from others are `own`.
    pub(crate) fn in_directory(directory: &Path, own: Writer) -> Self {
        Self { folder: directory.join(FOLDER), own }
    }

    /// Reads the page that a search selects, within a time.
    pub(crate) fn read(&self, search: &AuditSearch, budget: &Budget) -> Result<AuditPage, StoreError> {
        let after = match &search.after {
            None => None,
            Some(AuditPlace::InFiles { month, left }) => Some((month.as_str(), left)),
            Some(AuditPlace::InTime { .. }) => return Err(of_another_store()),
        };
        self.page(search, after, budget, MAX_BYTES).map_err(|error| {
            StoreError::Unavailable(format!("the audit in {} cannot be read: {error}", self.folder.display()))
        })
    }

    fn page(
        &self,
        search: &AuditSearch,
        after: Option<(&str, &BTreeMap<String, u64>)>,
        budget: &Budget,
        max_bytes: u64,
    ) -> io::Result<AuditPage> {
        let mut months: BTreeMap<String, Vec<AuditFile>> = BTreeMap::new();
        for file in files(&self.folder, self.own)?.into_keys() {
            months.entry(file.month.clone()).or_default().push(file);
        }
        let is_there = !months.is_empty();
        let (first, last) = (search.from.map(month), search.to.map(month));
        months.retain(|month, _| {
            let is_from_then_on = first.as_ref().is_none_or(|first| first <= month);
            let is_until_then = last.as_ref().is_none_or(|last| month <= last);
            is_from_then_on && is_until_then && after.is_none_or(|(after, _)| month.as_str() <= after)
        });
        let mut page = Page::of(search, budget, max_bytes);
        let mut months = months.into_iter().rev().peekable();
        while let Some((month, files)) = months.next() {
            let left = after.filter(|(after, _)| *after == month).map(|(_, left)| left);
            let open = |file: AuditFile| Reader::open(&file.path(&self.folder, self.own), file.writer, left);
            let readers = files.into_iter().map(open).collect::<io::Result<Vec<_>>>()?;
            let Some(left) = page.take(readers)? else { continue };
            // At the beginning of the last files, there is nothing more.
            if left.values().any(|left| *left > 0) || months.peek().is_some() {
                page.next = Some(AuditPlace::InFiles { month, left });
            }
            break;
        }
        Ok(AuditPage { entries: page.entries, next: page.next, is_there })
    }
}

/// A file that is read from its end.
struct Reader {
    writer: String,
    file: Backwards<File>,
    /// How many bytes of it are left once the next entry is taken, and once what was passed over before it is.
    next: Option<(u64, AuditEntry)>,
    left: u64,
}

impl Reader {
    fn open(path: &Path, writer: Writer, left: Option<&BTreeMap<String, u64>>) -> io::Result<Self> {
        let (file, writer) = (File::open(path)?, writer.to_string());
        let length = file.metadata()?.len();
        let left = left.and_then(|left| left.get(&writer)).map_or(length, |left| length.min(*left));
        Ok(Self { writer, file: Backwards::new(file, left), next: None, left })
    }
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

    /// Takes what is selected of the files of a month. Returns how many bytes are left of each when the page ends
    /// within them.
    fn take(&mut self, mut readers: Vec<Reader>) -> io::Result<Option<BTreeMap<String, u64>>> {
        let mut is_over = false;
        // Ends: every round goes further back in a file.
        while !is_over {
            for reader in readers.iter_mut().filter(|reader| reader.next.is_none() && reader.left > 0) {
                is_over = is_over || self.look_for_next(reader)?;
            }
            // Where too much was read, a later one may be among what was not.
            if readers.iter().any(|reader| reader.next.is_none() && reader.left > 0) {
                break;
            }
            let latest = readers.iter_mut().filter(|reader| reader.next.is_some());
            let latest = latest.max_by_key(|reader| reader.next.as_ref().map(|(_, entry)| entry.at));
            match latest.and_then(|reader| Some((reader.next.take()?, &mut reader.left))) {
                None => break,
                Some(((offset, entry), left)) => {
                    *left = offset;
                    if self.ids.insert(entry.id.clone()) {
                        self.entries.push(entry);
                    }
                    is_over |= self.entries.len() >= self.search.limit;
                }
            }
        }
        let read: u64 = readers.iter().map(|reader| reader.file.bytes_read()).sum();
        self.left = self.left.saturating_sub(read);
        let left = readers.into_iter().map(|reader| (reader.writer, reader.left)).collect();
        Ok(is_over.then_some(left))
    }

    /// Goes back in a file to the next entry that is selected. Returns whether enough was read.
    fn look_for_next(&mut self, reader: &mut Reader) -> io::Result<bool> {
        // Ends: every step goes further back.
        while reader.next.is_none() && reader.left > 0 {
            match reader.file.step()? {
                Step::Beginning => reader.left = 0,
                Step::Part(offset) => reader.left = offset,
                Step::Line(offset, line) => match self.selected(&line) {
                    Some(entry) => reader.next = Some((offset, entry)),
                    None => reader.left = offset,
                },
            }
            self.lines += 1;
            let is_over = self.lines.is_multiple_of(LINES_BETWEEN_CHECKS) && self.budget.check().is_err();
            if is_over || reader.file.bytes_read() >= self.left {
                return Ok(true);
            }
        }
        Ok(false)
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
