//! The data directory of a list of jobs, and the runs in it.
//!
//! ```text
//! run.json   which list it is for, and its runs: when each began and, once all of its jobs have ended, when it ended
//! run.lock   held by the process that works here; its pid is inside
//! 1/, 2/, …  a run each: its store, and what its jobs wrote in output/
//! ```
//!
//! `run.json` is replaced durably and at once. A run is entered before its first job is stored. Before its folder is
//! removed, its number goes to a list of those that are to be removed; no other folder ever is, nor one in which
//! something else lies than what a store writes. Former versions kept their only run in the directory itself: it
//! becomes the folder of the first, and `run.json` says so until everything is there.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cli::failure::Failure;
use crate::clock::{Clock as _, SystemClock, Timestamp};

/// The file that says which list a directory belongs to. Jobs that are not in the list are cancelled in it, so a run
/// never uses another's.
const MARKER: &str = "run.json";
const LOCK: &str = "run.lock";
/// How the names begin of what is the directory's own.
const OWN: &str = "run.";
/// What a store writes in its folder, and the output of jobs. A file is written under its name with [`UNFINISHED`]
/// first.
const STORES: [&str; 15] = [
    STORE_LOCK,
    "leasehold.format",
    "leasehold.seal",
    "leasehold.openings",
    "leasehold.rebuilds",
    "leasehold.room",
    "leasehold.try",
    "leasehold.incoming",
    "store",
    "store.incoming",
    "store.old",
    "log",
    "audit",
    "output",
    "output.damaged",
];
const UNFINISHED: &str = ".new";
/// The lock of a store.
const STORE_LOCK: &str = "leasehold.lock";

#[derive(Serialize, Deserialize)]
struct Marker {
    source: String,
    /// Oldest first; none where a former version wrote it.
    #[serde(default)]
    runs: Vec<RunRecord>,
    /// The numbers of former runs whose folders are to be removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    removing: Vec<u64>,
    /// Whether the run of a former version is being moved to the folder of the first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    moving: bool,
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
    /// The fence of that job's last attempt that worked on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fence: Option<u64>,
}

/// A job of Leasehold's own, in one of its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnJob {
    pub(super) id: String,
    /// It grows with each attempt.
    pub(super) fence: u64,
}

impl RunRecord {
    fn begin(number: u64, job: Option<&OwnJob>) -> Self {
        let (job, fence) = (job.map(|job| job.id.clone()), job.map(|job| job.fence));
        Self { number, begun_at: now(), ended_at: None, job, fence }
    }
}

