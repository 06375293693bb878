//! What the embedded store has acknowledged outlives its process, however that ends.
//!
//! Each test starts itself again as a process that writes (`writer_directory` says which of the two it is), and looks
//! at what that process acknowledged, did, and left behind.

use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::machine;
use leasehold::clock::Timestamp;
use leasehold::job::{
    Actor, Body, Change, Claim, Job, JobId, JobSpec, JobState, Json, Kind, LeaseProof, QueueName, RecordName, WorkerId,
};
use leasehold::query::{Filter, GroupField};
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::store::{Place, RecordKey, RecordKind, RecordWrite, Store, StoreError, Version, Write, WriteError};
use rand::RngExt;

mod crash;
pub(crate) mod damage;
mod full;
pub(crate) mod trace;

/// Where the process that writes finds its data directory.
const WRITER_DIRECTORY: &str = "LEASEHOLD_TEST_WRITER_DIRECTORY";

/// What the process that writes says of each write that was acknowledged.
const ACKNOWLEDGED: &str = "ACK ";

/// Set in the process that writes.
fn writer_directory() -> Option<PathBuf> {
    env::var_os(WRITER_DIRECTORY).map(PathBuf::from)
}

/// The command that runs the test `name` as the process that writes, under `wrapper` if there is one.
fn writer_command(name: &str, directory: &Path, wrapper: &[OsString]) -> Command {
    let this = env::current_exe().expect("the path of this test program");
    let mut command = match wrapper {
        [] => Command::new(this),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(this);
            command
        }
    };
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(WRITER_DIRECTORY, directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// A process that is killed when the test ends, however it ends.
struct Writer {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Writer {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("{:?} cannot be started: {error}", command.get_program());
        });
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        Self { child, output }
    }

    /// The next line that begins with `prefix`, without it; none at the end.
    fn next_line(&mut self, prefix: &str) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line).expect("its output can be read");
            if read == 0 {
                return None;
            }
            // A line that was cut short by the kill was not said.
            if let Some(rest) = line.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('\n')) {
                return Some(rest.to_owned());
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("the process can be killed");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Gone already, most of the time.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn open(directory: &Path) -> EmbeddedStore {
    EmbeddedStore::open(directory, &EmbeddedOptions::default()).expect("the store can be opened")
}

fn now() -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000)
}

fn worker() -> WorkerId {
    WorkerId::new("worker").expect("a worker's id")
}

fn new_job(id: JobId) -> Job {
    let spec = JobSpec {
        labels: [("filling".to_owned(), "x".repeat(200))].into(),
        ..JobSpec::new(QueueName::new("durable").expect("a queue's name"), Kind::new("sample").expect("a kind"))
    };
    Job::submit(id, Arc::new(spec), Body::Empty, (now(), None), &Actor::system("test"), now())
}

async fn write_one(store: &EmbeddedStore, write: Write) -> Result<Version, WriteError> {
    store.write(vec![write]).await.remove(0)
}

/// A job's life, each step said once it is acknowledged.
async fn live_once(store: &EmbeddedStore, id: JobId) {
    let say = |job: &Job, version: Version| {
        let (state, Version { primary_term, seq_no, .. }) = (job.state.name(), version);
        println!("{ACKNOWLEDGED}{primary_term} {seq_no} {state} {}", job.id);
    };
    let job = Arc::new(new_job(id));
    let version = write_one(store, Write::Create { job: Arc::clone(&job), bodies: vec![] }).await;
    let expected = version.expect("a new job is created");
    say(&job, expected);

    let claim = Claim {
        worker_id: worker(),
        holder: None,
        request_id: None,
        term: Duration::from_secs(60),
        margin: Duration::ZERO,
    };
    let running = Arc::new(job.claim(&claim, now()).expect("due"));
    let version = write_one(store, Write::Replace { job: Arc::clone(&running), expected, bodies: vec![] }).await;
    let expected = version.expect("the version is current");
    say(&running, expected);

    let text = Json::parse(format!("\"{}\"", running.id)).expect("JSON");
    let (result, stored) = Body::place(Some(text), 0);
    let proof = LeaseProof { worker_id: worker(), fence: running.fence, bearer: None };
    let Ok(Change::To(done)) = running.complete(&proof, &result, now()) else { panic!("the lease is held") };
    let done = Arc::new(*done);
    let bodies = stored.into_iter().collect();
    let version = write_one(store, Write::Replace { job: Arc::clone(&done), expected, bodies }).await;
    say(&done, version.expect("the version is current"));
}

