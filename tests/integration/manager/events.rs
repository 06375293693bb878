//! What happens, told to those who follow it.

use std::collections::BTreeSet;
use std::str::FromStr;

use async_trait::async_trait;
use leasehold::job::EventName;
use leasehold::manager::{EventFeed, EventFilter, EventId, EventsFrom, FeedItem, JobEvent};
use leasehold::store::Write;

use super::*;
use crate::interference::{Gate, Interfered, Interference};

/// Holds up every write of jobs.
#[derive(Default)]
struct HeldWrites(Gate);

#[async_trait]
impl Interference for HeldWrites {
    async fn before_write(&self, _: &[Write]) {
        self.0.pass().await;
    }
}

async fn follow(manager: &Manager, from: EventsFrom) -> EventFeed {
    manager.events(EventFilter::default(), from).await.expect("a feed")
}

async fn next(feed: &mut EventFeed) -> FeedItem {
    let told = tokio::time::timeout(PATIENCE, feed.next()).await.expect("something is told in time");
    told.expect("the manager goes on")
}

/// The next event, which nothing may stand before but that the past is over.
async fn event(feed: &mut EventFeed) -> (EventId, JobEvent) {
    match next(feed).await {
        FeedItem::Event(id, event) => (id, event),
        FeedItem::Live(_) => match next(feed).await {
            FeedItem::Event(id, event) => (id, event),
            other => panic!("{other:?}"),
        },
        FeedItem::Gap(_) => panic!("nothing should be missing"),
    }
}

async fn names(feed: &mut EventFeed, count: usize) -> Vec<(EventName, u32)> {
    let mut names = Vec::new();
    for _ in 0..count {
        let (_, event) = event(feed).await;
        names.push((event.entry.event, event.number));
    }
    names
}

pub(super) async fn every_transition_is_told_once_and_in_order(site: Site) {
    let mut feed = follow(&site.manager, EventsFrom::Now).await;
    assert!(matches!(next(&mut feed).await, FeedItem::Live(_)), "there is no past");
    let id = site.submit(NewJob::of(JobSpec { max_attempts: 2, ..spec() })).await.versioned.job.id.clone();
    let first = site.claim_one().await;
    site.beat(&first).await.expect("heard");
    site.finish(&first, failed(true)).await.expect("accepted");
    // No longer: a queue that nobody has asked for in a while is forgotten, and searched again.
    let run_at = site.job(&id).await.versioned.job.run_at;
    site.clock.advance(run_at.since(site.clock.now()));
    let second = site.claim_one().await;
    site.finish(&second, completed("1")).await.expect("accepted");
    let other = site.submit(new_job()).await.versioned.job.id.clone();
    site.manager.cancel(&caller(), &other, Some("not needed".to_owned())).await.expect("cancelled");

    use EventName::{Cancelled, Claimed, Completed, Retried, Submitted};
    let told = names(&mut feed, 5).await;
    assert_eq!(told, [(Submitted, 1), (Claimed, 2), (Retried, 3), (Claimed, 4), (Completed, 5)]);
    assert_eq!(names(&mut feed, 1).await, [(Submitted, 1)]);
    let (_, last) = event(&mut feed).await;
    assert_eq!((last.entry.event, &last.job_id, last.number), (Cancelled, &other, 2));
    assert_eq!((last.entry.reason.as_deref(), last.entry.actor.as_str()), (Some("not needed"), "tester"));
    let history = site.job(&id).await.versioned.job.history.entries().len();
    assert_eq!(history, 5, "each was an entry of its history");
}

pub(super) async fn a_write_whose_caller_has_gone_is_published_and_handed_out_all_the_same(site: Site) {
    let gate = Arc::new(HeldWrites::default());
    let gated = Interfered::around(Arc::clone(&site.store), &gate);
    let manager = Manager::start(gated, Arc::clone(&site.clock) as Arc<dyn Clock>, config());
    let site = Site { manager, ..site };
    let mut feed = follow(&site.manager, EventsFrom::Now).await;
    assert!(matches!(next(&mut feed).await, FeedItem::Live(_)), "there is no past");
    let manager = site.manager.clone();
    let waiting = tokio::spawn(async move { manager.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await });
    until("a waiting claim", async || site.manager.waiting_claims() == 1).await;
    // The write is under way when the caller goes.
    let caller = caller();
    tokio::select! {
        _ = site.manager.submit(&caller, vec![new_job()]) => panic!("nothing is written yet"),
        () = gate.0.reached.cancelled() => {}
    }
    gate.0.open.cancel();
    assert_eq!(names(&mut feed, 1).await, [(EventName::Submitted, 1)]);
    let claimed = taken(waiting.await.expect("no panic").expect("the claim is answered"));
    assert_eq!(claimed.len(), 1, "the job is handed out without a search");
}

