//! The role that each call of the API needs, by its method and route. The handlers ask for it themselves
//! ([`super::call`]); a member that has the leader serve a call goes by this table before it reads the call's body.

use http::Method;

use super::access::Role;

const READ: &[(&str, &str)] = &[
    ("GET", "/metrics"),
    ("GET", "/v1/audit"),
    ("GET", "/v1/cluster"),
    ("GET", "/v1/events"),
    ("GET", "/v1/fields"),
    ("GET", "/v1/health"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/count"),
    ("GET", "/v1/jobs/export"),
    ("GET", "/v1/jobs/stats"),
    ("GET", "/v1/jobs/{id}"),
    ("GET", "/v1/jobs/{id}/attempts/{n}/output"),
    ("GET", "/v1/jobs/{id}/explain"),
    ("GET", "/v1/jobs/{id}/output"),
    ("GET", "/v1/limits"),
    ("GET", "/v1/limits/{scope}/{name}"),
    ("GET", "/v1/me"),
    ("GET", "/v1/queues"),
    ("GET", "/v1/queues/{name}"),
    ("GET", "/v1/schedules"),
    ("POST", "/v1/schedules/preview"),
    ("GET", "/v1/schedules/{id}"),
    ("GET", "/v1/schedules/{id}/next"),
    ("GET", "/v1/schedules/{id}/triggers"),
    ("GET", "/v1/workers"),
    ("GET", "/v1/workers/{worker_id}"),
];
const SUBMIT: &[(&str, &str)] = &[
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs/bulk"),
    ("PATCH", "/v1/jobs/{id}"),
    ("POST", "/v1/jobs/{id}/cancel"),
    ("POST", "/v1/jobs/{id}/hold"),
    ("POST", "/v1/jobs/{id}/rerun"),
    ("POST", "/v1/jobs/{id}/retry"),
    ("POST", "/v1/jobs/{id}/run-now"),
    ("POST", "/v1/jobs/{id}/unhold"),
    ("POST", "/v1/schedules"),
    ("POST", "/v1/schedules/bulk"),
    ("DELETE", "/v1/schedules/{id}"),
    ("PUT", "/v1/schedules/{id}"),
    ("POST", "/v1/schedules/{id}/backfill"),
    ("POST", "/v1/schedules/{id}/pause"),
    ("POST", "/v1/schedules/{id}/resume"),
    ("POST", "/v1/schedules/{id}/run"),
];
const WORK: &[(&str, &str)] = &[
    ("POST", "/v1/claims"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/heartbeats"),
    ("POST", "/v1/jobs/{id}/complete"),
    ("POST", "/v1/jobs/{id}/fail"),
    ("POST", "/v1/jobs/{id}/heartbeat"),
    ("POST", "/v1/jobs/{id}/output"),
    ("POST", "/v1/jobs/{id}/release"),
    ("POST", "/v1/outputs"),
    ("POST", "/v1/workers/{worker_id}/recalls"),
];
const ADMIN: &[(&str, &str)] = &[
    ("POST", "/v1/admin/cluster"),
    ("POST", "/v1/admin/jobs/cancel"),
    ("POST", "/v1/admin/jobs/delete"),
    ("POST", "/v1/admin/jobs/edit"),
    ("POST", "/v1/admin/jobs/hold"),
    ("POST", "/v1/admin/jobs/release"),
    ("POST", "/v1/admin/jobs/rerun"),
    ("POST", "/v1/admin/jobs/retry"),
    ("POST", "/v1/admin/jobs/run-now"),
    ("POST", "/v1/admin/jobs/unhold"),
    ("POST", "/v1/admin/jobs/{id}/release"),
    ("GET", "/v1/admin/orphans"),
    ("GET", "/v1/admin/signing-key"),
    ("DELETE", "/v1/jobs/{id}"),
    ("DELETE", "/v1/limits/{scope}/{name}"),
    ("PUT", "/v1/limits/{scope}/{name}"),
    ("PATCH", "/v1/queues/{name}"),
    ("POST", "/v1/queues/{name}/pause"),
    ("POST", "/v1/queues/{name}/resume"),
    ("POST", "/v1/schedules/pause"),
    ("POST", "/v1/schedules/remove"),
    ("POST", "/v1/schedules/resume"),
    ("GET", "/v1/subscriptions"),
    ("POST", "/v1/subscriptions"),
    ("DELETE", "/v1/subscriptions/{id}"),
    ("GET", "/v1/subscriptions/{id}"),
    ("POST", "/v1/subscriptions/{id}/enable"),
    ("POST", "/v1/subscriptions/{id}/secret"),
];
/// The calls of each role.
const CALLS: [(Role, &[(&str, &str)]); 4] =
    [(Role::Work, WORK), (Role::Submit, SUBMIT), (Role::Read, READ), (Role::Admin, ADMIN)];

/// Returns the routes that need a role, each once.
pub(super) fn routes() -> impl Iterator<Item = &'static str> {
    let mut routes: Vec<&str> = calls().map(|(_, _, route)| route).collect();
    routes.sort_unstable();
    routes.dedup();
    routes.into_iter()
}

/// Returns every call, with the role that it needs.
pub(super) fn calls() -> impl Iterator<Item = (Role, &'static str, &'static str)> {
    CALLS.into_iter().flat_map(|(role, calls)| calls.iter().map(move |(method, route)| (role, *method, *route)))
}

/// Returns the role that a call needs; `None` where there is no such call, or anybody may make it.
pub(super) fn needed(method: &Method, route: &str) -> Option<Role> {
    let method = if method == Method::HEAD { Method::GET.as_str() } else { method.as_str() };
    let found = calls().find(|(_, one, other)| *other == route && *one == method);
    found.map(|(role, _, _)| role)
}
