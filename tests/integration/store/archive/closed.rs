//! An old month of the archive that is closed, of which a part is away, or that is gone: it is missed only by who may
//! have a job there.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock, Timestamp};
use leasehold::executor::{HttpExecutor, Limits, TargetPolicy};
use leasehold::job::{Due, Job, JobId, JobSpec, NoticeFormat, NoticeTarget, Oversight, QueueName};
use leasehold::manager::{Caller, Manager, ManagerConfig, NewJob};
use leasehold::notify::{Notifier, NotifyConfig};
use leasehold::query::{Filter, Search, Sort};
use leasehold::scheduler::{NewSchedule, Scheduler, SchedulerConfig, Schedules};
use leasehold::store::{Sought, StoreError, Write, WriteError};
use reqwest::Method;
use serde_json::json;
use uuid::Uuid;

use super::{Site, id, on_both, plain_spec, submit};
use crate::notify::receiver::Receiver;
use crate::scheduler;
use crate::store::sample::queue;

on_both!(in_haste:
    an_old_month_that_is_closed_is_missed_only_by_who_may_have_a_job_there,
    an_old_month_that_is_away_is_waited_for_at_first_and_missed_by_no_other,
    a_month_that_was_deleted_refuses_its_jobs_as_long_as_they_are_known_of,
    an_old_month_that_is_closed_stops_no_schedule_and_no_webhook,
);

const OLD: &str = "{prefix}archive-2025.01";
/// A moment when that month was over.
const LATER: &str = "2025-06-15T12:00:00Z";

impl Site {
    async fn close_old_month(&self) {
        self.do_at(Method::PUT, OLD, None).await;
        self.do_at(Method::POST, &format!("{OLD}/_close"), None).await;
    }

    fn name_of_old(&self) -> String {
        OLD.replace("{prefix}", &self.prefix)
    }

    async fn creates(&self, name: &str, spec: JobSpec) -> Result<(), WriteError> {
        let job = Arc::new(submit(name, spec, self.now, self.now));
        self.write(Write::Create { job, bodies: vec![] }).await.map(drop)
    }

    /// What a look-up of each finds: whether there is a job, or why that is not known.
    async fn found(&self, ids: &[&JobId]) -> Vec<Result<bool, StoreError>> {
        let sought: Vec<Sought<'_>> = ids.iter().copied().map(Sought::from).collect();
        self.store.look_up(&sought).await.into_iter().map(|found| found.map(|found| found.is_some())).collect()
    }
}

/// An id that carries the time of a moment.
fn made_at(text: &str) -> JobId {
    let at = Timestamp::parse_rfc3339(text).expect("a time").as_millis();
    let millis = u64::try_from(at).expect("after 1970");
    JobId::of_uuid(uuid::Builder::from_unix_timestamp_millis(millis, &[7; 10]).into_uuid())
}

fn due_at(text: &str) -> JobSpec {
    let due_at = Timestamp::parse_rfc3339(text).expect("a time");
    let due = Due { schedule_id: scheduler::id("nightly"), due_at };
    JobSpec { due: Some(Box::new(due)), ..plain_spec() }
}

fn derived(name: &str) -> JobId {
    JobId::of_uuid(Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes()))
}

fn is_named<T: std::fmt::Debug>(result: Result<T, impl ToString>, index: &str) {
    let refused = result.map_err(|error| error.to_string()).expect_err("the month cannot be read");
    assert!(refused.contains(index), "{refused}");
}

async fn an_old_month_that_is_closed_is_missed_only_by_who_may_have_a_job_there(site: Site) {
    let live = Arc::new(submit("live", plain_spec(), site.now, site.now));
    site.create(&live).await;
    let moved = site.ended("moved");
    site.create(&moved).await;
    site.archive(1).await;
    let month = site.month().replace("{prefix}", &site.prefix);
    assert!(site.get(&id("moved")).await.is_some_and(|found| super::is_moved(&found)), "{month}");
    site.close_old_month().await;

    let (old, new, unknown) = (made_at("2025-01-15T12:00:00Z"), made_at(LATER), id("unknown"));
    let found = site.found(&[&live.id, &unknown, &moved.id, &old, &new]).await;
    assert!(matches!(found[..], [Ok(true), Err(_), Ok(true), Err(_), Ok(false)]), "{found:?}");
    is_named(found[1].clone(), &site.name_of_old());
    is_named(found[3].clone(), &site.name_of_old());

    is_named(site.creates("keyed", plain_spec()).await, &site.name_of_old());
    site.creates(new.as_str(), plain_spec()).await.expect("it was made after the month");
    let trigger = derived("trigger");
    site.creates(trigger.as_str(), due_at(LATER)).await.expect("it was due after the month");
    is_named(site.creates("early", due_at("2025-01-15T12:00:00Z")).await, &site.name_of_old());
    let again = site.creates(moved.id.as_str(), plain_spec()).await;
    assert!(matches!(again, Err(WriteError::Conflict(Some(_)))), "it is known where it lies: {again:?}");
    assert_eq!(site.store.unread_months().len(), 1, "{:?}", site.store.unread_months());

    site.do_at(Method::POST, &format!("{OLD}/_open"), None).await;
    let health = site.ask(&format!("_cluster/health/{OLD}?wait_for_status=yellow&timeout=30s")).await;
    assert_eq!(health["timed_out"], false, "{health}");
    site.creates("keyed", plain_spec()).await.expect("all months can be read");
    assert!(site.store.unread_months().is_empty());
}

