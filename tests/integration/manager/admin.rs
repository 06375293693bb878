//! What administrators do: to one job, to many, and to those that look abandoned.

use leasehold::job::{Change, EventName, HistoryEntry, OrphanPolicy, Oversight};
use leasehold::manager::{BULK_PAGE, BulkAction, BulkBounds, BulkOrder, BulkReport, BulkSelection, OrphanAction};
use leasehold::query::Filter;

use super::*;

const REASON: &str = "host7 burnt down";

fn order(action: BulkAction) -> BulkOrder {
    BulkOrder { action, actor: caller().name, reason: REASON.to_owned() }
}

pub(super) fn everything() -> BulkSelection {
    BulkSelection::default()
}

fn of_queue(name: &str) -> BulkSelection {
    let queues = vec![QueueName::new(name).expect("a name")];
    BulkSelection { filter: Filter { queues, ..Filter::default() }, ids: Vec::new() }
}

fn unbounded() -> BulkBounds {
    BulkBounds { after: None, max_items: usize::MAX, within: PATIENCE }
}

pub(super) fn counts(report: &BulkReport) -> (u64, u64, u64, u64) {
    (report.matched, report.changed, report.skipped, report.failed)
}

fn latest(view: &JobView) -> &HistoryEntry {
    view.versioned.job.history.entries().last().expect("an entry")
}

impl Site {
    pub(super) async fn change(&self, action: BulkAction, selection: &BulkSelection) -> BulkReport {
        self.manager.bulk_change(order(action), selection, unbounded()).await.expect("an answer")
    }

    pub(super) async fn submit_many(&self, jobs: impl IntoIterator<Item = NewJob>) -> Vec<JobId> {
        let answers = self.manager.submit(&caller(), jobs.into_iter().collect()).await;
        answers.into_iter().map(|answer| answer.expect("taken").job.versioned.job.id.clone()).collect()
    }

    async fn flag(&self, id: &JobId, held: bool) {
        let monitor = Actor::system("monitor");
        let flag = |job: &leasehold::job::Job, now| -> Result<Change, Refusal> {
            job.flag_orphan(&monitor, "silent", held, now)
        };
        self.manager.change_each(std::slice::from_ref(id), flag).await.pop().expect("one").expect("flagged");
    }
}

pub(super) async fn an_administrator_takes_a_job_from_its_worker_and_the_history_says_who_and_why(site: Site) {
    for (then, state, event) in [
        (Then::Requeue, JobState::Available, EventName::Released),
        (Then::Fail, JobState::Failed, EventName::Failed),
        (Then::Cancel, JobState::Cancelled, EventName::Cancelled),
    ] {
        let id = site.submit(new_job()).await.versioned.job.id.clone();
        let held = site.claim_one().await;
        assert_eq!(held.job.id, id);
        let release = |fence| AdminRelease {
            actor: caller().name,
            reason: REASON.to_owned(),
            then,
            expected_fence: Some(Fence::new(fence)),
        };
        let moved = site.manager.admin_release(&id, release(7)).await;
        assert!(matches!(moved, Err(ManagerError::Refused(Refusal::FenceMoved(fence))) if fence == held.job.fence));
        assert_eq!(site.state(&id).await, JobState::Running, "a newer claim than the one looked at is left alone");
        site.manager.admin_release(&id, release(held.job.fence.get())).await.expect("released");
        let job = site.job(&id).await;
        let entry = latest(&job);
        assert_eq!((entry.to, entry.event), (state, event));
        assert_eq!((&entry.actor, entry.reason.as_deref()), (&caller().name, Some(REASON)));
        assert!(is_lease_lost(&site.finish(&held, completed("1")).await), "its worker is not heard any more");
        site.change(BulkAction::Cancel, &everything()).await;
    }
}

pub(super) async fn many_jobs_are_counted_before_they_are_changed_and_only_those_asked_for_are(site: Site) {
    let ours = site.submit_many((0..30).map(|_| new_job())).await;
    let kind = || Kind::new("k").expect("a name");
    let others = site.submit_many([NewJob::new(QueueName::new("other").expect("a name"), kind())]).await;
    let selection = of_queue("q");
    let preview = site.manager.preview(&BulkAction::Cancel, &selection).await.expect("a preview");
    assert_eq!((preview.matched, preview.sample.len()), (30, 20));
    assert_eq!(site.state(&ours[0]).await, JobState::Available, "a preview changes nothing");

    let report = site.change(BulkAction::Cancel, &selection).await;
    assert_eq!((counts(&report), report.next), ((30, 30, 0, 0), None));
    for id in &ours {
        let job = site.job(id).await;
        assert_eq!((latest(&job).to, latest(&job).reason.as_deref()), (JobState::Cancelled, Some(REASON)));
        assert_eq!(latest(&job).actor, caller().name);
    }
    assert_eq!(site.state(&others[0]).await, JobState::Available);
    assert!(site.claim(claim(10)).await.is_empty(), "what was cancelled is not handed out");
}

