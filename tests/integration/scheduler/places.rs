//! Schedules that share a host, one that is slow or down.

use std::net::SocketAddr;

use axum::Router;
use axum::routing::any;
use leasehold::clock::Clock as _;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use super::*;

cases! {
    schedules_with_short_time_limits_keep_no_other_owner_from_its_due_times,
    a_due_time_that_finds_its_host_down_until_its_margin_ends_says_so,
    a_due_time_that_finds_no_place_until_its_margin_ends_says_so,
    a_due_time_whose_call_was_cut_off_by_a_stop_is_called_again_and_not_missed,
    a_wrong_scheme_closes_a_host_for_nobody_else,
}

/// A host with a path that answers at once, and one that answers those alone who are let through.
struct Host {
    address: SocketAddr,
    /// The calls that have come and wait.
    came: Arc<Semaphore>,
    through: Arc<Semaphore>,
    _serves: AbortOnDropHandle<()>,
}

impl Host {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (address, through) = (listener.local_addr().expect("an address"), Arc::new(Semaphore::new(0)));
        let came = Arc::new(Semaphore::new(0));
        let (gate, comes) = (Arc::clone(&through), Arc::clone(&came));
        let slow = any(async move || {
            comes.add_permits(1);
            gate.acquire().await.map(|permit| permit.forget()).is_ok().to_string()
        });
        let router = Router::new().route("/quick", any(async || "done")).route("/slow", slow);
        let serves = tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { address, came, through, _serves: AbortOnDropHandle::new(serves) }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }
}

fn reason(due: &DueTime) -> Value {
    serde_json::to_value(due).expect("JSON")["reason"].clone()
}

fn has_run(due: &DueTime) -> bool {
    matches!(due.outcome, Outcome::Fired | Outcome::Late)
}