/// A data directory that this process holds.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
    source: String,
    /// Oldest first, and at least one.
    runs: Vec<RunRecord>,
    removing: Vec<u64>,
    moving: bool,
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
    pub(super) fn occupy(directory: &Path, identity: &str, job: Option<&OwnJob>) -> Result<Self, Failure> {
        let failed = |error: io::Error| cannot_use(directory, &error);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let directory = directory.canonicalize().map_err(failed)?;
        check_owner(&directory, identity)?;
        let lock = hold(&directory, LOCK)?;
        let marker = check_owner(&directory, identity)?;
        let is_new = marker.is_none();
        let none = || Marker { source: identity.to_owned(), runs: Vec::new(), removing: Vec::new(), moving: false };
        let Marker { source, runs, removing, moving } = marker.unwrap_or_else(none);
        let mut place = Self { directory, source, runs, removing, moving, is_new, lock };
        if place.runs.is_empty() {
            let mut first = RunRecord::begin(1, job.filter(|_| is_new));
            if !is_new {
                first.begun_at = place.marked_at();
                place.moving = true;
            }
            place.runs.push(first);
            place.write()?;
        }
        if place.moving {
            place.take_over_former_layout()?;
        }
        place.sweep();
        Ok(place)
    }

    /// Returns the data directory of the list, in which the folders of its runs are.
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

    /// Returns the folders of the runs before the last one.
    pub(super) fn former_folders(&self) -> impl Iterator<Item = PathBuf> {
        let former = &self.runs[..self.runs.len().saturating_sub(1)];
        former.iter().map(|run| self.directory.join(run.number.to_string()))
    }

    /// Begins a run, and removes the oldest ones beyond `keep`. What already has the name of its folder is somebody's
    /// own, and its number is left out.
    pub(super) fn begin(&mut self, job: Option<&OwnJob>, keep: usize) -> Result<(), Failure> {
        let is_free = |number: &u64| fs::symlink_metadata(self.directory.join(number.to_string())).is_err();
        let number = (self.last().number + 1..).find(is_free).unwrap_or(u64::MAX);
        self.runs.push(RunRecord::begin(number, job));
        let removed = self.runs.drain(..self.runs.len().saturating_sub(keep.max(1)));
        self.removing.extend(removed.map(|run| run.number));
        self.write()?;
        self.sweep();
        Ok(())
    }

    /// Notes that the last run goes on, in this attempt of the job that it belongs to. The note is durable when this
    /// returns.
    pub(super) fn go_on(&mut self, job: Option<&OwnJob>) -> Result<(), Failure> {
        let Some(last) = self.runs.last_mut() else { return Ok(()) };
        let fence = job.map_or(last.fence, |job| Some(job.fence));
        if last.ended_at.is_none() && last.fence == fence {
            return Ok(());
        }
        (last.ended_at, last.fence) = (None, fence);
        self.write()
    }

    /// Notes that the last run has ended. The note is durable when this returns.
    pub(super) fn note_end(&mut self) -> Result<(), Failure> {
        let Some(last) = self.runs.last_mut() else { return Ok(()) };
        if last.ended_at.is_some() {
            return Ok(());
        }
        last.ended_at = Some(now());
        self.write()
    }

    fn write(&self) -> Result<(), Failure> {
        let (source, runs) = (self.source.clone(), self.runs.clone());
        let marker = Marker { source, runs, removing: self.removing.clone(), moving: self.moving };
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
    fn take_over_former_layout(&mut self) -> Result<(), Failure> {
        let failed = |error: io::Error| cannot_use(&self.directory, &error);
        let first = self.directory.join("1");
        if let Some(other) = foreign(&first).map_err(failed)? {
            return Err(Failure::Failed(format!(
                "the run of a former version is to be moved to {}, and {other:?} is there, which no run has written: \
                 move that elsewhere, then start again",
                first.display()
            )));
        }
        let entries = fs::read_dir(&self.directory).map_err(failed)?;
        let former: Vec<_> = entries.flatten().filter(|entry| is_stores(&entry.file_name())).collect();
        if !former.is_empty() {
            // A process of the former version holds this one.
            let _lock = hold(&self.directory, STORE_LOCK)?;
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&first).map_err(failed)?;
            for entry in former {
                fs::rename(entry.path(), first.join(entry.file_name())).map_err(failed)?;
            }
            // Not there before, where only a part was left to be moved.
            let moved = [self.directory.join(STORE_LOCK), first.join(STORE_LOCK)];
            if moved[0].exists() {
                fs::rename(&moved[0], &moved[1]).map_err(failed)?;
            }
            File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        }
        self.moving = false;
        self.write()
    }

    /// Removes the folders of former runs.
    fn sweep(&mut self) {
        if self.removing.is_empty() {
            return;
        }
        let (directory, last) = (self.directory.clone(), self.last().number);
        self.removing.retain(|number| {
            let folder = directory.join(number.to_string());
            let removed = match foreign(&folder) {
                _ if *number >= last => Ok(()),
                Ok(None) => fs::remove_dir_all(&folder),
                Ok(Some(other)) => {
                    let folder = folder.display();
                    tracing::warn!(%folder, ?other, "a former run is left there: not all in it was written by one");
                    Ok(())
                }
                Err(error) => Err(error),
            };
            let removed = removed.or_else(|error| none_if_missing(error, ()));
            if let Err(error) = &removed {
                tracing::warn!(folder = %folder.display(), %error, "a former run cannot be removed");
            }
            removed.is_err()
        });
        if let Err(failure) = self.write() {
            tracing::warn!(?failure, "the removal of former runs cannot be noted");
        }
    }
}

/// Returns whether a store writes something of this name in its folder.
fn is_stores(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    STORES.contains(&name) || STORES.contains(&name.strip_suffix(UNFINISHED).unwrap_or(name))
}

/// Returns the name of something in the folder of a run that no store writes there; `None` also where there is no
/// folder.
fn foreign(folder: &Path) -> io::Result<Option<OsString>> {
    let kind = match fs::symlink_metadata(folder) {
        Ok(found) => found.file_type(),
        Err(error) => return none_if_missing(error, None),
    };
    if !kind.is_dir() {
        return Ok(folder.file_name().map(OsStr::to_owned));
    }
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !is_stores(&name) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn none_if_missing<T>(error: io::Error, none: T) -> io::Result<T> {
    if error.kind() == ErrorKind::NotFound { Ok(none) } else { Err(error) }
}

/// Checks that results do not come to lie among the runs of a data directory, where they could be taken for a run or
/// be removed with one.
///
/// # Errors
/// A usage error that says why.
pub(super) fn check_results(results: &Path, directory: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| cannot_use(directory, &error);
    let (results, directory) = (resolve(results).map_err(failed)?, resolve(directory).map_err(failed)?);
    // The folder in which all results lie.
    let within = results.join("1");
    if results.starts_with(&directory) || within.starts_with(&directory) || directory.starts_with(&within) {
        return Err(Failure::Usage(format!(
            "the results cannot be in the data directory {}, whose folders are those of runs and are removed with \
             them; choose another directory with --results",
            directory.display()
        )));
    }
    Ok(())
}

/// Returns a path without symbolic links, also of what is not there yet.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut resolved = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            part => resolved.push(part),
        }
        resolved = resolved.canonicalize().unwrap_or(resolved);
    }
    Ok(resolved)
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
mod tests;
