//! The reasons why a call has no complete answer.

use std::error::Error;
use std::io;
use std::time::Duration;

use super::target::RefusedTarget;

/// Why a call has no complete answer. No message contains more of the target's URL than its host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The policy refuses the target. Nothing was sent.
    #[error("the target is refused: {0}")]
    Refused(#[from] RefusedTarget),
    /// The request cannot be sent as it is. Nothing was sent.
    #[error("the request cannot be sent: {0}")]
    Unsendable(String),
    /// The host's name has no address, or no resolver answered.
    #[error("{host} cannot be resolved: {reason}")]
    Unresolvable {
        /// The host in the URL.
        host: String,
        /// The resolver's error.
        reason: String,
    },
    /// No connection could be made: no server listens. The request was not sent.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// A server took the connection, and TLS failed. The request was not sent.
    #[error("no connection: {0}")]
    NoTls(String),
    /// The answer was not complete within this time. The request may have been carried out.
    #[error("no whole answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The connection ended before the answer was complete, or the answer was not HTTP. The request may have been
    /// carried out.
    #[error("the answer broke off: {0}")]
    Broken(String),
    /// Too many calls are under way. Nothing was sent.
    #[error("too many calls are under way")]
    Busy,
}

impl CallError {
    /// Returns whether the same call may succeed later, under the same policy.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Unsendable(_) => false,
            Self::Unresolvable { .. } | Self::Unreachable(_) | Self::NoTls(_) => true,
            Self::TimedOut(_) | Self::Broken(_) | Self::Busy => true,
        }
    }

    /// Classifies the HTTP client's error.
    pub(super) fn of(error: &reqwest::Error) -> Self {
        let (mut innermost, mut is_connected): (&dyn Error, bool) = (error, false);
        // The loop ends with the chain of causes.
        while let Some(cause) = innermost.source() {
            // The error comes from the checked resolver.
            if let Some(unresolved) = cause.downcast_ref::<Self>() {
                return unresolved.clone();
            }
            is_connected |= cause.downcast_ref::<io::Error>().is_some_and(is_of_a_connection);
            innermost = cause;
        }
        // The outermost message has the URL in it, the innermost says what happened.
        let reason = if innermost.is::<reqwest::Error>() { "unknown".to_owned() } else { innermost.to_string() };
        if error.is_builder() {
            Self::Unsendable(reason)
        } else if error.is_connect() && is_connected {
            Self::NoTls(reason)
        } else if error.is_connect() {
            Self::Unreachable(reason)
        } else {
            Self::Broken(reason)
        }
    }
}

/// Returns whether an error while connecting came after the connection itself: from what was sent over it, or its end.
fn is_of_a_connection(error: &io::Error) -> bool {
    // An error that wraps another shows the cause of that one as its own.
    let mut inner = error;
    while let Some(wrapped) = inner.get_ref().and_then(|wrapped| wrapped.downcast_ref::<io::Error>()) {
        inner = wrapped;
    }
    let kinds = [
        io::ErrorKind::InvalidData,
        io::ErrorKind::UnexpectedEof,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::BrokenPipe,
    ];
    kinds.contains(&inner.kind())
}
