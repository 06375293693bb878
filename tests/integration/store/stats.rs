//! Figures, held against reckoning them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Timestamp;
use leasehold::job::{Body, Change, Claim, Failure, Job, JobError, JobSpec, LeaseProof, Priority};
use leasehold::query::stats::{Durations, Figures, GroupBy, Histogram, MAX_ROWS, Percent, Stats, StatsRequest};
use leasehold::query::{Filter, Query};
use leasehold::store::StoreError;

use super::sample::{NOW, at, plain_spec, queue, submit, worker};
use super::{Engine, create_all};

/// How many jobs there are.
const JOBS: u64 = 400;

/// Jobs that waited and took from nothing to an hour, and some that did neither or only the one.
fn lives() -> Vec<Arc<Job>> {
    (0..JOBS).map(|number| Arc::new(life(number))).collect()
}

fn life(number: u64) -> Job {
    let mut labels = BTreeMap::new();
    if !number.is_multiple_of(3) {
        labels.insert("team".to_owned(), format!("team {}", number % 2));
    }
    let spec = JobSpec {
        queue: queue(["alpha", "beta", "gamma / δ"][number as usize % 3]),
        priority: Priority::new((number % 7) as i64 - 3).expect("a priority"),
        labels,
        resources: if number.is_multiple_of(4) { [("gpus".to_owned(), number)].into() } else { BTreeMap::new() },
        max_attempts: 1 + number as u32 % 2,
        ..plain_spec()
    };
    // Spread over some hours, and more of them short than long.
    let due = at(number as i64 * 97_000 % 14_400_000 - 7_200_000);
    let wait = Duration::from_millis(number * number * 22 % 3_600_000);
    let took = Duration::from_millis((number * 7_919) % 250 * (number % 11) * 1_000);
    let job = submit(&format!("job-{number}"), spec, due, due);
    if number.is_multiple_of(10) {
        return job;
    }
    let claim = Claim {
        worker_id: worker("worker-1"),
        holder: None,
        request_id: None,
        term: Duration::from_secs(60),
        margin: Duration::ZERO,
    };
    let started = due.plus(wait);
    let running = job.claim(&claim, started).expect("a due job can be claimed");
    let proof = LeaseProof { worker_id: worker("worker-1"), fence: running.fence, bearer: None };
    let ended = started.plus(took);
    let change = match number % 10 {
        1 => return running,
        2 | 3 => {
            let error = JobError { code: format!("code-{}", number % 4), message: "m".to_owned() };
            let failure = Failure { error, retryable: number % 10 == 2, retry_after: None, chance: 0.5 };
            running.fail(&proof, &failure, ended)
        }
        _ => running.complete(&proof, &Body::Empty, ended),
    };
    match change.expect("the worker's own lease") {
        Change::To(job) => *job,
        Change::Already => panic!("nothing has been said of this job before"),
    }
}

fn request(by: &[&str], over: Option<(&str, &str)>) -> StatsRequest {
    let over = over.map(|(time, interval)| {
        Histogram::over(time, interval.parse().expect("an interval")).expect("a field with a time")
    });
    let by = by.iter().map(|name| name.parse::<GroupBy>().expect("a groupable field")).collect();
    StatsRequest { by, over, percentiles: Some(Percent::usual()), ..StatsRequest::default() }
}

type Key = (Option<Timestamp>, Vec<Option<String>>);

/// The jobs of each row, and all of them.
fn expected<'j>(jobs: &'j [Arc<Job>], request: &StatsRequest) -> (BTreeMap<Key, Vec<&'j Job>>, Vec<&'j Job>) {
    let (mut rows, mut all) = (BTreeMap::<Key, Vec<&Job>>::new(), Vec::new());
    for job in jobs.iter().map(Arc::as_ref).filter(|job| request.filter.matches(job)) {
        let at = match &request.over {
            None => None,
            Some(over) => match over.row(job) {
                None => continue,
                at => at,
            },
        };
        all.push(job);
        if request.has_rows() {
            rows.entry((at, request.by.iter().map(|by| by.value(job)).collect())).or_default().push(job);
        }
    }
    (rows, all)
}

