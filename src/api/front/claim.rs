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

/// Returns the body of a call that came at `begun` and is made again, since nothing was done: a claim waits for what is
/// left of its time.
pub(super) fn rest_of_claim(parts: &Parts, body: Bytes, begun: Instant) -> Bytes {
    if let Some(claim) = NamedClaim::of(parts, &body) {
        return NamedClaim { begun, ..claim }.again();
    }
    let fields =
        (parts.method == Method::POST && parts.uri.path() == "/v1/claims").then(|| serde_json::from_slice(&body));
    let Some(Ok(mut fields)) = fields else { return body };
    wait_for_the_rest(&mut fields, begun);
    Value::Object(fields).to_string().into()
}

fn wait_for_the_rest(fields: &mut Map<String, Value>, begun: Instant) {
    if let Some(wait_ms) = fields.get("wait_ms").and_then(Value::as_u64) {
        fields.insert("wait_ms".to_owned(), wait_ms.saturating_sub(millis(begun.elapsed())).into());
    }
}

/// A claim with a name.
pub(super) struct NamedClaim {
    fields: Map<String, Value>,
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
        Some(Self { fields, begun: Instant::now() })
    }

    /// Returns the body of the same claim, made again.
    pub(super) fn again(&self) -> Bytes {
        let mut fields = self.fields.clone();
        wait_for_the_rest(&mut fields, self.begun);
        fields.insert("repeated".to_owned(), true.into());
        Value::Object(fields).to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::extract::Request;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_made_again_waits_for_what_is_left_of_its_time() {
        let parts = |path| Request::post(path).body(()).expect("a call").into_parts().0;
        let begun = Instant::now();
        tokio::time::advance(Duration::from_secs(3)).await;
        for (path, body, again) in [
            ("/v1/claims", json!({"wait_ms": 8000}), json!({"wait_ms": 5000})),
            ("/v1/claims", json!({"wait_ms": 10}), json!({"wait_ms": 0})),
            ("/v1/claims", json!({"queues": ["q"]}), json!({"queues": ["q"]})),
            (
                "/v1/claims",
                json!({"wait_ms": 8000, "request_id": "r"}),
                json!({"wait_ms": 5000, "request_id": "r", "repeated": true}),
            ),
            ("/v1/claims", json!(["none"]), json!(["none"])),
            ("/v1/jobs", json!({"wait_ms": 8000}), json!({"wait_ms": 8000})),
        ] {
            let rest = rest_of_claim(&parts(path), body.to_string().into(), begun);
            assert_eq!(serde_json::from_slice::<Value>(&rest).expect("JSON"), again);
        }
    }
}
