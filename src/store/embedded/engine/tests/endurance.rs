//! A store with always as many jobs takes no more memory and no more of the disk the longer it runs.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::job::{Change, LeaseProof};
use crate::schedule::{Course, Schedule};

/// How often the database is written. The nightly script asks for more.
const FLUSHES: u64 = 16;
/// How many jobs are created, claimed, ended and removed in a round, each time in a batch.
const JOBS: usize = 25;
/// How many schedules there are, each of which fires in every round.
const SCHEDULES: usize = 20;
/// How many finished jobs are kept.
const KEPT: usize = 400;

/// How many times in all the database is brought to rest.
const RESTS: u64 = 4;
/// From which rest on nothing may grow: between two of them all jobs have come and gone, which the test checks.
const FULL_AT_REST: u64 = 2;

/// By how much there may be more in memory than there was: a flush comes after whole rounds, bodies differ in length,
/// and numbers get longer.
const MORE_IN_MEMORY_PERCENT: usize = 20;
/// By how much there may be more in a keyspace: at rest it has each of the same number of documents once, of about the
/// same lengths.
const MORE_ON_DISK_PERCENT: u64 = 50;
/// By how much there may be more of the bodies. The database puts long ones into files, one for each time that it
/// writes what it has in memory, and removes such a file when nothing in it is wanted any more.
const MOST_IN_MEMORY_BYTES: u64 = 32 << 20;
/// A table takes whole blocks, and has some bytes about itself.
const TABLE_BYTES: u64 = 4 << 10;

/// The most journals: the database goes on in another one from 64 MB on, and removes the first when they have 128 MiB.
const MOST_JOURNALS: usize = 4;

/// Jobs that are created, claimed, ended and removed, so that there are always as many, and schedules that fire.
struct Load {
    machine: Machine,
    random: StdRng,
    now: Timestamp,
    created: u64,
    running: Vec<Versioned>,
    finished: VecDeque<Versioned>,
    setting: Option<Version>,
    schedules: Vec<StoredSchedule>,
}