/// Counts up in a record, each number said once it is acknowledged, from where the record stands.
async fn count_up(store: &EmbeddedStore, times: u32) {
    let found = store.record(&counter()).await.expect("readable");
    let mut last = found.map(|record| (record.version, record.read::<u64>().expect("a number")));
    for _ in 0..times {
        let count = last.map_or(0, |(_, count)| count + 1);
        let (key, body) = (counter(), Json::of(&count).expect("JSON"));
        let write = match last {
            None => RecordWrite::Create { key, body },
            Some((expected, _)) => RecordWrite::Replace { key, body, expected },
        };
        let version = store.write_record(write).await.expect("nobody else counts");
        println!("{ACKNOWLEDGED}{} {} {COUNTED} {count}", version.primary_term, version.seq_no);
        last = Some((version, count));
    }
}

fn counter() -> RecordKey {
    RecordKey::new(RecordKind::Setting, RecordName::system("counter"))
}

/// Stands for the state of a job where it is the counter that was written.
const COUNTED: &str = "counted";

/// Many lives at a time, until killed, or until there were so many.
fn live_until_killed(directory: &Path, options: &EmbeddedOptions, most: u32) {
    const AT_A_TIME: u32 = 16;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = Arc::new(EmbeddedStore::open(directory, options).expect("the store can be opened"));
        println!("\nREADY");
        let lives = (0..AT_A_TIME).map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for _ in 0..most / AT_A_TIME {
                    live_once(&store, JobId::generate()).await;
                }
            })
        });
        let counting = {
            let store = Arc::clone(&store);
            tokio::spawn(async move { count_up(&store, most).await })
        };
        for life in lives.collect::<Vec<_>>() {
            life.await.expect("every write is accepted");
        }
        counting.await.expect("every write is accepted");
    });
}

/// The last that the writers heard.
#[derive(Default)]
struct Acknowledged {
    /// Of each job.
    jobs: HashMap<JobId, (Version, JobState)>,
    /// Of the counter.
    count: Option<(Version, u64)>,
}

fn hear(acknowledged: &mut Acknowledged, line: &str) {
    let [term, seq_no, state, id] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
    let version = Version {
        place: Place::Main,
        primary_term: term.parse().expect("a number"),
        seq_no: seq_no.parse().expect("a number"),
    };
    if state == COUNTED {
        acknowledged.count = Some((version, id.parse().expect("a number")));
        return;
    }
    let id = JobId::new(id).expect("a job id");
    acknowledged.jobs.insert(id, (version, state.parse().expect("a state")));
}

