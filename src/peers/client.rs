//! Calls of the other managers of a store, each signed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::{AskWorkers, PeerSecret, WORKERS_PATH, to_json};
use crate::clock::Timestamp;
use crate::executor::webhook::InvalidSignature;
use crate::executor::{HttpCall, HttpExecutor, Limits, NoHttpClient, TargetPolicy, TargetUrl};
use crate::job::WorkerId;
use crate::manager::{Manager, SeenElsewhere, Worker};

/// The most calls under way, to all managers together.
pub(super) const CALLS_AT_ONCE: usize = 64;

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The most bytes of an answer that are read: a manager remembers up to 10,000 workers.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Calls the other managers of a store as one of them, and knows their calls.
#[derive(Clone)]
pub struct PeerClient {
    http: HttpExecutor,
    secret: PeerSecret,
}

impl PeerClient {
    /// Creates one for the managers that share this secret.
    ///
    /// # Errors
    /// [`NoHttpClient`] when TLS cannot be set up.
    pub fn new(secret: PeerSecret) -> Result<Self, NoHttpClient> {
        // The addresses are those of the other managers as they gave them, most often in a private network.
        let policy = TargetPolicy { allow_private: true, allow: Vec::new() };
        let limits = Limits {
            connect_timeout: TIMEOUT,
            max_timeout: TIMEOUT,
            max_answer_bytes: MAX_ANSWER_BYTES,
            max_concurrent: CALLS_AT_ONCE,
        };
        Ok(Self { http: HttpExecutor::new(policy, limits)?, secret })
    }

    /// Verifies that a call with this body is one of another manager, made near `now`.
    ///
    /// # Errors
    /// [`InvalidSignature`] says why the call cannot be trusted.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), InvalidSignature> {
        self.secret.verify(headers, body, now)
    }

    /// Makes a call of the manager at this address, and returns the body of its answer, or why it has none.
    pub(super) async fn call(&self, address: &str, path: &str, body: Bytes, now: Timestamp) -> Result<Bytes, String> {
        let url = format!("{}{path}", address.trim_end_matches('/'));
        let url = TargetUrl::parse(&url).map_err(|error| format!("its address {error}"))?;
        let mut headers = self.secret.sign(&body, now);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let call = HttpCall { method: Method::POST, url, headers, body, timeout: TIMEOUT };
        let answer = self.http.call(&call).await.map_err(|error| error.to_string())?;
        match answer.status {
            status if status.is_success() && !answer.truncated => Ok(answer.body),
            status if status.is_success() => Err("its answer is too long".to_owned()),
            StatusCode::UNAUTHORIZED => Err("it has another `--cluster-secret`, or its clock differs".to_owned()),
            StatusCode::NOT_FOUND => Err("there is no manager with a `--cluster-secret` at this address".to_owned()),
            status => Err(format!("it answers {}", status.as_u16())),
        }
    }

    /// Asks every other manager of the store which workers call it, or for what it knows of the one of this name.
    pub async fn workers(&self, manager: &Manager, id: Option<&WorkerId>) -> SeenElsewhere {
        let (addresses, without) = manager.others();
        let body = to_json(&AskWorkers { id: id.cloned() });
        let ask = async |address: Arc<str>| {
            let answer = self.call(&address, WORKERS_PATH, body.clone(), manager.now()).await?;
            serde_json::from_slice::<Vec<Worker>>(&answer).map_err(|error| error.to_string())
        };
        let mut elsewhere = SeenElsewhere { workers: Vec::new(), unasked: without };
        for answer in join_all(addresses.into_iter().map(ask)).await {
            match answer {
                Ok(workers) => elsewhere.workers.extend(workers),
                Err(why) => {
                    tracing::debug!(why, "a manager does not say which workers call it");
                    elsewhere.unasked += 1;
                }
            }
        }
        elsewhere
    }
}