impl Load {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let options =
            EmbeddedOptions { block_jobs: 32, flush_changes: 2_000, segment_bytes: 64 << 10, ..Default::default() };
        let machine = Machine { engine: open(&directory, &options), directory, options, flush: None };
        let (random, now) = (StdRng::seed_from_u64(1), Timestamp::from_millis(1_800_000_000_000));
        let (running, finished, setting) = (Vec::new(), VecDeque::new(), None);
        let mut load = Self { machine, random, now, created: 0, running, finished, setting, schedules: Vec::new() };
        let mut history = History::new(1);
        let new = (0..SCHEDULES).map(|number| {
            let schedule = history.new_schedule(ScheduleId::new(format!("schedule-{number}")).expect("an id"));
            ScheduleWrite::Create { schedule: Arc::new(Schedule { paused: None, ..schedule }) }
        });
        load.write_schedules(new.collect());
        load
    }

    /// A body that cannot be compressed: inline, apart, or of a length from which on the database keeps it apart too.
    fn body(&mut self) -> (Body, Vec<NewBody>) {
        let bytes = [20, 500, 3_000][self.random.random_range(0..3)];
        let text: String = (0..bytes).map(|_| format!("{:02x}", self.random.random::<u8>())).collect();
        let (body, new) = Body::place(Some(Json::of(&text).expect("JSON")), 512);
        (body, new.into_iter().collect())
    }

    fn write(&mut self, writes: Vec<Write>) -> Vec<Versioned> {
        let jobs: Vec<_> = writes.iter().map(|write| Arc::clone(write.job())).collect();
        let commands = writes.into_iter().map(Command::Job).collect();
        let outcomes = self.machine.engine.commit(commands).expect("it is written").outcomes;
        let versions = outcomes.jobs.into_iter().map(|version| version.expect("nobody else writes"));
        jobs.into_iter().zip(versions).map(|(job, version)| Versioned { job, version }).collect()
    }

    /// Jobs are created and claimed, those of the round before end, and the oldest ones are removed.
    fn round(&mut self) {
        self.now = self.now.plus(Duration::from_secs(1));
        let now = self.now;
        let created = (0..JOBS).map(|_| {
            self.created += 1;
            let id = JobId::new(format!("job-{:012}", self.created)).expect("an id");
            let spec = JobSpec::new("reports".parse().expect("a name"), "kind".parse().expect("a name"));
            let (payload, bodies) = self.body();
            let job = Job::submit(id, Arc::new(spec), payload, (now, None), &Actor::system("test"), now);
            Write::Create { job: Arc::new(job), bodies }
        });
        let created = created.collect();
        let waiting = self.write(created);

        let worker_id = WorkerId::new("worker").expect("a name");
        let claim =
            Claim { worker_id, holder: None, request_id: None, term: Duration::from_secs(60), margin: Duration::ZERO };
        let claimed = waiting.into_iter().map(|Versioned { job, version }| {
            let job = Arc::new(job.claim(&claim, now).expect("it is due"));
            Write::Replace { job, expected: version, bodies: vec![] }
        });
        let running = self.write(claimed.collect());

        let ended = std::mem::replace(&mut self.running, running).into_iter().map(|Versioned { job, version }| {
            let proof = LeaseProof { worker_id: claim.worker_id.clone(), fence: job.fence, bearer: None };
            let (result, bodies) = self.body();
            let Ok(Change::To(job)) = job.complete(&proof, &result, now) else { panic!("it holds the lease") };
            Write::Replace { job: Arc::new(*job), expected: version, bodies }
        });
        let ended = ended.collect();
        let ended = self.write(ended);
        self.finished.extend(ended);

        let old = self.finished.len().saturating_sub(KEPT);
        let removed = self.finished.drain(..old);
        let removed = removed.map(|Versioned { job, version }| Write::Remove { job, expected: version });
        let removed = removed.collect();
        self.write(removed);
        self.count();

        let course = Course { next_due_at: Some(now.plus(Duration::from_secs(60))), ..Course::default() };
        let fired = self.schedules.iter().map(|StoredSchedule { schedule, version }| {
            let schedule = Arc::new(Schedule { course: course.clone(), ..(**schedule).clone() });
            ScheduleWrite::Replace { schedule, expected: *version }
        });
        let fired = fired.collect();
        self.write_schedules(fired);
    }

    fn write_schedules(&mut self, writes: Vec<ScheduleWrite>) {
        let schedules: Vec<_> = writes.iter().filter_map(|write| write.schedule().cloned()).collect();
        let commands = writes.into_iter().map(Command::Schedule).collect();
        let outcomes = self.machine.engine.commit(commands).expect("it is written").outcomes;
        let versions = outcomes.schedules.into_iter().map(|version| version.expect("nobody else writes"));
        let stored = schedules.into_iter().zip(versions);
        self.schedules = stored.map(|(schedule, version)| StoredSchedule { schedule, version }).collect();
    }

    /// Writes a record in the place of the one before.
    fn count(&mut self) {
        let key = RecordKey::new(RecordKind::Setting, RecordName::system("counter"));
        let body = Json::of(&self.created).expect("JSON");
        let write = match self.setting {
            None => RecordWrite::Create { key, body },
            Some(expected) => RecordWrite::Replace { key, body, expected },
        };
        let committed = self.machine.engine.commit(vec![Command::Record(write)]).expect("it is written");
        self.setting =
            committed.outcomes.records.into_iter().map(|version| version.expect("nobody else writes")).next();
    }

    /// Returns how much there is of each thing in memory, and in the seal that is written anew again and again: the
    /// lengths of what it says of itself, which have all that is in it and in its indexes.
    fn in_memory(&self) -> Vec<(&'static str, usize)> {
        let published = self.machine.engine.published.read();
        vec![
            ("live jobs", format!("{:?}", published.live).len()),
            ("jobs that ended lately", format!("{:?}", published.recent).len()),
            ("blocks", format!("{:?}", published.blocks).len()),
            ("counts", format!("{:?}", published.finished).len()),
            ("records", format!("{:?}", published.records).len()),
            ("changes", format!("{:?}", published.unflushed).len()),
            ("changes that are being written", format!("{:?}", published.flushing).len()),
            ("jobs that have changed since", format!("{:?}", published.view.stale).len()),
            ("files in the seal", format!("{:?}", self.machine.engine.disk.seal.lock()).len()),
        ]
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.machine.directory.path().join(name)
    }

    /// Brings the database to rest: what it has in memory is written to tables, and these are put together, twice
    /// since the second time removes what the first one has found to be outdated. Returns the bytes of each keyspace.
    fn rest(&mut self) -> Vec<(String, u64)> {
        self.machine.end_flush();
        let keyspaces = self.machine.engine.disk.keyspaces();
        for keyspace in keyspaces {
            keyspace.rotate_memtable_and_wait().expect("writable");
            (0..2).for_each(|_| keyspace.major_compact().expect("writable"));
        }
        keyspaces.map(|keyspace| (keyspace.name().to_string(), keyspace.disk_space())).into()
    }
}

