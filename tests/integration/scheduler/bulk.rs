//! Bulk changes of schedules over each engine: by id, page by page, and against others who change the same ones.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::clock::{Clock, SystemClock};
use leasehold::executor::TargetPolicy;
use leasehold::job::{Owner, ScheduleId};
use leasehold::manager::{BULK_PAGE, BulkBounds, Caller, Manager, ManagerConfig};
use leasehold::query::kql::{Expression, Zone};
use leasehold::query::table::Table;
use leasehold::query::{Query, ScheduleFilter};
use leasehold::schedule::{NotRun, Schedule};
use leasehold::scheduler::{
    NewSchedule, ScheduleAction, ScheduleError, ScheduleOrder, ScheduleReport, ScheduleSelection, Schedules,
};
use leasehold::store::{ListSchedules, Refresh, ScheduleWrite, Store, StoredSchedule};
use parking_lot::Mutex;
use serde_json::json;

use crate::engines::Engine;
use crate::interference::{InterferedEngine, Interference};

/// Counts refreshes and batches, and runs something before the next batch.
#[derive(Default)]
struct Watch {
    refreshes: AtomicUsize,
    batches: Mutex<Vec<usize>>,
    first: Mutex<Option<Vec<ScheduleWrite>>>,
    refused: Mutex<Vec<ScheduleId>>,
}

#[async_trait]
impl Interference for Watch {
    async fn before_write_of_schedules(&self, store: &dyn Store, writes: &[ScheduleWrite]) {
        self.batches.lock().push(writes.len());
        let first = self.first.lock().take();
        if let Some(first) = first {
            for answer in store.write_schedules(first).await {
                answer.expect("nobody else has changed it yet");
            }
        }
    }

    fn refuses_schedule(&self, write: &ScheduleWrite) -> bool {
        self.refused.lock().contains(write.id())
    }

    fn before_refresh(&self, what: Refresh<'_>) {
        self.refreshes.fetch_add(usize::from(matches!(what, Refresh::Schedules)), SeqCst);
    }
}

struct Site {
    watch: Arc<Watch>,
    engine: Box<dyn Engine>,
    schedules: Schedules,
}

impl Site {
    fn on(engine: Box<dyn Engine>) -> Self {
        let watch = Arc::new(Watch::default());
        let engine = InterferedEngine::around(engine, &watch);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let manager = Manager::start(engine.store(), Arc::clone(&clock), ManagerConfig::default());
        let schedules = Schedules::new(manager, engine.store(), clock, TargetPolicy::default());
        Self { watch, engine, schedules }
    }

    /// Stores so many schedules: those with an even number of `a`, the others of `b`.
    async fn stored(&self, count: usize) {
        let one = |number: usize| {
            let owner = ["a", "b"][number % 2];
            let action = json!({"type": "job", "job": {"queue": "q", "kind": "k"}});
            let fields = json!({"owner": owner, "action": action, "period": {"cron": "0 4 * * *"}});
            NewSchedule { id: id(&format!("{number:05}")), definition: super::definition(&fields), paused: false }
        };
        let stored = self.schedules.put_many(&Caller::system("test"), (0..count).map(one).collect()).await;
        assert!(stored.iter().all(Result::is_ok));
        self.engine.settle().await;
        self.watch.refreshes.store(0, SeqCst);
        self.watch.batches.lock().clear();
    }

    async fn change(&self, action: ScheduleAction, selection: ScheduleSelection, most: usize) -> ScheduleReport {
        self.change_after(action, selection, most, None).await
    }

    async fn change_after(
        &self,
        action: ScheduleAction,
        selection: ScheduleSelection,
        most: usize,
        after: Option<ScheduleId>,
    ) -> ScheduleReport {
        let caller = Caller::system("anna");
        let order = ScheduleOrder { action, caller, reason: "a move".to_owned() };
        let bounds = BulkBounds { after, max_items: most, within: Duration::from_secs(60) };
        self.schedules.change_many(order, selection, bounds).await.expect("a report")
    }

    async fn paused(&self) -> Vec<StoredSchedule> {
        self.engine.settle().await;
        let filter = ScheduleFilter { paused: Some(true), ..ScheduleFilter::default() };
        let list = ListSchedules { filter, after: None, limit: 10_000 };
        self.schedules.list(&list).await.expect("listed")
    }

    async fn get(&self, name: &str) -> StoredSchedule {
        self.schedules.get(&id(name)).await.expect("it is there")
    }
}

fn id(text: &str) -> ScheduleId {
    ScheduleId::new(text).expect("an id")
}

fn of(owner: &str) -> ScheduleSelection {
    let owner = Some(Owner::new(owner).expect("an owner"));
    ScheduleSelection { filter: ScheduleFilter { owner, ..ScheduleFilter::default() }, ids: Vec::new() }
}

