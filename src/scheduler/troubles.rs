//! The schedules in trouble that this process knows of, for metrics that name them.
//!
//! A schedule says itself what is wrong with it, in its document. This is a bounded memory of those whose documents
//! have said so when this process read or wrote them. As another process may write their end, they are read again now
//! and then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Timestamp;
use crate::job::ScheduleId;
use crate::schedule::{Schedule, Trouble};
use crate::store::{Store, StoreError};

/// The most schedules that are named. Beyond that, those whose latest trouble is the oldest are left out.
pub const MAX_NAMED: usize = 100;
/// How often they are read again.
const PERIOD: Duration = Duration::from_secs(10);

/// The schedules in trouble.
#[derive(Clone, Default)]
pub(super) struct Troubles(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    by_schedule: BTreeMap<ScheduleId, Vec<(Trouble, Timestamp)>>,
    read_at: Timestamp,
}

impl Troubles {
    /// Takes note of schedules as they are now.
    pub(super) fn note<'a>(&self, schedules: impl Iterator<Item = &'a Schedule>) {
        let mut known = self.0.lock();
        for schedule in schedules {
            let troubles: Vec<(Trouble, Timestamp)> = schedule.troubles().collect();
            if troubles.is_empty() {
                known.by_schedule.remove(&schedule.id);
                continue;
            }
            known.by_schedule.insert(schedule.id.clone(), troubles);
            if known.by_schedule.len() > MAX_NAMED {
                let latest = |troubles: &[(Trouble, Timestamp)]| troubles.iter().map(|(_, since)| *since).max();
                let oldest = known.by_schedule.iter().min_by_key(|(_, troubles)| latest(troubles));
                let oldest = oldest.map(|(id, _)| id.clone());
                oldest.and_then(|id| known.by_schedule.remove(&id));
            }
        }
    }

    /// Returns the schedules and their troubles.
    pub(super) fn all(&self) -> Vec<(ScheduleId, Trouble)> {
        let known = self.0.lock();
        let each = known.by_schedule.iter();
        each.flat_map(|(id, troubles)| troubles.iter().map(|(trouble, _)| (id.clone(), *trouble))).collect()
    }

    /// Reads the schedules again, if that was some time ago.
    ///
    /// # Errors
    /// Those of a read.
    pub(super) async fn look_again(&self, store: &dyn Store, now: Timestamp) -> Result<(), StoreError> {
        let ids: Vec<ScheduleId> = {
            let mut known = self.0.lock();
            if now.since(known.read_at) < PERIOD {
                return Ok(());
            }
            known.read_at = now;
            known.by_schedule.keys().cloned().collect()
        };
        if ids.is_empty() {
            return Ok(());
        }
        let found = store.schedules(&ids).await?;
        self.note(found.iter().flatten().map(|found| &*found.schedule));
        let mut known = self.0.lock();
        for (id, _) in ids.iter().zip(&found).filter(|(_, found)| found.is_none()) {
            known.by_schedule.remove(id);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schedule that has missed a due time at this second, or that is in no trouble.
    fn schedule(number: i64, missed_since: Option<i64>) -> Schedule {
        let text = format!(
            r#"{{
                "id": "s{number}", "revision": 1, "period_since": "2030-01-01T00:00:00Z",
                "created_at": "2030-01-01T00:00:00Z", "updated_at": "2030-01-01T00:00:00Z",
                "definition": {{
                    "action": {{"type": "http", "url": "https://example.org/"}}, "period": {{"every_ms": 1000}},
                    "margin_of_error_ms": 1000
                }}
            }}"#
        );
        let mut schedule: Schedule = serde_json::from_str(&text).expect("a schedule");
        schedule.course.missed_since = missed_since.map(|second| Timestamp::from_millis(second * 1_000));
        schedule
    }

    #[test]
    fn the_latest_hundred_are_named_until_they_are_over() {
        let (troubles, all) = (Troubles::default(), 0..150);
        let schedules: Vec<Schedule> = all.map(|number| schedule(number, Some(number))).collect();
        troubles.note(schedules.iter());
        let named = troubles.all();
        assert_eq!(named.len(), MAX_NAMED);
        assert!(schedules[..50].iter().all(|old| named.iter().all(|(id, _)| *id != old.id)), "{named:?}");
        assert!(named.contains(&(schedules[149].id.clone(), Trouble::Missed)));
        troubles.note([schedule(149, None)].iter());
        assert!(troubles.all().iter().all(|(id, _)| *id != schedules[149].id));
    }
}
