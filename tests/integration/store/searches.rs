//! Searches, held against a plain reading of the filter and the order.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Timestamp;
use leasehold::job::{
    Claim, Conditions, Hold, Job, JobError, JobId, JobSpec, JobState, Lease, Notice, Ordered, OrderingKey, Orphan,
    Partition, PartitionSet, Priority, Progress, Running, State,
};
use leasehold::query::{Direction, Filter, Query, Search, Sort, SortField, SortKey};
use leasehold::store::{Head, Versioned};

use super::sample::{actor, at, claimed, due, id, in_state, kind, owner, plain_spec, queue, request, submit, worker};
use super::{Engine, create, create_all, replace};

/// How many jobs [`assorted`] gives.
const JOBS: i64 = 60;

/// The queues of the assorted jobs, but for those of the system.
const NAMES: [&str; 3] = ["alpha", "beta", "gamma / δ"];

/// The ordering keys of the assorted jobs.
const LINES: [&str; 2] = ["account-7", "account-8"];

/// What some of the assorted jobs require.
const REQUIRED: [&str; 2] = ["gpu", "note not in (\"größe\", b)"];

fn ordered(key: &str, seq: u64) -> Ordered {
    Ordered { key: OrderingKey::new(key).expect("a key"), seq, first: seq }
}

/// Jobs in every state and several queues, kinds, owners and priorities, with many ties, and some times missing.
pub(crate) fn assorted() -> Vec<Arc<Job>> {
    let make = |number: i64| {
        let spec = JobSpec {
            queue: if number % 13 == 5 { queue("leasehold.x") } else { queue(NAMES[number as usize % 3]) },
            kind: kind(["render", "Render"][number as usize / 2 % 2]),
            owner: [None, Some("team-a"), Some("team-b")][number as usize / 3 % 3].map(owner),
            priority: Priority::new([0, 100, -100, 0, 1][number as usize % 5]).expect("a priority"),
            labels: (number % 3 == 0).then(|| ("team".to_owned(), format!("t{}", number % 2))).into_iter().collect(),
            due: (number % 4 == 2).then(|| due(["nightly", "hourly"][number as usize / 4 % 2], number % 9)),
            conditions: Conditions {
                requires: REQUIRED[..number as usize % 3].iter().map(|text| text.parse().expect("ok")).collect(),
                ordering: (number % 4 < 3).then(|| ordered(LINES[number as usize % 2], (number * 7 % 20) as u64)),
                ..Conditions::default()
            }
            .stored(),
            expected_runtime: (number % 4 == 0).then(|| Duration::from_millis(number as u64 % 9)),
            ..plain_spec()
        };
        // No job ends before it is created.
        let finished_at = at(11 + number / 4);
        let lease = Lease {
            worker_id: worker(["worker-1", "worker-2"][number as usize % 2]),
            holder: None,
            request_id: [None, Some("request-1"), Some("request-2")][number as usize % 3].map(request),
            acquired_at: at(0),
            heartbeat_at: at(0),
            expires_at: at(1 + number % 3 * 200),
            term: Duration::from_millis(1),
        };
        let flagged = Orphan { flagged_at: at(1), reason: "silent".to_owned(), held: number % 8 == 1 };
        let orphan = (number % 4 == 1).then_some(flagged);
        let percent = [None, Some(0.0), Some(12.5), Some(99.0)][number as usize % 4];
        let progress = (number % 3 > 0).then_some(Progress { percent, message: None });
        let running = Running { lease, progress, cancel_requested_at: None, orphan, overdue_at: None };
        let state = match number * 7 % 10 {
            0..=3 => State::Available,
            4 | 5 => State::Running(Box::new(running)),
            6 => State::Completed { finished_at, result: leasehold::job::Body::Empty },
            7 => State::Failed { finished_at },
            8 => State::Cancelled { finished_at },
            _ => State::Expired { finished_at },
        };
        // Not in the order of the ids, and several at a time.
        let job = submit(&format!("job-{:02}", number * 37 % JOBS), spec, at(number % 8 * 100), at(number % 11));
        let entry = job.history.entries()[0].clone();
        let pending_notices = (number % 5 == 3).then_some(Notice { number: 1, entry });
        let expires_at = (number % 3 == 1).then_some(at(number % 7 * 100));
        let outbox = pending_notices.into_iter().collect();
        // Some texts are longer than what is indexed, and some sort differently as bytes and as UTF-16.
        let too_long = "e".repeat(1_025);
        let code = ["exit", &too_long, "timeout", "Exit", "ä", "\u{10000}", "\u{ffff}"][number as usize % 7].to_owned();
        let error = (number % 5 > 1).then(|| JobError { code, message: "m".to_owned() });
        let started_at = (number % 4 > 0).then(|| at(number % 8 * 100 + number - 10));
        let is_held = number % 7 < 2 && !state.name().is_final();
        let hold = is_held.then(|| Box::new(Hold { at: at(3), by: actor("ann"), reason: None }));
        Arc::new(Job { hold, state, outbox, expires_at, error, started_at, updated_at: at(1_000 - number % 6), ..job })
    };
    (0..JOBS).map(make).collect()
}