fn counts(report: &ScheduleReport) -> (u64, u64, u64, u64) {
    (report.matched, report.changed, report.skipped, report.failed)
}

async fn all_schedules_of_a_filter_are_changed_a_page_at_a_time_with_one_refresh_each(site: Site) {
    let pages = 3;
    site.stored(2 * (pages - 1) * BULK_PAGE + 20).await;
    let of_a = ((pages - 1) * BULK_PAGE + 10) as u64;
    let seen = site.schedules.preview(ScheduleAction::Pause, of("a")).await.expect("a preview");
    assert_eq!((seen.matched, seen.sample.len()), (of_a, 20));
    assert_eq!(seen.sample[1].schedule.id, id("00002"));
    site.watch.refreshes.store(0, SeqCst);

    let report = site.change(ScheduleAction::Pause, of("a"), usize::MAX).await;
    assert_eq!(counts(&report), (of_a, of_a, 0, 0));
    assert!(report.next.is_none());
    assert_eq!(*site.watch.batches.lock(), [BULK_PAGE, BULK_PAGE, 10]);
    // One more at the start, for who has just written what is selected.
    let expected = if site.engine.store().has_realtime_search() { 1 } else { pages + 1 };
    assert_eq!(site.watch.refreshes.load(SeqCst), expected);

    let paused = site.paused().await;
    assert_eq!(paused.len() as u64, of_a);
    for found in &paused {
        let pause = found.schedule.paused.as_ref().expect("it is paused");
        assert_eq!((pause.by.as_str(), pause.reason.as_str(), found.schedule.revision), ("anna", "a move", 2));
    }
    let again = site.schedules.preview(ScheduleAction::Pause, of("a")).await.expect("a preview");
    assert_eq!((again.matched, again.sample.len()), (0, 0));

    let resumed = site.change(ScheduleAction::Resume, of("a"), usize::MAX).await;
    assert_eq!(counts(&resumed), (of_a, of_a, 0, 0));
    assert_eq!(site.paused().await, []);
    assert!(site.get("00000").await.schedule.load_at().is_some());
}

async fn a_call_ends_at_its_bound_and_the_next_one_goes_on(site: Site) {
    site.stored(20).await;
    let first = site.change(ScheduleAction::Remove, of("b"), 4).await;
    assert_eq!(counts(&first), (4, 4, 0, 0));
    assert_eq!(first.next, Some(id("00007")));
    let second = site.change_after(ScheduleAction::Remove, of("b"), 100, first.next).await;
    assert_eq!((counts(&second), second.next), ((6, 6, 0, 0), None));
    site.engine.settle().await;
    let all = ListSchedules { filter: ScheduleFilter::default(), after: None, limit: 100 };
    let left = site.schedules.list(&all).await.expect("listed");
    assert_eq!(left.len(), 10);
    assert!(
        left.iter().all(|found| found.schedule.definition.owner.as_ref().is_some_and(|owner| owner.as_str() == "a"))
    );
}

async fn what_others_change_meanwhile_is_decided_again_and_left_where_it_does_not_match(site: Site) {
    site.stored(12).await;
    let owned_by = |found: StoredSchedule, owner: &str| {
        let mut schedule = (*found.schedule).clone();
        let owner = Some(Owner::new(owner).expect("an owner"));
        schedule.definition = Arc::new(leasehold::schedule::Definition { owner, ..(*schedule.definition).clone() });
        schedule.revision += 1;
        ScheduleWrite::Replace { schedule: Arc::new(schedule), expected: found.version }
    };
    // Right before the page is written: one is given away, one has come further, and one is removed.
    let (given, further, gone) = (site.get("00002").await, site.get("00004").await, site.get("00006").await);
    let first = vec![
        owned_by(given, "b"),
        owned_by(further, "a"),
        ScheduleWrite::Remove { id: id("00006"), expected: gone.version },
    ];
    *site.watch.first.lock() = Some(first);
    let report = site.change(ScheduleAction::Pause, of("a"), usize::MAX).await;
    assert_eq!(counts(&report), (6, 4, 2, 0));
    assert_eq!(*site.watch.batches.lock(), [6, 1], "only what has changed and matches is written again");
    let paused = site.paused().await;
    let paused: Vec<&str> = paused.iter().map(|found| found.schedule.id.as_str()).collect();
    assert_eq!(paused, ["00000", "00004", "00008", "00010"]);
    assert_eq!(site.get("00004").await.schedule.revision, 3);
}

