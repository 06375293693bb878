//! Recorded files: what the program sends, prints and stores is compared with them byte by byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The variable that has the files written instead, if it is `record`.
const VARIABLE: &str = "LEASEHOLD_GOLDEN";
/// How many lines of a kind a difference shows at most.
const SHOWN: usize = 12;

/// Texts by the names of their files.
pub(crate) type Files = BTreeMap<String, String>;

/// Compares the files of `tests/golden/<folder>` with these, which are to be all of them.
pub(crate) fn check(folder: &str, actual: &Files) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    if std::env::var(VARIABLE).is_ok_and(|value| value == "record") {
        return record(&path, actual);
    }
    let recorded = read(&path);
    let names: BTreeSet<&String> = recorded.keys().chain(actual.keys()).collect();
    let difference = |name: &&String| match (recorded.get(*name), actual.get(*name)) {
        (Some(recorded), Some(actual)) => (recorded != actual).then(|| difference(recorded, actual)),
        (None, _) => Some("is not recorded".to_owned()),
        (_, None) => Some("is recorded, and there is nothing of that name any more".to_owned()),
    };
    let differences = names.iter().filter_map(|name| Some((name, difference(name)?)));
    let differences: Vec<_> =
        differences.map(|(name, difference)| format!("tests/golden/{folder}/{name}: {difference}")).collect();
    assert!(
        differences.is_empty(),
        "\n{}\n\nIf that is meant, `{VARIABLE}=record` before the command of this test writes the files anew.\n",
        differences.join("\n")
    );
}

fn record(folder: &Path, files: &Files) {
    fs::create_dir_all(folder).expect("a folder");
    for name in read(folder).keys().filter(|name| !files.contains_key(*name)) {
        fs::remove_file(folder.join(name)).expect("a file is removed");
    }
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("a file is written");
    }
}

fn read(folder: &Path) -> Files {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Files::new(),
        entries => entries.expect("a folder of recorded files"),
    };
    let files = entries.map(|entry| entry.expect("an entry")).filter(|entry| entry.path().is_file());
    let read = |path: &Path| fs::read_to_string(path).expect("a recorded file");
    files.map(|entry| (entry.file_name().to_string_lossy().into_owned(), read(&entry.path()))).collect()
}

/// The lines of one text that are not in the other, between the first and the last that differ.
fn difference(recorded: &str, actual: &str) -> String {
    let (recorded, actual): (Vec<&str>, Vec<&str>) = (recorded.split('\n').collect(), actual.split('\n').collect());
    let same = recorded.iter().zip(&actual).take_while(|(one, other)| one == other).count();
    let behind = recorded[same..].iter().rev().zip(actual[same..].iter().rev());
    let behind = behind.take_while(|(one, other)| one == other).count();
    let part = |sign: &str, lines: &[&str]| -> Vec<String> {
        let lines = &lines[same..lines.len() - behind];
        let more = lines.len().checked_sub(SHOWN + 1).map(|more| format!("{sign} … and {} lines more", more + 1));
        lines.iter().take(SHOWN).map(|line| format!("{sign} {line}")).chain(more).collect()
    };
    let before = recorded[..same].last().map(|line| format!("  {line}"));
    let lines = before.into_iter().chain(part("-", &recorded)).chain(part("+", &actual));
    format!("line {}\n{}", same + 1, lines.collect::<Vec<_>>().join("\n"))
}
