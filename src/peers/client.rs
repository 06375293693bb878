//! Calls of the other managers of a store, each signed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::{AskWorkers, Gate, PeerCall, PeerSecret, Signer, WORKERS_PATH, to_json};
use crate::clock::Clock;
use crate::executor::{HttpCall, HttpExecutor, Limits, NoHttpClient, TargetPolicy, TargetUrl};
use crate::job::WorkerId;
use crate::manager::{Manager, Other, SeenElsewhere, Worker};

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
    signer: Arc<Signer>,
    gate: Arc<Gate>,
    clock: Arc<dyn Clock>,
}

impl PeerClient {
    /// Creates one for the managers that share this secret, of which this one is reached at `address`.
    ///
    /// # Errors
    /// [`NoHttpClient`] when TLS cannot be set up.
    pub fn new(secret: PeerSecret, address: Option<&str>, clock: Arc<dyn Clock>) -> Result<Self, NoHttpClient> {
        // The addresses are those of the other managers as they gave them, most often in a private network.
        let policy = TargetPolicy { allow_private: true, allow: Vec::new() };
        let limits = Limits {
            connect_timeout: TIMEOUT,
            max_timeout: TIMEOUT,
            max_answer_bytes: MAX_ANSWER_BYTES,
            max_concurrent: CALLS_AT_ONCE,
        };
        let gate = Arc::new(Gate::new(secret.clone(), address));
        let signer = Arc::new(Signer::new(secret, address.unwrap_or_default(), Arc::clone(&clock)));
        Ok(Self { http: HttpExecutor::new(policy, limits)?, signer, gate, clock })
    }

    /// Returns where the calls of other managers are looked at.
    #[must_use]
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Returns the clock by which calls of earlier versions are signed.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Makes a call of another manager, and returns the body of its answer, or why it has none.
    pub(super) async fn call(&self, to: &Other, path: &str, body: &Bytes) -> Result<Bytes, String> {
        let address = to.address.trim_end_matches('/');
        let url = TargetUrl::parse(&format!("{address}{path}")).map_err(|error| format!("its address {error}"))?;
        let send = |mut headers: HeaderMap, body| {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let call = HttpCall { method: Method::POST, url: url.clone(), headers, body, timeout: TIMEOUT };
            async move { self.http.call(&call).await }
        };
        let call = PeerCall { address, receiver: &to.address, path, body, may_be_earlier: !to.reads_heads };
        let answer = self.signer.call(&call, send).await.map_err(|error| error.to_string())?;
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
        let (others, without) = manager.others();
        let body = to_json(&AskWorkers { id: id.cloned() });
        let ask = async |other: Other| {
            let answer = self.call(&other, WORKERS_PATH, &body).await?;
            serde_json::from_slice::<Vec<Worker>>(&answer).map_err(|error| error.to_string())
        };
        let mut elsewhere = SeenElsewhere { workers: Vec::new(), unasked: without };
        for answer in join_all(others.into_iter().map(ask)).await {
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
