//! The archive of the engine on a search server: wherever a job lies, and wherever its move was interrupted, it is
//! found once and is what it was.

mod closed;
mod indices;
mod interrupted;
mod left_bodies;
pub(crate) mod migrated;
mod model;
mod removed;
pub(crate) mod schedules;
mod unavailable;
mod unreadable;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock, Timestamp};
use leasehold::job::{Actor, Job, JobId, JobSpec, JobState, State};
use leasehold::query::{Direction, Filter, GroupField, Search, Sort, SortField};
use leasehold::store::elasticsearch::{ElasticsearchOptions, ElasticsearchStore};
use leasehold::store::{Archived, Place, Store, Version, Versioned, Write, WriteError};

use super::conflict;
use super::elasticsearch::connect;
use super::sample::{id, plain_spec, queue, submit};
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::servers::{IndexSet, Refreshed, SearchServer};

/// Longer than jobs wait for their move, and than tombstones stand.
const HOUR: Duration = Duration::from_secs(3_600);
/// How many jobs one step moves at most.
const STEP: usize = 100;

/// Makes a test of each case for each server, with a store as [`Site::on`] opens it, or `in_haste`.
macro_rules! on_both {
    (in_haste: $($cases:tt)*) => {
        $crate::store::on_servers!($crate::store::archive::Site::in_haste; $($cases)*);
    };
    ($($cases:tt)*) => {
        $crate::store::on_servers!($crate::store::archive::Site::on; $($cases)*);
    };
}
pub(crate) use on_both;

on_both!(
    a_moved_job_is_the_same_job_in_every_reading,
    what_is_not_settled_or_not_old_enough_stays,
    the_live_index_holds_nothing_of_moved_jobs_once_tombstones_are_cleared,
    a_moved_job_cannot_be_submitted_again_with_its_tombstone_or_without,
    a_moved_job_that_is_started_again_is_live_and_moves_again,
    a_stale_version_of_a_moved_job_meets_the_job_as_it_is,
    a_moved_job_can_be_removed_and_its_id_used_again,
    a_cursor_goes_over_jobs_that_move_meanwhile,
    the_index_of_a_past_month_goes_with_its_last_job,
    [every_night_on_opensearch] nothing_can_be_written_to_a_months_index_when_it_is_about_to_go,
    the_alias_shows_every_job_once_and_no_tombstone,
);

/// A store, and beside it one of a process that can die at any request.
pub(crate) struct Site {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) mortal: ElasticsearchStore,
    pub(crate) proxy: FaultProxy,
    /// What the stores were opened with.
    options: ElasticsearchOptions,
    url: String,
    prefix: String,
    /// When jobs of the test end: after now, so that what the store marks with the time itself is before it, and some
    /// days after a month's beginning, so that no month ends during the test.
    pub(crate) now: Timestamp,
    _set: IndexSet,
}

impl Site {
    /// With stores that wait long for a server that is slow.
    pub(crate) async fn on(server: &SearchServer) -> Self {
        let set = server.unrefreshed_index_set().await;
        Self::with(Refreshed::OnRequest.options(set.url(), set.prefix()), set).await
    }

    /// With stores that wait for what is away as long as they do by default.
    pub(crate) async fn in_haste(server: &SearchServer) -> Self {
        let ElasticsearchOptions { request_timeout, read_timeout, write_timeout, .. } = ElasticsearchOptions::default();
        let set = server.unrefreshed_index_set().await;
        let patient = Refreshed::OnRequest.options(set.url(), set.prefix());
        Self::with(ElasticsearchOptions { request_timeout, read_timeout, write_timeout, ..patient }, set).await
    }

    async fn with(options: ElasticsearchOptions, set: IndexSet) -> Self {
        let (url, prefix) = (options.urls[0].clone(), options.index_prefix.clone());
        let store: Arc<dyn Store> = Arc::new(connect(options.clone()).await);
        let (mortal, proxy) = mortal(&options).await;
        Self { store, mortal, proxy, options, url, prefix, now: early_next_month(), _set: set }
    }

    /// A store of another process that can die at any request.
    pub(crate) async fn mortal(&self) -> (ElasticsearchStore, FaultProxy) {
        mortal(&self.options).await
    }

