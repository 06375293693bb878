//! The context that all parts of the store share.

use std::time::Duration;

use tokio::time::Instant;

use super::bulk::{self, ItemOutcome, Lines, Part};
use super::fault::Fault;
use super::indices::Indices;
use super::locate::Locator;
use super::nodes::{CallError, Nodes};
use super::reach::Reach;
use super::standing::Standing;
use super::unreadable::Unreadable;
use super::write_id::{RecentWrites, WriteIdSource};
use crate::clock::SystemClock;

/// The context of reads and writes.
pub(super) struct Context {
    pub(super) nodes: Nodes,
    pub(super) indices: Indices,
    pub(super) standing: Standing,
    pub(super) ids: WriteIdSource,
    pub(super) clock: SystemClock,
    pub(super) recent: RecentWrites,
    pub(super) unreadable: Unreadable,
    pub(super) reach: Reach,
    pub(super) request_timeout: Duration,
    /// The time after which an undecided write is reported as unknown or refused.
    pub(super) write_timeout: Duration,
}

/// The status of the answer to a request that is too long, for the server or for something before it.
const TOO_LONG: u16 = 413;

/// The answer to one item of a bulk.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) outcome: ItemOutcome,
    /// Whether an earlier try of the same item may have arrived too.
    pub(super) maybe_repeated: bool,
}

impl Context {
    /// Sends a bulk to the index behind `alias` in as many requests as its bytes need, and returns the answer to each
    /// item. Nothing is sent to an index that is known to be out of order; while the number of its shards is changed,
    /// the bulk waits. What is too long for one request is halved, so that an item that is too long by itself fails
    /// alone.
    pub(super) async fn send(&self, alias: &str, lines: Lines, deadline: Instant) -> Vec<Sent> {
        if let Err(fault) = self.standing.until_writable(alias, deadline).await {
            let outcome = ItemOutcome::Withheld(fault);
            return vec![Sent { outcome, maybe_repeated: false }; lines.count()];
        }
        let mut sent = Vec::new();
        let mut parts = lines.into_parts();
        parts.reverse();
        // Ends: every round answers a part, or halves one.
        while let Some(part) = parts.pop() {
            match self.send_part(alias, &part, deadline).await {
                Some(answers) => sent.extend(answers),
                None => parts.extend(part.halves().into_iter().flatten().rev()),
            }
        }
        sent
    }

    /// Sends one request. Returns `None` when it is too long and has several items.
    async fn send_part(&self, alias: &str, part: &Part, deadline: Instant) -> Option<Vec<Sent>> {
        let count = part.count();
        let (mut outcomes, maybe_repeated) =
            match self.nodes.call(&part.request(alias, self.request_timeout / 2), deadline).await {
                Ok(reply) if reply.status == TOO_LONG && count > 1 => return None,
                Ok(reply) => (bulk::outcomes(reply.status, &reply.body, count), reply.maybe_repeated),
                Err(CallError { message, maybe_received: true, .. }) => {
                    (vec![ItemOutcome::Unsure(message); count], false)
                }
                Err(CallError { message, .. }) => (vec![ItemOutcome::NotDone(message); count], false),
            };
        if outcomes.iter().any(|outcome| matches!(outcome, ItemOutcome::OutOfOrder(_))) {
            self.standing.sound_alarm();
            // An index that is in order, or is about to be, has been exchanged or its block lifted since the server
            // answered: the items are sent again. An earlier try inside the server may have been done.
            if self.standing.look(&self.nodes, deadline).await.is_ok() && self.standing.is_in_order(alias) {
                for outcome in &mut outcomes {
                    if let ItemOutcome::OutOfOrder(fault @ (Fault::Blocked { .. } | Fault::Missing(_))) = outcome {
                        *outcome = ItemOutcome::Unsure(fault.to_string());
                    }
                }
            }
        }
        Some(outcomes.into_iter().map(|outcome| Sent { outcome, maybe_repeated }).collect())
    }

    /// Returns a locator that works until `deadline`.
    pub(super) fn locator(&self, deadline: Instant) -> Locator<'_> {
        Locator { nodes: &self.nodes, indices: &self.indices, recent: &self.recent, reach: &self.reach, deadline }
    }
}
