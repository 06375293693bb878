//! The items of a bulk call: those that are refused at once and those that the manager answers, in order. And the
//! report of a call that changes what a filter selects.

use super::error::ApiError;
use crate::manager::{self, ManagerError};
use crate::wire::{BulkReport, ChangeFailure};

/// Returns the answer to a call about one item.
pub(crate) fn only<T>(mut answers: Vec<Result<T, ManagerError>>) -> Result<T, ApiError> {
    Ok(answers.pop().unwrap_or_else(|| Err(no_answer()))?)
}

/// Separates the items that the manager can take from the refusals of the others.
pub(crate) fn sort_out<T, E: Into<ApiError>>(
    items: impl IntoIterator<Item = Result<T, E>>,
) -> (Vec<T>, Vec<Option<ApiError>>) {
    let mut good = Vec::new();
    let refused = items
        .into_iter()
        .map(|item| match item {
            Ok(item) => {
                good.push(item);
                None
            }
            Err(error) => Some(error.into()),
        })
        .collect();
    (good, refused)
}

/// Puts the manager's answers back among the refusals.
pub(crate) fn in_order<T, E: From<ManagerError> + Into<ApiError>>(
    refused: Vec<Option<ApiError>>,
    answers: Vec<Result<T, E>>,
) -> impl Iterator<Item = Result<T, ApiError>> {
    let mut answers = answers.into_iter();
    refused.into_iter().map(move |refused| match refused {
        Some(error) => Err(error),
        None => answers.next().unwrap_or_else(|| Err(no_answer().into())).map_err(Into::into),
    })
}

/// Returns the report of a call that has changed some items, with the cursor of a place.
pub(crate) fn changed<T, Id: Into<String>, Place, E: Into<ApiError>>(
    report: manager::BulkReport<Id, Place, E>,
    cursor: impl FnOnce(Place) -> String,
) -> BulkReport<T> {
    let failure = |(id, error): (Id, E)| ChangeFailure { id: id.into(), error: error.into().into_item().1 };
    BulkReport {
        dry_run: false,
        matched: report.matched,
        sample: Vec::new(),
        changed: report.changed,
        skipped: report.skipped,
        failed_total: report.failed,
        failed: report.failures.into_iter().map(failure).collect(),
        done: report.next.is_none(),
        next_cursor: report.next.map(cursor),
    }
}

fn no_answer() -> ManagerError {
    ManagerError::Unknown("the manager gave no answer".to_owned())
}
