//! How a command ends when it does not end well: what is said, and the exit status.

use std::io;
use std::process::ExitCode;

use crate::client::ClientError;

/// Why a command did not end well.
#[derive(Debug)]
pub(super) enum Failure {
    /// What was asked for cannot be meant; nothing was done.
    Usage(String),
    /// It went wrong.
    Failed(String),
    /// The server cannot be reached.
    Unreachable(String),
    /// Everything has been said; only the exit status is left.
    Told(ExitStatus),
    /// Whoever reads the output has had enough.
    OutputClosed,
}

/// The exit statuses beside success, as the help text lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExitStatus {
    /// A job failed, or the command did.
    Failed = 1,
    /// Nothing was done.
    Usage = 2,
    /// The server cannot be reached.
    Unreachable = 3,
    /// The time given ran out.
    TimeIsUp = 4,
    /// Interrupted by Ctrl-C.
    Interrupted = 130,
    /// As if SIGPIPE had ended it, which it does for most programs.
    OutputClosed = 141,
    /// Ended by SIGTERM.
    Terminated = 143,
}

impl Failure {
    /// Says what is to be said, in one paragraph, and gives the exit status.
    pub(super) fn report(self) -> ExitCode {
        let (said, status) = match self {
            Self::Usage(said) => (Some(said), ExitStatus::Usage),
            Self::Failed(said) => (Some(said), ExitStatus::Failed),
            Self::Unreachable(said) => (Some(said), ExitStatus::Unreachable),
            Self::Told(status) => (None, status),
            Self::OutputClosed => (None, ExitStatus::OutputClosed),
        };
        if let Some(said) = said {
            super::output::complain(&format!("leasehold: {said}"));
        }
        ExitCode::from(status as u8)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Usage(_) => Self::Usage(error.to_string()),
            ClientError::Connect(_) | ClientError::Timeout(_) | ClientError::Broken(_) => {
                Self::Unreachable(error.to_string())
            }
            ClientError::Problem { .. } | ClientError::Decode { .. } => Self::Failed(error.to_string()),
        }
    }
}

/// Writing to standard output.
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
