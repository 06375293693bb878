//! The time that a query may take.
//!
//! Most requests are tried again at another node when they are not answered in a few seconds. A query that takes longer
//! would never be answered so: it is sent once, with the time that it may take. The server ends it by itself after that
//! time, and says so, which tells a query that takes long from a server that does not answer.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use crate::store::StoreError;

/// The time that a query may take, however many requests it needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryTime {
    limit: Duration,
    until: Instant,
    grace: Duration,
}

impl QueryTime {
    /// Creates the time of a query that begins now. `grace` is how much longer an answer may be on its way.
    pub(super) fn of(limit: Duration, grace: Duration) -> Self {
        Self { limit, until: Instant::now() + limit, grace }
    }

    /// Returns how much longer an answer may be on its way.
    pub(super) const fn grace(&self) -> Duration {
        self.grace
    }

    /// Returns the time that is left.
    ///
    /// # Errors
    /// [`StoreError::QueryTooSlow`] when there is none.
    pub(super) fn left(&self) -> Result<Duration, StoreError> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.too_slow()) } else { Ok(left) }
    }

    /// Returns the error of a query that takes longer than it may.
    pub(super) const fn too_slow(&self) -> StoreError {
        StoreError::QueryTooSlow { limit: self.limit }
    }
}

#[derive(Deserialize)]
struct Refusal {
    error: Failures,
}

#[derive(Deserialize)]
struct Failures {
    #[serde(default)]
    root_cause: Vec<Failure>,
}

#[derive(Deserialize)]
struct Failure {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    reason: Option<String>,
}

/// Returns whether an answer reports that a search was ended because its time was over.
pub(super) fn is_over(body: &[u8]) -> bool {
    let Ok(Refusal { error }) = serde_json::from_slice(body) else { return false };
    error.root_cause.iter().any(|cause| match cause.kind.as_str() {
        // The one of Elasticsearch, and the two of OpenSearch: while it prepares a query, and while it runs one.
        "search_timeout_exception" | "time_exceeded_exception" => true,
        "query_phase_execution_exception" => cause.reason.as_deref() == Some("Time exceeded"),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_searchs_time_is_told_from_other_failures() {
        let said = |cause: &str| {
            let body = format!(r#"{{"error":{{"root_cause":[{cause}],"type":"search_phase_execution_exception"}}}}"#);
            is_over(body.as_bytes())
        };
        assert!(said(r#"{"type":"search_timeout_exception","reason":"Time exceeded","timed_out":true}"#));
        assert!(said(r#"{"type":"time_exceeded_exception","reason":null}"#));
        assert!(said(r#"{"type":"query_phase_execution_exception","reason":"Time exceeded"}"#));
        assert!(!said(r#"{"type":"query_phase_execution_exception","reason":"Result window is too large"}"#));
        assert!(!said(r#"{"type":"parsing_exception","reason":"Time exceeded"}"#));
        assert!(!said(""));
        assert!(!is_over(b"too many requests"));
    }
}