async fn an_old_month_that_is_away_is_waited_for_at_first_and_missed_by_no_other(site: Site) {
    let live = Arc::new(submit("live", plain_spec(), site.now, site.now));
    site.create(&live).await;
    let settings = json!({ "settings": { "index": {
        "number_of_replicas": 0,
        "routing.allocation.require._name": "nobody",
    } } });
    site.do_at(Method::PUT, &format!("{OLD}?wait_for_active_shards=0"), Some(settings)).await;

    let (new, unknown) = (made_at(LATER), id("unknown"));
    let found = site.found(&[&live.id, &unknown, &new]).await;
    assert!(matches!(found[..], [Ok(true), Err(_), Ok(false)]), "{found:?}");
    is_named(found[1].clone(), &site.name_of_old());
    site.creates(derived("trigger").as_str(), due_at(LATER)).await.expect("it was due after the month");
    // It waits for the month to come back, and is refused when that takes too long.
    is_named(site.creates("keyed", plain_spec()).await, &site.name_of_old());
    is_named(site.creates("keyed", plain_spec()).await, &site.name_of_old());
}

async fn a_month_that_was_deleted_refuses_its_jobs_as_long_as_they_are_known_of(site: Site) {
    let moved = site.ended("moved");
    site.create(&moved).await;
    site.archive(1).await;
    assert!(site.get(&id("moved")).await.is_some_and(|found| super::is_moved(&found)));
    site.do_at(Method::DELETE, &site.month(), None).await;

    let index = site.month().replace("{prefix}", &site.prefix);
    is_named(site.store.get(&[id("moved")]).await, &index);
    site.creates("other", plain_spec()).await.expect("no month is missed");
}

async fn an_old_month_that_is_closed_stops_no_schedule_and_no_webhook(site: Site) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let manager = Manager::start(site.store.clone(), Arc::clone(&clock), ManagerConfig::default());
    let policy = TargetPolicy { allow_private: true, allow: Vec::new() };
    let executor = || HttpExecutor::new(policy.clone(), Limits::default()).expect("an executor");
    let schedules = Schedules::new(manager.clone(), site.store.clone(), Arc::clone(&clock), policy.clone());
    let scheduler = Scheduler::start(&schedules, executor(), SchedulerConfig::default());
    let config = NotifyConfig::default();
    let notifier = Notifier::start(manager.clone(), site.store.clone(), Arc::clone(&clock), executor(), config).await;
    let (notifier, receiver) = (notifier.expect("it starts"), Receiver::listening().await);
    site.close_old_month().await;

    let fields = json!({
        "action": scheduler::job_action(), "period": {"every_ms": 1_000}, "margin_of_error_ms": 3_600_000,
        "overlap": "allow",
    });
    let new = NewSchedule { id: scheduler::id("often"), definition: scheduler::definition(&fields), paused: false };
    schedules.put(&Caller::system("test"), new, true, None).await.expect("stored");
    let target = NoticeTarget { url: receiver.url(), events: Vec::new(), format: NoticeFormat::CloudEvents };
    let oversight = Oversight { notify: vec![target], ..Oversight::default() };
    let told = NewJob::of(JobSpec { oversight, queue: queue("told"), ..plain_spec() });
    let told = manager.submit(&Caller::system("test"), vec![told]).await.remove(0).expect("submitted");
    let told = told.job.versioned.job.id.clone();
    manager.cancel(&Caller::system("test"), &told, None).await.expect("cancelled");

    let of_schedule = Filter { queues: vec![QueueName::new("work").expect("a name")], ..Filter::default() };
    let of_schedule = Filter { states: vec![leasehold::job::JobState::Available], ..of_schedule };
    let search = Search { filter: of_schedule, sort: Sort::default(), after: None, limit: 100 };
    let mut jobs: Vec<Arc<Job>> = Vec::new();
    for _ in 0..600 {
        site.do_at(Method::POST, "{prefix}jobs/_refresh", None).await;
        let found = site.store.search(&search).await.expect("live jobs are found");
        jobs = found.into_iter().map(|found| found.job).collect();
        if jobs.len() >= 3 && !receiver.came().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(jobs.len() >= 3 && !receiver.came().is_empty(), "{} jobs, {} calls", jobs.len(), receiver.came().len());
    scheduler.shutdown().await;
    notifier.shutdown().await;
    manager.shutdown().await;
}
