//! The budgets of a process. There is one of each, however many routers it serves calls with.

use std::collections::BTreeSet;
use std::time::Duration;

use super::budget::{Account, Budget, Holder, Sharing};
use crate::job::Actor;

/// What bodies are counted in.
const BODIES: &str = "bytes of request bodies";

/// How large the budgets are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// For the bodies of those who may call, in bytes.
    pub(super) bodies: usize,
    /// For the bodies of what keeps jobs with their workers and ends them, in bytes.
    pub(super) work: usize,
    /// For the bodies of those who have not shown who they are, in bytes.
    pub(super) strange_bodies: usize,
    /// For the open calls of those.
    pub(super) strange_calls: usize,
    /// For the connections of those.
    pub(super) strange_connections: usize,
    /// For the open streams of events.
    pub(super) streams: usize,
    /// For the open exports.
    pub(super) exports: usize,
}

/// The budgets of a server, with a share of each for every caller.
#[derive(Debug)]
pub(super) struct Budgets {
    bodies: Budget,
    work: Budget,
    strange_bodies: Budget,
    /// How many streams of events are open.
    pub(super) streams: Budget,
    /// How many exports are under way.
    pub(super) exports: Budget,
    /// The open calls of those who have not shown who they are.
    pub(super) strange_calls: Budget,
    /// The connections of those; `None` where nobody has to show it.
    pub(super) strange_connections: Option<Budget>,
    /// The time in which a body has to bring another part.
    within: Duration,
}

impl Budgets {
    /// Makes the budgets for the holders of these tokens; where there are none, for the addresses that call.
    pub(super) fn new(sizes: Sizes, tokens: &BTreeSet<Actor>, within: Duration) -> Self {
        let is_open = tokens.is_empty();
        let callers = if is_open { Sharing::Parts(2) } else { Sharing::Named(tokens.iter().cloned().collect()) };
        let strange = |name, what, size, parts| Budget::new(name, what, size, &Sharing::Parts(parts));
        let connections = || strange("unauthenticated_connections", "connections", sizes.strange_connections, 2);
        Self {
            bodies: Budget::new("bodies", BODIES, sizes.bodies, &callers),
            work: Budget::new("work", "bytes of heartbeats and ends of jobs", sizes.work, &callers),
            streams: Budget::new("event_streams", "streams of events", sizes.streams, &callers),
            exports: Budget::new("exports", "exports", sizes.exports, &callers),
            strange_bodies: strange("unauthenticated_bodies", BODIES, sizes.strange_bodies, 16),
            strange_calls: strange("unauthenticated_calls", "calls without a token", sizes.strange_calls, 4),
            strange_connections: (!is_open).then(connections),
            within,
        }
    }

    /// Shares the budgets of tokens among the holders of these, which have been renewed; those of addresses stay.
    pub(super) fn share_among(&self, tokens: &BTreeSet<Actor>) {
        let of_tokens = [&self.bodies, &self.work, &self.streams, &self.exports];
        of_tokens.into_iter().for_each(|budget| budget.share_among(tokens));
    }

    /// Returns at whose expense the body of a call is read.
    pub(super) fn account(&self, holder: Holder, sort: Sort) -> Account {
        let budget = match sort {
            Sort::Strange => &self.strange_bodies,
            Sort::Working => &self.work,
            Sort::Usual => &self.bodies,
        };
        Account { budget: budget.clone(), holder, within: self.within }
    }
}

/// What a call is to the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// It is of somebody who has not shown who it is.
    Strange,
    /// It keeps a job with its worker or ends it, or asks how the server is.
    Working,
    /// It is any other.
    Usual,
}
