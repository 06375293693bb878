//! A worker's post on this machine: the scope of its commands, and the file that says whether the worker is alive.
//!
//! Each worker process has a scope of its own, which its commands carry in their environment, and keeps a file with the
//! scope's name locked while it lives. The system releases the lock however the process ends. So a worker that starts
//! finds the scopes of all workers of this user that have died, whatever they were called, and ends what they left
//! before it claims anything; two workers of one name never take each other's commands for leftovers.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::failure::Failure;
use crate::job::WorkerId;
use crate::worker::shell::Scope;

/// How long leftovers may take to end after SIGKILL.
const PATIENCE: Duration = Duration::from_secs(10);
/// How the names of the files of workers end.
const EXTENSION: &str = "worker";
/// The longest name of a scope that is read, in bytes.
const MAX_SCOPE_BYTES: u64 = 4096;

/// The post of a worker that lives. Its file is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Post {
    scope: Scope,
    /// The locked file and its path; `None` where no file can be kept.
    file: Option<(File, PathBuf)>,
}

impl Post {
    /// Ends what dead workers of this user left running, and takes a post for a worker.
    ///
    /// # Errors
    /// What a dead worker left cannot be ended, so that its jobs could run twice.
    pub(super) async fn take(worker: &WorkerId) -> Result<Self, Failure> {
        let scope = Scope::new(&format!("worker {worker} {}", uuid::Uuid::new_v4().simple()));
        let kept = match directory() {
            Ok(directory) => {
                end_leftovers(&directory).await?;
                keep(&directory, &scope)
            }
            Err(error) => Err(error),
        };
        let file = kept
            .inspect_err(|error| {
                tracing::warn!(%error, "the next worker will not find what this one leaves behind if it is killed");
            })
            .ok();
        Ok(Self { scope, file })
    }

    /// Returns the scope of the worker's commands.
    pub(super) const fn scope(&self) -> &Scope {
        &self.scope
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.file {
            // A file that stays is removed by the next worker that starts.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the directory of this user's workers, which belongs to nobody else.
fn directory() -> io::Result<PathBuf> {
    let user = nix::unistd::geteuid().as_raw();
    let directory = std::env::temp_dir().join(format!("leasehold-{user}"));
    DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let found = fs::symlink_metadata(&directory)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!("{} belongs to somebody else", directory.display())));
    }
    Ok(directory)
}

/// Writes the file of a scope. It has its name only once it is locked, so that nobody takes its worker for dead.
fn keep(directory: &Path, scope: &Scope) -> io::Result<(File, PathBuf)> {
    let name = directory.join(uuid::Uuid::new_v4().simple().to_string());
    let mut file = File::create_new(&name)?;
    file.try_lock().map_err(io::Error::from)?;
    file.write_all(scope.as_str().as_bytes())?;
    let path = name.with_extension(EXTENSION);
    fs::rename(&name, &path)?;
    Ok((file, path))
}

async fn end_leftovers(directory: &Path) -> Result<(), Failure> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries.flatten(),
        Err(error) => {
            tracing::warn!(%error, "cannot look for what former workers left");
            return Ok(());
        }
    };
    for path in entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == EXTENSION)) {
        let Some((_locked, scope)) = of_dead_worker(&path) else { continue };
        let leftovers = scope.end_leftovers(PATIENCE).await;
        if !leftovers.alive.is_empty() {
            return Err(Failure::Failed(format!(
                "the processes {:?} of a former worker are still there and cannot be killed; end them, then start \
                 again",
                leftovers.alive
            )));
        }
        if !leftovers.ended.is_empty() {
            tracing::warn!(processes = leftovers.ended.len(), "ended what a former worker had left running");
        }
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(%error, "cannot remove the file of a former worker");
        }
    }
    Ok(())
}

/// Returns the scope in a worker's file, with the locked file, if the worker is dead.
fn of_dead_worker(path: &Path) -> Option<(File, Scope)> {
    let mut file = File::open(path).ok()?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return None,
        Err(TryLockError::Error(error)) => {
            tracing::warn!(%error, "cannot find out whether a former worker lives");
            return None;
        }
    }
    let mut name = String::new();
    file.rewind().ok()?;
    (&file).take(MAX_SCOPE_BYTES).read_to_string(&mut name).ok()?;
    Some((file, Scope::new(&name)))
}
