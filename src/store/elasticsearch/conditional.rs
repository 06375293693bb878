//! One conditional write of a job or a record: its next step, and when it is decided. [`super::resolution`] judges what
//! a lost answer means.

use std::fmt;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};

use super::bulk::{Action, ItemOutcome, Target};
use super::fault::Fault;
use super::resolution::{Condition, Lineage, ReadBack, Verdict, judge};
use super::write_id::WriteId;
use crate::store::{Place, StoreError, Version, WriteError, WriteResult};

/// The first wait before an undecided write is sent again, doubled with every further round.
const ROUND_BACKOFF: Duration = Duration::from_millis(50);
/// The longest wait between two rounds.
const LONGEST_ROUND_BACKOFF: Duration = Duration::from_secs(1);
/// The version of a write that was accepted and has been written over since, before its answer was known. (The version
/// of the document that was read must not be returned: with it, the caller would overwrite a document that it never
/// saw.)
const SUPERSEDED: Version = Version { place: Place::Superseded, primary_term: 1, seq_no: i64::MAX.unsigned_abs() };

/// The part of the server's reason for refusing a document that would add more fields to its index than the index may
/// have. Only the names of resources add fields.
const TOO_MANY_FIELDS: &str = "Limit of total fields";
const NO_MORE_NAMES: &str = "the index takes no more names of resources; use one that jobs had before, or a label";

/// One write of a document that is read as `T`.
pub(super) struct ConditionalWrite<T> {
    condition: Condition,
    write_id: WriteId,
    stage: Stage<T>,
    /// Whether a try may have been applied without an answer.
    maybe_applied: bool,
    /// The latest reason why the write could not be decided; empty when there is none.
    obstacle: String,
    /// The fault of the index for which the write is refused, unless the document read back shows that it was applied.
    fault: Option<Fault>,
}

enum Stage<T> {
    /// The write is to be sent.
    Send,
    /// The write met a conflict or a fault of the index, and its document is to be read back.
    ReadBack,
    /// The document read back shows that the write was accepted; writing that document once more is to confirm it.
    Confirm { version: Version, source: Box<RawValue>, lineage: Lineage },
    /// The write is decided.
    Decided(WriteResult<T>),
    /// The write is decided, and its result was taken.
    Answered,
}

/// A document as it was read, as far as a write that met it has to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentDocument<'a> {
    pub(super) version: Version,
    pub(super) source: &'a RawValue,
    pub(super) write_id: Option<WriteId>,
    pub(super) previous_write_id: Option<WriteId>,
}

/// The content to be sent for a write.
pub(super) enum Content<'a> {
    /// The write's own document; for a removal, a tombstone or nothing.
    Own,
    /// The document that was read back, unchanged.
    Again(&'a RawValue),
}

