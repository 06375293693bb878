//! When the clock was set back, noted in the store for the processes after this one.
//!
//! A feed that goes on at another process is replayed by the time in its position. Where the clock has shown that time
//! twice, what was written the second time may lie before the position, and nothing else in the store says so once the
//! clock has come as far again. How far it had come before nobody knows for certain: positions of a process go on
//! while nothing is written. So those of processes that began after the step are noted as well, and all others that are
//! later than the step are not trusted.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::EventId;
use crate::clock::{FAR_AHEAD, Timestamp};
use crate::job::RecordName;
use crate::manager::Manager;
use crate::store::record::body;
use crate::store::{Record, RecordKey, RecordKind, RecordWrite, StoreError, Version, WriteError};

/// The name of the record.
const NAME: &str = "clock";
/// How often a process looks whether its clock was set back.
const EVERY: Duration = Duration::from_secs(1);
/// How many processes are noted that began after the step.
const MAX_EPOCHS: usize = 64;

/// The content of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Steps {
    /// The earliest time to which the clock was set back.
    from: Timestamp,
    /// The epochs of the latest rings that began after the last step, in hexadecimal digits.
    epochs: Vec<String>,
}

impl Manager {
    /// Notes each time that the clock of this process was set back, and that this ring began after those of before,
    /// until the manager stops.
    pub(in crate::manager) async fn keep_steps_noted(&self) {
        let (shared, mut noted) = (&self.shared, None);
        loop {
            let (now, before) = (shared.clock.now(), shared.clock.went_back_from());
            let is_new = now < before && noted.is_none_or(|(from, until)| now < from || until < before);
            // A step is found by the first look where the ring began after it.
            if noted.is_none() || is_new {
                match self.note_step(is_new.then_some(now), noted.is_none()).await {
                    Ok(()) => noted = Some((now, before)),
                    Err(error) => tracing::debug!(%error, "that the clock was set back is noted later"),
                }
            }
            if shared.stopping.run_until_cancelled(sleep(EVERY)).await.is_none() {
                return;
            }
        }
    }

    /// Notes that the clock was set back to `from`, if it was, and that the ring of this process `began_after` that.
    async fn note_step(&self, from: Option<Timestamp>, began_after: bool) -> Result<(), WriteError<Record>> {
        let (steps, version) = self.steps().await?;
        let mut steps = match (steps, from) {
            (None, None) => return Ok(()),
            (Some(steps), None) => steps,
            (steps, Some(from)) => Steps { from: steps.map_or(from, |steps| from.min(steps.from)), epochs: Vec::new() },
        };
        if began_after {
            steps.epochs.push(format!("{:x}", self.shared.observe.events.epoch));
            let surplus = steps.epochs.len().saturating_sub(MAX_EPOCHS);
            steps.epochs.drain(..surplus);
        }
        self.shared.store.write_record(RecordWrite::put(key(), body(&steps)?, version)).await.map(drop)
    }

    async fn steps(&self) -> Result<(Option<Steps>, Option<Version>), StoreError> {
        match self.shared.store.record(&key()).await? {
            Some(record) => Ok((Some(record.read()?), Some(record.version))),
            None => Ok((None, None)),
        }
    }

    /// Returns whether what was written after a position of another process may lie before it in time.
    pub(super) async fn may_lie_before(&self, position: EventId) -> Result<bool, StoreError> {
        if position.at > self.shared.clock.now().plus(FAR_AHEAD) {
            return Ok(true);
        }
        let (steps, _) = self.steps().await?;
        let epoch = format!("{:x}", position.epoch);
        Ok(steps.is_some_and(|steps| position.at >= steps.from && !steps.epochs.contains(&epoch)))
    }
}

fn key() -> RecordKey {
    RecordKey::new(RecordKind::Setting, RecordName::system(NAME))
}