/// Returns the bytes of all files in a folder and its folders.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path());
    // A file may be removed meanwhile.
    let bytes = |path: PathBuf| if path.is_dir() { bytes_in(&path) } else { path.metadata().map_or(0, |it| it.len()) };
    entries.map(bytes).sum()
}

/// Returns how many files with this extension there are in a folder.
fn files_in(folder: &Path, extension: &str) -> usize {
    let entries = fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path());
    entries.filter(|path| path.extension().is_some_and(|found| found == extension)).count()
}

#[test]
fn a_store_that_runs_for_long_takes_no_more_memory_and_no_more_of_the_disk() {
    let flushes = setting("LEASEHOLD_TEST_FLUSHES", FLUSHES);
    let between = flushes / RESTS;
    let mut load = Load::new();
    let mut most_in_memory: BTreeMap<&str, usize> = BTreeMap::new();
    let mut full: Vec<(String, u64)> = Vec::new();
    let mut since_rest = 0;
    for flush in 1..=between * RESTS {
        while !load.machine.engine.is_flush_due() {
            load.round();
        }
        for (what, size) in load.in_memory() {
            let most = most_in_memory.entry(what).or_default();
            if flush <= FULL_AT_REST * between {
                *most = size.max(*most);
            }
            let bound = *most + *most * MORE_IN_MEMORY_PERCENT / 100;
            assert!(size <= bound, "after {flush} flushes the {what} take {size}, and were to take {bound} at most");
        }
        // A flush ends when the next one is due, so that as much as can be is in memory and in the log.
        let bytes = load.machine.engine.published.read().unflushed.bytes;
        since_rest += bytes;
        load.machine.flush_if_due(true);
        load.machine.engine.checkpoint().expect("the seal is written");
        // What came since the last flush has begun, a segment begun before that, one that was begun since, and the
        // frames' own bytes.
        let segments = bytes / load.machine.options.segment_bytes + 3;
        let found = files_in(&load.folder("log"), "log") as u64;
        assert!(found <= segments, "after {flush} flushes the log has {found} segments, and {segments} are enough");
        let found = files_in(&load.folder("store"), "jnl");
        assert!(found <= MOST_JOURNALS, "after {flush} flushes the database has {found} journals");

        if flush % between > 0 {
            continue;
        }
        let (rest, written) = (load.rest(), std::mem::take(&mut since_rest));
        let on_disk = bytes_in(&load.folder("store/keyspaces"));
        println!("after {flush} flushes, {} jobs: {on_disk} bytes, at rest {rest:?}", load.created);
        if flush <= FULL_AT_REST * between {
            let is_replaced = load.created > (KEPT + 2 * JOBS) as u64 * flush / between;
            assert!(is_replaced, "too few jobs have come and gone: {}", load.created);
            full = rest;
            continue;
        }
        let mut bound_of_all = 0;
        for ((name, bytes), (_, full)) in rest.iter().zip(&full) {
            let outdated = if name == "bodies" { written.min(MOST_IN_MEMORY_BYTES) } else { TABLE_BYTES };
            let bound = full + full * MORE_ON_DISK_PERCENT / 100 + outdated;
            assert!(*bytes <= bound, "after {flush} flushes {name} has {bytes} bytes, and had {full}");
            bound_of_all += bound;
        }
        // Files that were replaced are removed once the next ones are written.
        assert!(on_disk <= 2 * bound_of_all, "after {flush} flushes there are {on_disk} bytes of tables");
    }
    let ended = load.machine.engine.published.read().blocks.jobs();
    assert!(ended > 0 && load.finished.len() == KEPT, "no block was made: {ended}");
}
