//! A month of the archive that cannot be read, or not be written: whoever does not need it goes on, and what lies there
//! is neither lost nor taken for current.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Timestamp;
use leasehold::job::Job;
use leasehold::query::stats::StatsRequest;
use leasehold::query::{Filter, Search, Sort};
use leasehold::store::elasticsearch::ElasticsearchOptions;
use leasehold::store::{Archived, Store, StoreError, Write, WriteError};
use reqwest::Method;
use serde_json::{Value, json};

use super::{HOUR, Site, end, id, is_moved, on_both, plain_spec, retried, submit};
use crate::store::elasticsearch::connect;
use crate::store::sample::counted;

on_both!(in_haste:
    a_month_that_is_away_holds_up_nobody_who_does_not_need_it,
    [every_night_on_opensearch] counts_and_statistics_without_a_month_are_refused,
    a_closed_month_is_not_taken_for_one_without_jobs,
    a_month_that_is_away_keeps_no_job_of_another_month_from_being_moved,
    a_page_of_jobs_that_cannot_be_moved_is_passed_over,
    a_copy_that_cannot_be_removed_keeps_its_own_tombstone_only,
    a_job_is_not_moved_again_while_an_old_copy_of_it_is_left,
    a_change_of_an_old_copy_meets_the_later_one,
    a_live_job_is_confirmed_before_its_old_copy_goes,
);

/// More steps than the mover needs for what is here.
const STEPS: usize = 10;

impl Site {
    /// The name of the index of the month in which jobs of the test end.
    pub(super) fn month(&self) -> String {
        month_of(self.now)
    }

    /// A moment in the month before that.
    fn in_past(&self) -> Timestamp {
        self.now.minus(10 * 24 * HOUR)
    }

    /// The name of the index of the month before.
    fn past(&self) -> String {
        month_of(self.in_past())
    }

    async fn set(&self, index: &str, settings: Value) {
        self.do_at(Method::PUT, &format!("{index}/_settings"), Some(settings)).await;
    }

    /// Makes the past month such that no node may hold it.
    async fn make_past_month_away(&self) {
        let settings = json!({ "settings": { "index": {
            "number_of_replicas": 0,
            "routing.allocation.require._name": "nobody",
        } } });
        let path = format!("{}?wait_for_active_shards=0", self.past());
        self.do_at(Method::PUT, &path, Some(settings)).await;
    }

    async fn bring_past_month_back(&self) {
        self.set(&self.past(), json!({ "index.routing.allocation.require._name": null })).await;
        let health = self.ask(&format!("_cluster/health/{}?wait_for_status=yellow&timeout=30s", self.past())).await;
        assert_eq!(health["timed_out"], false, "{health}");
    }

    async fn let_past_month_be_written(&self, is_writable: bool) {
        self.set(&self.past(), json!({ "index.blocks.write": !is_writable })).await;
    }

    /// A job that ended in the past month.
    fn ended_in_past(&self, name: &str) -> Arc<Job> {
        let then = self.in_past();
        end(&submit(name, plain_spec(), then, then), then)
    }

    /// The job, moved to its month, with the version that it has there.
    async fn moved(&self, job: &Arc<Job>) -> leasehold::store::Versioned {
        self.create(job).await;
        self.archive_until(1, async || self.has_moved(job.id.as_str()).await).await;
        self.get(&job.id).await.expect("the job")
    }

    async fn has_moved(&self, name: &str) -> bool {
        self.get(&id(name)).await.is_some_and(|found| is_moved(&found))
    }

    /// Lets the mover take one step after the other until `is_done`: on a busy machine one may not come as far.
    async fn archive_until(&self, hours: u32, is_done: impl AsyncFn() -> bool) {
        for _ in 0..STEPS {
            self.archive(hours).await;
            if is_done().await {
                return;
            }
        }
        panic!("not even after {STEPS} steps");
    }

    /// Removes the tombstones of what was moved.
    async fn clear_tombstones(&self, hours: u32) {
        self.archive_until(hours, async || self.live_documents().await == 0).await;
    }

    /// Takes [`Self::steps`] again and again until `is_done`: on a busy machine they may not come as far.
    async fn steps_until(&self, hours: u32, limit: usize, is_done: impl AsyncFn() -> bool) {
        let mut steps = Vec::new();
        for _ in 0..STEPS {
            steps.extend(self.steps(hours, limit).await);
            if is_done().await {
                return;
            }
        }
        panic!("not even after {steps:?}");
    }

    /// Steps of the mover, `limit` jobs each, until there are no more to be done at once.
    async fn steps(&self, hours: u32, limit: usize) -> Vec<Result<Archived, StoreError>> {
        let mut steps = Vec::new();
        self.refresh_live().await;
        for _ in 0..STEPS {
            let step = self.store.archive(self.now.plus(hours * HOUR), limit).await;
            let is_last = step.as_ref().map_or(true, |step| !step.more);
            steps.push(step);
            self.refresh_live().await;
            if is_last {
                return steps;
            }
        }
        panic!("it goes on for ever: {steps:?}");
    }

