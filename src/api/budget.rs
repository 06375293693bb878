//! How many bytes the bodies of requests hold at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{ApiError, Code};

/// The size of the budget's units, in bytes.
const BUDGET_UNIT: usize = 1024;

/// The budget of bytes that the bodies of all requests together may hold.
#[derive(Clone)]
pub(crate) struct BodyBudget(Arc<Semaphore>);

impl BodyBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new((bytes / BUDGET_UNIT).min(Semaphore::MAX_PERMITS))))
    }

    /// Returns whether somebody else has this budget or a share of it.
    pub(super) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Takes a share of so many bytes.
    pub(super) fn take(&self, bytes: usize) -> Result<Share, ApiError> {
        let mut share = Share { budget: self.clone(), permit: None };
        share.cover(bytes)?;
        Ok(share)
    }
}

/// What a body has of a budget, which is given back when this is dropped.
pub(super) struct Share {
    budget: BodyBudget,
    permit: Option<OwnedSemaphorePermit>,
}

impl Share {
    /// Makes the share at least so large: a body is charged by its bytes, in however many pieces they come.
    pub(super) fn cover(&mut self, bytes: usize) -> Result<(), ApiError> {
        let has = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let lacks = bytes.div_ceil(BUDGET_UNIT).saturating_sub(has);
        if lacks == 0 {
            return Ok(());
        }
        let lacks = u32::try_from(lacks).unwrap_or(u32::MAX);
        let more = Arc::clone(&self.budget.0)
            .try_acquire_many_owned(lacks)
            .map_err(|_| ApiError::new(Code::Overloaded, "the server holds as many request bodies as it can"))?;
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }
}
