//! Damage at rest: a store opens with everything that it acknowledged, or it refuses, names the damaged file, says what
//! can be done, and leaves every file as it was. It never opens with less.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold::job::{JobId, JobState};
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore, OpenError};
use leasehold::store::{Store, Write};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tempfile::TempDir;

use super::{live_once, new_job};
use crate::machine::{self, Budget};
use crate::seed;

/// How the store that wrote a directory ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Stopped,
    /// Killed: the files are those that the running store had at one moment.
    Killed,
}

/// A data directory as a store left it, and what that store had acknowledged.
struct Left {
    end: End,
    directory: TempDir,
    jobs: Vec<JobId>,
}

const JOBS: usize = 600;
const JOBS_AT_A_TIME: usize = 20;

fn options() -> EmbeddedOptions {
    EmbeddedOptions { block_jobs: 20, reserve_bytes: 0, ..EmbeddedOptions::default() }
}

fn job_id(number: usize) -> JobId {
    JobId::new(format!("job-{number}")).expect("a job id")
}

/// Jobs that wait, and every tenth of them lived to its end.
async fn write(store: &EmbeddedStore, numbers: std::ops::Range<usize>) -> Vec<JobId> {
    let ids: Vec<JobId> = numbers.map(job_id).collect();
    for ids in ids.chunks(JOBS_AT_A_TIME) {
        let create = |id: &JobId| Write::Create { job: Arc::new(new_job(id.clone())), bodies: vec![] };
        let answers = store.write(ids.iter().skip(2).map(create).collect()).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        for id in &ids[..2] {
            live_once(store, id.clone()).await;
        }
    }
    ids
}

/// Waits until the seal says of all writes that they were made, as it does within seconds.
async fn sealed(store: &EmbeddedStore, directory: &Path, jobs: &[JobId]) {
    let found = store.get(jobs).await.expect("readable");
    let last = found.iter().flatten().map(|head| head.version.seq_no).max();
    crate::program::until("the seal has the last write", || {
        let text = fs::read_to_string(directory.join("leasehold.seal")).expect("a seal");
        let content: Value = serde_json::from_str(text.split_once('\n').expect("two lines").1).expect("JSON");
        content["seq_no"].as_u64() == last
    });
}

/// A directory with tables as well as journals.
async fn leave(end: End) -> Left {
    let written = tempfile::tempdir().expect("a temporary directory");
    let store = EmbeddedStore::open(written.path(), &options()).expect("the store can be opened");
    let mut jobs = write(&store, 0..JOBS / 2).await;
    drop(store);
    write_out(written.path());
    let store = EmbeddedStore::open(written.path(), &options()).expect("the store can be opened");
    jobs.extend(write(&store, JOBS / 2..JOBS).await);
    match end {
        End::Stopped => {
            store.close().await;
            Left { end, directory: written, jobs }
        }
        End::Killed => {
            sealed(&store, written.path(), &jobs).await;
            let directory = tempfile::tempdir().expect("a temporary directory");
            copy(written.path(), directory.path());
            Left { end, directory, jobs }
        }
    }
}

/// Moves what is in the journals to tables, as the database does by itself once there is enough.
fn write_out(directory: &Path) {
    let db = fjall::Database::builder(directory.join("store")).open().expect("a database");
    for name in db.list_keyspace_names() {
        let keyspace = db.keyspace(&name, fjall::KeyspaceCreateOptions::default).expect("a keyspace");
        keyspace.rotate_memtable_and_wait().expect("writable");
    }
}

/// Copies a directory, holes as holes.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("creatable");
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().expect("readable").is_dir() {
            copy(&from, &to);
            continue;
        }
        let bytes = fs::read(&from).expect("readable");
        let mut file = File::create(&to).expect("creatable");
        file.write_all(&bytes[..used(&bytes)]).expect("writable");
        file.set_len(bytes.len() as u64).expect("writable");
    }
}

/// How many bytes there are before the zeros at the end.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// The files in a directory by their paths in it, without those that only say which process has it open.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn gather(root: &Path, at: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(at).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                gather(root, &path, found);
            } else if path.file_name().is_some_and(|name| name != "leasehold.lock" && name != "lock") {
                let name = path.strip_prefix(root).expect("it is in there").to_owned();
                let mut bytes = fs::read(&path).expect("readable");
                if name.extension().is_some_and(|extension| extension == "jnl") {
                    // Space that was set aside.
                    bytes.truncate(used(&bytes));
                }
                found.insert(name, bytes);
            }
        }
    }
    let mut found = BTreeMap::new();
    gather(directory, directory, &mut found);
    found
}