pub(super) async fn a_feed_goes_on_in_the_ring_right_after_what_it_saw(site: Site) {
    let mut feed = follow(&site.manager, EventsFrom::Now).await;
    site.submit(new_job()).await;
    let claimed = site.claim_one().await;
    let (_, submitted) = event(&mut feed).await;
    assert_eq!(submitted.entry.event, EventName::Submitted);
    let (seen, _) = event(&mut feed).await;
    drop(feed);
    site.finish(&claimed, completed("1")).await.expect("accepted");

    let mut feed = follow(&site.manager, EventsFrom::After(seen)).await;
    assert!(matches!(next(&mut feed).await, FeedItem::Event(_, event) if event.entry.event == EventName::Completed));
    let FeedItem::Live(here) = next(&mut feed).await else { panic!("the past is over") };
    drop(feed);
    site.submit(new_job()).await;
    let mut feed = follow(&site.manager, EventsFrom::After(here)).await;
    assert_eq!(names(&mut feed, 1).await, [(EventName::Submitted, 1)], "nothing comes again");
}

pub(super) async fn a_feed_goes_on_at_another_manager_with_what_the_store_has(site: Site) {
    let mut feed = follow(&site.manager, EventsFrom::Now).await;
    site.submit(new_job()).await;
    let (seen, submitted) = event(&mut feed).await;
    let claimed = site.claim_one().await;
    drop(feed);
    site.clock.advance(Duration::from_secs(30));
    site.finish(&claimed, completed("1")).await.expect("accepted");

    let other = site.another_manager();
    let mut feed = follow(&other, EventsFrom::After(seen)).await;
    let told = names(&mut feed, 3).await;
    let all = [(EventName::Submitted, 1), (EventName::Claimed, 2), (EventName::Completed, 3)];
    assert_eq!(told, all, "the last seconds come again, and then what was missed");
    assert!(matches!(next(&mut feed).await, FeedItem::Live(_)));
    let mut answers = other.submit(&caller(), vec![new_job()]).await;
    let id = answers.pop().expect("one answer").expect("taken").job.versioned.job.id.clone();
    // What the last seconds brought may come once more.
    loop {
        let (_, live) = event(&mut feed).await;
        if live.job_id == id {
            break;
        }
        assert!(live.job_id == submitted.job_id && all.contains(&(live.entry.event, live.number)), "{live:?}");
    }
}

/// A position of before the clock was set back, in the time that it shows once more: what was written since may lie
/// before it.
pub(super) async fn a_feed_that_goes_on_elsewhere_says_that_something_may_be_missing_after_the_clock_was_set_back(
    site: Site,
) {
    let mut feed = follow(&site.manager, EventsFrom::Now).await;
    site.submit(new_job()).await;
    let (before, _) = event(&mut feed).await;
    site.clock.turn_back(Duration::from_secs(3_600));
    let process = site.another_manager();
    process.submit(&caller(), vec![new_job()]).await.pop().expect("one answer").expect("taken");
    // The process is started once more when the clock has come as far again, and much later.
    for after in [3_590, 20, 86_400] {
        site.clock.advance(Duration::from_secs(after));
        let process = site.another_manager();
        until("something may be missing", async || is_gap(&process, before).await).await;
        let after = follow(&process, EventsFrom::Now).await.position();
        let next = site.another_manager();
        until("nothing is missing", async || !is_gap(&next, after).await).await;
    }
    // Later than any time that the clock has shown twice, also of an event that was read from the store.
    let after = follow(&site.manager, EventsFrom::Now).await.position();
    let from_the_store = format!("{}-0-0", site.clock.now().as_millis()).parse().expect("a position");
    for position in [after, from_the_store] {
        assert!(!is_gap(&process, position).await, "{position}");
    }
}

