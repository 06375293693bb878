//! The answers to callers, which wait for what the writer makes of their writes.

use tokio::sync::oneshot;

use super::super::engine::undecided;
use super::super::machine::Outcomes;
use super::super::unanswered::Ticket;
use crate::store::{Record, StoreError, StoredSchedule, Versioned, WriteError, WriteResult};

/// The caller that waits for an answer.
pub(super) enum Caller {
    Jobs(Answer<Versioned>),
    Records(Answer<Record>),
    Schedules(Answer<StoredSchedule>),
}

/// The answer to the writes of one caller, which may have gone: it is no use to anyone else then.
pub(super) struct Answer<T> {
    count: usize,
    sender: oneshot::Sender<Part<T>>,
    /// Where the answer to the caller's further writes will be, once they are in a later batch.
    rest: Option<Awaited<T>>,
    /// What counts the writes among those that are not answered, where the last of them is.
    ticket: Option<Ticket>,
}

/// The answer to the first of a caller's writes, and where that to the others will be.
pub(crate) struct Part<T> {
    pub(super) results: Vec<WriteResult<T>>,
    rest: Option<Awaited<T>>,
}

/// An answer that is waited for.
pub(crate) struct Awaited<T>(pub(super) oneshot::Receiver<Part<T>>);

impl<T> Answer<T> {
    pub(super) fn to(count: usize) -> (Self, Awaited<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self { count, sender, rest: None, ticket: None }, Awaited(receiver))
    }

    /// Takes off the answer to the first of the writes, and leaves that to the others.
    fn split_off(&mut self, count: usize) -> Self {
        let (mut others, awaited) = Self::to(self.count - count);
        others.ticket = self.ticket.take();
        others.ticket.iter().for_each(Ticket::moves);
        let Self { sender, .. } = std::mem::replace(self, others);
        Self { count, sender, rest: Some(awaited), ticket: None }
    }

    /// Sends the caller its own of the outcomes, which are the next.
    fn send(self, outcomes: &mut impl Iterator<Item = WriteResult<T>>) {
        drop(self.sender.send(Part { results: outcomes.take(self.count).collect(), rest: self.rest }));
    }

    fn fail(self, failure: &Failure<'_>) {
        let results = (0..self.count).map(|_| failure.answer()).collect();
        drop(self.sender.send(Part { results, rest: self.rest }));
    }
}

/// Sends each of `callers` its own of the outcomes.
pub(super) fn answer(callers: Vec<Caller>, outcomes: Outcomes) {
    let Outcomes { jobs, records, schedules } = outcomes;
    let (mut jobs, mut records, mut schedules) = (jobs.into_iter(), records.into_iter(), schedules.into_iter());
    for caller in callers {
        match caller {
            Caller::Jobs(answer) => answer.send(&mut jobs),
            Caller::Records(answer) => answer.send(&mut records),
            Caller::Schedules(answer) => answer.send(&mut schedules),
        }
    }
}

pub(super) fn fail(callers: impl IntoIterator<Item = Caller>, failure: &Failure<'_>) {
    callers.into_iter().for_each(|caller| caller.fail(failure));
}

impl Caller {
    /// Takes note of that the writes were accepted: they are answered once the ticket is dropped.
    pub(super) fn waits(&mut self, ticket: Ticket) {
        match self {
            Self::Jobs(answer) => answer.ticket = Some(ticket),
            Self::Records(answer) => answer.ticket = Some(ticket),
            Self::Schedules(answer) => answer.ticket = Some(ticket),
        }
    }

    /// Takes off the caller of the first of the writes, and leaves that of the others: it is one caller, who is
    /// answered when all of its writes are.
    pub(super) fn split_off(&mut self, count: usize) -> Self {
        match self {
            Self::Jobs(answer) => Self::Jobs(answer.split_off(count)),
            Self::Records(answer) => Self::Records(answer.split_off(count)),
            Self::Schedules(answer) => Self::Schedules(answer.split_off(count)),
        }
    }

    /// Answers every write of the caller with a failure.
    fn fail(self, failure: &Failure<'_>) {
        match self {
            Self::Jobs(answer) => answer.fail(failure),
            Self::Records(answer) => answer.fail(failure),
            Self::Schedules(answer) => answer.fail(failure),
        }
    }
}

/// Why writes are not acknowledged.
pub(super) enum Failure<'a> {
    /// The writes were not written.
    Refused(&'a StoreError),
    /// The writes' batch could not be made durable.
    Undecided(&'a StoreError),
}

impl Failure<'_> {
    fn answer<T>(&self) -> WriteResult<T> {
        match self {
            Self::Refused(reason) => Err((*reason).clone().into()),
            Self::Undecided(failure) => Err(undecided(failure)),
        }
    }
}

/// Returns the error of a write whose answer never came.
fn writer_ended<T>() -> WriteError<T> {
    WriteError::Unknown("the store's writer ended".to_owned())
}

/// Waits for the answers to writes that were handed to the writer, if they were.
pub(crate) async fn answers<T>(count: usize, pushed: Result<Awaited<T>, StoreError>) -> Vec<WriteResult<T>> {
    let mut next = match pushed {
        Ok(awaited) => Some(awaited),
        Err(refusal) => return (0..count).map(|_| Err(refusal.clone().into())).collect(),
    };
    let mut results = Vec::new();
    while let Some(Awaited(awaited)) = next.take() {
        // Those of the writer that ended are missing at the end.
        let Ok(mut part) = awaited.await else { break };
        results.append(&mut part.results);
        next = part.rest;
    }
    results.resize_with(count, || Err(writer_ended()));
    results
}
