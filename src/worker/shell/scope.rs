//! Finds the commands of a worker that died without ending them.
//!
//! Every command carries its worker's scope in its environment, and so does everything it starts. The process that
//! takes the worker's place searches the machine's processes for it, so there is no list of processes that could be
//! lost between the start of one and the writing of it. (Jenkins finds the processes of a build this way.)
//!
//! Limits: it needs `/proc`, so elsewhere than on Linux nothing is found; a process of another user, or one that has
//! cleared its environment, is not seen.

use std::sync::Arc;
use std::time::Duration;

/// The environment variable that carries the scope.
pub(super) const VARIABLE: &str = "LEASEHOLD_SCOPE";

/// A name under which only one worker may run commands at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope(Arc<str>);

/// The processes of a former worker's commands that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// The ids of the processes that were killed.
    pub ended: Vec<i32>,
    /// The ids of the processes that were still alive after the wait.
    pub alive: Vec<i32>,
}

impl Scope {
    /// Creates the scope called `name`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name.replace('\0', "")))
    }

    /// Returns the scope's name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Kills every process of this scope and waits, for `patience` at most, until they have ended. It must be called
    /// only by a worker that is alone in the scope.
    pub async fn end_leftovers(&self, patience: Duration) -> Leftovers {
        let deadline = tokio::time::Instant::now() + patience;
        let mut ended = Vec::new();
        loop {
            let alive = processes::kill_all(&format!("{VARIABLE}={}", self.0));
            ended.extend(alive.iter().filter(|process| !ended.contains(*process)).copied().collect::<Vec<_>>());
            if alive.is_empty() || tokio::time::Instant::now() >= deadline {
                ended.retain(|process| !alive.contains(process));
                return Leftovers { ended, alive };
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[cfg(target_os = "linux")]
mod processes {
    use std::fs;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    /// Sends SIGKILL to every process that has `entry` in its environment, and returns the ids of those found.
    pub(super) fn kill_all(entry: &str) -> Vec<i32> {
        let Ok(directory) = fs::read_dir("/proc") else { return Vec::new() };
        let numbers = directory.flatten().filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
        let myself = std::process::id();
        let mut found: Vec<i32> =
            numbers.filter(|number| u32::try_from(*number) != Ok(myself) && has(*number, entry)).collect();
        found.retain(|number| kill(Pid::from_raw(*number), Signal::SIGKILL).is_ok());
        found
    }

    /// Returns whether the process has `entry` in its environment. An exiting process has an empty environment, so it
    /// is not found again.
    fn has(process: i32, entry: &str) -> bool {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|found| found == entry.as_bytes())
    }
}

#[cfg(not(target_os = "linux"))]
mod processes {
    pub(super) fn kill_all(_entry: &str) -> Vec<i32> {
        Vec::new()
    }
}
