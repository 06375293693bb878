//! How jobs change at their users' and workers' request: [`submit`] creates them, [`claim`] hands them to workers,
//! [`update`] is the one compare-and-swap loop for every later change, and [`bulk`] changes many at once.
//! [`known_versions`] spares the loop a read, and [`pending_notices`] tells the notifier which jobs to read.

pub(super) mod bulk;
pub(super) mod claim;
pub(super) mod known_versions;
pub(super) mod pending_notices;
pub(super) mod submit;
pub(super) mod update;
