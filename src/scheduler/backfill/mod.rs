//! Backfills: the due times of a schedule between two moments that were not performed are run, so many at once as a
//! person wants.
//!
//! A backfill is a job in the queue of triggers, so that it has a lease, is taken over when its process ends, and can
//! be waited for and cancelled. [`request`] checks what a person asks for and makes that [`order`] a job; [`run`] goes
//! through its due times, makes a trigger for each that is to run, and waits for some to end before it makes more.
//! Which are to run is decided by what is stored of them ([`standing`]), and how far it has come is a record
//! ([`progress`]). So it can end at any moment, and the next attempt goes on.

mod order;
mod progress;
mod request;
mod run;
mod standing;

pub(crate) use order::KIND;
pub use order::{BackfillReport, MAX_DUE_TIMES};
pub use request::{NewBackfill, StartedBackfill};
pub(crate) use run::RunBackfills;