#[test]
fn a_killed_process_loses_nothing_that_it_acknowledged() {
    let _share = machine::with_others();
    if let Some(directory) = writer_directory() {
        live_until_killed(&directory, &EmbeddedOptions::default(), 100_000);
        panic!("nobody has killed this process");
    }
    const ROUNDS: usize = 10;
    const LINES_BEFORE_THE_KILL: usize = 1_500;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut acknowledged = Acknowledged::default();
    for round in 0..ROUNDS {
        let name = "durability::a_killed_process_loses_nothing_that_it_acknowledged";
        let mut writer = Writer::start(writer_command(name, directory.path(), &[]));
        writer.next_line("READY").expect("the process opens its store");
        for _ in 0..rand::rng().random_range(0..LINES_BEFORE_THE_KILL) {
            hear(&mut acknowledged, &writer.next_line(ACKNOWLEDGED).expect("the process writes until it is killed"));
        }
        writer.kill();
        while let Some(line) = writer.next_line(ACKNOWLEDGED) {
            hear(&mut acknowledged, &line);
        }
        drop(writer);

        let store = open(directory.path());
        runtime.block_on(async {
            all_acknowledged_is_there(&store, &acknowledged.jobs).await;
            the_count_is_there(&store, acknowledged.count).await;
            counts_are_those_of_the_jobs(&store).await;
            store.close().await;
        });
        println!("round {round}: {} jobs, count {:?}", acknowledged.jobs.len(), acknowledged.count);
    }
    assert!(!acknowledged.jobs.is_empty(), "no round got to write a job");
    assert!(acknowledged.count.is_some(), "no round got to write the record");
}

/// The counter is as its writer heard last, or one further.
async fn the_count_is_there(store: &EmbeddedStore, acknowledged: Option<(Version, u64)>) {
    let Some((version, count)) = acknowledged else { return };
    let found = store.record(&counter()).await.expect("readable").expect("the record was acknowledged and is gone");
    let now: u64 = found.read().expect("a number");
    match found.version == version {
        true => assert_eq!(now, count),
        false => {
            assert!(found.version > version, "the record is older than what was acknowledged");
            assert_eq!(now, count + 1);
        }
    }
}

/// Each job is as its writer heard last, or one write further: one that was durable and not yet acknowledged.
async fn all_acknowledged_is_there(store: &EmbeddedStore, acknowledged: &HashMap<JobId, (Version, JobState)>) {
    let ids: Vec<JobId> = acknowledged.keys().cloned().collect();
    let found = store.get(&ids).await.expect("readable");
    for (id, found) in ids.iter().zip(found) {
        let (version, state) = acknowledged[id];
        let found = found.unwrap_or_else(|| panic!("job {id} was acknowledged as {state} and is gone"));
        let now = found.job.state.name();
        let further = match state {
            JobState::Available => JobState::Running,
            _ => JobState::Completed,
        };
        match found.version == version {
            true => assert_eq!(now, state, "job {id}"),
            false => {
                assert!(found.version > version, "job {id} is older than what was acknowledged");
                assert_eq!(now, further, "job {id}");
            }
        }
        for body in store.bodies(&found.job.stored_bodies().copied().collect::<Vec<_>>()).await.expect("readable") {
            assert_eq!(body.expect("a finished job's result").as_str(), format!("\"{id}\""));
        }
    }
}

/// The counts that are kept agree with the jobs that are there.
async fn counts_are_those_of_the_jobs(store: &EmbeddedStore) {
    let kept = store.count(&Filter::default(), &[GroupField::State]).await.expect("countable");
    let kinds = vec![Kind::new("sample").expect("a kind")];
    let scanned = Filter { kinds, ..Filter::default() };
    assert_eq!(kept, store.count(&scanned, &[GroupField::State]).await.expect("countable"));
}

/// How many writes are traced.
const TRACED_WRITES: usize = 30;

/// One write after the other, each said when it is acknowledged or not.
fn write_one_by_one(directory: &Path) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = open(directory);
        println!("\nREADY");
        for number in 0..TRACED_WRITES {
            let id = JobId::new(format!("job-{number}")).expect("a job id");
            let write = Write::Create { job: Arc::new(new_job(id)), bodies: vec![] };
            match write_one(&store, write).await {
                Ok(_) => println!("{ACKNOWLEDGED}{number}"),
                Err(WriteError::Unknown(_)) => println!("UNKNOWN {number}"),
                Err(WriteError::Refused(StoreError::Stopped(_))) => println!("REFUSED {number}"),
                Err(other) => panic!("{other}"),
            }
        }
        println!("READY AT THE END: {}", store.ready().await.is_ok());
        std::io::stdout().flush().expect("writable");
        store.close().await;
    });
}

