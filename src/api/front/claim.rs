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

/// Returns whether a call is a claim with a name.
pub(super) fn is_named_claim(parts: &Parts, body: &[u8]) -> bool {
    claim_of(parts, body).is_some_and(|claim| is_named(&claim))
}

/// Returns the body of a call that came at `begun` and is made again. A claim waits for what is left of its time, and
/// one with a name says that it was made before.
pub(super) fn rest_of_claim(parts: &Parts, body: Bytes, begun: Instant) -> Bytes {
    let Some(mut claim) = claim_of(parts, &body) else { return body };
    if let Some(wait_ms) = claim.get("wait_ms").and_then(Value::as_u64) {
        claim.insert("wait_ms".to_owned(), wait_ms.saturating_sub(millis(begun.elapsed())).into());
    }
    if is_named(&claim) {
        claim.insert("repeated".to_owned(), true.into());
    }
    Value::Object(claim).to_string().into()
}

fn claim_of(parts: &Parts, body: &[u8]) -> Option<Map<String, Value>> {
    let is_claim = parts.method == Method::POST && parts.uri.path() == "/v1/claims";
    is_claim.then(|| serde_json::from_slice(body).ok())?
}

fn is_named(claim: &Map<String, Value>) -> bool {
    claim.get("request_id").is_some_and(Value::is_string)
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
