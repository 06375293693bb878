//! How jobs change at their users' and workers' request: [`submit`] creates them, [`submit_keyed`] those of which only
//! one may be live, or that stand in a line, [`claim`] hands them to workers,
//! [`handover`] does both in one write, [`update`] is the one compare-and-swap loop for every later change, and
//! [`bulk`] changes many at once, by the loop of [`in_pages`]; [`next`] ends an attempt and claims the next job;
//! [`return_keyed`] brings jobs with keys back from their ends; [`amend`] holds, edits, reruns and
//! deletes, [`own`] keeps clients from what is not theirs. All of them go through [`write`], which also does what
//! follows from an acknowledged write. [`named_claims`] are those that can be made again, [`known_versions`] spares the
//! loop a read, [`pending_notices`] tells the notifier which jobs to read,
//! and [`recalls`] tells workers which attempts have to end.

mod amend;
pub(super) mod bulk;
pub(super) mod claim;
mod handover;
pub(crate) mod in_pages;
mod known_versions;
mod named_claims;
mod next;
mod own;
mod pending_notices;
pub(crate) mod recalls;
mod return_keyed;
mod submit;
mod submit_keyed;
pub(super) mod update;
pub(super) mod write;

use std::collections::BTreeSet;

use parking_lot::{Mutex, RwLock};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::job::EventName;
use known_versions::KnownVersions;
use named_claims::NamedClaims;
use pending_notices::PendingNotices;
use recalls::RecallCalls;

/// The state of the manager's writes.
pub(super) struct Work {
    pub(super) known: KnownVersions,
    pub(super) pending_notices: PendingNotices,
    recalls: RecallCalls,
    /// The events that have a subscription for any job.
    pub(super) subscribed: RwLock<BTreeSet<EventName>>,
    named_claims: Mutex<NamedClaims>,
    /// Set once searches find everything that was written before this manager started.
    caught_up: OnceCell<()>,
    /// Cancelled when claims are no longer granted.
    no_claims: CancellationToken,
}

impl Work {
    /// Creates the state. `shared_store` says whether other processes write to the store as well.
    pub(super) fn new(shared_store: bool) -> Self {
        Self {
            known: KnownVersions::new(shared_store),
            pending_notices: PendingNotices::default(),
            recalls: RecallCalls::default(),
            subscribed: RwLock::default(),
            named_claims: Mutex::default(),
            caught_up: OnceCell::new(),
            no_claims: CancellationToken::new(),
        }
    }
}
