//! HTTP in, domain out.
//!
//! In reading order: `error` (every refusal, and the only place that knows status codes), [`access`] (tokens and
//! roles), `app` (what the handlers share), `budget`, `budgets` and `body` (how bodies are read, and at whose expense),
//! `charge` (whose expense that is, with `remote` and `proxies`), `failures` (tokens that are not known), `call` with
//! `roles` and `extract` (what a handler takes out of a request), `of_peers` (the calls of other processes of the
//! installation), the handlers
//! (`jobs`, `lists`, `stats`, `export`, `fields`, `work`, `queues`, `limits`, `workers`, `admin`, `schedules`,
//! `schedule_bulk`, `schedule_lines`, `backfill`, `subscriptions`, `events`, `system`, `cluster`), `line_stream`
//! (bodies of any length), `pieces` (answers of any length), `delivery` (claimed jobs on their way out), `trim`
//! (answers with selected fields), `observe` (what surrounds every call), `lapse` (answers that go on, and end with the
//! right to them), `browsers` (what every answer says to browsers), `places` and `connection` (how many connections
//! there are, and when each ends), `front` (what a member of a group answers itself, and what it leaves to the leader),
//! and [`serve`] (how they are accepted, and how the server ends). The requests and answers themselves are in
//! [`crate::wire`].
//!
//! The handlers decide nothing: they check the request, call the manager and write its answer.

pub mod access;
mod admin;
mod amend;
mod app;
mod audit;
mod audited;
mod backfill;
mod body;
mod browsers;
mod budget;
mod budgets;
mod call;
mod charge;
mod cluster;
mod connection;
mod delivery;
mod denied;
mod error;
mod events;
mod export;
mod extract;
mod failures;
mod fields;
mod front;
mod items;
mod jobs;
mod json;
mod lapse;
mod limits;
mod line_stream;
mod lists;
pub mod metrics;
mod observe;
mod of_peers;
mod openapi;
mod output;
mod pieces;
mod places;
mod proxies;
mod queue_metrics;
mod queues;
mod remote;
mod roles;
mod routes;
mod schedule_bulk;
mod schedule_lines;
mod schedule_metrics;
mod schedules;
mod serve;
mod sessions;
mod stats;
mod subscriptions;
mod system;
mod trim;
mod work;
mod workers;

use app::App;
pub use app::{AppState, Limits};
pub use front::{MemberState, Office};
pub use proxies::TrustedProxy;
pub use routes::openapi_json;
pub use serve::{serve, serve_member, serve_monitor};
pub use trim::selected;
#[cfg(test)]
pub(crate) use trim::{MAX_ANSWER_DEPTH, MAX_PATH_NAMES};

#[cfg(test)]
mod tests;
