//! Claims that wait at a leader and move over to the next one.
//!
//! A claim with a name can be made again: the same jobs are the answer, and no others. So the member that a client has
//! called makes it again when the leader goes, for what is left of the time that it waits, and the client notices
//! nothing.

use axum::body::Bytes;
use http::Method;
use http::request::Parts;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::clock::millis;

/// A claim with a name.
pub(super) struct NamedClaim {
    fields: Map<String, Value>,
    wait_ms: u64,
    begun: Instant,
}

impl NamedClaim {
    /// Reads a call; `None` when it is no claim with a name.
    pub(super) fn of(parts: &Parts, body: &[u8]) -> Option<Self> {
        if parts.method != Method::POST || parts.uri.path() != "/v1/claims" {
            return None;
        }
        let fields: Map<String, Value> = serde_json::from_slice(body).ok()?;
        fields.get("request_id").filter(|name| name.is_string())?;
        let wait_ms = fields.get("wait_ms").and_then(Value::as_u64).unwrap_or(0);
        Some(Self { fields, wait_ms, begun: Instant::now() })
    }

    /// Returns the body of the same claim, made again.
    pub(super) fn again(&self) -> Bytes {
        let mut fields = self.fields.clone();
        let left = self.wait_ms.saturating_sub(millis(self.begun.elapsed()));
        fields.insert("wait_ms".to_owned(), left.into());
        fields.insert("repeated".to_owned(), true.into());
        Value::Object(fields).to_string().into()
    }
}
