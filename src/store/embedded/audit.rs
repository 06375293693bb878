//! The audit: a file a month in the data directory, `audit/2030-01.ndjson`, an entry a line.
//!
//! Lines are only ever added, and synced before they count. A line that a crash has cut short is ended and left; its
//! entry comes again. Entries that come again are there twice, under the same `event.id`, but for those added last:
//! a pass that has read a job before its deletion would otherwise write the job's entries after that of its deletion,
//! and the order of writing would not be that of the events.
//!
//! They are read (`files`) in the order of writing, the last one first, which a file has without being read as a whole
//! (`backwards`). In a group each member has copies of the files of the others (`copies`, `copied`), and lists what it
//! has of them (`listing`).

mod backwards;
mod copied;
mod copies;
mod files;
mod listing;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::directory::{create_durably, own_file, sync_directory};
use crate::clock::Timestamp;
use crate::store::StoreError;
use crate::store::audit::AuditEntry;
use crate::store::recent::RecentMap;
pub(super) use copied::CopiedAudit;
pub(super) use copies::{AuditFile, Writer};
pub(super) use files::AuditFiles;

/// The folder of the audit in a data directory.
const FOLDER: &str = "audit";
/// The number of entries added last that are not added again: those of a page of jobs with full histories, which a pass
/// holds between reading it and adding its entries.
const REMEMBERED: usize = 1 << 16;

/// The audit of a data directory.
#[derive(Debug)]
pub(super) struct Audit {
    folder: PathBuf,
    /// The ids of the entries added last.
    added: RecentMap<String, (), REMEMBERED>,
}

impl Audit {
    /// Creates the audit of a data directory. No file is created before the first entry.
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self { folder: directory.join(FOLDER), added: RecentMap::default() }
    }

    /// Adds entries, except those added a short time ago, and returns once they are synced. Only one caller may do so
    /// at a time.
    pub(super) fn append(&mut self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        let mut months: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for entry in entries.iter().filter(|entry| self.added.get(&entry.id).is_none()) {
            let lines = months.entry(month(entry.at)).or_default();
            lines.extend_from_slice(Value::Object(entry.document.clone()).to_string().as_bytes());
            lines.push(b'\n');
        }
        let add = |(month, lines): (&String, &Vec<u8>)| self.add(month, lines);
        months.iter().try_for_each(add).map_err(|error| {
            StoreError::Unavailable(format!("the audit in {} cannot be written: {error}", self.folder.display()))
        })?;
        for entry in entries {
            self.added.insert(entry.id.clone(), ());
        }
        Ok(())
    }

    fn add(&self, month: &str, lines: &[u8]) -> io::Result<()> {
        create_durably(&self.folder)?;
        let path = self.folder.join(format!("{month}.ndjson"));
        let is_new = !path.exists();
        let mut file = own_file().read(true).append(true).create(true).open(&path)?;
        if ends_within_a_line(&mut file)? {
            file.write_all(b"\n")?;
        }
        file.write_all(lines)?;
        file.sync_data()?;
        if is_new { sync_directory(&self.folder) } else { Ok(()) }
    }
}

fn ends_within_a_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// Returns the month of a time, in UTC: `2030-01`.
fn month(at: Timestamp) -> String {
    at.to_rfc3339().get(..7).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Map, json};

    use super::*;

    fn entry(id: &str, at: &str) -> AuditEntry {
        let document = Map::from_iter([("event".to_owned(), json!({ "id": id }))]);
        AuditEntry { id: id.to_owned(), at: Timestamp::parse_rfc3339(at).expect("a time"), document }
    }

    fn ids(path: &Path) -> Vec<Option<String>> {
        let text = fs::read_to_string(path).expect("the file");
        let id = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            line["event"]["id"].as_str().map(str::to_owned)
        };
        text.lines().map(id).collect()
    }

    #[test]
    fn each_month_has_a_file_that_grows() {
        let place = tempfile::tempdir().expect("a directory");
        let mut audit = Audit::in_directory(place.path());
        audit.append(&[entry("a/1", "2030-01-31T23:59:59Z"), entry("a/2", "2030-02-01T00:00:00Z")]).expect("added");
        audit.append(&[entry("b/1", "2030-01-02T00:00:00Z")]).expect("added");
        let some = |ids: &[&str]| ids.iter().map(|id| Some((*id).to_owned())).collect::<Vec<_>>();
        assert_eq!(ids(&place.path().join("audit/2030-01.ndjson")), some(&["a/1", "b/1"]));
        assert_eq!(ids(&place.path().join("audit/2030-02.ndjson")), some(&["a/2"]));
    }

    #[test]
    fn an_entry_that_comes_again_soon_is_not_written_after_those_that_followed_it() {
        let place = tempfile::tempdir().expect("a directory");
        let mut audit = Audit::in_directory(place.path());
        let [submitted, cancelled, deleted] = ["1/a", "2/a", "3/a"].map(|id| entry(id, "2030-01-31T00:00:00Z"));
        audit.append(&[submitted.clone(), cancelled.clone(), deleted]).expect("added");
        // The pass read the job before it was deleted.
        audit.append(&[submitted, cancelled, entry("1/b", "2030-01-31T00:00:00Z")]).expect("added");
        let expected = ["1/a", "2/a", "3/a", "1/b"].map(|id| Some(id.to_owned()));
        assert_eq!(ids(&place.path().join("audit/2030-01.ndjson")), expected);
        let cannot = Path::new("/dev/null");
        let mut audit = Audit::in_directory(cannot);
        audit.append(&[entry("1/a", "2030-01-31T00:00:00Z")]).expect_err("there is no folder");
        assert!(audit.added.iter().next().is_none(), "what was not added is added when it comes again");
    }

    #[test]
    fn what_a_crash_cut_short_does_not_spoil_what_follows() {
        let place = tempfile::tempdir().expect("a directory");
        let mut audit = Audit::in_directory(place.path());
        audit.append(&[entry("a/1", "2030-01-31T00:00:00Z")]).expect("added");
        let path = place.path().join("audit/2030-01.ndjson");
        let whole = fs::read(&path).expect("the file");
        fs::write(&path, [&whole[..], &whole[..7]].concat()).expect("cut");
        audit.append(&[entry("a/2", "2030-01-31T00:00:00Z")]).expect("added");
        assert_eq!(ids(&path), [Some("a/1".to_owned()), None, Some("a/2".to_owned())]);
    }
}
