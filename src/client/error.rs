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
    /// The client has several servers, and the call failed at these, in this order. What the other methods of this type
    /// return is that of the failure that says most: after which the call may have been carried out, or else the last
    /// one that is an answer, or else the last one.
    #[error("the call failed {}", .0.iter().map(ServerFailure::to_string).collect::<Vec<_>>().join(" and "))]
    Servers(Vec<ServerFailure>),
}

/// Why a call failed at one of several servers.
#[derive(Debug, thiserror::Error)]
#[error("at {server} ({error})")]
pub struct ServerFailure {
    /// The URL of the server.
    pub server: String,
    /// Why the call failed there.
    pub error: ClientError,
}

impl ClientError {
    /// Returns the HTTP status, when the server answered.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Problem { problem, .. } => Some(problem.status),
            Self::Decode { status, .. } => Some(*status),
            Self::Servers(failures) => decisive(failures)?.status(),
            Self::Usage(_) | Self::Connect(_) | Self::Timeout(_) | Self::Broken(_) => None,
        }
    }

    /// Returns the problem's stable code, when the server refused.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Problem { problem, .. } => Some(&problem.code),
            Self::Servers(failures) => decisive(failures)?.code(),
            _ => None,
        }
    }

    /// Returns how long the servers asked to wait before the next try: the longest of what they asked for.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Problem { retry_after, .. } => *retry_after,
            Self::Servers(failures) => failures.iter().filter_map(|failure| failure.error.retry_after()).max(),
            _ => None,
        }
    }

    /// Returns whether the server is the reason, so that another server may carry out the call.
    pub(super) fn is_of_server(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Timeout(_) | Self::Broken(_) => true,
            Self::Problem { problem, .. } => cannot_serve(problem.status),
            Self::Decode { status, .. } => cannot_serve(*status),
            Self::Usage(_) | Self::Servers(_) => false,
        }
    }

    /// Returns whether the server did not carry out the call, and a repetition may succeed.
    pub(super) fn is_unheard(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Problem { problem, .. } if is_of_another_cluster(problem.status) => true,
            Self::Problem { problem, .. } => is_busy(problem.status) && problem.code != "outcome_unknown",
            Self::Servers(failures) => decisive(failures).is_some_and(Self::is_unheard),
            _ => false,
        }
    }

    /// Returns whether a repetition may succeed, where repeating the call is harmless.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Servers(failures) => decisive(failures).is_some_and(Self::is_passing),
            Self::Problem { problem, .. } if is_busy(problem.status) => true,
            _ => self.is_of_server(),
        }
    }
}

/// Returns the failure that says most about the call; `None` when there is none.
fn decisive(failures: &[ServerFailure]) -> Option<&ClientError> {
    let latest_first = || failures.iter().rev().map(|failure| &failure.error);
    let heard = latest_first().find(|error| !error.is_unheard());
    heard.or_else(|| latest_first().find(|error| error.status().is_some())).or_else(|| latest_first().next())
}

/// Whether an answer with this status says that the server, or the one behind a proxy, cannot serve now.
fn cannot_serve(status: u16) -> bool {
    let statuses = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    is_of_another_cluster(status) || statuses.iter().any(|one| *one == status)
}

/// Whether an answer with this status says that the server is of another cluster than the one that was called before.
fn is_of_another_cluster(status: u16) -> bool {
    status == StatusCode::MISDIRECTED_REQUEST
}

fn is_busy(status: u16) -> bool {
    status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS
}

impl From<reqwest::Error> for ClientError {
    fn from(error: reqwest::Error) -> Self {
        let cause = innermost_cause(&error);
        let text = format!("{error}: {cause}");
        if error.is_builder() {
            Self::Usage(text)
        } else if error.is_connect() {
            // Whatever was asked, nobody has heard of it.
            let server = error.url().map(|url| format!(" at {}", url.origin().ascii_serialization()));
            Self::Connect(format!("{cause}{}", server.unwrap_or_default()))
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