fn every_sort() -> Vec<Sort> {
    let both = |field| [Sort::By(field, Direction::Ascending), Sort::By(field, Direction::Descending)];
    SortField::all().into_iter().flat_map(both).chain([Sort::Dispatch]).collect()
}

/// The ids that a search should find.
fn expected(jobs: &[Arc<Job>], search: &Search) -> Vec<String> {
    let matching = jobs.iter().filter(|job| search.filter.matches(job));
    let mut keys: Vec<SortKey> = matching.map(|job| search.sort.key(job)).collect();
    keys.sort();
    let after = |key: &SortKey| search.after.as_ref().is_none_or(|after| key > after);
    keys.into_iter().filter(after).take(search.limit).map(|key| key.id().to_string()).collect()
}

async fn find(engine: &impl Engine, search: &Search) -> Vec<Versioned> {
    engine.store().search(search).await.expect("searchable")
}

fn ids(found: &[Versioned]) -> Vec<String> {
    found.iter().map(|found| found.job.id.to_string()).collect()
}

async fn agree(engine: &impl Engine, jobs: &[Arc<Job>], search: &Search) {
    let found = find(engine, search).await;
    assert_eq!(ids(&found), expected(jobs, search), "{search:?}");
    let each = engine.store().search_each(&[search.clone(), search.clone()]).await.expect("both are answered");
    assert_eq!(each.iter().map(|found| ids(found)).collect::<Vec<_>>(), vec![expected(jobs, search); 2], "{search:?}");
}

async fn assorted_in(engine: &impl Engine) -> Vec<Arc<Job>> {
    let jobs = assorted();
    create_all(engine, &jobs).await;
    engine.settle().await;
    jobs
}

fn all(filter: Filter) -> Search {
    Search { filter, sort: Sort::default(), after: None, limit: 1_000 }
}

