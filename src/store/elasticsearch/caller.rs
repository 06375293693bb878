//! A caller that waits for the answers to its writes, each of which may be decided elsewhere and at another time.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::store::WriteResult;

/// A caller, shared by its writes. When it is dropped without all answers, the receiver learns of it.
#[derive(Debug)]
pub(super) struct Caller(Mutex<Answers>);

#[derive(Debug)]
struct Answers {
    results: Vec<Option<WriteResult>>,
    open: usize,
    reply: Option<oneshot::Sender<Vec<WriteResult>>>,
}

impl Caller {
    /// Returns a caller of `count` writes, and the receiver of their results, in order.
    pub(super) fn of(count: usize) -> (Arc<Self>, oneshot::Receiver<Vec<WriteResult>>) {
        let (reply, results) = oneshot::channel();
        let answers = Answers { results: vec![None; count], open: count, reply: Some(reply) };
        (Arc::new(Self(Mutex::new(answers))), results)
    }

    /// Answers the caller's write number `index`. The last answer completes the results.
    pub(super) fn answer(&self, index: usize, result: WriteResult) {
        let mut answers = self.0.lock();
        let Some(place) = answers.results.get_mut(index).filter(|place| place.is_none()) else { return };
        *place = Some(result);
        answers.open -= 1;
        if answers.open == 0
            && let Some(reply) = answers.reply.take()
        {
            // The caller may be gone; its writes are finished all the same.
            let _gone = reply.send(std::mem::take(&mut answers.results).into_iter().flatten().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Place, Version, WriteError};

    fn done(seq_no: u64) -> WriteResult {
        Ok(Version { place: Place::Main, primary_term: 1, seq_no })
    }

    #[tokio::test]
    async fn the_results_come_together_in_the_order_of_the_writes() {
        let (caller, mut results) = Caller::of(2);
        caller.answer(1, done(7));
        assert!(results.try_recv().is_err());
        caller.answer(1, Err(WriteError::Unknown("said twice".to_owned())));
        caller.answer(0, done(8));
        let numbers: Vec<u64> =
            results.await.expect("answers").into_iter().map(|one| one.expect("done").seq_no).collect();
        assert_eq!(numbers, [8, 7]);
    }

    #[tokio::test]
    async fn a_write_that_is_lost_is_noticed() {
        let (caller, results) = Caller::of(2);
        caller.answer(0, done(1));
        drop(caller);
        assert!(results.await.is_err());
    }
}