    async fn refresh_live(&self) {
        self.do_at(Method::POST, "{prefix}jobs/_refresh", None).await;
    }

    /// How many documents the live index has, tombstones and all.
    async fn live_documents(&self) -> u64 {
        self.refresh_live().await;
        self.ask("{prefix}jobs/_count").await["count"].as_u64().expect("a count")
    }
}

/// The name of the index of the month of `time`.
fn month_of(time: Timestamp) -> String {
    format!("{{prefix}}archive-{}", time.to_rfc3339()[..7].replace('-', "."))
}

async fn a_month_that_is_away_holds_up_nobody_who_does_not_need_it(site: Site) {
    // One bulk at a time, so that who waits for another waits for long.
    let options = ElasticsearchOptions { bulks_in_flight: 1, ..site.options.clone() };
    let store = Arc::new(connect(options).await);
    let mut beating = Arc::new(submit("beating", plain_spec(), site.now, site.now));
    let mut version = site.create(&beating).await;
    site.make_past_month_away().await;

    // Each may be in the archive already, as far as anybody knows.
    let keyed: Vec<_> = (0..12)
        .map(|number| {
            let (store, job) = (store.clone(), site.ended(&format!("keyed-{number}")));
            tokio::spawn(async move { store.write(vec![Write::Create { job, bodies: vec![] }]).await.remove(0) })
        })
        .collect();
    for _ in 0..20 {
        beating = counted(&beating);
        let beat = Write::Replace { job: beating.clone(), expected: version, bodies: vec![] };
        version = store.write(vec![beat]).await.remove(0).expect("nobody else writes it");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    // Who may have a job there waits for the month at first.
    for keyed in keyed {
        let refused = keyed.await.expect("it does not panic").expect_err("the month is away");
        assert!(refused.to_string().contains("archive-"), "{refused}");
    }
    site.bring_past_month_back().await;
    site.create(&site.ended("keyed-0")).await;
}

async fn counts_and_statistics_without_a_month_are_refused(site: Site) {
    site.create(&site.ended("a")).await;
    site.make_past_month_away().await;
    let soon = Duration::from_secs(1);
    let options = ElasticsearchOptions { read_timeout: soon, query_time: soon, ..site.options.clone() };
    let store = connect(options).await;
    store.count(&Filter::default(), &[]).await.expect_err("a month is missing");
    let everything = StatsRequest::default();
    store.stats(&everything).await.expect_err("a month is missing");
}

async fn a_closed_month_is_not_taken_for_one_without_jobs(site: Site) {
    let old = site.moved(&site.ended_in_past("old")).await;
    let removed = site.moved(&site.ended_in_past("removed")).await;
    site.clear_tombstones(3).await;
    let new = site.ended("new");
    site.create(&new).await;
    site.do_at(Method::POST, &format!("{}/_close", site.past()), None).await;

    let again = Write::Create { job: Arc::clone(&old.job), bodies: vec![] };
    let answers = [
        site.write(again).await.map(|_| ()),
        site.write(Write::Remove { job: removed.job, expected: removed.version }).await.map(|_| ()),
    ];
    for answer in answers {
        let refused = answer.expect_err("the month is closed");
        assert!(matches!(&refused, WriteError::Refused(_)) && refused.to_string().contains("is closed"), "{refused}");
    }
    let everything = Search { filter: Filter::default(), sort: Sort::default(), after: None, limit: 10 };
    let refused = [
        site.store.get(&[id("old")]).await.map(|_| ()),
        site.store.search(&everything).await.map(|_| ()),
        site.store.count(&Filter::default(), &[]).await.map(|_| ()),
    ];
    for answer in refused {
        let refused = answer.expect_err("the month is closed").to_string();
        assert!(refused.contains("is closed"), "{refused}");
    }
    // Who does not need the month goes on.
    site.steps_until(5, 10, async || site.has_moved("new").await).await;
    site.steps_until(7, 10, async || site.live_documents().await == 0).await;
    site.do_at(Method::POST, &format!("{}/_open", site.past()), None).await;
    site.bring_past_month_back().await;
    assert!(site.has_moved("new").await);
    site.holds(&[&old.job, &new, &site.ended_in_past("removed")]).await;
}

async fn a_month_that_is_away_keeps_no_job_of_another_month_from_being_moved(site: Site) {
    site.create(&site.ended_in_past("old")).await;
    site.create(&site.ended("new")).await;
    // Whose copies, if they had any, would be looked for everywhere.
    let removed = site.ended("removed");
    let version = site.create(&removed).await;
    site.write(Write::Remove { job: removed, expected: version }).await.expect("removed");
    site.create(&retried(&site.ended("again"), site.now)).await;
    site.make_past_month_away().await;

    site.steps_until(1, 10, async || site.has_moved("new").await).await;

    site.bring_past_month_back().await;
    site.archive_until(1, async || site.has_moved("old").await).await;
}

async fn a_page_of_jobs_that_cannot_be_moved_is_passed_over(site: Site) {
    // A month without any job would be removed.
    site.moved(&site.ended_in_past("before")).await;
    site.let_past_month_be_written(false).await;
    for name in ["a", "b", "c", "d"] {
        site.create(&site.ended_in_past(name)).await;
    }
    site.create(&site.ended("new")).await;

    site.steps_until(1, 2, async || site.has_moved("new").await).await;

    site.let_past_month_be_written(true).await;
    site.steps_until(1, 2, async || site.whole().await.values().all(is_moved)).await;
}

async fn a_copy_that_cannot_be_removed_keeps_its_own_tombstone_only(site: Site) {
    let stuck = site.moved(&site.ended_in_past("stuck")).await;
    site.clear_tombstones(3).await;
    site.let_past_month_be_written(false).await;
    site.write(Write::Remove { job: stuck.job, expected: stuck.version }).await.expect("removed");
    let other = site.ended("other");
    let version = site.create(&other).await;
    site.write(Write::Remove { job: other, expected: version }).await.expect("removed");

    site.steps_until(5, 1, async || site.live_documents().await < 2).await;
    assert_eq!(site.live_documents().await, 1);
    assert_eq!(site.get(&id("stuck")).await, None);

    // A tombstone that was confirmed before its copy went is cleared with the next run.
    site.let_past_month_be_written(true).await;
    site.archive(5).await;
    site.clear_tombstones(7).await;
    site.holds(&[]).await;
    assert_eq!((site.documents("jobs").await, site.documents("archive-*").await), (0, 0));
}

async fn a_job_is_not_moved_again_while_an_old_copy_of_it_is_left(site: Site) {
    let old = site.moved(&site.ended_in_past("a")).await;
    site.clear_tombstones(3).await;
    site.let_past_month_be_written(false).await;
    let again = retried(&old.job, site.now);
    let retry = Write::Replace { job: again.clone(), expected: old.version, bodies: vec![] };
    let version = site.write(retry).await.expect("it is written under its version");
    let done = end(&again, site.now);
    let finish = Write::Replace { job: done.clone(), expected: version, bodies: vec![] };
    site.write(finish).await.expect("nobody else writes it");

    // Moves, and the end of what marks them; then the retention of what ended long ago, which finds the old copy.
    for hours in [1, 3, 5] {
        site.archive(hours).await;
    }
    let long_ago = Filter { finished_at_most: Some(site.in_past()), ..Filter::default() };
    for found in site.search(long_ago).await {
        let removal = Write::Remove { job: found.job, expected: found.version };
        let _kept_or_not = site.write(removal).await;
    }
    site.let_past_month_be_written(true).await;
    site.archive_until(7, async || site.has_moved("a").await).await;
    site.clear_tombstones(9).await;

    site.holds(&[&done]).await;
    assert_eq!(site.documents("archive-*").await, 1);
}

async fn a_change_of_an_old_copy_meets_the_later_one(site: Site) {
    let old = site.moved(&site.ended_in_past("a")).await;
    site.clear_tombstones(3).await;
    let again = retried(&old.job, site.now);
    let retry = Write::Replace { job: again.clone(), expected: old.version, bodies: vec![] };
    let copy = site.ask(&format!("{}/_doc/a", site.past())).await["_source"].clone();
    let version = site.write(retry).await.expect("it is written under its version");
    let done = end(&again, site.now);
    let finish = Write::Replace { job: done.clone(), expected: version, bodies: vec![] };
    site.write(finish).await.expect("nobody else writes it");
    site.archive_until(1, async || site.has_moved("a").await).await;
    site.clear_tombstones(3).await;
    // As a restored snapshot would have it.
    site.do_at(Method::PUT, &format!("{}/_doc/a?refresh=true", site.past()), Some(copy)).await;

    let long_ago = Filter { finished_at_most: Some(site.in_past()), ..Filter::default() };
    let found = site.search(long_ago).await.pop().expect("the old copy");
    let removal = Write::Remove { job: found.job, expected: found.version };
    match site.write(removal).await {
        Err(WriteError::Conflict(Some(current))) => assert_eq!(current.job, done),
        other => panic!("expected a conflict with the job as it is, got {other:?}"),
    }
    assert_eq!(site.get(&id("a")).await.map(|found| found.job), Some(done));
}

async fn a_live_job_is_confirmed_before_its_old_copy_goes(site: Site) {
    let old = site.moved(&site.ended_in_past("a")).await;
    site.let_past_month_be_written(false).await;
    let again = retried(&old.job, site.now);
    let retry = Write::Replace { job: again.clone(), expected: old.version, bodies: vec![] };
    let version = site.write(retry).await.expect("it is written under its version");
    // The writer has tried to remove the copy.
    assert_eq!(site.documents("archive-*").await, 1);
    site.let_past_month_be_written(true).await;

    site.archive_until(1, async || site.documents("archive-*").await == 0).await;

    let found = site.get(&id("a")).await.expect("the job");
    assert!(found.job == again && found.version.is_later_than(version), "what was read was written once more");
}
