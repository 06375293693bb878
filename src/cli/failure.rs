//! How a command fails: its message and its exit status.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;

use super::clean::clean;
use crate::client::ClientError;

/// The exit statuses, as the help lists them.
pub(super) const EXIT_CODES: &str = "\
Exit status:
  0    success
  1    a job failed, or the command itself did
  2    the command line, a file or a line in it is wrong; nothing was done
  3    the server cannot be reached
  4    the time limit ran out
  129  ended by SIGHUP, when the terminal is closed
  130  interrupted by Ctrl-C
  143  ended by SIGTERM

`submit --wait` exits as the command of its job did.

Settings come from flags, then from the environment, then from the file that --config names.";

/// What helps where no server is.
const STARTED_OR_NAMED: &str = "`leasehold serve` starts one, and `--server` or LEASEHOLD_SERVER names another";
/// What helps where a server does not know who calls.
const TOKEN_IS_NAMED: &str = "`--token` or LEASEHOLD_TOKEN names the token, and `leasehold token` makes one";

/// Why a command failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The arguments are invalid; nothing was done.
    Usage(String),
    /// The command failed.
    Failed(String),
    /// The server cannot be reached.
    Unreachable(String),
    /// The message was printed already; only the exit status is left.
    Reported(ExitStatus),
    /// The command of a job failed with this exit status, which is passed on.
    Command(u8),
    /// The reader of standard output has closed it.
    OutputClosed,
}

/// The exit statuses other than 0, as the help text lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExitStatus {
    /// A job failed, or the command did.
    Failed = 1,
    /// The arguments were invalid; nothing was done.
    Usage = 2,
    /// The server cannot be reached.
    Unreachable = 3,
    /// The time limit ran out.
    TimeIsUp = 4,
    /// The command was ended by SIGHUP.
    HungUp = 129,
    /// The command was interrupted by Ctrl-C.
    Interrupted = 130,
    /// The output was closed: the status of a program that SIGPIPE ends.
    OutputClosed = 141,
    /// The command was ended by SIGTERM.
    Terminated = 143,
}

impl Failure {
    /// Makes the failure of a command from any error.
    pub(super) fn failed(error: impl Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// Returns the message; empty where it was printed already.
    fn message(&self) -> &str {
        match self {
            Self::Usage(message) | Self::Failed(message) | Self::Unreachable(message) => message,
            Self::Reported(_) | Self::Command(_) | Self::OutputClosed => "",
        }
    }

    /// Prints the message as one paragraph, and returns the exit status.
    pub(super) fn report(self) -> ExitCode {
        let (message, status) = match self {
            Self::Command(status) => return ExitCode::from(status),
            Self::Usage(message) => (Some(message), ExitStatus::Usage),
            Self::Failed(message) => (Some(message), ExitStatus::Failed),
            Self::Unreachable(message) => (Some(message), ExitStatus::Unreachable),
            Self::Reported(status) => (None, status),
            Self::OutputClosed => (None, ExitStatus::OutputClosed),
        };
        if let Some(message) = message {
            drop(writeln!(io::stderr(), "leasehold: {}", clean(&message)));
        }
        ExitCode::from(status as u8)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.message())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Usage(_) => Self::Usage(error.to_string()),
            ClientError::Connect(_) => Self::Unreachable(format!("{error}; {STARTED_OR_NAMED}")),
            ClientError::Timeout(_) | ClientError::Broken(_) => Self::Unreachable(error.to_string()),
            ClientError::Problem { .. } if error.code() == Some("unauthorized") => {
                Self::Failed(format!("{error}; {TOKEN_IS_NAMED}"))
            }
            // What the server finds wrong with a query is on the command line.
            ClientError::Problem { ref problem, .. } if problem.errors.iter().any(|error| error.field == "kql") => {
                Self::Usage(error.to_string())
            }
            ClientError::Servers(_) if error.status().is_none() => Self::Unreachable(error.to_string()),
            ClientError::Problem { .. } | ClientError::Decode { .. } | ClientError::Servers(_) => {
                Self::Failed(error.to_string())
            }
        }
    }
}

/// Errors of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Failed(format!("cannot write the output: {error}")),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(kind) => io::Error::from(kind).into(),
            None => Self::Failed(error.to_string()),
        }
    }
}