fn assert_durations(told: &Durations, mut values: Vec<f64>, what: &str) {
    values.sort_by(f64::total_cmp);
    assert_eq!(told.count, values.len() as u64, "{what}");
    assert_eq!(told.percentiles.len(), Percent::usual().len(), "{what}");
    let Some(longest) = values.last() else {
        assert_eq!((told.mean, told.max), (None, None), "{what}");
        assert!(told.percentiles.iter().all(Option::is_none), "{what}");
        return;
    };
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    assert!(told.mean.is_some_and(|told| (told - mean).abs() <= 1e-6 * (1.0 + mean)), "{what}: {told:?}");
    assert_eq!(told.max, Some(*longest), "{what}");
    for (percent, told) in Percent::usual().into_iter().zip(&told.percentiles) {
        let told = told.expect("there are values");
        let rank = percent.get() / 100.0 * values.len() as f64;
        let slack = 1.0 + 0.02 * values.len() as f64;
        let place = |rank: f64| values[(rank.max(0.0) as usize).min(values.len() - 1)];
        let (least, most) = (place((rank - slack).floor()), place((rank + slack).ceil()));
        assert!(0.99 * least <= told && told <= 1.01 * most, "{what}: {told} for {percent} of {values:?}");
    }
}

fn assert_figures(told: &Figures, jobs: &[&Job], what: &str) {
    assert_eq!(told.count, jobs.len() as u64, "{what}");
    let millis = |duration: Duration| duration.as_millis() as f64;
    assert_durations(&told.wait, jobs.iter().filter_map(|job| job.wait()).map(millis).collect(), what);
    assert_durations(&told.run_time, jobs.iter().filter_map(|job| job.run_time()).map(millis).collect(), what);
}

async fn reckoned(engine: &impl Engine, request: &StatsRequest) -> Stats {
    engine.store().stats(request).await.expect("the figures can be reckoned").expect("there are few rows")
}

async fn agree(engine: &impl Engine, jobs: &[Arc<Job>], request: &StatsRequest) {
    let told = reckoned(engine, request).await;
    let (rows, all) = expected(jobs, request);
    assert_figures(&told.total, &all, "in all");
    assert!(told.rows.is_sorted_by(|one, next| one.in_order(next).is_lt()), "in order, and each once");
    assert_eq!(told.rows.len(), rows.len(), "{:?}", request.by);
    for row in &told.rows {
        let key = (row.at, row.values.clone());
        assert_figures(&row.figures, rows.get(&key).map_or(&[][..], Vec::as_slice), &format!("{key:?}"));
    }
}

async fn lives_in(engine: &impl Engine) -> Vec<Arc<Job>> {
    let jobs = lives();
    create_all(engine, &jobs).await;
    engine.settle().await;
    jobs
}

pub(crate) async fn in_all_by_group_and_over_time(engine: &impl Engine) {
    let jobs = lives_in(engine).await;
    let requests = [
        request(&[], None),
        request(&["queue"], None),
        request(&["queue", "state"], None),
        request(&["error.code", "priority", "attempt"], None),
        request(&["lease.worker_id", "orphan_policy"], None),
        request(&[], Some(("created_at", "1h"))),
        request(&["state", "queue"], Some(("finished_at", "15m"))),
        request(&["kind"], Some(("started_at", "1d"))),
    ];
    for request in requests {
        agree(engine, &jobs, &request).await;
    }
}

pub(crate) async fn of_the_jobs_that_are_asked_for_only(engine: &impl Engine) {
    let jobs = lives_in(engine).await;
    for text in ["queue: alpha", "wait_ms > 60000 and not run_time_ms >= 100000", "run_time_ms: *", "state: expired"] {
        let expression = Arc::new(text.parse().expect("a query"));
        let filter = Filter { query: Some(Query { expression, now: at(0) }), ..Filter::default() };
        for over in [None, Some(("finished_at", "1h"))] {
            agree(engine, &jobs, &StatsRequest { filter: filter.clone(), ..request(&["queue"], over) }).await;
        }
    }
}