/// Filters with one part each, and some that nothing satisfies.
pub(crate) fn single_parts() -> Vec<Filter> {
    let mut filters = vec![Filter::default()];
    filters.extend(JobState::ALL.map(|state| Filter { states: vec![state], ..Filter::default() }));
    filters.push(Filter { states: vec![JobState::Available, JobState::Failed], ..Filter::default() });
    filters.push(Filter { states: JobState::ALL.to_vec(), ..Filter::default() });
    for names in [vec!["alpha"], vec!["gamma / δ", "beta", "beta"], vec!["gamma"], vec!["none"]] {
        filters.push(Filter { queues: names.into_iter().map(queue).collect(), ..Filter::default() });
    }
    for names in [vec!["render"], vec!["Render", "none"], vec!["rend"]] {
        filters.push(Filter { kinds: names.into_iter().map(kind).collect(), ..Filter::default() });
    }
    for names in [vec!["team-a"], vec!["team-a", "team-b"], vec!["team"]] {
        filters.push(Filter { owners: names.into_iter().map(owner).collect(), ..Filter::default() });
    }
    filters.push(Filter { without_owner: true, ..Filter::default() });
    for latest in [at(-1), at(0), at(300), at(10_000), Timestamp::MAX] {
        filters.push(Filter { run_at_most: Some(latest), ..Filter::default() });
        filters.push(Filter { run_after: Some(latest), ..Filter::default() });
        filters.push(Filter { watch_at_most: Some(latest), ..Filter::default() });
        filters.push(Filter { finished_at_most: Some(latest), ..Filter::default() });
        filters.push(Filter { finished_after: Some(latest), ..Filter::default() });
        filters.push(Filter { updated_after: Some(latest), ..Filter::default() });
    }
    filters.push(Filter { finished_after: Some(at(15)), finished_at_most: Some(at(19)), ..Filter::default() });
    filters.push(Filter { run_after: Some(at(0)), run_at_most: Some(at(300)), ..Filter::default() });
    filters.push(Filter { states: vec![JobState::Available], run_after: Some(at(0)), ..Filter::default() });
    filters.push(Filter { without_system: true, ..Filter::default() });
    filters.push(Filter { without_system: true, states: vec![JobState::Completed], ..Filter::default() });
    filters.push(Filter { without_system: true, kinds: vec![kind("render")], ..Filter::default() });
    filters.push(Filter { without_system: true, queues: vec![queue("leasehold.x")], ..Filter::default() });
    for held in [Some(true), Some(false)] {
        filters.push(Filter { held, ..Filter::default() });
        filters.push(Filter { held, states: vec![JobState::Available], ..Filter::default() });
        filters.push(Filter {
            held,
            states: vec![JobState::Available],
            queues: vec![queue("alpha")],
            ..Filter::default()
        });
    }
    filters.extend([true, false].map(|flag| Filter { orphaned: Some(flag), ..Filter::default() }));
    filters.extend([true, false].map(|flag| Filter { pending_notices: Some(flag), ..Filter::default() }));
    for times in [(at(15), at(997)), (at(22), at(996))] {
        let (finished_at_most, updated_after) = (Some(times.0), Some(times.1));
        filters.push(Filter { finished_at_most, updated_after, ..Filter::default() });
    }
    for text in [
        "state: (available or failed) and not queue: beta",
        "lease.worker_id: worker-1 or owner: team-a",
        "priority > 0 and run_at >= 1970",
        "held: true",
        "not held: true and hold.by: *",
        "hold.by: ann or rerun_of: job-01",
        "history: { to: available and actor: * }",
        "kind: rend* and not orphan.held: true",
        "id: job-0*",
    ] {
        let expression = Arc::new(text.parse().expect("a query"));
        filters.push(Filter { query: Some(Query { expression, now: at(0) }), ..Filter::default() });
    }
    for name in ["worker-1", "worker-2", "worker"] {
        filters.push(Filter { worker_id: Some(worker(name)), ..Filter::default() });
    }
    for name in ["request-1", "request-2", "request"] {
        filters.push(Filter { request_id: Some(request(name)), ..Filter::default() });
    }
    for limit in ["queue:alpha", "kind:render", "owner:team-a", "key:db-7", "key:db"] {
        let limits = || vec![limit.parse().expect("a limit"), "key:none".parse().expect("a limit")];
        filters.push(Filter { under: limits(), ..Filter::default() });
        filters.push(Filter { not_under: limits(), ..Filter::default() });
    }
    for than in [-100, 0, 99, 100] {
        let more_urgent_than = Some(Priority::new(than).expect("a priority"));
        filters.push(Filter { more_urgent_than, ..Filter::default() });
        filters.push(Filter { more_urgent_than, states: vec![JobState::Available], ..Filter::default() });
    }
    for key in ["account-7", "account-8", "account"] {
        let keys = || vec![OrderingKey::new(key).expect("a key"), OrderingKey::new("none").expect("a key")];
        filters.push(Filter { in_line_of: keys(), ..Filter::default() });
        filters.push(Filter { in_line_of: keys(), states: vec![JobState::Available], ..Filter::default() });
        filters.push(Filter { not_in_line_of: keys(), ..Filter::default() });
    }
    for required in [&REQUIRED[..1], &REQUIRED[1..], &["none"]] {
        let not_requiring = required.iter().map(|text| text.parse().expect("a requirement")).collect();
        filters.push(Filter { not_requiring, states: vec![JobState::Available], ..Filter::default() });
    }
    for wanted in [|number| number < 128, |number| number == 17, |_| false] {
        let set: PartitionSet = Partition::all().filter(|partition| wanted(partition.get())).collect();
        filters.push(Filter { available_in: Some(set), ..Filter::default() });
    }
    filters
}

