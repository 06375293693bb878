//! What lies on disk and goes between members, compared with recorded files.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU64;
use std::path::Path;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use raft::eraftpb::{Entry, Message, MessageType};
use serde_bytes::ByteBuf;
use serde_json::{Map, json};

use super::arbitrary;
use super::audit::{Audit, AuditFile, Writer};
use super::block::NewBlock;
use super::directory::Directory;
use super::disk::{MetaKey, SumKey};
use super::entry::Note;
use super::equality::compared::{SaidSum, SumAt};
use super::equality::rebuilds::{Differs, Rebuild, Rebuilds};
use super::equality::sum::Sum;
use super::kept::Last;
use super::log::{Format, Log, Options};
use super::opened::{Acknowledged, Known, Numbers, OpeningsFile};
use super::seal::{JournalSeal, KeyspaceSeal, LogSeal, Received, Seal, SealedGroup, Vote};
use super::words::{
    Ask, AttemptWord, AuditWord, Cursor, Directories, Hello, Offer, Opened, OutputWord, Piece, Said, WentBack, Word,
};
use super::{entry, message, output, records, schedules, stored, versions, words};
use crate::clock::Timestamp;
use crate::golden::{Files, check, hex_of};
use crate::job::{Fence, JobId, JobState, QueueName};
use crate::store::audit::AuditEntry;
use crate::store::output::{CellKey, OutputCell, OutputOf, Stream};
use crate::store::{Identity, Membership, Seat, Versioned};

/// The identity of a group.
const IDENTITY: Identity = Identity(NonZeroU64::new(10).expect("not 0"));

/// How many arbitrary documents of a kind are recorded.
const SAMPLES: usize = 8;

/// The same arbitrary values each time.
pub(super) fn samples<T: std::fmt::Debug>(strategy: &impl Strategy<Value = T>) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    (0..SAMPLES).map(|_| strategy.new_tree(&mut runner).expect("a value").current()).collect()
}

fn numbered(parts: impl IntoIterator<Item = Vec<u8>>) -> String {
    hex_of(parts.into_iter().enumerate().map(|(number, bytes)| (number.to_string(), bytes)))
}

/// The files of a folder and of those in it, without the zeros for which room is kept behind their ends.
fn content(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let files = files.filter(|path| path.is_file()).map(|path| {
        let mut bytes = fs::read(&path).expect("a file");
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        (path.file_name().expect("a name").to_string_lossy().into_owned(), bytes)
    });
    files.collect()
}

#[test]
fn documents_lie_on_disk_as_recorded() {
    let encode = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut buffer = Vec::new();
        write(&mut buffer);
        buffer
    };
    let jobs = samples(&arbitrary::head());
    let jobs = jobs.iter().map(|job| encode(&|buffer| stored::encode(job, buffer).expect("writable")));
    let all = samples(&arbitrary::record());
    let records = all.iter().map(|record| encode(&|buffer| records::encode(record, buffer).expect("writable")));
    let record_keys = all.iter().map(|record| records::key(&record.key));
    let all = samples(&arbitrary::schedule());
    let schedules = all.iter().map(|one| encode(&|buffer| schedules::encode(one, buffer).expect("writable")));
    let schedule_keys = all.iter().flat_map(|stored| schedules::keys(&stored.schedule)).map(Option::unwrap_or_default);
    let queue = QueueName::new("reports").expect("a name");
    let meta = [MetaKey::PrimaryTerm, MetaKey::SeqNo, MetaKey::Entry, MetaKey::Time, MetaKey::Members];
    let meta = meta.into_iter().chain(JobState::ALL.iter().map(|state| MetaKey::Finished(*state, &queue)));
    let meta = meta.chain([SumKey::Entry, SumKey::High, SumKey::Low].map(MetaKey::Sum));
    let files = [
        ("jobs", numbered(jobs)),
        ("records", numbered(records)),
        ("record-keys", numbered(record_keys)),
        ("schedules", numbered(schedules)),
        ("schedule-keys", numbered(schedule_keys)),
        ("meta-keys", numbered(meta.map(|key| key.bytes()))),
    ];
    check("embedded/documents", &files.map(|(name, text)| (format!("{name}.txt"), text)).into());
}

