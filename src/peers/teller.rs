//! The background task that tells other managers of jobs.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::{HINTS_PATH, Hints, PeerSecret};
use crate::executor::{HttpCall, HttpExecutor, Limits, NoHttpClient, TargetPolicy, TargetUrl};
use crate::manager::{Manager, Outgoing};

/// The most calls under way, to all managers together.
const CALLS_AT_ONCE: usize = 64;

/// How long a call may take. The other manager reads from the store before it answers.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The most bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 4 * 1024;

/// Tells other managers of jobs until it is stopped or dropped.
pub struct Teller {
    stopping: CancellationToken,
    telling: AbortOnDropHandle<()>,
}

#[derive(Clone)]
struct Caller {
    manager: Manager,
    http: HttpExecutor,
    secret: PeerSecret,
}

impl Teller {
    /// Starts the task on the current tokio runtime.
    ///
    /// # Errors
    /// [`NoHttpClient`] when TLS cannot be set up.
    pub fn start(manager: Manager, secret: PeerSecret) -> Result<Self, NoHttpClient> {
        // The addresses are those of the other managers as they gave them, most often in a private network.
        let policy = TargetPolicy { allow_private: true, allow: Vec::new() };
        let limits = Limits {
            connect_timeout: TIMEOUT,
            max_timeout: TIMEOUT,
            max_answer_bytes: MAX_ANSWER_BYTES,
            max_concurrent: CALLS_AT_ONCE,
        };
        let caller = Caller { manager, http: HttpExecutor::new(policy, limits)?, secret };
        let stopping = CancellationToken::new();
        let telling = AbortOnDropHandle::new(tokio::spawn(tell_all(caller, stopping.clone())));
        Ok(Self { stopping, telling })
    }

    /// Stops at once. Whoever was not told of a job yet finds it by a search.
    pub async fn shutdown(self) {
        self.stopping.cancel();
        // A task that has panicked tells nobody of anything either.
        drop(self.telling.await);
    }
}

async fn tell_all(caller: Caller, stopping: CancellationToken) {
    let mut calls = JoinSet::new();
    // Ends when it is stopped; the calls under way end with the set.
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            Some(_) = calls.join_next() => {}
            outgoing = caller.manager.next_hints(), if calls.len() < CALLS_AT_ONCE => {
                let caller = caller.clone();
                calls.spawn(async move { caller.tell(outgoing).await });
            }
        }
    }
}

impl Caller {
    async fn tell(&self, outgoing: Outgoing) {
        let outcome = self.call(&outgoing).await;
        if let Err(why) = &outcome {
            debug!(address = %outgoing.address, why, "a manager was not told of its jobs");
        }
        self.manager.hints_told(&outgoing, outcome);
    }

    async fn call(&self, outgoing: &Outgoing) -> Result<(), String> {
        let url = format!("{}{HINTS_PATH}", outgoing.address.trim_end_matches('/'));
        let url = TargetUrl::parse(&url).map_err(|error| format!("its address {error}"))?;
        let body = Hints { available: outgoing.hints.clone(), recalls: outgoing.recalls.clone() }.to_json();
        let mut headers = self.secret.sign(&body, self.manager.now());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let call = HttpCall { method: Method::POST, url, headers, body, timeout: TIMEOUT };
        let answer = self.http.call(&call).await.map_err(|error| error.to_string())?;
        match answer.status {
            status if status.is_success() => Ok(()),
            StatusCode::UNAUTHORIZED => Err("it has another `--cluster-secret`, or its clock differs".to_owned()),
            StatusCode::NOT_FOUND => Err("there is no manager with a `--cluster-secret` at this address".to_owned()),
            status => Err(format!("it answers {}", status.as_u16())),
        }
    }
}