impl<T> ConditionalWrite<T> {
    pub(super) fn new(condition: Condition, write_id: WriteId) -> Self {
        Self { condition, write_id, stage: Stage::Send, maybe_applied: false, obstacle: String::new(), fault: None }
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self.stage, Stage::Decided(_) | Stage::Answered)
    }

    pub(super) fn is_to_be_sent(&self) -> bool {
        matches!(self.stage, Stage::Send | Stage::Confirm { .. })
    }

    pub(super) fn is_to_be_read(&self) -> bool {
        matches!(self.stage, Stage::ReadBack)
    }

    /// Returns the result; `None` while the write is open and after the result was taken.
    pub(super) fn decided(&self) -> Option<&WriteResult<T>> {
        match &self.stage {
            Stage::Decided(result) => Some(result),
            _ => None,
        }
    }

    /// Takes the result; `None` while the write is open and on every further call.
    pub(super) fn take_result(&mut self) -> Option<WriteResult<T>> {
        if self.is_open() {
            return None;
        }
        match std::mem::replace(&mut self.stage, Stage::Answered) {
            Stage::Decided(result) => Some(result),
            _ => None,
        }
    }

    pub(super) fn decide(&mut self, result: WriteResult<T>) {
        self.stage = Stage::Decided(result);
    }

    /// Decides the write as failed: unknown if it may have been applied, refused otherwise.
    fn give_up(&mut self, error: StoreError) {
        // A conflict whose document could not be read back may be this write's own.
        let undecided = self.maybe_applied || !matches!(self.stage, Stage::Send);
        self.decide(Err(match error {
            StoreError::Unavailable(why) if undecided => WriteError::Unknown(why),
            error if undecided => WriteError::Unknown(error.to_string()),
            error => WriteError::Refused(error),
        }));
    }

    /// Decides the write as failed with its latest obstacle, since its deadline has passed.
    pub(super) fn time_is_up(&mut self) {
        let obstacle = std::mem::take(&mut self.obstacle);
        self.give_up(StoreError::Unavailable(obstacle));
    }

    /// Records that a try may have been applied, if `maybe`.
    pub(super) fn maybe_applied(&mut self, maybe: bool) {
        self.maybe_applied |= maybe;
    }

    /// Returns whether a try may have been applied without an answer.
    pub(super) const fn may_be_applied(&self) -> bool {
        self.maybe_applied
    }

    /// Marks the write as to be sent under `condition`.
    pub(super) fn retarget(&mut self, condition: Condition) {
        self.condition = condition;
        self.stage = Stage::Send;
    }

    /// Marks the write as to be sent again under the same condition.
    pub(super) fn reopen(&mut self) {
        self.stage = Stage::Send;
    }

    /// Processes the failure of a read that the write needs: it is tried again in the next round, unless that would
    /// change nothing.
    pub(super) fn failed_to_read(&mut self, error: StoreError) {
        match error {
            StoreError::Corrupt(_) | StoreError::Unreadable { .. } => self.decide(Err(WriteError::Refused(error))),
            StoreError::OutOfOrder(_) => self.give_up(error),
            error if self.fault.is_some() => self.give_up(error),
            error => self.obstacle = error.to_string(),
        }
    }

    /// Returns whether the write is open and has an obstacle, so that the next round must wait.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_open() && !self.obstacle.is_empty()
    }

    /// Begins another try, and returns the action and content to be sent for the document `id`.
    pub(super) fn begin_try<'a>(&'a mut self, id: &'a str) -> (Action<'a>, Content<'a>) {
        self.obstacle.clear();
        match (&self.stage, self.condition) {
            (Stage::Confirm { version, source, .. }, _) => {
                (Action::Index(Target::at(id, *version)), Content::Again(source))
            }
            (_, Condition::Absent) => (Action::Create(Target::any(id)), Content::Own),
            (_, Condition::Replace(expected)) => (Action::Index(Target::at(id, expected)), Content::Own),
            (_, Condition::Remove(expected)) => (Action::Delete(Target::at(id, expected)), Content::Own),
        }
    }

    /// Processes the outcome of a try; `what` names the document in messages.
    pub(super) fn sent(&mut self, outcome: ItemOutcome, what: impl fmt::Display) {
        match outcome {
            ItemOutcome::Done(version) => {
                let version = match (&self.stage, self.condition) {
                    (Stage::Confirm { lineage: Lineage::BuiltOnOurs, .. }, _) => SUPERSEDED,
                    (_, Condition::Remove(expected)) => expected,
                    _ => version,
                };
                self.decide(Ok(version));
            }
            ItemOutcome::Conflict => self.stage = Stage::ReadBack,
            ItemOutcome::NotDone(obstacle) => self.obstacle = obstacle,
            ItemOutcome::Unsure(obstacle) => {
                self.maybe_applied = true;
                self.obstacle = obstacle;
            }
            ItemOutcome::Invalid(reason) if !self.maybe_applied && reason.contains(TOO_MANY_FIELDS) => {
                self.decide(Err(WriteError::Refused(StoreError::Unsupported(NO_MORE_NAMES))));
            }
            ItemOutcome::Invalid(reason) if !self.maybe_applied => {
                let message = format!("the index does not take {what} ({reason}); is its mapping the program's?");
                self.decide(Err(WriteError::Refused(StoreError::Corrupt(message))));
            }
            ItemOutcome::Denied(obstacle) | ItemOutcome::Invalid(obstacle) => {
                self.give_up(StoreError::Unavailable(obstacle));
            }
            // The server itself tries a write again when a primary fails, so the one that met the block may have been
            // done before. Documents can still be read then.
            ItemOutcome::OutOfOrder(fault @ Fault::Blocked { .. }) if !self.maybe_applied => {
                self.fault = Some(fault);
                self.stage = Stage::ReadBack;
            }
            ItemOutcome::OutOfOrder(fault) | ItemOutcome::Withheld(fault) => self.give_up(fault.into()),
        }
    }

    /// Processes the document that was read back. `has_our_body` says whether it refers to a body that this write
    /// brought; `current` returns it in the form that the caller of a conflict gets.
    pub(super) fn on_read_back(
        &mut self,
        found: Option<CurrentDocument<'_>>,
        has_our_body: bool,
        current: impl FnOnce() -> Option<T>,
    ) {
        if let Some(fault) = self.fault.take() {
            let is_ours = |found: CurrentDocument<'_>| {
                [found.write_id, found.previous_write_id].contains(&Some(self.write_id)) || has_our_body
            };
            let is_applied = found.map_or(matches!(self.condition, Condition::Remove(_)), is_ours);
            let (fault, why) = (StoreError::from(fault.clone()), fault.to_string());
            return self.decide(Err(if is_applied { WriteError::Unknown(why) } else { WriteError::Refused(fault) }));
        }
        let read = found.as_ref().map_or(ReadBack::Missing, |found| ReadBack::Found {
            version: found.version,
            write_id: found.write_id,
            previous: found.previous_write_id,
            has_our_body,
        });
        match (judge(self.condition, self.write_id, self.maybe_applied, read), found) {
            (Verdict::Confirm(lineage), Some(found)) => {
                self.maybe_applied = true;
                self.stage = Stage::Confirm { version: found.version, source: found.source.to_owned(), lineage };
            }
            (Verdict::Conflict, _) => self.decide(Err(WriteError::Conflict(current()))),
            (Verdict::Removed, _) => {
                if let Condition::Remove(expected) = self.condition {
                    self.decide(Ok(expected));
                }
            }
            (Verdict::SendAgain, _) => {
                self.stage = Stage::Send;
                "the copies of the document differ".clone_into(&mut self.obstacle);
            }
            (Verdict::LookAgain | Verdict::Confirm(_), _) => {
                "it may have been removed since".clone_into(&mut self.obstacle)
            }
        }
    }
}

