//! From a notice to its deliveries: which there are, and their submission.

use super::config::NotifyConfig;
use super::delivery::{Addressee, Delivery};
use crate::executor::webhook::Event;
use crate::manager::{Caller, Manager, ManagerError, NewJob};
use crate::store::StoreError;

/// How many deliveries are submitted with one call, but for the last notice's.
const BATCH: usize = 10_000;

/// Returns the deliveries of an event to these receivers. One that is named twice gets one message.
pub(super) fn deliveries(
    event: &Event,
    to: impl Iterator<Item = Addressee>,
    config: &NotifyConfig,
) -> Result<Vec<NewJob>, StoreError> {
    let mut addressees: Vec<Addressee> = Vec::new();
    for addressee in to {
        if !addressees.contains(&addressee) {
            addressees.push(addressee);
        }
    }
    let jobs = addressees.into_iter().map(|to| Delivery { event: event.clone(), to }.into_job(config));
    jobs.collect::<Result<_, _>>().map_err(|error| StoreError::Corrupt(error.to_string()))
}

/// Submits the deliveries of each of `all`. Returns for each in turn whether all its deliveries are submitted, so that
/// what they are about may be taken out of its outbox, and the first failure.
pub(super) async fn hand_over(
    manager: &Manager,
    all: impl Iterator<Item = Result<Vec<NewJob>, StoreError>> + Send,
) -> (Vec<bool>, Option<ManagerError>) {
    let (mut handed_over, mut failure) = (Vec::new(), None);
    let mut all = all.peekable();
    while all.peek().is_some() {
        let (mut jobs, mut counts) = (Vec::new(), Vec::new());
        while jobs.len() < BATCH
            && let Some(next) = all.next()
        {
            counts.push(next.map(|next| {
                let count = next.len();
                jobs.extend(next);
                count
            }));
        }
        let mut answers = manager.submit_own(&Caller::system("notifier"), jobs).await.into_iter();
        for count in counts {
            let refusals: Vec<ManagerError> = match count {
                Ok(count) => answers.by_ref().take(count).filter_map(Result::err).collect(),
                Err(error) => vec![error.into()],
            };
            handed_over.push(refusals.is_empty());
            failure = failure.or(refusals.into_iter().next());
        }
    }
    (handed_over, failure)
}