#[test]
fn a_block_of_finished_jobs_lies_on_disk_as_recorded() {
    let is_finished = |head: &Versioned| head.job.is_settled();
    let heads = samples(&arbitrary::head().prop_filter("a finished job", is_finished));
    let NewBlock { block, columns } = NewBlock::of(7, &heads);
    let left = block.without([1, 5], &[]);
    let left = [("Head without two".to_owned(), left.encode()), ("Dead".to_owned(), left.left.expect("bits").to_vec())];
    let columns = columns.into_iter().map(|(column, bytes)| (format!("{column:?} {}", column as u8), bytes));
    check("embedded/block", &Files::from([("block.txt".to_owned(), hex_of(columns.chain(left)))]));
}

#[test]
fn the_log_lies_on_disk_as_recorded() {
    let files = [("segments.txt", Format::Single), ("segments-batched.txt", Format::Batched)].map(|(name, format)| {
        let place = tempfile::tempdir().expect("a folder");
        let mut log = Log::create(place.path(), 1, Options { segment_bytes: 100, format }).expect("a log");
        for payload in ["first", "the second frame, which fills the segment", "third"] {
            log.write(payload.as_bytes()).expect("a frame is written");
        }
        log.close().expect("it closes");
        (name.to_owned(), hex_of(content(place.path())))
    });
    check("embedded/log", &Files::from(files));
}

#[test]
fn the_files_of_a_directory_are_as_recorded() {
    let place = tempfile::tempdir().expect("a folder");
    let directory = Directory::hold(place.path(), 0).expect("it is held");
    directory.database(|_| Ok(())).expect("a database");
    let keyspace = KeyspaceSeal { name: "jobs".to_owned(), manifest: 2, persisted: Some(3), highest: Some(4) };
    let journal = JournalSeal { length: 5, checksum: 6, keyspaces: BTreeMap::from([(1, 7)]) };
    let group = SealedGroup {
        cluster: "jobs".to_owned(),
        member: 2,
        directory: 8,
        is_admitted: true,
        founders: vec![1, 2, 3],
        known: BTreeMap::from([(1, 9)]),
        ..SealedGroup::default()
    };
    let founder = SealedGroup { identity: Some(IDENTITY), awaits_founders: true, ..group.clone() };
    let own = Seal {
        seq_no: 10,
        flushed: 11,
        log: LogSeal { last: 12, segment: 13, is_closed: true },
        vote: Vote { term: 14, member: 15 },
        keyspaces: BTreeMap::from([(1, keyspace)]),
        journals: BTreeMap::from([(16, journal)]),
        active: Some(17),
        ..Seal::creating()
    };
    let of_group = |group| Seal { group: Some(group), ..own.clone().opened() };
    let (of_group, of_founder) = (of_group(group), of_group(founder));
    let seals = [("seal", own), ("seal-of-group", of_group), ("seal-of-founder", of_founder)].map(|(name, seal)| {
        let (path, bytes) = (place.path().join("of-another-place"), seal.encode().expect("a seal"));
        fs::write(&path, &bytes).expect("it is written");
        assert_eq!(Seal::read_file(&path).expect("it is read"), seal);
        fs::remove_file(path).expect("it is removed");
        (name, bytes)
    });
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let mut files: Files = seals.map(|(name, bytes)| (format!("{name}.txt"), text(bytes))).into();
    let written = content(place.path()).into_iter().filter(|(name, _)| name != "leasehold.lock");
    files.extend(written.map(|(name, bytes)| (name, text(bytes))));
    check("embedded/directory", &files);
}