#[test]
fn each_write_is_synced_before_it_is_acknowledged() {
    let _share = machine::with_others();
    if let Some(directory) = writer_directory() {
        return write_one_by_one(&directory);
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().canonicalize().expect("it exists").join("data");
    let log = directory.path().join("trace");
    let strace = trace::strace(&log, &["--trace=write,pwrite64,writev,fsync,fdatasync,openat", "--decode-fds=path"]);
    let name = "durability::each_write_is_synced_before_it_is_acknowledged";
    let mut writer = Writer::start(writer_command(name, &data, &strace));
    let mut acknowledged = 0;
    while writer.next_line(ACKNOWLEDGED).is_some() {
        acknowledged += 1;
    }
    drop(writer);
    assert_eq!(acknowledged, TRACED_WRITES);

    let events = trace::events(&log, &data, ACKNOWLEDGED);

    let spans: Vec<_> = events.split(|event| *event == trace::Event::Acknowledged).collect();
    assert_eq!(spans.len(), TRACED_WRITES + 1, "one span before each acknowledgement and one after the last");
    for (number, span) in spans[..TRACED_WRITES].iter().enumerate() {
        let written = span.iter().rposition(|event| matches!(event, trace::Event::Written(_)));
        let written = written.unwrap_or_else(|| panic!("write {number} was acknowledged and is not in the log"));
        let trace::Event::Written(segment) = &span[written] else { unreachable!("the position is that of a write") };
        let synced = trace::Event::Synced(segment.clone());
        assert!(
            span[written..].contains(&synced),
            "write {number} was acknowledged, and {} was not synced after it was written: {span:?}",
            segment.display()
        );
    }
}

#[test]
fn after_a_failed_sync_nothing_more_is_accepted_and_nothing_acknowledged_is_lost() {
    let _share = machine::with_others();
    if let Some(directory) = writer_directory() {
        return write_one_by_one(&directory);
    }
    const SYNCS_THAT_SUCCEED: usize = 10;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    // Only batches are synced by `fdatasync`, and what is written of them to the database at the end.
    let fault = format!("--inject=fdatasync:error=EIO:when={}+", SYNCS_THAT_SUCCEED + 1);
    let strace = trace::strace(&directory.path().join("trace"), &["--trace=fdatasync", &fault]);
    let name = "durability::after_a_failed_sync_nothing_more_is_accepted_and_nothing_acknowledged_is_lost";
    let mut writer = Writer::start(writer_command(name, &data, &strace));

    writer.next_line("READY").expect("the process opens its store");
    let mut said = Vec::new();
    while let Some(line) = writer.next_line("") {
        said.push(line);
    }
    drop(writer);

    let mut expected: Vec<String> = Vec::new();
    expected.extend((0..SYNCS_THAT_SUCCEED).map(|number| format!("{ACKNOWLEDGED}{number}")));
    expected.push(format!("UNKNOWN {SYNCS_THAT_SUCCEED}"));
    expected.extend((SYNCS_THAT_SUCCEED + 1..TRACED_WRITES).map(|number| format!("REFUSED {number}")));
    expected.push("READY AT THE END: false".to_owned());
    assert_eq!(said[..expected.len().min(said.len())], expected);

    let store = open(&data);
    let ids: Vec<JobId> =
        (0..TRACED_WRITES).map(|number| JobId::new(format!("job-{number}")).expect("a job id")).collect();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let found = runtime.block_on(store.get(&ids)).expect("readable");
    assert!(found[..SYNCS_THAT_SUCCEED].iter().all(Option::is_some), "an acknowledged job is gone");
    assert!(found[SYNCS_THAT_SUCCEED + 1..].iter().all(Option::is_none), "a refused job is there");
}