/// The pace of the rounds in which writes are sent and read back.
pub(super) struct Rounds {
    deadline: Instant,
    backoff: Duration,
}

impl Rounds {
    pub(super) fn until(deadline: Instant) -> Self {
        Self { deadline, backoff: ROUND_BACKOFF }
    }

    /// Waits before the next round if `blocked`: a write that is only to be confirmed, or to be written in another
    /// form, need not wait. Returns `false` when the deadline has passed.
    pub(super) async fn next(&mut self, blocked: bool) -> bool {
        let now = Instant::now();
        if now >= self.deadline {
            return false;
        }
        if blocked {
            sleep(self.backoff.min(self.deadline - now)).await;
            self.backoff = (self.backoff * 2).min(LONGEST_ROUND_BACKOFF);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::write_id::WriteIdSource;
    use super::*;

    const VERSION: Version = Version { place: Place::Main, primary_term: 1, seq_no: 5 };

    fn fault() -> Fault {
        Fault::Blocked { index: "`jobs`".to_owned(), why: "full".to_owned() }
    }

    #[test]
    fn a_write_that_met_a_block_is_refused_unless_its_document_shows_that_it_was_applied() {
        let source = RawValue::from_string("{}".to_owned()).expect("JSON");
        let ids = WriteIdSource::new();
        let (own, other) = (ids.next(), ids.next());
        for (write_id, previous_write_id, is_applied) in
            [(own, None, true), (other, Some(own), true), (other, None, false)]
        {
            let mut write = ConditionalWrite::<()>::new(Condition::Replace(VERSION), own);
            write.sent(ItemOutcome::OutOfOrder(fault()), "it");
            assert!(write.is_to_be_read());
            let write_id = Some(write_id);
            let found = CurrentDocument { version: VERSION, source: &source, write_id, previous_write_id };
            write.on_read_back(Some(found), false, || None);
            match write.take_result() {
                Some(Err(WriteError::Unknown(_))) => assert!(is_applied),
                Some(Err(WriteError::Refused(StoreError::OutOfOrder(_)))) => assert!(!is_applied),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_write_that_was_not_sent_is_refused_and_one_that_may_have_been_applied_is_unknown() {
        for maybe_applied in [false, true] {
            let mut write = ConditionalWrite::<()>::new(Condition::Absent, WriteIdSource::new().next());
            write.maybe_applied(maybe_applied);
            write.sent(ItemOutcome::Withheld(fault()), "it");
            let is_refused = matches!(write.take_result(), Some(Err(WriteError::Refused(StoreError::OutOfOrder(_)))));
            assert_eq!(is_refused, !maybe_applied);
        }
    }
}
