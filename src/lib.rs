//! Leasehold is a batch job manager whose lock is a conditional write.
//!
//! A job is one document. A manager claims it by writing it back only if nobody wrote it since, keeps the claim
//! alive with heartbeats, and finishes it under the same check. What must hold before anything else: a job has at
//! most one accepted owner per fence, nothing acknowledged is ever lost, and every transition is recorded once.
//!
//! The modules in reading order; imports go down this list's layers only (`ARCHITECTURE.md` says why, and a test
//! holds it):
//!
//! 1. [`clock`] – where time comes from.
//! 2. [`outgoing`] – what the clients in the program have in common.
//! 3. [`job`] – the job, its states and its transitions: pure functions of (job, request, now).
//! 4. [`schedule`] – schedules, and when they fire: cron expressions, time zones, excluded days.
//! 5. [`query`] – what can be asked of a store: filters, order, cursors, and Kibana's query language.
//! 6. [`store`] – the contract of a store, and its engines: embedded and Elasticsearch.
//! 7. [`manager`] – the only writer of jobs: submit, claim, heartbeat, finish.
//! 8. [`executor`] – HTTP calls to addresses that users name: what may be called, and webhooks.
//! 9. [`worker`] – takes jobs from whoever hands them out and runs them.
//! 10. [`monitor`] – finds stale jobs, tells of them, recovers them.
//! 11. [`peers`] – calls between the managers of one store.
//! 12. [`notify`] – tells whoever asked what happened to jobs.
//! 13. [`wire`] – what travels over HTTP: every request and every answer, as JSON.
//! 14. [`scheduler`] – turns schedules into jobs when they are due.
//! 15. [`page`] – the web page, which asks the API of its own process.
//! 16. [`api`] – HTTP in, domain out.
//! 17. [`client`] – the HTTP API from the other side, for programs and workers.
//! 18. [`cli`] – the command line; the only place that names a concrete store.

pub mod api;
pub mod cli;
pub mod client;
pub mod clock;
pub mod executor;
#[cfg(test)]
mod golden;
pub mod job;
pub mod manager;
pub mod monitor;
pub mod notify;
mod outgoing;
mod page;
pub mod peers;
pub mod query;
#[cfg(test)]
mod recursion;
pub mod schedule;
pub mod scheduler;
pub mod store;
pub mod wire;
pub mod worker;
