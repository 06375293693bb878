//! The list of a job's transitions, bounded in length.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::event::EventName;
use super::names::{Actor, WorkerId};
use super::names_in_one::NamesInOne;
use super::state::{Attempt, Fence, JobState};
use crate::clock::Timestamp;

/// How many entries are kept at each end of the history; the ones between them are only counted.
const KEPT_AT_EACH_END: usize = 25;

/// A transition of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct HistoryEntry {
    /// The time of the transition.
    pub at: Timestamp,
    /// The state that the job left; null for the submission.
    pub from: Option<JobState>,
    /// The state that the job entered.
    pub to: JobState,
    /// The job's fence after the transition.
    #[schema(value_type = u64)]
    pub fence: Fence,
    /// The job's number of attempts after the transition.
    #[schema(value_type = u32)]
    pub attempt: Attempt,
    /// The event that caused the transition.
    #[schema(example = "claimed")]
    pub event: EventName,
    /// The name of the token with which the transition was requested; on a server without tokens the worker or
    /// `anonymous`, and otherwise the part of the system that caused it.
    pub actor: Actor,
    /// The worker that requested the transition, where the actor is the name of its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<WorkerId>,
    /// The reason of the transition, if the states alone do not explain it.
    pub reason: Option<String>,
}

impl HistoryEntry {
    /// Returns whether this worker requested the transition.
    #[must_use]
    pub fn is_by(&self, worker: &WorkerId) -> bool {
        let name = self.worker_id.as_ref().map_or(self.actor.as_str(), WorkerId::as_str);
        name == worker.as_str()
    }
}

/// An entry in a format that names no fields: the worker is in the text of the actor.
#[derive(Serialize, Deserialize)]
struct Compact<A, R> {
    at: Timestamp,
    from: Option<JobState>,
    to: JobState,
    fence: Fence,
    attempt: Attempt,
    event: EventName,
    actor: A,
    reason: R,
}

impl Serialize for HistoryEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return Self::serialize(self, serializer);
        }
        let Self { at, from, to, fence, attempt, event, actor, worker_id, reason } = self;
        let (at, from, to, fence, attempt, event) = (*at, *from, *to, *fence, *attempt, *event);
        let actor = NamesInOne(actor, worker_id.as_ref());
        Serialize::serialize(&Compact { at, from, to, fence, attempt, event, actor, reason }, serializer)
    }
}

impl<'de> Deserialize<'de> for HistoryEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Self::deserialize(deserializer);
        }
        let compact: Compact<NamesInOne<Actor, WorkerId>, Option<String>> = Deserialize::deserialize(deserializer)?;
        let Compact { at, from, to, fence, attempt, event, actor: NamesInOne(actor, worker_id), reason } = compact;
        Ok(Self { at, from, to, fence, attempt, event, actor, worker_id, reason })
    }
}

/// The transitions of a job, oldest first. Of more than 50, the first 25 and the last 25 are kept, and the rest are
/// only counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    entries: Vec<HistoryEntry>,
    folded: u32,
}

impl History {
    /// Makes a history from its stored parts.
    #[must_use]
    pub fn from_parts(entries: Vec<HistoryEntry>, folded: u32) -> Self {
        Self { entries, folded }
    }

    /// Adds the next transition.
    pub fn push(&mut self, entry: HistoryEntry) {
        if self.entries.len() >= 2 * KEPT_AT_EACH_END {
            self.entries.remove(KEPT_AT_EACH_END);
            self.folded = self.folded.saturating_add(1);
        }
        // A million waiting jobs have one entry each.
        self.entries.reserve_exact(1);
        self.entries.push(entry);
    }

    /// Returns the kept transitions, oldest first. Those left out are missing after the first 25.
    #[must_use]
    pub fn entries(&self) -> &[HistoryEntry] {
        &self.entries
    }

    /// Returns how many transitions were left out of the middle.
    #[must_use]
    pub const fn folded(&self) -> u32 {
        self.folded
    }

    /// Returns how many transitions there were in all, including those left out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() + self.folded as usize
    }

    /// Returns the kept transitions with their numbers, counted from one over all transitions. With the job's id, such
    /// a number identifies the transition for as long as the job is there.
    pub fn numbered(&self) -> impl DoubleEndedIterator<Item = (u32, &HistoryEntry)> {
        self.entries.iter().enumerate().map(|(place, entry)| {
            let before = u32::try_from(place).unwrap_or(u32::MAX);
            let folded = if place < KEPT_AT_EACH_END { 0 } else { self.folded };
            (before.saturating_add(folded).saturating_add(1), entry)
        })
    }

    /// Returns whether the history has no entry, which is so only before the submission.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_long_history_is_folded_into_a_count() {
        let mut history = History::default();
        for number in 0..120 {
            history.push(HistoryEntry {
                at: Timestamp::from_millis(number),
                from: None,
                to: JobState::Available,
                fence: Fence::default(),
                attempt: Attempt::default(),
                event: EventName::Submitted,
                actor: Actor::system("test"),
                worker_id: None,
                reason: None,
            });
        }
        assert_eq!((history.entries().len(), history.folded(), history.len()), (50, 70, 120));
        let kept: Vec<i64> = history.entries().iter().map(|entry| entry.at.as_millis()).collect();
        assert_eq!(kept[..25], (0..25).collect::<Vec<_>>());
        assert_eq!(kept[25..], (95..120).collect::<Vec<_>>());
        assert!(history.numbered().all(|(number, entry)| i64::from(number) == entry.at.as_millis() + 1));
    }
}
