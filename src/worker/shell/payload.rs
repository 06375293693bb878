//! The payload of a shell job.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::super::handler::HandlerError;
use crate::job::{Json, strict};

/// The longest word, or variable with its name, that Linux hands to a program, in bytes.
const MAX_WORD_BYTES: usize = 128 * 1024 - 1;
/// After how long a job is to be had again that was given back for want of descriptors, processes or memory.
const AFTER_SHORTAGE: Duration = Duration::from_secs(1);

/// The payload of a shell job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShellPayload {
    /// The command to run.
    pub command: CommandLine,
    /// Environment variables, added to those of the worker that are not its settings.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize"
    )]
    pub env: BTreeMap<String, String>,
    /// The command's working directory; the worker's own by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a command is a list of a program and its arguments, or a string for `sh -c`")]
pub enum CommandLine {
    /// A program and its arguments, run without a shell.
    Arguments(Vec<String>),
    /// A command line for `sh -c`.
    Line(String),
}

impl CommandLine {
    /// Returns the program to start and its arguments.
    pub(super) fn program_and_arguments(&self) -> (&OsStr, Vec<&OsStr>) {
        match self {
            Self::Arguments(words) => {
                let mut words = words.iter().map(OsStr::new);
                (words.next().unwrap_or_default(), words.collect())
            }
            // By its place: the command may have a `PATH` of its own, in which there is no shell.
            Self::Line(line) => (OsStr::new("/bin/sh"), vec![OsStr::new("-c"), OsStr::new(line)]),
        }
    }

    /// Returns why no worker can run this command.
    fn flaw(&self) -> Option<&'static str> {
        match self {
            Self::Arguments(words) if words.first().is_none_or(String::is_empty) => Some("`command` names no program"),
            Self::Line(line) if line.trim().is_empty() => Some("`command` is empty"),
            Self::Arguments(words) if words.iter().any(|word| word.contains('\0')) => Some("`command` has a NUL"),
            Self::Line(line) if line.contains('\0') => Some("`command` has a NUL"),
            Self::Arguments(_) | Self::Line(_) => None,
        }
    }
}

impl ShellPayload {
    /// Reads and checks a job's payload.
    ///
    /// # Errors
    /// Returns what is wrong with the payload.
    pub fn parse(payload: Option<&Json>) -> Result<Self, String> {
        let Some(payload) = payload else { return Err("there is none".to_owned()) };
        let parsed: Self = strict::from_slice(payload.as_str().as_bytes()).map_err(|error| error.to_string())?;
        parsed.check().map(|()| parsed)
    }

    /// Checks the rules that the types do not express.
    ///
    /// # Errors
    /// Returns what is wrong with the payload.
    pub fn check(&self) -> Result<(), String> {
        if let Some(flaw) = self.command.flaw() {
            return Err(flaw.to_owned());
        }
        let words = match &self.command {
            CommandLine::Arguments(words) => words.iter().map(String::len).max(),
            CommandLine::Line(line) => Some(line.len()),
        };
        let of_env = self.env.iter().map(|(name, value)| name.len() + 1 + value.len()).max();
        for (what, longest) in [("a word of `command`", words), ("a variable of `env`", of_env)] {
            if let Some(length) = longest.filter(|length| *length > MAX_WORD_BYTES) {
                return Err(format!(
                    "{what} has {length} bytes, and a system takes {MAX_WORD_BYTES}: hand it on in a file"
                ));
            }
        }
        let bad =
            |(name, value): &(&String, &String)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
        match self.env.iter().find(bad) {
            Some((name, _)) => Err(format!("`env` cannot hold {name:?}")),
            None => Ok(()),
        }
    }

    /// Returns the failure of a command that could not be started. The same command on the same machine will usually
    /// fail again, but it may succeed after a file system returns, or on another worker.
    pub(super) fn spawn_failure(&self, error: &std::io::Error) -> HandlerError {
        if is_shortage(error) {
            let message = format!("the worker is short of what it needs to start commands: {error}");
            return HandlerError::postponed("shortage", message, AFTER_SHORTAGE);
        }
        let program = self.command.program_and_arguments().0.to_string_lossy().into_owned();
        let place = self.cwd.as_ref().map(|cwd| format!(" in {}", cwd.display())).unwrap_or_default();
        HandlerError::retryable("spawn", format!("cannot start `{program}`{place}: {error}"))
    }
}

/// Returns whether a command was not started for what the worker lacks for the moment, and no command would be.
pub(super) fn is_shortage(error: &std::io::Error) -> bool {
    let lacking = [Errno::EMFILE, Errno::ENFILE, Errno::EAGAIN, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|code| lacking.contains(&Errno::from_raw(code)))
}
