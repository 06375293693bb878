//! Calls that leave an entry in the audit, beside those about jobs, whose histories are copied there.
//!
//! A handler's role is checked before it begins, and whose a schedule is before anything is written: what somebody
//! without the right to it sends is not.

use std::future::Future;

use super::call::Call;
use super::error::ApiError;
use crate::manager::{AuditChange, ChangeName, Manager};

impl<R> Call<R> {
    /// Returns the change with this name, which the caller asks for.
    pub(super) fn change(&self, name: ChangeName) -> AuditChange {
        AuditChange::new(name, &self.caller.name)
    }

    /// Writes to the audit what is about to be done, and does it.
    pub(super) async fn audited<T, E: Into<ApiError>>(
        &self,
        change: AuditChange,
        done: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ApiError> {
        audited(&self.app.manager, change, done).await
    }
}

/// Does the same for a caller who has no [`Call`].
pub(super) async fn audited<T, E: Into<ApiError>>(
    manager: &Manager,
    change: AuditChange,
    done: impl Future<Output = Result<T, E>>,
) -> Result<T, ApiError> {
    manager.audit_changes(std::slice::from_ref(&change)).await?;
    match done.await {
        Ok(value) => Ok(value),
        Err(error) => {
            let refused = error.into();
            if let Some(why) = why_not(&refused) {
                manager.audit_refusals(&[(change, why)]).await;
            }
            Err(refused)
        }
    }
}

/// Returns the code of a refusal after which a change is certainly not made.
pub(super) fn why_not(refused: &ApiError) -> Option<&'static str> {
    refused.code().status().is_client_error().then(|| refused.code().as_str())
}
