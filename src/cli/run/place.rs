//! The data directory of a list of jobs, and the runs in it.
//!
//! ```text
//! run.json   which list it is for, and its runs: when each began and, once all of its jobs have ended, when it ended
//! run.lock   held by the process that works here; its pid is inside
//! 1/, 2/, …  a run each: its store, and what its jobs wrote in output/
//! ```
//!
//! `run.json` is replaced durably and at once. A run is entered before its first job is stored, and removed before its
//! folder is; so a folder that is not entered belongs to nobody. Former versions kept their only run in the directory
//! itself: it becomes the folder of the first.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cli::failure::Failure;
use crate::clock::{Clock as _, SystemClock, Timestamp};

/// The file that says which list a directory belongs to. Jobs that are not in the list are cancelled in it, so a run
/// never uses another's.
const MARKER: &str = "run.json";
const LOCK: &str = "run.lock";
/// How the names begin of what is the directory's own.
const OWN: &str = "run.";
/// How the names begin of what former versions kept in the directory itself.
const FORMER: [&str; 5] = ["leasehold.", "store", "log", "audit", "output"];
/// The lock of a store.
const STORE_LOCK: &str = "leasehold.lock";

#[derive(Serialize, Deserialize)]
struct Marker {
    source: String,
    /// Oldest first; none where a former version wrote it.
    #[serde(default)]
    runs: Vec<RunRecord>,
}

/// A run of a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RunRecord {
    /// Its number, from 1. No other run of the list has it.
    pub(super) number: u64,
    pub(super) begun_at: Timestamp,
    /// When all of its jobs had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended_at: Option<Timestamp>,
    /// The job of Leasehold's own that began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) job: Option<String>,
}

/// A data directory that this process holds.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
    source: String,
    /// Oldest first, and at least one.
    runs: Vec<RunRecord>,
    /// Whether the only run was entered just now.
    is_new: bool,
    lock: File,
}

impl Drop for Place {
    /// To close the file would not be enough: a process that is being started has a copy of it until it runs its
    /// program.
    fn drop(&mut self) {
        let _ = self.lock.unlock();
    }
}

impl Place {
    /// Claims the directory for this list. In a new one the first run begins, for `job` if this process runs in one.
    ///
    /// # Errors
    /// The directory belongs to another list, or to a server, or another process works in it.
    pub(super) fn occupy(directory: &Path, identity: &str, job: Option<&str>) -> Result<Self, Failure> {
        let failed = |error: io::Error| cannot_use(directory, &error);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let directory = directory.canonicalize().map_err(failed)?;
        check_owner(&directory, identity)?;
        let lock = hold(&directory, LOCK)?;
        let mut place = Self { directory, source: identity.to_owned(), runs: Vec::new(), is_new: false, lock };
        let marker = check_owner(&place.directory, identity)?;
        place.is_new = marker.is_none();
        place.runs = marker.map(|marker| marker.runs).unwrap_or_default();
        if place.runs.is_empty() {
            let begun_at = if place.is_new { now() } else { place.marked_at() };
            let job = job.filter(|_| place.is_new).map(str::to_owned);
            place.runs.push(RunRecord { number: 1, begun_at, ended_at: None, job });
            place.write()?;
        }
        place.take_over_former_layout()?;
        place.sweep();
        Ok(place)
    }

    /// Returns the directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns whether the directory was new.
    pub(super) const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns the last run.
    pub(super) fn last(&self) -> &RunRecord {
        self.runs.last().unwrap_or_else(|| unreachable!("a place has a run"))
    }

    /// Returns the folder of the last run.
    pub(super) fn folder(&self) -> PathBuf {
        self.directory.join(self.last().number.to_string())
    }

    /// Begins a run, and removes the oldest ones beyond `keep`.
    pub(super) fn begin(&mut self, job: Option<&str>, keep: usize) -> Result<(), Failure> {
        let number = self.last().number + 1;
        self.runs.push(RunRecord { number, begun_at: now(), ended_at: None, job: job.map(str::to_owned) });
        self.runs.drain(..self.runs.len().saturating_sub(keep.max(1)));
        self.write()?;
        self.sweep();
        Ok(())
    }

    /// Notes whether the last run has ended. The note is durable when this returns.
    pub(super) fn note(&mut self, has_ended: bool) -> Result<(), Failure> {
        let Some(last) = self.runs.last_mut() else { return Ok(()) };
        if last.ended_at.is_some() == has_ended {
            return Ok(());
        }
        last.ended_at = has_ended.then(now);
        self.write()
    }

    fn write(&self) -> Result<(), Failure> {
        let marker = Marker { source: self.source.clone(), runs: self.runs.clone() };
        let text = serde_json::to_vec(&marker)?;
        let unfinished = self.directory.join(format!("{MARKER}.new"));
        let replace = || {
            let mut file = File::create(&unfinished)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&unfinished, self.directory.join(MARKER))?;
            File::open(&self.directory)?.sync_all()
        };
        replace().map_err(|error| cannot_use(&self.directory, &error))
    }

    /// Returns when the marker was written.
    fn marked_at(&self) -> Timestamp {
        let written = fs::metadata(self.directory.join(MARKER)).and_then(|marker| marker.modified());
        let since = written.ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        since.map_or_else(now, |since| Timestamp::from_millis(since.as_millis() as i64))
    }

    /// Moves what a former version kept in the directory itself to the folder of the first run. What was interrupted
    /// goes on with what is left.
    fn take_over_former_layout(&self) -> Result<(), Failure> {
        let failed = |error: io::Error| cannot_use(&self.directory, &error);
        let is_former = |entry: &fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            FORMER.iter().any(|former| name.starts_with(former))
        };
        let former: Vec<_> = fs::read_dir(&self.directory).map_err(failed)?.flatten().filter(is_former).collect();
        if former.is_empty() {
            return Ok(());
        }
        // A process of the former version holds this one.
        let _lock = hold(&self.directory, STORE_LOCK)?;
        let first = self.directory.join("1");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&first).map_err(failed)?;
        for entry in former {
            fs::rename(entry.path(), first.join(entry.file_name())).map_err(failed)?;
        }
        // Not there before, where only a part was left to be moved.
        let moved = [self.directory.join(STORE_LOCK), first.join(STORE_LOCK)];
        if moved[0].exists() {
            fs::rename(&moved[0], &moved[1]).map_err(failed)?;
        }
        File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    /// Removes the folders of runs that are not entered.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let number = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
            let is_removed = number.is_some_and(|number| self.runs.iter().all(|run| run.number != number));
            if is_removed && let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::warn!(folder = %entry.path().display(), %error, "a former run cannot be removed");
            }
        }
    }
}

