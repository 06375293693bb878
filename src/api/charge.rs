//! At whose expense a call is served: who calls is found out before anything of a body is read, and who does not show
//! it shares little with all those who do not.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::Request;

use super::access::Guard;
use super::body::Unread;
use super::budget::{Account, AccountPlace, Holder, Share};
use super::budgets::Sort;
use super::error::ApiError;
use super::remote::Remote;
use crate::job::Actor;
use crate::peers::{CALLS_PATH, DELIVERIES_PATH, HINTS_PATH, MESSAGES_PATH, WORKERS_PATH};

/// The calls of other processes of the installation, which have budgets of their own ([`super::of_peers`]).
const OF_PROCESSES: [&str; 5] = [MESSAGES_PATH, DELIVERIES_PATH, CALLS_PATH, HINTS_PATH, WORKERS_PATH];
/// The paths of probes, which nobody's calls keep out.
const PROBES: [&str; 2] = ["/livez", "/readyz"];

/// The calls whose answers go on for as long as their caller likes, of which each has a share.
const LASTING: [&str; 2] = ["/v1/events", "/v1/jobs/export"];

/// What a call of somebody has who has not shown who it is, until its answer is sent.
#[derive(Clone, Debug)]
pub(super) struct StrangersCall {
    _share: Arc<Share>,
}

/// What is found out of a call before it is served.
#[derive(Debug, Default)]
pub(super) struct Charged {
    /// What a stranger's call has until it ends.
    pub(super) strangers: Option<StrangersCall>,
    /// The name of the caller's token, where the call is one that may send a body or change something.
    pub(super) token: Option<Actor>,
}

/// Finds out at whose expense a call is, and charges it for what the connection may hold of its body.
///
/// # Errors
/// The caller has as much under way as it may, or the server as much as it can.
pub(super) fn charge(guard: &Guard, request: &mut Request) -> Result<Charged, ApiError> {
    let remote = request.extensions().get::<Arc<Remote>>().cloned();
    let from = remote.as_ref().map(|remote| remote.address());
    let is_by_proxy = from.is_some_and(|from| guard.proxies.trusts(from));
    let has_body = !request.body().is_end_stream();
    let is_known = remote.as_ref().is_none_or(|remote| remote.is_known());
    let path = request.uri().path();
    let may_read = has_body || !request.method().is_safe();
    let is_lasting = LASTING.contains(&path);
    if OF_PROCESSES.contains(&path) || (is_known && !may_read && !is_lasting) {
        guard.proxies.believe(from, request.headers_mut());
        return Ok(Charged::default());
    }
    guard.keep_up();
    let token = guard.access.name(request.headers());
    let is_strange = token.is_none() && !guard.access.is_open();
    if let Some(remote) = remote.filter(|_| !is_strange && !is_by_proxy) {
        remote.known();
    }
    let holder = || match (&token, from) {
        (Some(name), _) => Holder::Token(name.clone()),
        (None, Some(from)) => Holder::at(guard.proxies.client(from, request.headers())),
        // A call that this process makes of itself.
        (None, None) => Holder::Process,
    };
    let mut strangers = None;
    if is_strange && !PROBES.contains(&path) {
        let share = guard.budgets.strange_calls.take(&holder(), 1)?;
        strangers = Some(StrangersCall { _share: Arc::new(share) });
    }
    let account = may_read.then(|| {
        let sort = match path {
            _ if is_strange => Sort::Strange,
            path if is_work(path) => Sort::Working,
            _ => Sort::Usual,
        };
        guard.budgets.account(holder(), sort)
    });
    let holder = is_lasting.then(holder);
    guard.proxies.believe(from, request.headers_mut());
    if let Some(holder) = holder {
        request.extensions_mut().insert::<Holder>(holder);
    }
    if let Some(account) = account {
        let body = Unread::of(std::mem::take(request.body_mut()), &account)?;
        *request.body_mut() = Body::new(body);
        if let Some(place) = request.extensions().get::<AccountPlace>() {
            place.put(&account);
        }
        request.extensions_mut().insert::<Account>(account);
    }
    Ok(Charged { strangers, token })
}

/// Returns whether a call keeps a job with its worker or ends it, asks how the server is, or changes the members: what
/// must be heard whatever else is sent.
fn is_work(path: &str) -> bool {
    let of_job = || path.strip_prefix("/v1/jobs/").and_then(|rest| rest.split_once('/')).map(|(_, what)| what);
    matches!(path, "/v1/heartbeats" | "/v1/completions" | "/v1/health" | "/v1/admin/cluster")
        || matches!(of_job(), Some("heartbeat" | "complete" | "fail" | "release"))
        || (path.starts_with("/v1/workers/") && path.ends_with("/recalls"))
        || PROBES.contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::access::Role;
    use crate::api::roles;

    /// The calls of workers that can wait, since another one does the same later or in its place.
    const CAN_WAIT: [&str; 3] = ["/v1/claims", "/v1/jobs/{id}/output", "/v1/outputs"];

    #[test]
    fn what_keeps_a_job_with_its_worker_or_ends_it_has_a_budget_of_its_own() {
        for (role, method, route) in roles::calls() {
            let expected = match role {
                Role::Work => !CAN_WAIT.contains(&route),
                _ => ["/v1/health", "/v1/admin/cluster"].contains(&route),
            };
            assert_eq!(is_work(route), expected, "{method} {route}");
        }
    }
}