pub(super) async fn many_failed_jobs_are_started_again(site: Site) {
    let ids = site.submit_many((0..3).map(|_| NewJob::of(JobSpec { max_attempts: 1, ..spec() }))).await;
    for held in site.claim(claim(3)).await {
        site.finish(&held, failed(true)).await.expect("accepted");
    }
    let waiting = site.submit(new_job()).await.versioned.job.id.clone();
    let report = site.change(BulkAction::Retry, &everything()).await;
    assert_eq!(counts(&report), (3, 3, 0, 0), "a job that waits is none to be retried");
    for id in &ids {
        let job = site.job(id).await;
        assert_eq!((latest(&job).event, latest(&job).reason.as_deref()), (EventName::Retried, Some(REASON)));
    }
    assert_eq!(site.claim(ClaimRequest { wait: PATIENCE, ..claim(10) }).await.len(), 4, "{waiting} among them");
}

pub(super) async fn the_jobs_of_one_worker_are_taken_from_it_and_no_others(site: Site) {
    site.submit_many((0..4).map(|_| new_job())).await;
    let held = site.claim(claim(2)).await;
    let other = site.claim(ClaimRequest { worker_id: worker("v"), ..claim(2) }).await;
    let filter = Filter { worker_id: Some(worker("w")), ..Filter::default() };
    let selection = BulkSelection { filter, ids: Vec::new() };
    let report = site.change(BulkAction::Release(Then::Fail), &selection).await;
    assert_eq!(counts(&report), (2, 2, 0, 0));
    for (jobs, state) in [(held, JobState::Failed), (other, JobState::Running)] {
        for job in jobs {
            assert_eq!(site.state(&job.job.id).await, state);
        }
    }
}

pub(super) async fn a_job_that_is_no_longer_as_asked_for_is_left_alone(site: Site) {
    let ids = site.submit_many((0..3).map(|_| new_job())).await;
    let held = site.claim(claim(3)).await;
    for id in &ids {
        site.flag(id, false).await;
    }
    site.engine.settle().await;
    // A heartbeat takes the flag off, and where searches lag the job is still found with it.
    site.beat(&held[0]).await.expect("heard");
    let filter = Filter { orphaned: Some(true), ..Filter::default() };
    let selection = BulkSelection { filter, ids: ids.clone() };
    let report = site.change(BulkAction::Release(Then::Requeue), &selection).await;
    assert_eq!((report.changed, report.failed), (2, 0));
    assert_eq!(site.state(&held[0].job.id).await, JobState::Running);
}

pub(super) async fn a_job_that_is_already_asked_to_stop_is_not_asked_again(site: Site) {
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    site.claim_one().await;
    assert_eq!(counts(&site.change(BulkAction::Cancel, &everything()).await), (1, 1, 0, 0));
    let entries = site.job(&id).await.versioned.job.history.len();
    assert_eq!(counts(&site.change(BulkAction::Cancel, &everything()).await), (1, 0, 1, 0));
    assert_eq!(site.job(&id).await.versioned.job.history.len(), entries);
}

pub(super) async fn a_call_ends_in_time_and_the_next_one_goes_on_where_it_ended(site: Site) {
    let jobs = 2 * BULK_PAGE + 7;
    site.submit_many((0..jobs).map(|_| new_job())).await;
    let mut bounds = BulkBounds { within: Duration::ZERO, ..unbounded() };
    let mut changed = Vec::new();
    for _ in 0..4 {
        let report = site.manager.bulk_change(order(BulkAction::Cancel), &everything(), bounds.clone()).await;
        let report = report.expect("an answer");
        changed.push(report.changed);
        bounds.after = report.next;
        if bounds.after.is_none() {
            break;
        }
    }
    let page = BULK_PAGE as u64;
    assert_eq!(changed, [page, page, 7]);
    site.engine.settle().await;
    let left = Filter { states: vec![JobState::Available], ..Filter::default() };
    let left: u64 = site.manager.count(&left, &[]).await.expect("a count").iter().map(|group| group.count).sum();
    assert_eq!(left, 0);
}