    /// A job that was submitted and ended at `now`.
    pub(crate) fn ended(&self, name: &str) -> Arc<Job> {
        let job = submit(name, JobSpec { queue: queue("q"), ..plain_spec() }, self.now, self.now);
        end(&job, self.now)
    }

    pub(crate) async fn create(&self, job: &Arc<Job>) -> Version {
        self.write(Write::Create { job: Arc::clone(job), bodies: vec![] }).await.expect("a new job is created")
    }

    pub(crate) async fn write(&self, write: Write) -> Result<Version, WriteError> {
        self.store.write(vec![write]).await.remove(0)
    }

    pub(crate) async fn get(&self, id: &JobId) -> Option<Versioned> {
        self.store.get(std::slice::from_ref(id)).await.expect("the store can be read").remove(0)
    }

    /// One step of the mover, `hours` after the jobs have ended, on what was acknowledged.
    pub(crate) async fn archive(&self, hours: u32) -> Archived {
        self.refresh().await;
        let archived = self.store.archive(self.now.plus(hours * HOUR), STEP).await.expect("the store archives");
        self.refresh().await;
        archived
    }

    pub(crate) async fn refresh(&self) {
        crate::engines::refresh(&*self.store).await;
    }

    pub(crate) async fn search(&self, filter: Filter) -> Vec<Versioned> {
        let search = Search { filter, sort: Sort::default(), after: None, limit: 1_000 };
        self.store.search(&search).await.expect("searchable")
    }

    /// Every job there is, as one search and one read of them show it: they must agree, and no id comes twice.
    pub(crate) async fn whole(&self) -> BTreeMap<JobId, Versioned> {
        self.refresh().await;
        let found = self.search(Filter::default()).await;
        let ids: Vec<JobId> = found.iter().map(|found| found.job.id.clone()).collect();
        let read = self.store.get(&ids).await.expect("the store can be read");
        let mut whole = BTreeMap::new();
        for (found, read) in found.into_iter().zip(read) {
            let id = found.job.id.clone();
            assert_eq!(read.map(|read| read.job).as_ref(), Some(&found.job), "{id} is as searched for");
            assert!(whole.insert(id.clone(), found).is_none(), "{id} is found once");
        }
        whole
    }

    /// Asserts that these jobs are all there are, in every reading.
    pub(crate) async fn holds(&self, jobs: &[&Arc<Job>]) {
        let whole: BTreeMap<JobId, Arc<Job>> =
            self.whole().await.into_iter().map(|(id, found)| (id, found.job)).collect();
        let wanted: BTreeMap<JobId, Arc<Job>> = jobs.iter().map(|job| (job.id.clone(), Arc::clone(job))).collect();
        assert_eq!(whole, wanted);
    }

    /// Asserts that there are as many jobs when they are counted.
    pub(crate) async fn counts(&self, jobs: u64) {
        let groups = self.store.count(&Filter::default(), &[GroupField::State]).await.expect("countable");
        assert_eq!(groups.iter().map(|group| group.count).sum::<u64>(), jobs, "{groups:?}");
        let all = self.store.count(&Filter::default(), &[]).await.expect("countable");
        assert_eq!(all[0].count, jobs);
    }

    /// What the server itself says, asked past the store.
    async fn ask(&self, path: &str) -> serde_json::Value {
        let path = path.replace("{prefix}", &self.prefix);
        let answer = reqwest::get(format!("{}/{path}", self.url)).await.expect("the server answers");
        answer.json().await.expect("JSON")
    }

    /// Does something at the server, past the store.
    async fn do_at(&self, method: reqwest::Method, path: &str, body: Option<serde_json::Value>) {
        let path = path.replace("{prefix}", &self.prefix);
        let mut request = reqwest::Client::new().request(method, format!("{}/{path}", self.url));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.expect("the server answers");
        assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap_or_default());
    }

    /// How many documents an index or alias shows, tombstones and all.
    pub(crate) async fn documents(&self, index: &str) -> u64 {
        self.refresh().await;
        self.ask(&format!("{{prefix}}{index}/_count")).await["count"].as_u64().unwrap_or(0)
    }
}