pub(crate) async fn with_the_percentiles_that_are_asked_for(engine: &impl Engine) {
    lives_in(engine).await;
    let some = ["0", "12.5", "100"].map(|percent| percent.parse::<Percent>().expect("a percentile"));
    let asked =
        |percentiles: &[Percent]| StatsRequest { percentiles: Some(percentiles.to_vec()), ..request(&[], None) };
    let told = reckoned(engine, &asked(&some)).await.total.wait;
    let percentiles: Vec<f64> = told.percentiles.iter().map(|told| told.expect("there are values")).collect();
    assert!(percentiles.len() == 3 && percentiles.is_sorted(), "{percentiles:?}");
    assert_eq!(percentiles.last().copied(), told.max);
    let none = reckoned(engine, &asked(&[])).await.total.wait;
    assert_eq!((none.percentiles.len(), none.count, none.mean), (0, told.count, told.mean));
    let counted = reckoned(engine, &StatsRequest { percentiles: None, ..request(&["queue"], None) }).await;
    assert_eq!((counted.total.count, counted.total.wait.count, counted.rows.len()), (JOBS, 0, 3));
}

pub(crate) async fn with_the_sums_that_are_asked_for(engine: &impl Engine) {
    let jobs = lives_in(engine).await;
    let sums = ["resources.nobodys", "resources.gpus"].map(|name| name.parse().expect("a resource"));
    let asked = StatsRequest { sums: sums.to_vec(), percentiles: None, ..request(&["queue", "owner"], None) };
    let told = reckoned(engine, &asked).await;
    let sum = |jobs: &[&Job]| jobs.iter().filter_map(|job| job.spec.resources.get("gpus")).sum::<u64>() as f64;
    let (rows, all) = expected(&jobs, &asked);
    assert!(sum(&all) > 0.0 && told.rows.len() == 3, "{told:?}");
    assert_eq!(told.total.sums, [0.0, sum(&all)]);
    for row in told.rows {
        assert_eq!(row.figures.sums, [0.0, sum(&rows[&(None, row.values.clone())])], "{:?}", row.values);
    }
}

pub(crate) async fn of_no_jobs_are_none(engine: &impl Engine) {
    let told = reckoned(engine, &request(&["queue"], Some(("created_at", "1h")))).await;
    assert_eq!((told.rows.len(), told.total.count, told.total.wait.mean), (0, 0, None));
}

pub(crate) async fn in_too_many_rows_are_not_told(engine: &impl Engine) {
    let make = |number: usize| {
        let time = Timestamp::from_millis(NOW + number as i64 * 1_000);
        Arc::new(submit(&format!("job-{number}"), plain_spec(), time, time))
    };
    let jobs: Vec<Arc<Job>> = (0..=MAX_ROWS).map(make).collect();
    for some in jobs.chunks(1_000) {
        create_all(engine, some).await;
    }
    engine.settle().await;
    let each = StatsRequest { percentiles: None, ..request(&[], Some(("run_at", "1s"))) };
    assert!(engine.store().stats(&each).await.expect("the store is asked").is_none());
    let filter = Filter { run_after: Some(Timestamp::from_millis(NOW)), ..Filter::default() };
    let all_but_one = reckoned(engine, &StatsRequest { filter, ..each }).await;
    assert_eq!((all_but_one.rows.len(), all_but_one.total.count), (MAX_ROWS, MAX_ROWS as u64));
}

/// OpenSearch's type for labels cannot be grouped by, which is said and not got wrong.
pub(crate) async fn by_a_label<E: Engine>(engine: &E) {
    let jobs = lives_in(engine).await;
    if !E::GROUPS_BY_LABELS {
        let refused = engine.store().stats(&request(&["labels.team"], None)).await;
        assert!(matches!(&refused, Err(StoreError::Unsupported(why)) if why.contains("OpenSearch")), "{refused:?}");
        return;
    }
    agree(engine, &jobs, &request(&["labels.team", "queue"], None)).await;
    agree(engine, &jobs, &request(&["labels.nobody"], Some(("created_at", "1h")))).await;
}
