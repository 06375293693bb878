//! How a job with keys returns from its end on request: it takes its unique key and a new place in its line before it
//! is written.

use std::sync::Arc;

use crate::job::{Job, Refusal};
use crate::manager::Manager;
use crate::manager::lines::Wanted;
use crate::manager::request::ManagerError;
use crate::manager::unique::{TRIES, Taken};
use crate::manager::work::write::JobWrite;
use crate::store::{Versioned, WriteError};

impl Manager {
    /// Returns a job with keys, which was read just now, from its end, as `decide` says, if no other job holds its
    /// unique key.
    ///
    /// # Errors
    /// [`ManagerError::Duplicate`] names the job that holds the unique key; and the refusal of `decide`.
    pub(super) async fn return_keyed(
        &self,
        mut found: Versioned,
        decide: impl Fn(&Job) -> Result<Job, Refusal> + Send + Sync,
    ) -> Result<Versioned, ManagerError> {
        let unique = found.job.spec.unique().cloned();
        let line = found.job.spec.ordering_key().cloned();
        let _turn = self.shared.unique.turns(&unique).await;
        let _turn_in_line = self.shared.lines.turns.turns(&line).await;
        for _ in 0..TRIES {
            decide(&found.job)?;
            if (found.job.spec.unique(), found.job.spec.ordering_key()) != (unique.as_ref(), line.as_ref()) {
                // Another job stands under the id by now.
                break;
            }
            if let Some(key) = &unique
                && let Taken::ByOther(other) = self.take_key(key, &found.job, true).await?
            {
                return Err(ManagerError::Duplicate(other.job.id.clone()));
            }
            let places = match &line {
                Some(line) => Some(self.allot(line, &[Wanted { job: &found.job, returns: true }]).await?),
                None => None,
            };
            let mut returned = decide(&found.job)?;
            if let Some(places) = &places {
                returned.spec = Arc::new(returned.spec.placed(places.first, places.first));
            }
            self.announce(&found.job, &mut returned);
            let id = found.job.id.clone();
            let written = self.write_one(JobWrite::replace(found, Arc::new(returned), Vec::new())).await;
            if let Some(places) = places
                && !matches!(written, Err(WriteError::Unknown(_)))
            {
                self.places_are_settled(places).await;
            }
            match written {
                Ok(returned) => return Ok(returned),
                Err(WriteError::Conflict(Some(current))) => found = current,
                Err(WriteError::Conflict(None)) => return Err(ManagerError::NotFound(id)),
                Err(WriteError::Refused(error)) => return Err(ManagerError::Store(error)),
                Err(WriteError::Unknown(why)) => return Err(ManagerError::Unknown(why)),
            }
        }
        Err(ManagerError::Contended { tries: TRIES })
    }
}
