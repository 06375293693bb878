//! The notices in schedules' outboxes: who wants them, and how they become deliveries. The scheduler writes schedules,
//! and so puts notices in and takes them out.

use std::sync::Arc;

use super::config::NotifyConfig;
use super::delivery::Addressee;
use super::handover::{deliveries, hand_over};
use super::subscriptions::Subscriptions;
use crate::executor::webhook::Event;
use crate::manager::{Manager, ManagerError, NewJob};
use crate::schedule::{Definition, Schedule, ScheduleEventName, ScheduleNotice};
use crate::store::StoreError;

/// Notifies receivers of the events of schedules. By default there are no receivers.
#[derive(Clone, Default)]
pub struct ScheduleNotifier {
    subscriptions: Option<Arc<Subscriptions>>,
    config: NotifyConfig,
}

impl ScheduleNotifier {
    pub(super) fn new(subscriptions: Arc<Subscriptions>, config: NotifyConfig) -> Self {
        Self { subscriptions: Some(subscriptions), config }
    }

    /// Returns whether anybody is to be notified of this event of a schedule with this definition.
    #[must_use]
    pub fn is_wanted(&self, definition: &Definition, event: ScheduleEventName) -> bool {
        let Some(subscriptions) = &self.subscriptions else { return false };
        definition.notify.iter().any(|target| target.wants(event))
            || subscriptions.all().iter().any(|subscription| subscription.wants_of_schedule(definition, event))
    }

    /// Submits the deliveries of all notices in the outboxes of these schedules, under ids that only the notice and its
    /// receiver have. Returns for each schedule in turn whether all are submitted, and the first failure.
    pub async fn hand_on(&self, manager: &Manager, schedules: &[&Schedule]) -> (Vec<bool>, Option<ManagerError>) {
        if schedules.is_empty() {
            return (Vec::new(), None);
        }
        let Some(subscriptions) = &self.subscriptions else { return (vec![false; schedules.len()], None) };
        let subscribed = subscriptions.all();
        let of_notice = |schedule: &Schedule, notice: &ScheduleNotice| {
            let definition = &*schedule.definition;
            let own = definition.notify.iter().filter(|target| target.wants(notice.event)).map(Addressee::from);
            let others = subscribed.iter().filter(|other| other.wants_of_schedule(definition, notice.event));
            let others = others.map(|subscription| Addressee::Subscription(subscription.id.clone()));
            deliveries(&Event::of_schedule(schedule, notice), own.chain(others), &self.config)
        };
        let of_schedule = |schedule: &&Schedule| -> Result<Vec<NewJob>, StoreError> {
            let notices = schedule.course.outbox.notices.iter().map(|notice| of_notice(schedule, notice));
            notices.collect::<Result<Vec<_>, _>>().map(|jobs| jobs.into_iter().flatten().collect())
        };
        hand_over(manager, schedules.iter().map(of_schedule)).await
    }
}