/// The second step goes neither below the first one nor beyond the latest time, so that both have been shown before.
pub(super) async fn a_feed_that_goes_on_elsewhere_says_that_something_may_be_missing_after_a_second_step(site: Site) {
    let other = &site.manager;
    site.clock.turn_back(Duration::from_secs(3_600));
    let of_before: EventId = format!("{}-1-1", site.clock.now().as_millis() + 1_000).parse().expect("a position");
    until("the first step is noted", async || is_gap(other, of_before).await).await;
    let process = site.another_manager();
    let position = follow(&process, EventsFrom::Now).await.position();
    until("the process has begun after it", async || !is_gap(other, position).await).await;
    // Before a process has looked, it does not see that the clock goes back.
    for _ in 0..20 {
        site.clock.advance(Duration::from_secs(30));
        let position = follow(&process, EventsFrom::Now).await.position();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        site.clock.turn_back(Duration::from_secs(20));
        for _ in 0..10 {
            if is_gap(other, position).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    panic!("nothing is said to be missing");
}

/// Returns whether a feed that goes on at this position says that something may be missing.
async fn is_gap(process: &Manager, position: EventId) -> bool {
    let (mut feed, mut is_gap) = (follow(process, EventsFrom::After(position)).await, false);
    loop {
        match next(&mut feed).await {
            FeedItem::Gap(_) => is_gap = true,
            FeedItem::Event(..) => {}
            FeedItem::Live(_) => return is_gap,
        }
    }
}

/// What other managers wrote before the clock was set back does not come as if it happened when the clock shows those
/// times once more.
pub(super) async fn what_was_written_before_the_clock_was_set_back_is_not_told_as_live(site: Site) {
    let other = if site.store.is_exclusive() { site.manager.clone() } else { site.another_manager() };
    let submit = async |count: usize| {
        let answers = other.submit(&caller(), vec![new_job(); count]).await;
        answers.into_iter().map(|one| one.expect("taken").job.versioned.job.id.clone()).collect::<Vec<_>>()
    };
    submit(3).await;
    site.engine.settle().await;
    site.clock.turn_back(Duration::from_secs(1_800));
    let mut feed = follow(&site.manager, EventsFrom::Now).await;
    assert!(matches!(next(&mut feed).await, FeedItem::Live(_)), "there is no past");
    let mut expected = submit(1).await;
    let (_, first) = event(&mut feed).await;
    assert_eq!(first.job_id, expected[0]);
    for _ in 0..61 {
        site.clock.advance(Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    expected = submit(1).await;
    let (_, last) = event(&mut feed).await;
    assert_eq!(last.job_id, expected[0], "nothing of before comes between");
}

/// What another manager writes is found by searches, by its times; the feed of this one goes by no time.
pub(super) async fn what_another_manager_writes_after_the_clock_was_set_back_is_told(site: Site) {
    let mut feed = follow(&site.manager, EventsFrom::Now).await;
    let other = if site.store.is_exclusive() { site.manager.clone() } else { site.another_manager() };
    let submit = async || {
        let mut answers = other.submit(&caller(), vec![new_job()]).await;
        answers.pop().expect("one answer").expect("taken").job.versioned.job.id.clone()
    };
    let (mut told, mut expected) = (Vec::new(), Vec::new());
    for step in [0, -1, 1, -1] {
        let hours = Duration::from_secs(3_600) * i32::unsigned_abs(step);
        if step < 0 {
            site.clock.turn_back(hours)
        } else {
            site.clock.advance(hours)
        }
        expected.push(submit().await);
        while told.len() < expected.len() {
            let (_, event) = event(&mut feed).await;
            told.push(event.job_id);
        }
    }
    assert_eq!(told, expected, "each once");
    // One that goes on elsewhere from a time that is to come hears that something may be missing.
    let to_come = EventId::from_str(&format!("{}-0-0", site.clock.now().as_millis() + 3_600_000)).expect("a position");
    let mut feed = follow(&other, EventsFrom::After(to_come)).await;
    let mut is_gap = false;
    while !is_gap {
        match next(&mut feed).await {
            FeedItem::Gap(_) => is_gap = true,
            FeedItem::Event(..) => {}
            FeedItem::Live(_) => panic!("nothing was said to be missing"),
        }
    }
}

pub(super) async fn what_happened_since_a_time_is_told_before_what_happens(site: Site) {
    let old = site.submit(new_job()).await.versioned.job.id.clone();
    site.clock.advance(Duration::from_secs(100));
    let since = site.clock.now();
    let claimed = site.claim_one().await;
    assert_eq!(claimed.job.id, old);
    site.clock.advance(Duration::from_secs(1));
    let young = site.submit(new_job()).await.versioned.job.id.clone();
    site.clock.advance(Duration::from_secs(1));
    site.finish(&claimed, completed("1")).await.expect("accepted");

    let mut feed = follow(&site.manager, EventsFrom::Since(since)).await;
    for (job, name) in [(&old, EventName::Claimed), (&young, EventName::Submitted), (&old, EventName::Completed)] {
        let FeedItem::Event(_, event) = next(&mut feed).await else { panic!("the past comes first") };
        assert_eq!((&event.job_id, event.entry.event), (job, name));
    }
    assert!(matches!(next(&mut feed).await, FeedItem::Live(_)));
    site.manager.cancel(&caller(), &young, None).await.expect("cancelled");
    let (_, live) = event(&mut feed).await;
    assert_eq!((live.job_id, live.entry.event), (young, EventName::Cancelled));
}

pub(super) async fn a_filter_lets_through_what_it_names(site: Site) {
    let of_queue = |name: &str| {
        let spec = JobSpec::new(QueueName::new(name).expect("a name"), Kind::new(name).expect("a name"));
        NewJob::of(JobSpec { owner: Some(leasehold::job::Owner::new(name).expect("a name")), ..spec })
    };
    let (a, b) = (site.submit(of_queue("a")).await, site.submit(of_queue("b")).await);
    let (a, b) = (a.versioned.job.id.clone(), b.versioned.job.id.clone());
    for id in [&a, &b] {
        site.manager.cancel(&caller(), id, None).await.expect("cancelled");
    }
    let internal = QueueName::system("leasehold.test");
    let of_the_system = site.submit(NewJob::new(internal.clone(), Kind::system("test"))).await.versioned.job.id.clone();
    for (filter, seen) in [
        (EventFilter::default(), false),
        (EventFilter { queues: vec![internal], ..EventFilter::default() }, true),
        (EventFilter { jobs: vec![of_the_system.clone()], ..EventFilter::default() }, true),
    ] {
        let mut feed = site.manager.events(filter, EventsFrom::Since(site.clock.now())).await.expect("a feed");
        let mut told = false;
        while let FeedItem::Event(_, event) = next(&mut feed).await {
            told |= event.job_id == of_the_system;
        }
        assert_eq!(told, seen, "the system's own jobs are told of only to who names them");
    }
    let filters = [
        EventFilter { queues: vec![QueueName::new("b").expect("a name")], ..EventFilter::default() },
        EventFilter { kinds: vec![Kind::new("b").expect("a name")], ..EventFilter::default() },
        EventFilter { owners: vec![leasehold::job::Owner::new("b").expect("a name")], ..EventFilter::default() },
        EventFilter { jobs: vec![b.clone()], ..EventFilter::default() },
    ];
    for filter in filters {
        let filter = EventFilter { events: vec![EventName::Cancelled, EventName::Failed], ..filter };
        let since = EventsFrom::Since(site.clock.now());
        let mut feed = site.manager.events(filter.clone(), since).await.expect("a feed");
        assert!(matches!(next(&mut feed).await, FeedItem::Event(_, event) if event.job_id == b), "{filter:?}");
        assert!(matches!(next(&mut feed).await, FeedItem::Live(_)), "{filter:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_of_one_store_tell_of_each_others_jobs_and_nothing_twice() {
    let site = Site::on(engines::elasticsearch().await, config()).await;
    let other = site.another_manager();
    let (mut here, mut there) = (follow(&site.manager, EventsFrom::Now).await, follow(&other, EventsFrom::Now).await);
    let first = site.submit(new_job()).await.versioned.job.id.clone();
    let (_, told) = event(&mut there).await;
    assert_eq!((&told.job_id, told.entry.event), (&first, EventName::Submitted));
    other.cancel(&caller(), &first, None).await.expect("cancelled");
    // By the time that a later job has come through to both, what is read again each second has been.
    site.clock.advance(Duration::from_secs(1));
    let last = site.submit(new_job()).await.versioned.job.id.clone();
    for feed in [&mut here, &mut there] {
        let mut seen = BTreeSet::new();
        until_seen(feed, &first, &last, &mut seen).await;
    }
    let mut again =
        site.manager.events(EventFilter::default(), EventsFrom::After(here.position())).await.expect("a feed");
    assert!(matches!(next(&mut again).await, FeedItem::Live(_)), "the ring goes on while the tail does");
}

/// Reads until both the end of the first job and the last job have come, each event once.
async fn until_seen(feed: &mut EventFeed, first: &JobId, last: &JobId, seen: &mut BTreeSet<(String, u32)>) {
    let wanted = [(first.as_str().to_owned(), 2), (last.as_str().to_owned(), 1)];
    while !wanted.iter().all(|event| seen.contains(event)) {
        let (_, event) = event(feed).await;
        let name = (event.job_id.as_str().to_owned(), event.number);
        assert!(seen.insert(name.clone()), "{name:?} was told twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_that_is_not_read_in_time_is_told_what_it_missed() {
    let site = Site::on(engines::embedded().await, config()).await;
    let mut feed = follow(&site.manager, EventsFrom::Now).await;
    let (seen, _) = {
        site.submit(new_job()).await;
        event(&mut feed).await
    };
    for answer in site.manager.submit(&caller(), (0..17_000).map(|_| new_job()).collect()).await {
        answer.expect("taken");
    }
    assert!(matches!(next(&mut feed).await, FeedItem::Gap(_)));
    assert!(matches!(next(&mut feed).await, FeedItem::Event(..)), "and goes on with what there is");

    let mut replayed = follow(&site.manager, EventsFrom::After(seen)).await;
    let mut count = 0;
    while let FeedItem::Event(..) = next(&mut replayed).await {
        count += 1;
    }
    assert_eq!(count, 17_001, "who comes back reads from the store what the ring no longer has");
}