fn now() -> Timestamp {
    SystemClock::default().now()
}

fn cannot_use(directory: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot use the data directory {}: {error}", directory.display()))
}

/// Returns what the marker says; `None` where there is none yet.
fn check_owner(directory: &Path, identity: &str) -> Result<Option<Marker>, Failure> {
    let taken = |by: &str| {
        let directory = directory.display();
        Err(Failure::Usage(format!("the data directory {directory} is that of {by}; choose another with --data-dir")))
    };
    match fs::read(directory.join(MARKER)) {
        Ok(bytes) => match serde_json::from_slice::<Marker>(&bytes) {
            Ok(found) if found.source == identity => Ok(Some(found)),
            Ok(found) => taken(&format!("another run ({})", found.source)),
            Err(_) => taken("something else"),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // A marker that was not finished is that of a former start, which was killed.
            let foreign = |entry: fs::DirEntry| !entry.file_name().to_string_lossy().starts_with(OWN);
            let entries = fs::read_dir(directory).map_err(|error| cannot_use(directory, &error))?;
            if entries.flatten().any(foreign) {
                return taken("a server, or of something else");
            }
            Ok(None)
        }
        Err(error) => Err(cannot_use(directory, &error)),
    }
}

/// Takes a lock file of the directory, or says who has it.
fn hold(directory: &Path, name: &str) -> Result<File, Failure> {
    let failed = |error: io::Error| cannot_use(directory, &error);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut lock = options.open(directory.join(name)).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
        Err(fs::TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let holder = match lock.read_to_string(&mut pid) {
                Ok(1..) => format!("the process {}", pid.trim()),
                _ => "another process".to_owned(),
            };
            let directory = directory.display();
            let what = "wait until it has ended, or choose another with --data-dir";
            return Err(Failure::Failed(format!("the data directory {directory} is in use by {holder}: {what}")));
        }
    }
    let write = |lock: &mut File| {
        lock.set_len(0)?;
        lock.rewind()?;
        lock.write_all(std::process::id().to_string().as_bytes())
    };
    write(&mut lock).map_err(failed)?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occupy(directory: &Path, identity: &str) -> Result<Place, Failure> {
        Place::occupy(directory, identity, None)
    }

    #[test]
    fn a_directory_is_found_again_by_its_own_run_and_by_no_other() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = parent.path().join("a/b");
        let first = occupy(&directory, "file /x").expect("free").directory().to_owned();
        assert_eq!(occupy(&directory, "file /x").expect("its own").directory(), first);
        assert!(matches!(occupy(&directory, "file /y"), Err(Failure::Usage(said)) if said.contains("file /x")));
    }

    #[test]
    fn a_directory_with_other_data_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("leasehold.format"), "1").expect("written");
        assert!(matches!(occupy(directory.path(), "file /x"), Err(Failure::Usage(_))));
        assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 1);
    }

    #[test]
    fn one_process_works_in_a_directory_and_only_so_many_runs_are_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut place = occupy(directory.path(), "x").expect("free");
        assert!(matches!(occupy(directory.path(), "x"), Err(Failure::Failed(said)) if said.contains("in use by")));
        for number in 1..=4 {
            assert_eq!(place.last().number, number);
            fs::create_dir(place.folder()).expect("made");
            place.note(true).expect("noted");
            place.begin(Some("job"), 2).expect("begun");
        }
        fs::create_dir(directory.path().join("9")).expect("made");
        drop(place);
        let place = occupy(directory.path(), "x").expect("free again");
        assert_eq!((place.last().number, place.last().ended_at, place.runs.len()), (5, None, 2));
        assert!(place.runs[0].ended_at.is_some() && place.last().job.as_deref() == Some("job"));
        let mut folders: Vec<_> = fs::read_dir(directory.path()).expect("there").flatten().collect();
        folders.retain(|entry| entry.path().is_dir());
        assert_eq!(folders.iter().map(|entry| entry.file_name()).collect::<Vec<_>>(), ["4"]);
    }

    #[test]
    fn the_run_of_a_former_version_is_the_first_also_when_its_move_was_interrupted() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        fs::write(path("run.json"), "{\"source\":\"x\"}").expect("written");
        fs::create_dir_all(path("store/a")).expect("made");
        fs::write(path("leasehold.format"), "8").expect("written");
        fs::create_dir_all(path("1/log")).expect("made");
        let place = occupy(directory.path(), "x").expect("its own");
        assert_eq!((place.last().number, place.last().ended_at, place.is_new()), (1, None, false));
        for there in ["1/log", "1/store/a", "1/leasehold.format"] {
            assert!(path(there).exists(), "{there}");
        }
        assert!(!path("store").exists() && !path("leasehold.lock").exists());
    }
}