/// A time some days from now, and some days after a month's beginning.
fn early_next_month() -> Timestamp {
    let now = SystemClock::default().now().to_rfc3339();
    let (year, month): (u32, u32) = (now[..4].parse().expect("a year"), now[5..7].parse().expect("a month"));
    let (year, month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    Timestamp::parse_rfc3339(&format!("{year}-{month:02}-05T00:00:00Z")).expect("a time")
}

async fn mortal(options: &ElasticsearchOptions) -> (ElasticsearchStore, FaultProxy) {
    let proxy = FaultProxy::start(&options.urls[0], Faults { one_in: 1, seed: 1, kinds: vec![Fault::Reset] }).await;
    (connect(ElasticsearchOptions { urls: vec![proxy.url()], ..options.clone() }).await, proxy)
}

/// Whether this version lies in the archive.
pub(crate) fn is_moved(found: &Versioned) -> bool {
    found.version.place != Place::Main
}

/// The job, ended at `now`.
pub(crate) fn end(job: &Job, now: Timestamp) -> Arc<Job> {
    Arc::new(Job { state: State::Failed { finished_at: now }, updated_at: now, ..job.clone() })
}

/// The job, started again.
pub(crate) fn retried(job: &Job, now: Timestamp) -> Arc<Job> {
    let again = job.retry(&Actor::system("tester"), None, now);
    Arc::new(again.expect("an ended job can be started again"))
}

async fn a_moved_job_is_the_same_job_in_every_reading(site: Site) {
    let jobs = ["a", "b", "c"].map(|name| site.ended(name));
    for job in &jobs {
        site.create(job).await;
    }
    let before: Vec<Versioned> = site.whole().await.into_values().collect();
    assert_eq!(site.archive(1).await.moved, 3);

    site.holds(&jobs.each_ref()).await;
    site.counts(3).await;
    let after = site.whole().await;
    for found in &before {
        let moved = &after[&found.job.id];
        assert!(!is_moved(found) && is_moved(moved));
        assert!(!moved.version.is_later_than(found.version) && !found.version.is_later_than(moved.version));
    }
    // As they are when their tombstones are gone.
    assert_eq!(site.archive(3).await.cleared, 3);
    site.holds(&jobs.each_ref()).await;
    site.counts(3).await;
    for (name, parts) in [("failed", JobState::Failed), ("available", JobState::Available)] {
        let found = site.search(Filter { states: vec![parts], ..Filter::default() }).await.len();
        assert_eq!(found, if name == "failed" { 3 } else { 0 });
    }
}

async fn what_is_not_settled_or_not_old_enough_stays(site: Site) {
    let waiting = Arc::new(submit("waiting", plain_spec(), site.now, site.now));
    let ended = site.ended("ended");
    let pending_notices = leasehold::job::Notice { number: 1, entry: ended.history.entries()[0].clone() };
    let pending_notices =
        Arc::new(Job { id: id("pending_notices"), outbox: vec![pending_notices], ..(*ended).clone() });
    for job in [&waiting, &ended, &pending_notices] {
        site.create(job).await;
    }
    assert_eq!(site.archive(0).await, Archived::default());
    assert_eq!(site.archive(1).await.moved, 1);
    let moved: Vec<JobId> =
        site.whole().await.into_values().filter(is_moved).map(|found| found.job.id.clone()).collect();
    assert_eq!(moved, [id("ended")]);
    site.holds(&[&waiting, &ended, &pending_notices]).await;
}

async fn the_live_index_holds_nothing_of_moved_jobs_once_tombstones_are_cleared(site: Site) {
    for number in 0..5 {
        site.create(&site.ended(&format!("{number}"))).await;
    }
    let steps = [site.store.archive(site.now.plus(HOUR), 2).await.expect("archives")];
    assert_eq!(steps[0].moved, 0, "what searches do not see yet is moved later");
    site.refresh().await;
    let mut moved = 0;
    for (more, expected) in [(true, 2), (true, 2), (false, 1)] {
        let step = site.store.archive(site.now.plus(HOUR), 2).await.expect("archives");
        assert_eq!((step.more, step.moved), (more, expected));
        moved += step.moved;
        site.refresh().await;
    }
    assert_eq!(moved, 5);
    assert_eq!(site.documents("jobs").await, 5);
    // They stand for as long as a write can be under way.
    assert_eq!(site.archive(1).await.cleared, 0);
    assert_eq!(site.archive(2).await.cleared, 5);
    assert_eq!((site.documents("jobs").await, site.documents("archive-*").await), (0, 5));
}

async fn a_moved_job_cannot_be_submitted_again_with_its_tombstone_or_without(site: Site) {
    let job = site.ended("a");
    site.create(&job).await;
    for hours in [1, 2, 3] {
        site.archive(hours).await;
        let again = Arc::new(submit("a", plain_spec(), site.now, site.now));
        let existing = conflict(site.write(Write::Create { job: again, bodies: vec![] }).await);
        assert_eq!(existing.map(|found| found.job).as_ref(), Some(&job));
        site.holds(&[&job]).await;
    }
}

async fn a_moved_job_that_is_started_again_is_live_and_moves_again(site: Site) {
    for (name, hours) in [("with a tombstone", 1), ("without", 3)] {
        let job = site.ended(name);
        site.create(&job).await;
        site.archive(1).await;
        site.archive(hours).await;
        let found = site.get(&job.id).await.expect("the job");
        assert!(is_moved(&found));

        let again = retried(&job, site.now.plus(HOUR));
        let version = site.write(Write::Replace { job: again.clone(), expected: found.version, bodies: vec![] }).await;
        let version = version.expect("a moved job is written under its version");
        let live = site.get(&job.id).await.expect("the job");
        assert_eq!((&live.job, live.version, is_moved(&live)), (&again, version, false));
        let available = site.search(Filter { states: vec![JobState::Available], ..Filter::default() });
        site.refresh().await;
        assert_eq!(available.await.len(), 1, "it can be found to be claimed");

        let ended = end(&again, site.now.plus(2 * HOUR));
        let written = Write::Replace { job: ended.clone(), expected: version, bodies: vec![] };
        site.write(written).await.expect("a live job is written");
        assert_eq!(site.archive(4).await.moved, 1);
        let moved = site.get(&job.id).await.expect("the job");
        assert!(is_moved(&moved) && moved.job == ended);
        site.write(Write::Remove { job: ended, expected: moved.version }).await.expect("removed");
        site.holds(&[]).await;
    }
}

async fn a_stale_version_of_a_moved_job_meets_the_job_as_it_is(site: Site) {
    let job = site.ended("a");
    let live = site.create(&job).await;
    let stale = |expected| Write::Replace { job: retried(&job, site.now), expected, bodies: vec![] };
    for hours in [1, 3] {
        site.archive(hours).await;
        let current = conflict(site.write(stale(live)).await).expect("the job is somewhere");
        assert!(is_moved(&current) && current.job == job, "its live version is no more");
    }
    let moved = site.get(&job.id).await.expect("the job").version;
    let version = site.write(stale(moved)).await.expect("the version is current");
    let current = conflict(site.write(stale(moved)).await).expect("the job is live");
    assert_eq!(current.version, version);
    let current = conflict(site.write(Write::Remove { job: job.clone(), expected: moved }).await);
    assert_eq!(current.map(|found| found.version), Some(version));
    site.holds(&[&retried(&job, site.now)]).await;
}

async fn a_moved_job_can_be_removed_and_its_id_used_again(site: Site) {
    let mut seen = Vec::new();
    for hours in [0, 1, 3] {
        let job = site.ended("a");
        seen.push(site.create(&job).await);
        for step in 0..=hours {
            site.archive(step).await;
        }
        let found = site.get(&job.id).await.expect("the job");
        assert_eq!(is_moved(&found), hours > 0);
        let removal = Write::Remove { job: job.clone(), expected: found.version };
        assert_eq!(site.write(removal.clone()).await.expect("removed"), found.version);
        assert_eq!(conflict(site.write(removal).await), None);
        site.holds(&[]).await;
        site.counts(0).await;
    }
    seen.dedup();
    assert_eq!(seen.len(), 3, "a version never comes back");
    site.create(&site.ended("a")).await;
    site.archive(1).await;
    site.holds(&[&site.ended("a")]).await;
    // What marks removals goes too.
    site.archive(9).await;
    assert_eq!((site.documents("jobs").await, site.documents("archive-*").await), (0, 1));
}

async fn a_cursor_goes_over_jobs_that_move_meanwhile(site: Site) {
    let job = |number: i64| {
        let at = Timestamp::from_millis(site.now.as_millis() + number % 7);
        end(&submit(&format!("{number:02}"), JobSpec { queue: queue("q"), ..plain_spec() }, at, at), at)
    };
    let jobs: Vec<Arc<Job>> = (0..30).map(job).collect();
    for job in &jobs {
        site.create(job).await;
    }
    site.refresh().await;
    for (sort, hours) in [
        (Sort::By(SortField::CreatedAt, Direction::Ascending), 1_u32),
        (Sort::By(SortField::FinishedAt, Direction::Descending), 3),
    ] {
        let mut search = Search { filter: Filter::default(), sort, after: None, limit: 4 };
        let mut found = Vec::new();
        loop {
            let page = site.store.search(&search).await.expect("searchable");
            search.after = page.last().map(|last| sort.key(&last.job));
            let is_last = page.len() < search.limit;
            found.extend(page.into_iter().map(|found| found.job.id.clone()));
            if is_last {
                break;
            }
            site.store.archive(site.now.plus(hours * HOUR), 5).await.expect("archives");
            if found.len() % 8 == 0 {
                site.refresh().await;
            }
        }
        let mut wanted: Vec<_> = jobs.iter().map(|job| sort.key(job)).collect();
        wanted.sort();
        assert_eq!(found, wanted.iter().map(|key| key.id().clone()).collect::<Vec<_>>());
    }
}

async fn the_index_of_a_past_month_goes_with_its_last_job(site: Site) {
    let job = site.ended("a");
    site.create(&job).await;
    site.archive(1).await;
    let months = 24 * 100;
    site.archive(months).await;
    site.holds(&[&job]).await;
    let found = site.get(&job.id).await.expect("the job");
    site.write(Write::Remove { job: job.clone(), expected: found.version }).await.expect("removed");
    site.archive(0).await;
    assert_eq!(
        site.ask("{prefix}archive-*").await.as_object().map(serde_json::Map::len),
        Some(1),
        "it is its month yet"
    );
    site.archive(months).await;
    assert_eq!(site.ask("{prefix}archive-*").await.as_object().map(serde_json::Map::len), Some(0));

    // A job that ended then and is moved only now is found as any other.
    site.create(&job).await;
    assert_eq!(site.archive(months).await.moved, 1);
    site.holds(&[&job]).await;
}

/// A copy that is on its way to the index must not go with it.
async fn nothing_can_be_written_to_a_months_index_when_it_is_about_to_go(site: Site) {
    let much_later = 24 * 400;
    let mut is_closed = false;
    // A process that dies one request later each time, until one lived long enough to remove the index.
    for requests in 0..interrupted::MANY {
        let job = site.ended(&format!("{requests}"));
        site.create(&job).await;
        site.archive(1).await;
        let found = site.get(&job.id).await.expect("the job");
        assert!(is_moved(&found));
        site.write(Write::Remove { job, expected: found.version }).await.expect("removed");
        site.move_until(requests, much_later).await;
        let indices = site.ask("{prefix}archive-*/_settings").await;
        let Some(index) = indices.as_object().and_then(|indices| indices.values().next()) else {
            assert!(is_closed, "it could be written to until its removal, the {requests}th request");
            return;
        };
        is_closed = index["settings"]["index"]["blocks"]["write"] == "true";
        site.archive(much_later).await;
    }
    panic!("the index was never removed");
}

async fn the_alias_shows_every_job_once_and_no_tombstone(site: Site) {
    site.create(&site.ended("ended")).await;
    site.create(&Arc::new(submit("waiting", plain_spec(), site.now, site.now))).await;
    site.archive(1).await;
    assert_eq!((site.documents("jobs").await, site.documents("archive-*").await), (2, 1));
    assert_eq!(site.documents("all").await, 2);
}
