//! How jobs change at their users' and workers' request: [`submit`] creates them, [`claim`] hands them to workers,
//! [`update`] is the one compare-and-swap loop for every later change, and [`bulk`] changes many at once. All of them
//! go through [`write`], which also does what follows from an acknowledged write. [`known_versions`] spares the loop
//! a read, and [`pending_notices`] tells the notifier which jobs to read.

pub(super) mod bulk;
pub(super) mod claim;
mod known_versions;
mod pending_notices;
mod submit;
pub(super) mod update;
pub(super) mod write;

use std::collections::BTreeSet;

use parking_lot::{Mutex, RwLock};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::job::EventName;
use claim::NamedClaims;
use known_versions::KnownVersions;
use pending_notices::PendingNotices;

/// What the writing of jobs remembers.
pub(super) struct Work {
    pub(super) known: KnownVersions,
    pub(super) pending_notices: PendingNotices,
    /// The events that somebody subscribes to, whichever job they happen to.
    pub(super) subscribed: RwLock<BTreeSet<EventName>>,
    named_claims: Mutex<NamedClaims>,
    /// Set once searches see everything that was written before this manager started.
    caught_up: OnceCell<()>,
    /// Claims are answered with nothing from then on.
    no_claims: CancellationToken,
}

impl Work {
    /// `shared_store` says whether others write to the store as well.
    pub(super) fn new(shared_store: bool) -> Self {
        Self {
            known: KnownVersions::new(shared_store),
            pending_notices: PendingNotices::default(),
            subscribed: RwLock::default(),
            named_claims: Mutex::default(),
            caught_up: OnceCell::new(),
            no_claims: CancellationToken::new(),
        }
    }
}
