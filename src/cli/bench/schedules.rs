//! How many schedules a server performs, and how late: real calls to a receiver in this process.
//!
//! Every schedule is due at the same distance, so that the wanted rate follows from their number. With a spread each
//! has its own place in that distance, and the calls come as a level stream; without one all are due at once.
//!
//! With `--trigger-retention` the triggers are removed meanwhile, and each second says how many ended ones are left:
//! their number stays level when their removal keeps up.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use http::HeaderMap;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::args::BenchArgs;
use super::report::Latencies;
use super::target::{Target, counter};
use crate::cli::failure::Failure;
use crate::cli::output::{facts_table, print, print_json, table};
use crate::client::JobQuery;
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::job::JobState;
use crate::schedule::{Action, ActionType};
use crate::scheduler::trigger;
use crate::wire::{Period, PutSchedule};

/// How many schedules there are by default.
const SCHEDULES: u32 = 10_000;
/// How many calls a second they make together by default.
const RATE: u32 = 1_000;
/// How long calls are counted by default.
const DURATION: Duration = Duration::from_secs(20);
/// How long the first calls take until they are counted: triggers are made ten seconds ahead.
const BEFORE: Duration = Duration::from_secs(12);
/// How many schedules one call stores.
const BATCH: u32 = 5_000;
/// The margin of error of the schedules, in milliseconds: what is late is to be seen, and not missed.
const MARGIN_MS: u64 = 600_000;
/// How often ended triggers are counted.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// The width of the plot, in characters.
const COLUMNS: u64 = 60;

/// What the receiver has noted.
struct Book {
    /// Since when calls count.
    since: Timestamp,
    /// Until when they do.
    until: Timestamp,
    /// How many calls came in each second.
    seconds: BTreeMap<i64, u64>,
    late: Latencies,
    keys: HashSet<String>,
    repeated: u64,
    /// How many ended triggers there were in each second.
    ended: BTreeMap<i64, u64>,
}

impl Book {
    /// Notes a call.
    fn note(&mut self, headers: &HeaderMap, now: Timestamp) {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let Ok(due_at) = Timestamp::parse_rfc3339(text("leasehold-due-at")) else { return };
        if !(self.since..self.until).contains(&due_at) {
            return;
        }
        if !self.keys.insert(text("idempotency-key").to_owned()) {
            self.repeated += 1;
            return;
        }
        *self.seconds.entry(self.second(now)).or_insert(0) += 1;
        self.late.record(now.since(due_at));
    }

    fn second(&self, now: Timestamp) -> i64 {
        now.since(self.since).as_millis() as i64 / 1_000
    }
}