pub(crate) async fn each_part_of_a_filter_alone(engine: &impl Engine) {
    let jobs = assorted_in(engine).await;
    for filter in single_parts() {
        agree(engine, &jobs, &all(filter)).await;
    }
}

pub(crate) async fn parts_of_a_filter_together(engine: &impl Engine) {
    let jobs = assorted_in(engine).await;
    let states = [vec![], vec![JobState::Available], vec![JobState::Running, JobState::Completed]];
    for states in states {
        for base in single_parts() {
            let filter = Filter {
                states: if base.states.is_empty() { states.clone() } else { base.states.clone() },
                queues: if base.queues.is_empty() { vec![queue("alpha"), queue("beta")] } else { base.queues.clone() },
                ..base
            };
            agree(engine, &jobs, &all(filter)).await;
        }
    }
    let everything = Filter {
        states: vec![JobState::Running],
        queues: vec![queue("beta")],
        kinds: vec![kind("Render"), kind("render")],
        owners: vec![owner("team-a"), owner("team-b")],
        without_owner: false,
        run_at_most: Some(at(700)),
        run_after: Some(at(-1)),
        watch_at_most: Some(at(401)),
        finished_at_most: None,
        finished_after: None,
        updated_after: Some(at(990)),
        held: Some(false),
        orphaned: Some(true),
        pending_notices: Some(true),
        available_in: None,
        query: None,
        worker_id: Some(worker("worker-1")),
        request_id: Some(request("request-1")),
        under: vec!["key:db-7".parse().expect("a limit"), "kind:render".parse().expect("a limit")],
        not_under: vec!["owner:team-c".parse().expect("a limit")],
        in_line_of: LINES.map(|key| ordered(key, 0).key).to_vec(),
        not_in_line_of: vec![ordered(LINES[0], 0).key],
        not_requiring: vec![REQUIRED[1].parse().expect("a requirement")],
        more_urgent_than: Some(Priority::default()),
        without_system: true,
    };
    agree(engine, &jobs, &all(everything)).await;
}

pub(crate) async fn every_order_in_both_directions(engine: &impl Engine) {
    let jobs = assorted_in(engine).await;
    let available = Filter { states: vec![JobState::Available], ..Filter::default() };
    let ended = Filter { states: vec![JobState::Completed, JobState::Expired], ..Filter::default() };
    for sort in every_sort() {
        let watched = Filter { watch_at_most: Some(at(400)), ..Filter::default() };
        let old = Filter { finished_at_most: Some(at(19)), ..Filter::default() };
        let of_team = Filter { queues: vec![queue("alpha")], owners: vec![owner("team-a")], ..available.clone() };
        let of_nobody = Filter { owners: Vec::new(), without_owner: true, ..of_team.clone() };
        let free = [&of_team, &of_nobody, &available].map(|filter| Filter { held: Some(false), ..filter.clone() });
        let others = [Filter::default(), available.clone(), ended.clone(), watched, old, of_team, of_nobody];
        for filter in others.into_iter().chain(free) {
            agree(engine, &jobs, &Search { sort, ..all(filter) }).await;
        }
    }
}

