use std::path::Path;
use std::thread;

use futures::executor::block_on;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tempfile::TempDir;

use super::super::arbitrary;
use super::super::directory::Directory;
use super::super::log::{self, Expected};
use super::super::options::EmbeddedOptions;
use super::super::running::exits;
use super::super::seal::LogSeal;
use super::*;
use crate::clock::Timestamp;
use crate::job::{Body, Job, JobId, JobSpec, State};
use crate::store::{Versioned, Write, WriteError, WriteResult};

/// About how many bytes a large job has.
const LARGE: usize = 1 << 20;

fn job(number: usize, label_bytes: usize) -> Arc<Job> {
    let job = arbitrary::job().new_tree(&mut TestRunner::deterministic()).expect("a job").current();
    let labels = [("label".to_owned(), "x".repeat(label_bytes))].into();
    let spec = JobSpec { labels, ..(*job.spec).clone() }.shared();
    let id = JobId::new(format!("job-{number}")).expect("an id");
    Arc::new(Job { id, spec, payload: Body::Empty, state: State::Available, ..job })
}

fn create(job: &Arc<Job>) -> Write {
    Write::Create { job: Arc::clone(job), bodies: vec![] }
}

/// A writer on a directory of its own.
struct Running {
    directory: TempDir,
    queue: Arc<Queue>,
    thread: thread::JoinHandle<()>,
}

impl Running {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let held = Directory::hold(directory.path(), 0).expect("a directory");
        let engine = Arc::new(Engine::open(held, &EmbeddedOptions::default(), None).expect("it can be opened"));
        let queue = Arc::<Queue>::default();
        let exits = exits(&queue, directory.path(), &EmbeddedOptions::default());
        let flusher = Arc::new(Mutex::new(Flusher::start(&engine, &exits).expect("a thread")));
        let writer = Writer::new(engine, Arc::clone(&queue), flusher, exits).expect("a thread");
        Self { directory, queue, thread: thread::spawn(move || writer.run()) }
    }

    fn write(&self, writes: Vec<Write>) -> Vec<WriteResult> {
        block_on(answers(writes.len(), self.queue.push(writes)))
    }

    /// Ends the writer, and returns how long the entries are that it has written.
    fn end(self) -> Vec<usize> {
        let mut lengths = Vec::new();
        let folder = self.directory.path().join("log");
        let read = log::read(&folder, &Expected { first: 1, sealed: LogSeal::default() }, |_, frame| {
            lengths.push(frame.len());
            Ok(())
        });
        assert!(read.is_ok(), "the log is intact");
        self.queue.close(StoreError::Unavailable("it ends".to_owned()));
        self.thread.join().expect("no panic");
        lengths
    }
}

#[test]
fn a_request_that_is_larger_than_a_batch_becomes_several_entries_and_is_answered_in_order() {
    let running = Running::start();
    let jobs: Vec<_> = (0..20).map(|number| job(number, LARGE)).collect();
    let mut writes: Vec<Write> = jobs.iter().map(create).collect();
    let Ok(there) = running.write(vec![create(&job(100, 10))]).remove(0) else { panic!("it is not there") };
    // One of the same batch, and one of a batch before.
    writes.insert(3, create(&jobs[0]));
    writes.insert(17, create(&jobs[1]));
    writes.insert(18, Write::Replace { job: job(100, LARGE), expected: there, bodies: vec![] });
    writes.insert(19, Write::Remove { job: job(100, LARGE), expected: there });
    let answers = running.write(writes);
    let versions: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().ok()).collect();
    assert_eq!((answers.len(), versions.len()), (24, 21));
    assert!(versions.is_sorted_by(|one, next| one < next), "they are not in the order of the writes: {versions:?}");
    let conflicting = |at: usize| match &answers[at] {
        Err(WriteError::Conflict(Some(Versioned { version, .. }))) => *version,
        other => panic!("{other:?} at {at}"),
    };
    assert_eq!((conflicting(3), conflicting(17)), (*versions[0], *versions[1]));
    assert_eq!(Some(conflicting(19)), answers[18].as_ref().ok().copied(), "the write before it was not there");
    let entries = running.end();
    let most = BATCH_BYTES + LARGE + 1_024;
    assert!(entries.iter().all(|length| *length <= most), "{entries:?}");
    assert_eq!(entries.iter().filter(|length| **length > BATCH_BYTES / 2).count(), 3, "{entries:?}");
}

#[test]
fn writes_that_change_little_of_large_jobs_share_an_entry() {
    let running = Running::start();
    let jobs: Vec<_> = (0..20).map(|number| job(number, LARGE)).collect();
    let versions: Vec<_> = running.write(jobs.iter().map(create).collect()).into_iter().flatten().collect();
    let replaced = jobs.iter().zip(&versions).map(|(job, expected)| {
        let job = Arc::new(Job {
            updated_at: Timestamp::from_millis(job.updated_at.as_millis().wrapping_add(1)),
            ..(**job).clone()
        });
        Write::Replace { job, expected: *expected, bodies: vec![] }
    });
    assert!(running.write(replaced.collect()).iter().all(WriteResult::is_ok));
    let entries = running.end();
    let last = entries.last().expect("an entry");
    assert!(*last < 20 * 100, "{entries:?}");
    // The one that begins the term, three with the jobs, and this one.
    assert_eq!(entries.len(), 5, "{entries:?}");
}

#[test]
fn whoever_waits_for_a_writer_that_ends_is_answered() {
    let queue = Arc::new(Queue::default());
    let mut waiting = queue.push(vec![create(&job(0, 1)), create(&job(1, 1))]).expect("there is room");
    drop(exits(&queue, Path::new("data"), &EmbeddedOptions::default()).guard());
    let answers = waiting.0.try_recv().expect("an answer").results;
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|answer| matches!(answer, Err(WriteError::Refused(StoreError::Stopped(_))))));
}