#[test]
fn what_a_member_is_rebuilt_with_lies_on_disk_as_recorded() {
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("seal");
    let seal = Seal { seq_no: 10, flushed: 10, ..Seal::creating() };
    let [lagged, rebuilt] = [false, true].map(|keeps_log| {
        let received = Received { seal: seal.clone(), keeps_log };
        let bytes = received.encode().expect("a seal");
        fs::write(&path, &bytes).expect("it is written");
        assert_eq!(Received::read_file(&path).expect("it is read"), received);
        assert_eq!(Seal::read_file(&path).is_err(), keeps_log, "an earlier version forgets the log");
        String::from_utf8(bytes).expect("text")
    });
    assert_eq!(lagged.into_bytes(), seal.encode().expect("a seal"), "as all versions read it");
    let differs =
        Differs { keyspace: "live".to_owned(), key: "job-7".to_owned(), own: "04".to_owned(), other: "05".to_owned() };
    let rebuild = Rebuild {
        at: Timestamp::from_millis(1_900_000_000_000),
        compared: 390,
        sums: BTreeMap::from([(1, "0a".to_owned())]),
        from: 1,
        last: Last { number: 400, term: 2 },
        documents: vec![differs],
    };
    let rebuilds = Rebuilds(vec![rebuild]).encode().expect("writable");
    let rebuilds = String::from_utf8(rebuilds).expect("text");
    let files = [("incoming.txt", rebuilt), ("rebuilds.txt", rebuilds)];
    check("embedded/rebuilt", &files.map(|(name, text)| (name.to_owned(), text)).into());
}

#[test]
fn the_openings_of_directories_lie_on_disk_as_recorded() {
    let openings = Numbers { count: 9, last: vec![6, 700] };
    let known = Known { directory: 9, openings, acknowledged: Some(Last { number: 400, term: 2 }) };
    let mut file = OpeningsFile::default();
    (file.others, file.went_back) = (BTreeMap::from([(1, known)]), true);
    file.open(70);
    let bytes = String::from_utf8(file.encode().expect("writable")).expect("text");
    check("embedded/openings", &Files::from([("openings.txt".to_owned(), bytes)]));
}

#[test]
fn the_output_and_the_audit_lie_on_disk_as_recorded() {
    let of = OutputOf { job: JobId::new("job-7").expect("an id"), fence: Fence::new(3) };
    let (created_at, cell) = (Timestamp::from_millis(1_900_000_000_000), b"some output\n".to_vec());
    let cell = OutputCell::whole(300, cell, true);
    let torn = OutputCell::whole(200, b"more".to_vec(), false).united(cell.clone());
    let keys = Stream::ALL.map(|stream| output::key_of(&CellKey { of: of.clone(), created_at, stream, slot: 9 }));
    let stored = [(cell, None), (torn, Some(created_at))].map(|cell| {
        let stored = output::encoded(&cell).expect("a cell");
        assert_eq!(output::decoded(&stored).expect("the cell"), cell);
        stored
    });
    let cells = numbered(keys.into_iter().chain(stored));
    let place = tempfile::tempdir().expect("a folder");
    let document = |id: &str| Map::from_iter([("event".to_owned(), json!({ "id": id, "b": 1, "a": "ü" }))]);
    let at = Timestamp::from_millis(1_900_000_000_000);
    let entries = ["job-7/1", "job-7/2"].map(|id| AuditEntry { id: id.to_owned(), at, document: document(id) });
    Audit::in_directory(place.path()).append(&entries).expect("added");
    let mut files = Files::from([("output.txt".to_owned(), cells)]);
    let audit = content(&place.path().join("audit"));
    files.extend(audit.into_iter().map(|(name, bytes)| (name, String::from_utf8(bytes).expect("text"))));
    check("embedded/beside", &files);
}

