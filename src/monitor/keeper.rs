//! What has to be noted of jobs before they are removed.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::manager::ManagerError;
use crate::store::Versioned;

/// Keeps what is to be known of jobs after their removal.
#[async_trait]
pub trait Keeper: Send + Sync + 'static {
    /// Notes what has to outlive these jobs, which ended longer ago than they are kept. Returns each that may be
    /// removed, in any order, and an error for each that has to stay.
    async fn keep(&self, leaving: Vec<Versioned>, now: Timestamp) -> Vec<Result<Versioned, ManagerError>>;
}
