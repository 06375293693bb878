//! Why a call failed.

use std::time::Duration;

use http::StatusCode;

use crate::wire::Problem;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server's address, the token or an argument is invalid; nothing was sent.
    #[error("{0}")]
    Usage(String),
    /// The server refused the call.
    #[error("{} ({})", .problem.detail, .problem.code)]
    Problem {
        /// The problem that the server returned.
        problem: Box<Problem>,
        /// How long the server asked to wait before the next try.
        retry_after: Option<Duration>,
    },
    /// The server could not be reached; it has not heard of the call.
    #[error("cannot reach the server: {0}")]
    Connect(String),
    /// No answer came in time; the server may have carried out the call.
    #[error("no answer in time: {0}")]
    Timeout(String),
    /// The connection broke; the server may have carried out the call.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The answer is not one of this API.
    #[error("cannot understand the answer (status {status}): {message}")]
    Decode {
        /// The answer's HTTP status.
        status: u16,
        /// What is wrong with the answer.
        message: String,
    },
}

impl ClientError {
    /// Returns the HTTP status, when the server answered.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Problem { problem, .. } => Some(problem.status),
            Self::Decode { status, .. } => Some(*status),
            Self::Usage(_) | Self::Connect(_) | Self::Timeout(_) | Self::Broken(_) => None,
        }
    }

    /// Returns the problem's stable code, when the server refused.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Problem { problem, .. } => Some(&problem.code),
            _ => None,
        }
    }

    /// Returns whether the server did not carry out the call, and a repetition may succeed.
    pub(super) fn is_unheard(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Problem { problem, .. } => is_busy(problem.status) && problem.code != "outcome_unknown",
            _ => false,
        }
    }

    /// Returns whether a repetition may succeed, where repeating the call is harmless.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Broken(_) => true,
            Self::Problem { problem, .. } => is_busy(problem.status),
            Self::Decode { status, .. } => *status == StatusCode::BAD_GATEWAY || *status == StatusCode::GATEWAY_TIMEOUT,
            _ => self.is_unheard(),
        }
    }
}

fn is_busy(status: u16) -> bool {
    status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS
}

impl From<reqwest::Error> for ClientError {
    fn from(error: reqwest::Error) -> Self {
        let text = format!("{error}: {}", innermost_cause(&error));
        if error.is_builder() {
            Self::Usage(text)
        } else if error.is_connect() {
            Self::Connect(text)
        } else if error.is_timeout() {
            Self::Timeout(text)
        } else {
            Self::Broken(text)
        }
    }
}

/// Returns the innermost cause of an error, which is the specific one (`connection refused`).
pub(crate) fn innermost_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
