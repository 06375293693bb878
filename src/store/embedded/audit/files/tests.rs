//! Pages of files that were written, cut short and filled.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::store::embedded::audit::Audit;
use crate::store::embedded::audit::copies::{self, add};

fn at(text: &str) -> Timestamp {
    Timestamp::parse_rfc3339(text).expect("a time")
}

fn entry(id: &str, time: &str, queue: &str) -> AuditEntry {
    let document = json!({ "@timestamp": time, "event": { "id": id }, "leasehold": { "job": { "queue": queue } } });
    let Value::Object(document) = document else { panic!("no object") };
    AuditEntry { id: id.to_owned(), at: at(time), document }
}

/// A directory with an audit of 30 entries, ten a month.
fn written() -> TempDir {
    let place = tempfile::tempdir().expect("a directory");
    let mut audit = Audit::in_directory(place.path());
    for number in 0..30 {
        let time = format!("2030-{:02}-{:02}T00:00:00.000Z", 1 + number / 10, 1 + number % 10);
        let queue = if number % 3 == 0 { "third" } else { "other \"queue\"" };
        audit.append(&[entry(&number.to_string(), &time, queue)]).expect("added");
    }
    place
}

fn budget() -> Budget {
    Budget::of(Duration::from_secs(3600))
}

fn read(place: &TempDir, search: &AuditSearch) -> AuditPage {
    AuditFiles::in_directory(place.path(), Writer(0)).read(search, &budget()).expect("a page")
}

/// The ids on all pages, and how many pages there are.
fn all(place: &TempDir, mut search: AuditSearch) -> (Vec<u32>, usize) {
    let (mut ids, mut pages) = (Vec::new(), 0);
    loop {
        let page = read(place, &search);
        pages += 1;
        ids.extend(page.entries.iter().map(|entry| entry.id.parse::<u32>().expect("a number")));
        search.after = page.next;
        if search.after.is_none() {
            return (ids, pages);
        }
    }
}

fn wanted(limit: usize) -> AuditSearch {
    AuditSearch { limit, ..AuditSearch::default() }
}

#[test]
fn pages_go_on_through_the_months_and_none_is_empty_where_nothing_is_chosen() {
    let place = written();
    let expected: Vec<u32> = (0..30).rev().collect();
    for limit in [1, 7, 10, 29, 30, 31] {
        assert_eq!(all(&place, wanted(limit)), (expected.clone(), 30_usize.div_ceil(limit)), "{limit} a page");
    }
}

#[test]
fn times_and_terms_choose() {
    let place = written();
    let terms = |value: &str| vec![("leasehold.job.queue", vec![value.to_owned()])];
    let third = AuditSearch { terms: terms("third"), ..wanted(4) };
    assert_eq!(all(&place, third).0, (0..30).rev().filter(|number| number % 3 == 0).collect::<Vec<_>>());
    let quoted = AuditSearch { terms: terms("other \"queue\""), ..wanted(100) };
    assert_eq!(all(&place, quoted).0.len(), 20);
    let (from, to) = (Some(at("2030-01-09T00:00:00Z")), Some(at("2030-02-03T00:00:00Z")));
    let between = AuditSearch { from, to, ..wanted(3) };
    assert_eq!(all(&place, between.clone()).0, [12, 11, 10, 9, 8], "both ends count");
    assert_eq!(all(&place, AuditSearch { terms: terms("third"), ..between }).0, [12, 9]);
    let elsewhere = AuditSearch { terms: vec![("event.id", vec!["third".to_owned()])], ..wanted(9) };
    assert!(all(&place, elsewhere).0.is_empty(), "a value in another field");
}

#[test]
fn what_is_cut_short_is_passed_over_and_what_comes_again_is_there_once() {
    let place = written();
    let path = place.path().join("audit/2030-03.ndjson");
    OpenOptions::new().append(true).open(&path).expect("opened").write_all(b"{\"@timest").expect("cut");
    assert_eq!(read(&place, &wanted(1)).entries[0].id, "29");
    let mut audit = Audit::in_directory(place.path());
    audit.append(&[entry("29", "2030-03-10T00:00:00.000Z", "third")]).expect("again");
    audit.append(&[entry("30", "2030-03-11T00:00:00.000Z", "third")]).expect("added");
    fs::write(place.path().join("audit/notes.ndjson"), "{}").expect("another file");
    assert_eq!(all(&place, wanted(100)).0, (0..=30).rev().collect::<Vec<_>>());
}

#[test]
fn a_page_ends_after_so_many_bytes_or_when_its_time_is_over_and_the_next_goes_on() {
    let place = tempfile::tempdir().expect("a directory");
    let entries: Vec<AuditEntry> =
        (0..4_000).map(|number| entry(&number.to_string(), "2030-01-01T00:00:00.000Z", "q")).collect();
    Audit::in_directory(place.path()).append(&entries).expect("added");
    let files = AuditFiles::in_directory(place.path(), Writer(0));
    let nothing = AuditSearch { terms: vec![("event.id", vec!["none".to_owned()])], ..wanted(10) };
    let page = files.page(&nothing, None, &budget(), 100_000).expect("a page");
    assert!(page.entries.is_empty() && page.is_there);
    let Some(AuditPlace::InFiles { left, .. }) = &page.next else { panic!("{page:?}") };
    let offset = left[&Writer(0).to_string()];
    let length = fs::metadata(place.path().join("audit/2030-01.ndjson")).expect("a file").len();
    assert!((1..200_000).contains(&(length - offset)), "{offset} of {length}");
    let over = Budget::of(Duration::ZERO);
    let page = files.page(&wanted(1_000), None, &over, MAX_BYTES).expect("a page");
    assert_eq!((page.entries.len(), page.next.is_some()), (LINES_BETWEEN_CHECKS, true));
}