#[derive(Debug, PartialEq)]
enum Opened {
    /// With everything, or with an error for each job that cannot be read.
    Whole,
    Refused,
}

impl Left {
    fn copied(&self) -> TempDir {
        let directory = tempfile::tempdir().expect("a temporary directory");
        copy(self.directory.path(), directory.path());
        directory
    }

    /// Opens a damaged copy; says what is wrong with what happened.
    async fn judge(&self, directory: &Path, damaged: &Path) -> Result<Opened, String> {
        let before = files(directory);
        let opened = {
            let directory = directory.to_owned();
            tokio::task::spawn_blocking(move || EmbeddedStore::open(directory, &options())).await
        };
        let Ok(opened) = opened else { return Err("opening panicked".to_owned()) };
        let store = match opened {
            Ok(store) => store,
            // The only number in that file is another one.
            Err(OpenError::UnknownFormat { .. }) if damaged == Path::new("leasehold.format") => {
                return Ok(Opened::Refused);
            }
            Err(refusal) => {
                let text = refusal.to_string();
                if !text.contains(&damaged.display().to_string()) {
                    return Err(format!("the refusal does not name the file: {text}"));
                }
                if !text.contains("leasehold verify") || !text.contains("backup") {
                    return Err(format!("the refusal does not say what can be done: {text}"));
                }
                let kept = |files: BTreeMap<PathBuf, Vec<u8>>| -> BTreeMap<PathBuf, Vec<u8>> {
                    files.into_iter().filter(|(name, _)| name == damaged || !may_change(name)).collect()
                };
                return match kept(files(directory)) == kept(before) {
                    true => Ok(Opened::Refused),
                    false => Err(format!("files were changed, and then: {text}")),
                };
            }
        };
        let (mut missing, mut old) = (0, 0);
        for id in &self.jobs {
            // A job that is said to be unreadable is not silently lost.
            let Ok(found) = store.get(std::slice::from_ref(id)).await else { continue };
            match &found[0] {
                None => missing += 1,
                Some(head) if is_lived(id) && head.job.state.name() != JobState::Completed => old += 1,
                Some(_) => {}
            }
        }
        drop(store);
        match (missing, old) {
            (0, 0) => Ok(Opened::Whole),
            _ => Err(format!("it opened without {missing} of {} jobs, and {old} are as they were", self.jobs.len())),
        }
    }
}

/// Whether a file is one that the store may write or remove before it refuses another: the seal, and what the database
/// has written anew and needs no more.
fn may_change(name: &Path) -> bool {
    let is_in = |folder: &str| name.parent().is_some_and(|parent| parent.ends_with(folder));
    let file = name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_manifest = file == "current" || file.strip_prefix('v').is_some_and(|number| number.parse::<u64>().is_ok());
    name == Path::new("leasehold.seal") || is_manifest || is_in("tables") || is_in("blobs")
}

fn is_lived(id: &JobId) -> bool {
    let number: usize = id.as_str().trim_start_matches("job-").parse().expect("a number");
    number % JOBS_AT_A_TIME < 2
}

/// The files of a directory, with how many of their bytes are used.
fn used_files(directory: &Path) -> Vec<(PathBuf, u64)> {
    files(directory).into_iter().map(|(name, bytes)| (name, used(&bytes) as u64)).collect()
}