/// Runs the scenario and prints the report.
pub(super) async fn run(args: &BenchArgs) -> Result<(), Failure> {
    let target = Target::prepare(args).await?;
    let schedules = args.jobs.unwrap_or(SCHEDULES);
    let rate = args.rate.unwrap_or(RATE).min(schedules);
    let every_ms = (u64::from(schedules) * 1_000 / u64::from(rate)).max(1_000);
    let spread_ms = if args.spike { 0 } else { every_ms };
    let duration = args.duration.unwrap_or(DURATION);

    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(Failure::failed)?;
    let url = format!("http://{}/", listener.local_addr().map_err(Failure::failed)?);
    let clock = SystemClock::default();
    let stored_in = Instant::now();
    let schedule = |number: u32| {
        let action = Action { url: Some(url.clone()), ..Action::of(ActionType::Http) };
        let period = Period { every_ms: Some(every_ms), ..Period::default() };
        PutSchedule {
            id: Some(format!("{}-{number}", target.queue)),
            owner: Some("bench".to_owned()),
            margin_of_error_ms: Some(MARGIN_MS),
            spread_ms: Some(spread_ms),
            ..PutSchedule::new(action, period)
        }
    };
    store(&target, schedules, &schedule).await?;
    let stored_in = stored_in.elapsed();
    let since = clock.now().plus(BEFORE);
    let until = since.plus(duration);
    let book = Rc::new(RefCell::new(Book {
        since,
        until,
        seconds: BTreeMap::new(),
        late: Latencies::new("due to call")?,
        keys: HashSet::new(),
        repeated: 0,
        ended: BTreeMap::new(),
    }));
    let local = tokio::task::LocalSet::new();
    let receiving = receive(listener, Rc::clone(&book), clock);
    let watching = watch_ended(&target, &book, args.trigger_retention.is_some());
    let mut expected = 0;
    for number in 0..schedules {
        expected += due_between(schedule(number), since, until)?;
    }
    let waiting = async {
        let last = Instant::now() + BEFORE + duration + Duration::from_secs(60);
        tokio::time::sleep(BEFORE + duration).await;
        while (book.borrow().keys.len() as u64) < expected && Instant::now() < last {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    local
        .run_until(async {
            tokio::select! {
                failed = receiving => failed,
                failed = watching => failed,
                () = waiting => Ok(()),
            }
        })
        .await?;
    // Those that were removed meanwhile cannot be counted.
    let triggers = match args.trigger_retention {
        Some(_) => None,
        None => Some(target.count_until(&performed(&target, since, until), expected).await?),
    };
    let removed = counter(&target.client.metrics().await?, "leasehold_retention_removed_total");
    target.stop().await;
    let book = book.borrow();
    report(
        args,
        &book,
        &[
            ("schedules", schedules.to_string()),
            ("stored in", format!("{:.1} s", stored_in.as_secs_f64())),
            ("due a second", format!("{:.0}", f64::from(schedules) * 1_000.0 / every_ms as f64)),
            ("due times", expected.to_string()),
            ("triggers in the store", triggers.map_or_else(|| "not counted".to_owned(), |count| count.to_string())),
            ("calls", book.keys.len().to_string()),
            ("calls repeated", book.repeated.to_string()),
            ("calls a second", format!("{:.0}", calls_a_second(&book))),
            ("triggers removed", format!("{removed:.0}")),
        ],
    )?;
    let called = book.keys.len() as u64;
    let triggers = triggers.unwrap_or(expected);
    match called == expected && triggers == expected {
        true => Ok(()),
        false => Err(Failure::Failed(format!("{expected} due times had {triggers} triggers and {called} calls"))),
    }
}

/// Selects the triggers that were performed of due times from one time until before another.
fn performed(target: &Target, since: Timestamp, until: Timestamp) -> JobQuery {
    let (since, until) = (since.to_rfc3339(), until.to_rfc3339());
    JobQuery {
        queues: vec![trigger::QUEUE.to_owned()],
        states: vec![JobState::Completed],
        kql: Some(format!("schedule_id: {}-* and due_at >= \"{since}\" and due_at < \"{until}\"", target.queue)),
        ..JobQuery::default()
    }
}

/// Counts the triggers that have ended and are not removed, time and again.
async fn watch_ended(target: &Target, book: &RefCell<Book>, is_wanted: bool) -> Result<(), Failure> {
    let clock = SystemClock::default();
    let states = JobState::ALL.into_iter().filter(|state| state.is_final()).collect();
    let jobs = JobQuery { queues: vec![trigger::QUEUE.to_owned()], states, ..JobQuery::default() };
    let mut next = tokio::time::interval(COUNT_EVERY);
    loop {
        next.tick().await;
        let now = clock.now();
        if is_wanted && now >= book.borrow().since {
            let ended = target.count_of(jobs.clone()).await?;
            let mut book = book.borrow_mut();
            let second = book.second(now);
            book.ended.insert(second, ended);
        }
    }
}

/// Returns how often a schedule is due from one time until before another.
fn due_between(schedule: PutSchedule, since: Timestamp, until: Timestamp) -> Result<u64, Failure> {
    let (id, definition) = schedule.into_definition().map_err(Failure::failed)?;
    let timetable = id.and_then(|id| definition.timetable(&id, &mut Vec::new()));
    let timetable = timetable.ok_or_else(|| Failure::Failed("a schedule has no times".to_owned()))?;
    let due = timetable.due_after(since.minus(Duration::from_millis(1)));
    Ok(due.take_while(|due| *due < until).count() as u64)
}

/// Returns how many calls came in a second, from the first to the last.
fn calls_a_second(book: &Book) -> f64 {
    let seconds = book.seconds.keys().next_back().zip(book.seconds.keys().next());
    let seconds = seconds.map_or(1, |(last, first)| last - first + 1);
    book.keys.len() as f64 / seconds as f64
}

/// Stores so many schedules.
async fn store(target: &Target, count: u32, schedule: &impl Fn(u32) -> PutSchedule) -> Result<(), Failure> {
    let mut first = 0;
    while first < count {
        let numbers = first..count.min(first + BATCH);
        first = numbers.end;
        let mut lines = Vec::new();
        for number in numbers {
            serde_json::to_writer(&mut lines, &schedule(number))?;
            lines.push(b'\n');
        }
        let items = target.client.put_schedules(lines).await?;
        if let Some(error) = items.iter().find_map(|item| item.error.as_ref()) {
            return Err(Failure::Failed(format!("a schedule was refused: {}", error.message)));
        }
    }
    Ok(())
}

/// Answers calls, and notes them.
async fn receive(listener: TcpListener, book: Rc<RefCell<Book>>, clock: SystemClock) -> Result<(), Failure> {
    let clock = Rc::new(clock);
    loop {
        let (stream, _) = listener.accept().await.map_err(Failure::failed)?;
        let (book, clock) = (Rc::clone(&book), Rc::clone(&clock));
        let answer = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            book.borrow_mut().note(request.headers(), clock.now());
            async { Ok::<_, std::convert::Infallible>(http::Response::new(String::new())) }
        });
        let stream = hyper_util::rt::TokioIo::new(stream);
        tokio::task::spawn_local(async move {
            // A connection that breaks is the server's to make anew.
            drop(hyper::server::conn::http1::Builder::new().serve_connection(stream, answer).await);
        });
    }
}

fn report(args: &BenchArgs, book: &Book, facts: &[(&str, String)]) -> Result<(), Failure> {
    if args.json {
        let facts: BTreeMap<&str, &String> = facts.iter().map(|(name, value)| (*name, value)).collect();
        return print_json(&json!({
            "scenario": "schedules", "facts": facts, "late": book.late.as_json(), "calls_by_second": book.seconds,
            "ended_triggers_by_second": book.ended,
        }));
    }
    print(&facts_table("schedules", facts.iter().map(|(name, value)| (*name, value.clone()))))?;
    let late = [0.5, 0.9, 0.99, 1.0].map(|quantile| book.late.millis(quantile));
    let row = [book.late.name().to_owned()].into_iter().chain(late).collect();
    print(&table(&["latency (ms)", "p50", "p90", "p99", "max"], [row]))?;
    let most = book.seconds.values().copied().max().unwrap_or(1);
    let rows = book.seconds.iter().map(|(second, calls)| {
        let bar = "█".repeat(usize::try_from(calls * COLUMNS / most).unwrap_or_default());
        let ended = book.ended.get(second).map(u64::to_string).unwrap_or_default();
        vec![second.to_string(), calls.to_string(), ended, bar]
    });
    print(&table(&["second", "calls", "ended triggers", ""], rows))
}