pub(super) async fn a_call_goes_through_no_more_jobs_than_it_may(site: Site) {
    site.submit_many((0..10).map(|_| new_job())).await;
    let bounds = BulkBounds { max_items: 4, ..unbounded() };
    let report = site.manager.bulk_change(order(BulkAction::Cancel), &everything(), bounds).await.expect("an answer");
    assert_eq!(counts(&report), (4, 4, 0, 0));
    let rest = BulkBounds { after: report.next, ..unbounded() };
    let report = site.manager.bulk_change(order(BulkAction::Cancel), &everything(), rest).await.expect("an answer");
    assert_eq!((counts(&report), report.next), ((6, 6, 0, 0), None));
}

pub(super) async fn named_jobs_are_changed_each_once_and_only_where_they_match(site: Site) {
    let ids = site.submit_many((0..3).map(|_| new_job())).await;
    let unknown = JobId::new("nobody").expect("a name");
    let ids = vec![ids[0].clone(), ids[1].clone(), ids[0].clone(), unknown];
    let selection = BulkSelection { filter: Filter::default(), ids: ids.clone() };
    assert_eq!(site.manager.preview(&BulkAction::Cancel, &selection).await.expect("a preview").matched, 2);
    assert_eq!(counts(&site.change(BulkAction::Cancel, &selection).await), (2, 2, 0, 0));
    let elsewhere = BulkSelection { ids, ..of_queue("other") };
    assert_eq!(counts(&site.change(BulkAction::Cancel, &elsewhere).await), (0, 0, 0, 0));
}

pub(super) async fn an_order_that_can_be_done_to_none_of_those_asked_for_is_refused(site: Site) {
    let filter = Filter { states: vec![JobState::Completed], ..Filter::default() };
    let selection = BulkSelection { filter, ids: Vec::new() };
    for action in [BulkAction::Release(Then::Fail), BulkAction::Cancel, BulkAction::Retry] {
        let refused = site.manager.bulk_change(order(action.clone()), &selection, unbounded()).await;
        assert!(matches!(refused, Err(ManagerError::Invalid { field: "filter.states", .. })), "{refused:?}");
        assert!(site.manager.preview(&action, &selection).await.is_err());
    }
}

pub(super) async fn flagged_jobs_are_shown_with_what_there_is_to_judge_them_by(site: Site) {
    let flagging = Oversight { orphan_policy: Some(OrphanPolicy::Fail), ..Oversight::default() };
    let expected_runtime = Some(Duration::from_secs(5));
    let id = site
        .submit(NewJob::of(JobSpec { oversight: flagging, expected_runtime, ..spec() }))
        .await
        .versioned
        .job
        .id
        .clone();
    let untouched = site.submit(new_job()).await.versioned.job.id.clone();
    site.claim(claim(2)).await;
    site.clock.advance(LEASE / 2);
    site.flag(&id, false).await;
    let orphans = async |filter| {
        site.engine.settle().await;
        let listed = site.manager.orphans(filter, None, 10).await.expect("a list");
        listed.into_iter().map(|(_, orphan)| orphan).collect::<Vec<_>>()
    };
    let listed = orphans(Filter::default()).await;
    assert_eq!(listed.iter().map(|orphan| &orphan.id).collect::<Vec<_>>(), [&id]);
    let seen = (listed[0].next.action, listed[0].evidence.lease_expired_for_ms);
    assert_eq!(seen, (OrphanAction::AwaitWorker, None), "not {untouched}");
    assert_eq!(listed[0].reason, "silent");

    site.clock.advance(LEASE / 2 + Duration::from_secs(3));
    let listed = orphans(Filter { worker_id: Some(worker("w")), ..Filter::default() }).await;
    assert_eq!(listed[0].next.action, OrphanAction::Fail);
    assert_eq!(listed[0].evidence.lease_expired_for_ms, Some(3_000));
    site.flag(&id, true).await;
    assert_eq!(orphans(Filter::default()).await[0].next.action, OrphanAction::AwaitPerson);
    site.flag(&untouched, false).await;
    let of_untouched = async || {
        let listed = orphans(Filter::default()).await;
        listed.iter().find(|orphan| orphan.id == untouched).expect("it is listed").next.action
    };
    assert_eq!(of_untouched().await, OrphanAction::MonitorRule);
    site.manager.set_orphan_policy(&queue(), Some(OrphanPolicy::Requeue)).await.expect("set");
    assert_eq!(of_untouched().await, OrphanAction::Requeue);
    assert!(orphans(Filter { worker_id: Some(worker("v")), ..Filter::default() }).await.is_empty());
}