fn flip(path: &Path, byte: u64, bit: u32) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("it can be opened");
    let mut found = [0];
    file.read_exact_at(&mut found, byte).expect("readable");
    file.write_all_at(&[found[0] ^ (1 << bit)], byte).expect("writable");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_flipped_bit_in_any_file_loses_a_job() {
    let _share = machine::with_others();
    let seed = seed::usual();
    let mut random = StdRng::seed_from_u64(seed);
    let mut wrong = Vec::new();
    for end in [End::Stopped, End::Killed] {
        let left = leave(end).await;
        let mut directory = left.copied();
        let files = used_files(directory.path());
        let files: Vec<_> = files.into_iter().filter(|(_, used)| *used > 0).collect();
        let (mut flips, mut refused) = (0, 0);
        let budget = Budget::begin();
        while budget.is_left() {
            flips += 1;
            let (name, used) = &files[random.random_range(0..files.len())];
            let (byte, bit) = (random.random_range(0..*used), random.random_range(0..8));
            flip(&directory.path().join(name), byte, bit);
            match left.judge(directory.path(), name).await {
                Ok(Opened::Refused) => refused += 1,
                Ok(Opened::Whole) => {}
                Err(what) => {
                    wrong.push(format!("{end:?}, bit {bit} of byte {byte} of {used} in {}: {what}", name.display()));
                }
            }
            directory = left.copied();
        }
        println!("{:?}: {refused} of {flips} were refused", left.end);
        assert_eq!(left.judge(left.directory.path(), Path::new("")).await, Ok(Opened::Whole), "without damage");
    }
    assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_of_a_stopped_store_that_is_gone_or_cut_or_overwritten_loses_a_job() {
    let _share = machine::with_others();
    no_file_that_is_damaged_loses_a_job(End::Stopped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_of_a_killed_store_that_is_gone_or_cut_or_overwritten_loses_a_job() {
    let _share = machine::with_others();
    no_file_that_is_damaged_loses_a_job(End::Killed).await;
}

async fn no_file_that_is_damaged_loses_a_job(end: End) {
    let mut wrong = Vec::new();
    let left = leave(end).await;
    let mut directory = left.copied();
    for (name, bytes) in files(directory.path()) {
        // What is damaged in an empty journal is nothing.
        let used = used(&bytes);
        for damage in ["gone", "empty", "cut", "its first byte zero", "a page zero"] {
            let path = directory.path().join(&name);
            match damage {
                "gone" => fs::remove_file(&path).expect("removable"),
                _ if used == 0 => continue,
                "cut" | "empty" => {
                    let file = OpenOptions::new().write(true).open(&path).expect("it can be opened");
                    file.set_len(if damage == "cut" { used as u64 / 2 } else { 0 }).expect("writable");
                }
                _ => {
                    let (from, length) = if damage == "a page zero" { (used / 2, 4_096) } else { (0, 1) };
                    let mut file = OpenOptions::new().write(true).open(&path).expect("it can be opened");
                    file.seek(SeekFrom::Start(from as u64)).expect("seekable");
                    file.write_all(&vec![0; length.min(used - from)]).expect("writable");
                }
            }
            if let Err(what) = left.judge(directory.path(), &name).await {
                wrong.push(format!("{end:?}, {}, {damage}: {what}", name.display()));
            }
            directory = left.copied();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_folder_that_is_gone_loses_a_job() {
    let _share = machine::with_others();
    let mut wrong = Vec::new();
    for end in [End::Stopped, End::Killed] {
        let left = leave(end).await;
        let keyspaces = (0..=7).map(|number| PathBuf::from(format!("store/keyspaces/{number}")));
        for name in keyspaces.chain([PathBuf::from("store"), PathBuf::from("store/keyspaces")]) {
            let directory = left.copied();
            fs::remove_dir_all(directory.path().join(&name)).expect("removable");
            match left.judge(directory.path(), &name).await {
                Ok(Opened::Refused) => {}
                Ok(Opened::Whole) => wrong.push(format!("{end:?}, {}: it was made anew", name.display())),
                Err(what) => wrong.push(format!("{end:?}, {}: {what}", name.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_leaves_at_the_end_of_the_log_is_no_damage() {
    let _share = machine::with_others();
    let left = leave(End::Killed).await;
    let mut segments = used_files(left.directory.path()).into_iter().filter(|(name, _)| name.starts_with("log"));
    let (name, used) = segments.next_back().expect("a segment");
    let bytes = fs::read(left.directory.path().join(&name)).expect("a segment");
    let used = usize::try_from(used).expect("it fits in memory");
    let end = b"\xFA\xF5\xF9\xF6";
    let begins = bytes[..used - 1].windows(end.len()).rposition(|window| window == end).expect("two frames");
    let batch = &bytes[begins + end.len()..used];
    // A frame as far as it came, and one whose middle did not come.
    for length in [1, 4, 7, 13, 14, batch.len() / 2, batch.len() - 5, batch.len() - 4] {
        let directory = left.copied();
        let torn = OpenOptions::new().write(true).open(directory.path().join(&name)).expect("it can be opened");
        torn.write_all_at(&batch[..length], used as u64).expect("writable");
        let other = tempfile::tempdir().expect("a temporary directory");
        copy(directory.path(), other.path());
        let store = EmbeddedStore::open(other.path(), &options()).expect("it can be opened");
        let dropped = store.dropped().expect("something was dropped");
        assert!(dropped.contains(&name.display().to_string()), "{dropped}");
        assert_eq!(left.judge(directory.path(), &name).await, Ok(Opened::Whole), "{length} bytes of a frame");
    }
    let directory = left.copied();
    let torn = OpenOptions::new().write(true).open(directory.path().join(&name)).expect("it can be opened");
    torn.write_all_at(&batch[..20], used as u64).expect("writable");
    torn.write_all_at(&batch[batch.len() - 20..], used as u64 + 5_000).expect("writable");
    assert_eq!(left.judge(directory.path(), &name).await, Ok(Opened::Whole), "a frame with a hole");
}