#[test]
fn what_members_say_is_as_recorded() {
    let at = Cursor { keyspace: 3, after: Some(b"key".to_vec()) };
    let openings = Numbers { count: 9, last: vec![6, 700] };
    let cells = vec![(ByteBuf::from(*b"key"), ByteBuf::from(*b"cell"))];
    let file = AuditFile { month: "2030-01".to_owned(), writer: Writer(0x7000) };
    let attempt = AttemptWord { job: "job-7".to_owned(), fence: 3, created_ms: 1_900_000_000_000 };
    let words = [
        Word::Hello(Hello { knows: versions::OPENINGS, directory: 5, yours: 6, last: 400, receives: true }),
        Word::Offer(Offer { term: 3, number: 7, last: Last { number: 9, term: 2 } }),
        Word::Ask(Ask { offer: 7, at: at.clone() }),
        Word::Piece(Piece::of(7, at, b"items".to_vec(), true)),
        Word::Gone(7),
        Word::Opened(Opened { directory: 5, openings, last: Last { number: 400, term: 2 }, term: 3 }),
        Word::WentBack(WentBack { directory: 5, opening: 700 }),
        Word::Output(OutputWord::Keep { number: 300, of_jobs: 400, cells: cells.clone() }),
        Word::Output(OutputWord::Kept { number: 300 }),
        Word::Output(OutputWord::Ask { number: 301, attempts: vec![attempt] }),
        Word::Output(OutputWord::Answer { number: 301, count: 1, cells }),
        Word::Audit(AuditWord::Has { files: vec![(file.clone(), 300)] }),
        Word::Audit(AuditWord::Lacks { files: vec![(file.clone(), 0)] }),
        Word::Audit(AuditWord::Piece { file, offset: 300, bytes: ByteBuf::from(*b"line") }),
        Word::Sum(SaidSum { sum: SumAt::of(390, Sum(1 << 64 | 7)), agreed: 300 }),
        Word::Lend(300),
        Word::Declines,
    ];
    let words = words.iter().map(|word| {
        let said = words::encode(word).expect("writable");
        assert!(matches!(words::decode(&said), Ok(Said::Word(heard)) if heard == *word));
        said.to_vec()
    });
    let entry = Entry { term: 2, index: 12, data: b"entry".to_vec().into(), ..Entry::default() };
    let append = Message {
        msg_type: MessageType::MsgAppend,
        from: 1,
        to: 2,
        term: 3,
        log_term: 4,
        index: 11,
        commit: 10,
        commit_term: 5,
        reject: true,
        reject_hint: 6,
        request_snapshot: 7,
        priority: -8,
        context: b"context".to_vec().into(),
        entries: vec![entry].into(),
        ..Message::default()
    };
    let sent = message::encode(&append).expect("writable").expect("it is sent");
    assert_eq!(message::decode(&sent), Ok(append));
    let append = sent.bytes;
    let between = |opening| words::between(Directories { from: 1, to: 2, opening }, &append).to_vec();
    let (between, opened) = (between(None), between(Some(3)));
    let seat = |votes, address: Option<&str>| Seat { votes, address: address.map(str::to_owned), directory: 9 };
    let seats = BTreeMap::from([(1, seat(true, None)), (4, seat(false, Some("http://10.0.0.8:7400")))]);
    let members = Membership { seats, ..Membership::default() };
    let identified = Membership { identity: Some(IDENTITY), version: versions::OPENINGS, ..members.clone() };
    let members = [members, identified].map(|members| {
        let all = BTreeMap::from([(
            4,
            Acknowledged { directory: 9, opening: 700, count: 8, entry: Last { number: 400, term: 2 } },
        )]);
        let noted = Note { acknowledged: all, sum: None };
        let summed = Note { sum: Some(SumAt::of(390, Sum(1 << 64 | 7))), ..noted.clone() };
        [Note::default(), noted, summed].map(|note| {
            let entry = entry::encode_members(300, &members, &note).expect("writable");
            let read = entry::Entry::decode(&entry).expect("readable");
            assert_eq!((read.members.as_ref(), read.note), (Some(&members), note));
            entry
        })
    });
    let [[plain, noted, _], [identified, _, summed]] = members;
    let members = [plain, identified, noted, summed];
    let of_group = [None, Some(IDENTITY)].map(|identity| words::of_group(identity, &between).to_vec());
    let files = [
        ("words", numbered(words)),
        ("messages", numbered([append.to_vec(), between].into_iter().chain(of_group).chain([opened]))),
        ("members", numbered(members)),
    ];
    check("embedded/members", &files.map(|(name, text)| (format!("{name}.txt"), text)).into());
}