pub(crate) async fn pages_neither_skip_nor_repeat(engine: &impl Engine) {
    let jobs = assorted_in(engine).await;
    let filters = [
        Filter::default(),
        Filter { states: vec![JobState::Available], run_at_most: Some(at(400)), ..Filter::default() },
        Filter { states: vec![JobState::Failed, JobState::Cancelled], ..Filter::default() },
        Filter { watch_at_most: Some(at(400)), ..Filter::default() },
        Filter { finished_at_most: Some(at(19)), ..Filter::default() },
    ];
    for (index, filter) in filters.into_iter().enumerate() {
        // Some of the others for each order, since there are many.
        let sorts = every_sort().into_iter().filter(|sort| sort.is_kept() || index.is_multiple_of(2));
        for (number, sort) in sorts.enumerate() {
            let whole = Search { sort, ..all(filter.clone()) };
            let wanted = expected(&jobs, &whole);
            let mut page = whole;
            let mut found = Vec::new();
            // Short pages and long ones in turn, since a server is asked for each, and from order to order at other
            // places.
            let limits: &[usize] = if sort.is_kept() { &[1, 2, 7] } else { &[1, 20] };
            for limit in limits.iter().copied().cycle().skip(number % limits.len()).take(wanted.len() + 1) {
                page.limit = limit;
                let next = find(engine, &page).await;
                let Some(last) = next.last() else { break };
                assert!(next.len() <= limit);
                page.after = Some(sort.key(&last.job));
                found.extend(ids(&next));
            }
            assert_eq!(found, wanted, "{sort:?} by pages");
        }
    }
}

pub(crate) async fn a_page_goes_on_after_jobs_that_have_changed_since(engine: &impl Engine) {
    let jobs: Vec<Arc<Job>> =
        (0..6).map(|number| Arc::new(submit(&format!("job-{number}"), plain_spec(), at(number), at(number)))).collect();
    let versions = create_all(engine, &jobs).await;
    engine.settle().await;
    let filter = Filter { states: vec![JobState::Available], ..Filter::default() };
    let mut page = Search { filter, sort: Sort::Dispatch, after: None, limit: 3 };
    let first = find(engine, &page).await;
    assert_eq!(ids(&first), ["job-0", "job-1", "job-2"]);

    for (job, version) in jobs.iter().zip(versions).take(3) {
        replace(engine, &claimed(job), version).await.expect("the version is current");
    }
    engine.settle().await;

    page.after = first.last().map(|last| page.sort.key(&last.job));
    assert_eq!(ids(&find(engine, &page).await), ["job-3", "job-4", "job-5"]);
}

pub(crate) async fn the_limit_holds(engine: &impl Engine) {
    let jobs = assorted_in(engine).await;
    for sort in [Sort::default(), Sort::Dispatch, Sort::By(SortField::FinishedAt, Direction::Descending)] {
        for limit in [1, 2, 59, 60, 61] {
            agree(engine, &jobs, &Search { sort, limit, ..all(Filter::default()) }).await;
        }
    }
}

pub(crate) async fn dispatch_order_is_priority_then_due_time_then_id(engine: &impl Engine) {
    let make = |(name, priority, due, line): (&str, i64, i64, &str)| {
        let priority = Priority::new(priority).expect("a priority");
        Arc::new(submit(name, JobSpec { queue: queue(line), priority, ..plain_spec() }, at(due), at(0)))
    };
    let jobs = [
        ("late-but-urgent", 100, 900, "q"),
        ("b", 0, 100, "q"),
        ("a", 0, 100, "r"),
        ("earlier", 0, 50, "r"),
        ("last", -100, 0, "q"),
        ("not-due", 100, 901, "q"),
        ("another-line", 100, 0, "s"),
    ];
    create_all(engine, &jobs.map(make)).await;
    engine.settle().await;

    let filter = Filter {
        states: vec![JobState::Available],
        queues: vec![queue("q"), queue("r")],
        run_at_most: Some(at(900)),
        ..Filter::default()
    };
    let mut search = Search { filter, sort: Sort::Dispatch, after: None, limit: 10 };
    let found = find(engine, &search).await;
    assert_eq!(ids(&found), ["late-but-urgent", "earlier", "a", "b", "last"]);

    search.after = Some(search.sort.key(&found[1].job));
    search.limit = 2;
    assert_eq!(ids(&find(engine, &search).await), ["a", "b"]);
}

