//! Calls at which leaders were lost. A call that ends the process that serves it would end one member after the other:
//! it is forwarded to the next leader, and its client makes it again. So one at which two leaders were lost is refused
//! for a while, with an answer after which the program's own client does not repeat it.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::api::error::{ApiError, Code};

/// At how many lost leaders a call is refused.
const MOST: usize = 2;
/// How long a call is remembered after a leader was lost at it: longer than clients go on repeating it.
const REMEMBERED: Duration = Duration::from_secs(60);
/// The most calls that are remembered. All that were under way at a leader are when it goes.
const MOST_CALLS: usize = 16 * 1024;

/// What tells a call from others: its method, path, query and body.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Print([u8; 32]);

/// The leaders that were lost at a call.
struct Loss {
    /// The terms in which they led.
    terms: Vec<u64>,
    last: Instant,
}

/// The calls at which leaders were lost lately.
#[derive(Default)]
pub(super) struct Losses {
    calls: Mutex<HashMap<Print, Loss>>,
}

impl Losses {
    /// Refuses a call at which too many leaders were lost.
    pub(super) fn check(&self, parts: &Parts, body: &Bytes) -> Result<(), ApiError> {
        if self.calls.lock().is_empty() {
            return Ok(());
        }
        let print = Print::of(parts, body);
        let mut calls = self.calls.lock();
        calls.retain(|_, loss| loss.last.elapsed() < REMEMBERED);
        if calls.get(&print).is_some_and(|loss| loss.terms.len() >= MOST) { Err(refusal()) } else { Ok(()) }
    }

    /// Takes note that the leader of a term was lost at a call, and refuses the call if that is once too often.
    pub(super) fn note(&self, term: u64, parts: &Parts, body: &Bytes) -> Result<(), ApiError> {
        let print = Print::of(parts, body);
        let mut calls = self.calls.lock();
        if calls.len() >= MOST_CALLS {
            calls.retain(|_, loss| loss.last.elapsed() < REMEMBERED);
        }
        if calls.len() >= MOST_CALLS && !calls.contains_key(&print) {
            return Ok(());
        }
        let loss = calls.entry(print).or_insert_with(|| Loss { terms: Vec::new(), last: Instant::now() });
        loss.last = Instant::now();
        if !loss.terms.contains(&term) {
            loss.terms.push(term);
        }
        if loss.terms.len() >= MOST { Err(refusal()) } else { Ok(()) }
    }
}

impl Print {
    fn of(parts: &Parts, body: &Bytes) -> Self {
        let path = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let mut hash = Sha256::new();
        for part in [parts.method.as_str().as_bytes(), path.as_bytes(), body] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }
}

fn refusal() -> ApiError {
    let detail = "the connections to two leaders of the cluster broke at this call, one after the other, and it may be \
                  what ends them: it is not made again";
    ApiError::new(Code::LeadersLost, detail)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(path: &str) -> Parts {
        Request::get(path).body(()).expect("a call").into_parts().0
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_refused_for_a_while_after_two_leaders_were_lost_at_it_and_no_other_call() {
        let losses = Losses::default();
        let (call, other, body) = (parts("/v1/jobs?a=1"), parts("/v1/jobs?a=2"), Bytes::from_static(b"body"));
        assert!(losses.note(1, &call, &body).is_ok());
        assert!(losses.note(1, &call, &body).is_ok(), "the same leader");
        assert!(losses.check(&call, &body).is_ok());
        let refused = losses.note(2, &call, &body).expect_err("a second leader");
        assert_eq!(refused.code(), Code::LeadersLost);
        assert!(losses.check(&call, &body).is_err());
        assert!(losses.check(&other, &body).is_ok() && losses.check(&call, &Bytes::new()).is_ok());
        tokio::time::advance(REMEMBERED).await;
        assert!(losses.check(&call, &body).is_ok());
    }
}