async fn schedules_with_short_time_limits_keep_no_other_owner_from_its_due_times(site: Site) {
    let site = site.by_steps_of(Duration::from_millis(100)).standing_still_when_due();
    let (scheduler, host) = (site.scheduler(), Host::start().await);
    for number in 0..8 {
        let action = json!({"type": "http", "url": host.url("slow"), "timeout_ms": 100});
        let fields = json!({
            "action": action, "period": {"every_ms": 1_000}, "margin_of_error_ms": 5_000, "owner": "slow",
        });
        put(&scheduler, &format!("slow-{number}"), fields).await;
    }
    let action = json!({"type": "http", "url": host.url("quick")});
    let fields =
        json!({"action": action, "period": {"every_ms": 3_000}, "margin_of_error_ms": 2_500, "owner": "quick"});
    let quick = put(&scheduler, "quick", fields).await;
    let found = site.until(&scheduler, &quick, |found| found.iter().filter(|due| has_ended(due)).count() >= 14).await;
    scheduler.shutdown().await;
    let lost: Vec<&DueTime> = found.iter().filter(|due| has_ended(due) && !has_run(due)).collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

async fn a_due_time_that_finds_its_host_down_until_its_margin_ends_says_so(site: Site) {
    let site = site.by_steps_of(Duration::from_millis(250)).standing_still_when_due();
    let (scheduler, mut receiver) = (site.scheduler(), Receiver::silent());
    let action = json!({"type": "http", "url": receiver.url()});
    let fields = json!({"action": action, "period": {"every_ms": 4_000}, "margin_of_error_ms": 8_000});
    // One of them finds out at a time, and most are not called before their margin ends.
    for number in 0..6 {
        put(&scheduler, &format!("waits-{number}"), fields.clone()).await;
    }
    let schedule = put(&scheduler, "down", fields).await;
    let is_host_down = |due: &DueTime| (due.outcome, reason(due)) == (Outcome::Missed, json!("host_down"));
    site.until(&scheduler, &schedule, |found| found.iter().filter(|due| is_host_down(due)).count() >= 1).await;

    receiver.listen().await;
    let up_at = site.clock.now();
    // A second after its host is back at the latest, it is called; and who waits looks again within five.
    let run = |found: &[DueTime]| found.iter().filter(|due| due.due_at > up_at && has_run(due)).count() >= 3;
    let found = site.until(&scheduler, &schedule, run).await;
    scheduler.shutdown().await;
    let is_lost = |due: &&DueTime| due.due_at > up_at && has_ended(due) && !has_run(due);
    let lost: Vec<&DueTime> = found.iter().filter(is_lost).collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

async fn a_due_time_that_finds_no_place_until_its_margin_ends_says_so(site: Site) {
    let site = site.by_steps_of(Duration::from_millis(100)).standing_still_when_due();
    let (schedules, host) = (site.schedules_of(&site.manager), Host::start().await);
    let executor = HttpExecutor::new(policy(), Limits::default()).expect("an executor");
    let config = SchedulerConfig { places: 1, ..SchedulerConfig::default() };
    let running = Running { scheduler: Scheduler::start(&schedules, executor, config), schedules };
    let once = |path: &str, seconds: u64, margin: u64| {
        let at = Timestamp::from_millis(START).plus(Duration::from_secs(seconds));
        let action = json!({"type": "http", "url": host.url(path), "timeout_ms": 60_000});
        json!({"action": action, "period": {"at": at.to_rfc3339()}, "margin_of_error_ms": margin})
    };
    let slow = put(&running, "slow", once("slow", 1, 600_000)).await;
    site.until(&running, &slow, |found| found.iter().any(|due| due.outcome == Outcome::Running)).await;
    let quick = put(&running, "quick", once("quick", 20, 3_000)).await;
    let late = put(&running, "late", once("quick", 20, 600_000)).await;
    site.pass_until(Timestamp::from_millis(START + 20_000));
    let found = site.until(&running, &quick, |found| found.iter().any(has_ended)).await;
    assert_eq!((found[0].outcome, reason(&found[0])), (Outcome::Missed, json!("limit")), "{found:#?}");

    host.through.add_permits(1);
    let found = site.until(&running, &late, |found| found.iter().any(has_ended)).await;
    running.shutdown().await;
    assert_eq!((found[0].outcome, reason(&found[0])), (Outcome::Late, Value::Null), "{found:#?}");
}

async fn a_due_time_whose_call_was_cut_off_by_a_stop_is_called_again_and_not_missed(site: Site) {
    let site = site.by_steps_of(Duration::from_millis(100)).standing_still_when_due();
    let (scheduler, host) = (site.scheduler(), Host::start().await);
    let at = Timestamp::from_millis(START).plus(Duration::from_secs(5));
    let action = json!({"type": "http", "url": host.url("slow"), "timeout_ms": 60_000});
    let fields = json!({"action": action, "period": {"at": at.to_rfc3339()}, "margin_of_error_ms": 3_000});
    let schedule = put(&scheduler, "cut-off", fields).await;
    site.until(&scheduler, &schedule, |found| found.iter().any(|due| due.outcome == Outcome::Running)).await;
    host.came.acquire().await.expect("it comes").forget();
    scheduler.shutdown().await;

    site.pass_until(at.plus(Duration::from_secs(60)));
    host.through.add_permits(10);
    let scheduler = site.scheduler();
    let found = site.until(&scheduler, &schedule, |found| found.iter().any(has_ended)).await;
    scheduler.shutdown().await;
    assert_eq!(outcomes(&found), BTreeMap::from([("late", 1)]), "{found:#?}");
    host.came.acquire().await.expect("it comes again").forget();
}

async fn a_wrong_scheme_closes_a_host_for_nobody_else(site: Site) {
    let site = site.by_steps_of(Duration::from_millis(250)).standing_still_when_due();
    let (scheduler, host) = (site.scheduler(), Host::start().await);
    for number in 0..6 {
        let action = json!({"type": "http", "url": host.url("quick").replace("http:", "https:")});
        let fields = json!({
            "action": action, "period": {"every_ms": 2_000}, "margin_of_error_ms": 1_900, "owner": "wrong",
        });
        put(&scheduler, &format!("wrong-{number}"), fields).await;
    }
    let action = json!({"type": "http", "url": host.url("quick")});
    let fields = json!({"action": action, "period": {"every_ms": 7_000}, "margin_of_error_ms": 1_500});
    let right = put(&scheduler, "right", fields).await;
    let found = site.until(&scheduler, &right, |found| found.iter().filter(|due| has_ended(due)).count() >= 4).await;
    scheduler.shutdown().await;
    let lost: Vec<&DueTime> = found.iter().filter(|due| has_ended(due) && !has_run(due)).collect();
    assert!(lost.is_empty(), "{lost:#?}");
}