#[test]
fn an_audit_that_was_never_written_is_not_there_and_the_place_of_another_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    assert_eq!(read(&place, &wanted(10)), AuditPage::default());
    let place = written();
    let files = AuditFiles::in_directory(place.path(), Writer(0));
    let after = Some(AuditPlace::InTime { at: 0, sequence: 1, id: "a".to_owned() });
    let search = AuditSearch { after, ..wanted(10) };
    assert!(matches!(files.read(&search, &budget()), Err(StoreError::Unsupported(_))));
    let left = BTreeMap::from([(Writer(0).to_string(), u64::MAX)]);
    let made_up = AuditPlace::InFiles { month: "../2030-01".to_owned(), left };
    let page = files.read(&AuditSearch { after: Some(made_up), ..wanted(10) }, &budget()).expect("a page");
    assert!(page.entries.is_empty() && page.next.is_none(), "{page:?}");
}

/// Copies the whole files of an audit that `writer` has written into another one.
fn copy(from: &TempDir, writer: Writer, to: &TempDir, own: Writer) {
    let (from, to) = (from.path().join(FOLDER), to.path().join(FOLDER));
    let own_files = files(&from, writer).expect("files").into_iter().filter(|(file, _)| file.writer == writer);
    for (file, length) in own_files {
        let bytes = copies::read(&file.path(&from, writer), 0, length).expect("read");
        assert_eq!(add(&to, own, &file, 0, &bytes).expect("added"), length);
    }
}

#[test]
fn what_several_members_have_written_is_one_audit_at_each_of_them() {
    let [first, second] = [Writer(0x11), Writer(0xff00_0000_0000_0022)];
    let places = [first, second].map(|_| tempfile::tempdir().expect("a directory"));
    // Each leads for a while, in turn.
    let entries: Vec<AuditEntry> = (0..60)
        .map(|number| {
            let time = format!("2030-{:02}-{:02}T00:00:00.000Z", 1 + number / 20, 1 + number % 20);
            entry(&number.to_string(), &time, if number % 3 == 0 { "third" } else { "other" })
        })
        .collect();
    let mut audits = places.each_ref().map(|place| Audit::in_directory(place.path()));
    for (number, entry) in entries.iter().enumerate() {
        audits[number / 7 % 2].append(std::slice::from_ref(entry)).expect("added");
    }
    copy(&places[0], first, &places[1], second);
    copy(&places[1], second, &places[0], first);
    let all_files =
        [(&places[0], first), (&places[1], second)].map(|(place, own)| AuditFiles::in_directory(place.path(), own));
    for limit in [1, 7, 19, 60] {
        for queue in [None, Some("third")] {
            let terms = queue.map(|queue| ("leasehold.job.queue", vec![queue.to_owned()])).into_iter().collect();
            let (mut search, mut ids) = (AuditSearch { terms, ..wanted(limit) }, Vec::new());
            // What one member has begun, the other one goes on with.
            for files in all_files.iter().cycle() {
                let page = files.read(&search, &budget()).expect("a page");
                ids.extend(page.entries.into_iter().map(|entry| entry.id.parse::<usize>().expect("a number")));
                search.after = page.next;
                if search.after.is_none() {
                    break;
                }
            }
            let is_wanted = |number: &usize| queue.is_none() || number.is_multiple_of(3);
            assert_eq!(ids, (0..60).rev().filter(is_wanted).collect::<Vec<_>>(), "{limit} a page, {queue:?}");
        }
    }
}

#[test]
fn a_copy_goes_on_where_it_ends_and_takes_nothing_that_is_none() {
    let place = tempfile::tempdir().expect("a directory");
    let folder = place.path().join(FOLDER);
    let file = AuditFile { month: "2030-01".to_owned(), writer: Writer(7) };
    let own = Writer(1);
    assert_eq!(add(&folder, own, &file, 5, b"late").expect("nothing"), 0);
    assert_eq!(add(&folder, own, &file, 0, b"line\nli").expect("added"), 7);
    assert_eq!(add(&folder, own, &file, 0, b"line\n").expect("again"), 7);
    assert_eq!(add(&folder, own, &file, 7, b"ne\n").expect("added"), 10);
    assert_eq!(fs::read(file.path(&folder, own)).expect("the copy"), b"line\nline\n");
    assert_eq!(files(&folder, own).expect("files"), BTreeMap::from([(file.clone(), 10)]));
    for wrong in [AuditFile { writer: own, ..file.clone() }, AuditFile { month: "../../2030-01".to_owned(), ..file }] {
        add(&folder, own, &wrong, 0, b"x").expect_err("no copy");
    }
}
