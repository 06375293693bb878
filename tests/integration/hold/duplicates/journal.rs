//! What the workers write down themselves: a file for each life of a process, a line for each thing that happens.
//!
//! A line is one write to the file, made before anything else happens: what a killed process wrote is there.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// What happened to an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// It began, under a lease until some time.
    Started,
    /// Its lease was prolonged.
    Renewed,
    /// It was given up, since its worker heard that the lease was lost.
    Abandoned,
    /// It has done its work, of which nobody else knows yet.
    Done,
    /// Its completion was accepted, as its worker was told.
    Acknowledged,
    /// Its completion was refused.
    Refused,
    /// The whole process was killed: written by who killed it.
    Killed,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Line {
    /// In microseconds since 1970, as are all times here.
    pub(super) at: u64,
    pub(super) what: What,
    pub(super) job: String,
    /// Tells this execution from others of the same job: the claim's fence, or what stands for it.
    pub(super) token: u64,
    /// Until when the worker may believe that it holds the lease, where it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<u64>,
}

/// A file that lines are appended to.
pub(super) struct Journal(File);

impl Journal {
    pub(super) fn open(path: &Path) -> Self {
        Self(File::options().create(true).append(true).open(path).expect("a journal can be opened"))
    }

    pub(super) fn write(&mut self, what: What, job: &str, token: u64, until: Option<u64>) {
        let line = Line { at: now(), what, job: job.to_owned(), token, until };
        let mut bytes = serde_json::to_vec(&line).expect("a line is JSON");
        bytes.push(b'\n');
        self.0.write_all(&bytes).expect("a journal can be written");
    }
}

/// All lines of a journal.
pub(super) fn read(path: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(path).expect("a journal can be read");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

/// The time of the machine, which all processes share.
pub(super) fn now() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970"))
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("some centuries at most")
}