pub(crate) async fn a_search_sees_the_latest_version_only(engine: &impl Engine) {
    let job = Arc::new(submit("a", plain_spec(), at(0), at(0)));
    let first = create(engine, &job).await;
    let claim = Claim {
        worker_id: worker("w"),
        holder: None,
        request_id: Some(request("r")),
        term: Duration::from_secs(1),
        margin: Duration::ZERO,
    };
    let running = Arc::new(job.claim(&claim, at(0)).expect("due"));
    let second = replace(engine, &running, first).await.expect("the version is current");
    let of_request = all(Filter { request_id: Some(request("r")), ..Filter::default() });
    engine.settle().await;
    let found = find(engine, &of_request).await;
    assert_eq!(found.iter().map(|found| (&found.job, found.version)).collect::<Vec<_>>(), [(&running, second)]);

    let failed = in_state(&running, State::Failed { finished_at: at(1) });
    let third = replace(engine, &failed, second).await.expect("the version is current");
    engine.settle().await;
    assert!(find(engine, &of_request).await.is_empty());
    let found = find(engine, &all(Filter::default())).await;
    assert_eq!(found.iter().map(|found| (&found.job, found.version)).collect::<Vec<_>>(), [(&failed, third)]);

    let again = in_state(&failed, State::Available);
    replace(engine, &again, third).await.expect("the version is current");
    engine.settle().await;
    assert!(find(engine, &all(Filter { states: vec![JobState::Failed], ..Filter::default() })).await.is_empty());
    assert_eq!(ids(&find(engine, &all(Filter::default())).await), [id("a").to_string()]);
}

pub(crate) async fn the_head_of_a_line_is_its_first_job_that_has_not_ended(engine: &impl Engine) {
    let jobs = assorted_in(engine).await;
    let keys = [LINES[1], "none", LINES[0], LINES[1]].map(|key| ordered(key, 0).key);
    let mut ended: Vec<Arc<Job>> = Vec::new();
    // Ends, since each round ends the heads.
    loop {
        let head = |key: &OrderingKey| {
            let is_live = |job: &&Arc<Job>| !job.state.name().is_final() && !ended.iter().any(|one| one.id == job.id);
            let of_line = jobs.iter().filter(is_live).filter(|job| job.spec.ordering_key() == Some(key));
            let seq = |job: &Arc<Job>| job.spec.ordering().expect("a place").seq;
            let first = of_line.min_by_key(|job| (seq(job), job.id.clone()))?;
            Some(Head { job: first.id.clone(), seq: seq(first), state: first.state.name() })
        };
        let expected: Vec<Option<Head>> = keys.iter().map(head).collect();
        engine.settle().await;
        assert_eq!(engine.store().heads(&keys).await.expect("searchable"), expected);
        if expected.iter().all(Option::is_none) {
            assert!(ended.len() > 20, "there are some of each line: {}", ended.len());
            return;
        }
        let heads: Vec<JobId> = expected.into_iter().take(3).flatten().map(|head| head.job).collect();
        for found in engine.store().get(&heads).await.expect("readable").into_iter().flatten() {
            let state = State::Cancelled { finished_at: at(2_000) };
            let end = Arc::new(Job { state, outbox: Vec::new(), ..Job::clone(&found.job) });
            replace(engine, &end, found.version).await.expect("written");
            ended.push(end);
        }
    }
}
