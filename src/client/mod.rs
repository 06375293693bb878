//! The client of the HTTP API, for programs and for workers.
//!
//! In reading order: [`Client`] in `transport` (one call, and when it is repeated) over `addresses` (which server
//! it goes to), `calls`, `amend`, `schedules` and `output` (all calls) with `queries` (which jobs they are about),
//! `events` over `sse` (the stream of events), `worker` (the client as a worker's service), and `error`.
//!
//! ```no_run
//! use std::time::Duration;
//! use leasehold::wire::{ClaimJobs, CompleteJob, SubmitJob};
//! use leasehold::client::Client;
//!
//! # async fn example() -> Result<(), leasehold::client::ClientError> {
//! let client = Client::new("http://127.0.0.1:7400", None)?;
//! let job = client.submit(&SubmitJob::new("reports", "render")).await?;
//!
//! let claim = ClaimJobs {
//!     worker_id: "host7:4711".to_owned(),
//!     queues: vec!["reports".to_owned()],
//!     wait_ms: Some(20_000),
//!     ..ClaimJobs::default()
//! };
//! for job in client.claim(&claim).await?.jobs {
//!     let done = CompleteJob { worker_id: claim.worker_id.clone(), fence: job.fence, result: None, next: None };
//!     client.complete(&job.id, &done).await?;
//! }
//! println!("{:?}", client.wait(&job.id, Duration::from_secs(5)).await?.state);
//! # Ok(())
//! # }
//! ```
//!
//! A call is repeated a few times, with growing waits, when the server could not be reached, did not answer in time or
//! asked for another try. A call that the server may have heard is repeated only where that is harmless. Submissions
//! always are: a job without an id or a key is given an id before it is first sent. A stream of events
//! ([`Client::events`]) reconnects for as long as it is polled.
//!
//! A client of several servers ([`Client::with_servers`]) repeats a call at the next one at once, by the same rules,
//! and waits only once all have failed.

mod addresses;
mod amend;
mod calls;
mod error;
mod events;
mod output;
mod queries;
mod schedules;
mod sse;
mod transport;
mod worker;

pub use calls::Export;
pub(crate) use error::innermost_cause;
pub use error::{ClientError, ServerFailure};
pub use events::{EventMessage, EventQuery};
pub use output::OutputQuery;
pub use queries::{AuditQuery, CountQuery, JobQuery, OrphanQuery, StatsQuery};
pub use schedules::{DueTimeQuery, ScheduleQuery, StoredSchedules};
pub use transport::Client;
