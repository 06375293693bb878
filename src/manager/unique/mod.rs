//! Unique keys: of the jobs that name one key, at most one is live, which is to say that it waits or runs.
//!
//! A key has a record in the store that names the job which holds it ([`holder`]). Why no two jobs of a key are live:
//!
//! - A job becomes live by its creation, or by its return from an end on request. Either write is made only after a
//!   write of the record that names the job; a return also goes by a version of the job that was read before that.
//! - The record names another job, or is removed, only by a write over the version under which it was read, and only
//!   after the job that it names was found, later than that, to be over: it is not live, and what the record announces
//!   was made or barred ([`crate::manager::announced`]).
//!
//! So when the record names another job, no write can make the former one live any more but by taking the key again,
//! wherever such a write has been meanwhile.

mod holder;
mod keeping;

use tokio::time::Instant;
use tracing::debug;

use crate::job::{Job, UniqueKey};
use crate::manager::Manager;
use crate::manager::request::ManagerError;
use crate::store::record::body;
use crate::store::{Record, RecordWrite, Version, Versioned, WriteError};
use holder::{Holder, is_live, record_key};

/// How often a record or a job is written for one submission or retry while others write it too.
pub(super) const TRIES: usize = 8;

/// What has become of the attempt to take a key.
pub(super) enum Taken {
    /// The record names the job, in this version.
    Held(Version),
    /// This job, which is live, holds the key.
    ByOther(Versioned),
}

impl Manager {
    /// Takes the key for a job that is about to be created, or to return from its end. For a return, the version of the
    /// job by which it goes must have been read before this call.
    pub(super) async fn take_key(&self, key: &UniqueKey, job: &Job, returns: bool) -> Result<Taken, ManagerError> {
        let content = Holder::new(job, returns, self.shared.clock.now());
        // Most keys have no record: nothing is read then.
        let mut known: Option<Record> = None;
        for _ in 0..TRIES {
            let mut written = content.clone();
            if let Some(record) = &known {
                let holder: Holder = record.read()?;
                if holder.announced.job == job.id {
                    // It is written again, so that nobody takes it away who read it before.
                    written = holder.and(&content);
                } else if let Some(live) =
                    self.make_over(&holder.announced, is_live, Instant::now() + self.grace()).await?
                {
                    return Ok(Taken::ByOther(live));
                }
            }
            let version = known.as_ref().map(|record| record.version);
            let write = RecordWrite::put(record_key(key), body(&written)?, version);
            match self.shared.store.write_record(write).await {
                Ok(version) => return Ok(Taken::Held(version)),
                Err(WriteError::Conflict(current)) => known = current,
                Err(WriteError::Refused(error)) => return Err(ManagerError::Store(error)),
                Err(WriteError::Unknown(why)) => return Err(ManagerError::Unknown(why)),
            }
        }
        Err(ManagerError::Contended { tries: TRIES })
    }

    /// Gives a key back that was taken for a job which was not created.
    pub(super) async fn give_key_back(&self, key: &UniqueKey, expected: Version) {
        let removal = RecordWrite::Remove { key: record_key(key), expected };
        if let Err(error) = self.shared.store.write_record(removal).await {
            debug!(%error, %key, "a record of a unique key is left that nobody needs");
        }
    }
}