async fn what_cannot_be_written_is_named_and_ends_the_call(site: Site) {
    site.stored(2 * BULK_PAGE + 2).await;
    site.watch.refused.lock().push(id("00002"));
    let report = site.change(ScheduleAction::Pause, of("a"), usize::MAX).await;
    let page = BULK_PAGE as u64;
    assert_eq!(counts(&report), (page, page - 1, 0, 1));
    assert_eq!(report.failures.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["00002"]);
    let next = report.next.clone();
    assert!(next.is_some(), "the store may refuse the next page too");
    site.watch.refused.lock().clear();
    let rest = site.change_after(ScheduleAction::Pause, of("a"), usize::MAX, next).await;
    assert_eq!((counts(&rest), rest.next), ((1, 1, 0, 0), None));
    let last = site.change(ScheduleAction::Pause, of("a"), usize::MAX).await;
    assert_eq!(counts(&last), (1, 1, 0, 0), "the one that failed");
}

async fn one_that_cannot_be_read_any_more_is_named_and_stays_paused_while_the_others_go_on(site: Site) {
    site.stored(4).await;
    site.change(ScheduleAction::Pause, of("a"), usize::MAX).await;
    let changed = |found: StoredSchedule, change: &dyn Fn(&mut Schedule)| {
        let mut schedule = (*found.schedule).clone();
        change(&mut schedule);
        ScheduleWrite::Replace { schedule: Arc::new(schedule), expected: found.version }
    };
    let unreadable = changed(site.get("00000").await, &|schedule| {
        let mut definition = (*schedule.definition).clone();
        definition.period.time_zone = Some("Mars/Olympus".to_owned());
        schedule.definition = Arc::new(definition);
    });
    // The pause of the other one began some days ago.
    let since = SystemClock::default().now().minus(Duration::from_hours(72));
    let long_paused = changed(site.get("00002").await, &|schedule| {
        schedule.paused.iter_mut().for_each(|pause| pause.at = since);
        schedule.period_since = since;
    });
    let written = site.engine.store().write_schedules(vec![unreadable, long_paused]).await;
    assert!(written.iter().all(Result::is_ok));

    let report = site.change(ScheduleAction::Resume, of("a"), usize::MAX).await;
    assert_eq!((counts(&report), report.next), ((2, 1, 0, 1), None));
    let [(name, ScheduleError::Unreadable(of, why))] = &report.failures[..] else { panic!("{:?}", report.failures) };
    assert!(name == of && *name == id("00000") && why.contains("period.time_zone"), "{why}");
    assert!(site.get("00000").await.schedule.paused.is_some());
    let resumed = site.get("00002").await.schedule;
    assert!(resumed.paused.is_none());
    let left_out: Vec<(u64, NotRun)> = resumed.course.not_run.iter().map(|range| (range.count, range.reason)).collect();
    assert_eq!(left_out, [(3, NotRun::Paused)], "one at every four o'clock of three days");
}

async fn schedules_are_selected_by_a_query_or_by_their_ids(site: Site) {
    site.stored(12).await;
    let expression = Expression::parse_about(Table::Schedules, "owner: b and not id: 0000*", Zone::default());
    let query = Query { expression: Arc::new(expression.expect("a query")), now: SystemClock::default().now() };
    let filter = ScheduleFilter { query: Some(query), ..ScheduleFilter::default() };
    let selection = ScheduleSelection { filter: filter.clone(), ids: Vec::new() };
    let report = site.change(ScheduleAction::Pause, selection, usize::MAX).await;
    assert_eq!(counts(&report), (1, 1, 0, 0));
    assert_eq!(site.get("00011").await.schedule.paused.as_ref().map(|pause| pause.by.as_str()), Some("anna"));

    let ids = ["00003", "00011", "00001", "00001", "nothing", "00000"].map(id).to_vec();
    let selection = ScheduleSelection { filter: of("b").filter, ids: ids.clone() };
    let seen = site.schedules.preview(ScheduleAction::Pause, selection.clone()).await.expect("a preview");
    assert_eq!(seen.matched, 2, "one is paused, one is of another, and one is not there");
    let report = site.change(ScheduleAction::Pause, selection, 1).await;
    assert_eq!((counts(&report), report.next.clone()), ((1, 1, 0, 0), Some(id("00001"))));
    let selection = ScheduleSelection { filter: of("b").filter, ids };
    let report = site.change_after(ScheduleAction::Pause, selection, 10, report.next).await;
    assert_eq!((counts(&report), report.next), ((1, 1, 0, 0), None));
}

cases! {
    all_schedules_of_a_filter_are_changed_a_page_at_a_time_with_one_refresh_each,
    a_call_ends_at_its_bound_and_the_next_one_goes_on,
    what_others_change_meanwhile_is_decided_again_and_left_where_it_does_not_match,
    what_cannot_be_written_is_named_and_ends_the_call,
    one_that_cannot_be_read_any_more_is_named_and_stays_paused_while_the_others_go_on,
    schedules_are_selected_by_a_query_or_by_their_ids,
}
