//! Limits: how many jobs of a queue, kind, owner or key run at once.

use leasehold::job::{Concurrency, ConcurrencyKey, Conditions, LimitName, Owner, RecordName};
use leasehold::manager::{NewLimit, Rate, Urgent};
use leasehold::store::{RecordKey, RecordKind, RecordWrite};

use super::stopped::{Pair, at_every_point, at_every_point_of};
use super::*;

/// How long a claim that is held up waits for a job: longer than it takes to make the requests.
const FIRST_WAITS: Duration = Duration::from_secs(25);

pub(super) fn keyed(key: &str, max: u32) -> NewJob {
    let concurrency = Some(Concurrency { key: ConcurrencyKey::new(key).expect("a key"), max });
    NewJob::of(JobSpec { conditions: Conditions { concurrency, ..Conditions::default() }.stored(), ..spec() })
}

fn limit(text: &str) -> LimitName {
    text.parse().expect("a limit")
}

fn at_most(jobs: u32) -> NewLimit {
    NewLimit { max_concurrent: Some(jobs), ..NewLimit::default() }
}

impl Site {
    /// Submits jobs, which searches find from then on.
    async fn submit_all(&self, jobs: Vec<NewJob>) {
        for answer in self.manager.submit(&caller(), jobs).await {
            answer.expect("the job is taken");
        }
        self.engine.settle().await;
    }

    /// Claims again and again until so many jobs were claimed.
    pub(super) async fn claim_until(&self, count: usize) -> Vec<Versioned> {
        let mut claimed = Vec::new();
        until("the jobs are claimed", async || {
            let wait = Duration::from_millis(20);
            claimed.extend(self.claim(ClaimRequest { wait, ..claim(count - claimed.len()) }).await);
            claimed.len() == count
        })
        .await;
        claimed
    }

    async fn holders(&self, name: &str) -> Vec<JobId> {
        let state = self.manager.limit(&limit(name)).await.expect("readable");
        state.running.into_iter().map(|holder| holder.job_id).collect()
    }

    pub(super) async fn complete(&self, claimed: &Versioned) {
        self.finish(claimed, completed("1")).await.expect("accepted");
    }
}

pub(super) async fn no_more_jobs_of_a_key_run_than_it_says(site: Site) {
    site.submit_all((0..10).map(|_| keyed("db", 3)).collect()).await;
    let mut running = site.claim_until(3).await;
    assert!(site.claim(claim(10)).await.is_empty(), "a fourth job of three");
    let mut holders = site.holders("key:db").await;
    holders.sort();
    let mut ids: Vec<JobId> = running.iter().map(|claimed| claimed.job.id.clone()).collect();
    ids.sort();
    assert_eq!(holders, ids);
    // Each end lets one more begin, and no more.
    for left in (0..7).rev() {
        site.complete(&running.remove(0)).await;
        running.extend(site.claim_until(1).await);
        assert!(site.claim(claim(10)).await.is_empty(), "{left} are left");
    }
    for last in running {
        site.complete(&last).await;
    }
    assert!(site.holders("key:db").await.is_empty());
}

pub(super) async fn the_smallest_number_of_those_that_run_counts(site: Site) {
    site.submit_all(vec![keyed("db", 3), keyed("db", 3)]).await;
    let wide = site.claim_until(2).await;
    site.submit_all(vec![keyed("db", 2), keyed("db", 3)]).await;
    assert!(site.claim(claim(10)).await.is_empty(), "the job of two runs beside one at the most");
    site.complete(&wide[0]).await;
    let narrow = site.claim_until(1).await.remove(0);
    assert!(site.claim(claim(10)).await.is_empty(), "nor does a job of three begin beside it");
    site.complete(&narrow).await;
    site.complete(&wide[1]).await;
    site.claim_until(1).await;
}

pub(super) async fn the_systems_own_jobs_are_under_no_limit_of_their_owner(site: Site) {
    let conditions = || {
        let concurrency = Some(Concurrency { key: ConcurrencyKey::new("db").expect("a key"), max: 1 });
        Conditions { concurrency, ..Conditions::default() }.stored()
    };
    let of_ann = |queue: QueueName| {
        let owner = Some(Owner::new("ann").expect("a name"));
        NewJob::of(JobSpec { owner, conditions: conditions(), queue, ..spec() })
    };
    for name in ["owner:ann", "key:db"] {
        site.manager.set_limit(&caller(), &limit(name), at_most(1)).await.expect("set");
    }
    site.submit_all(vec![of_ann(queue()), of_ann(queue())]).await;
    site.claim_until(1).await;
    // What the owner's schedule does begins, though a job of the owner runs for long.
    let triggers = QueueName::system("leasehold.triggers");
    site.submit_all(vec![of_ann(triggers.clone()), of_ann(triggers.clone())]).await;
    let by_system = |max_jobs| ClaimRequest { queues: vec![triggers.clone()], wait: PATIENCE, ..claim(max_jobs) };
    assert_eq!(site.claim(by_system(2)).await.len(), 2);
    assert!(site.claim(claim(1)).await.is_empty(), "another job of the owner");
    assert_eq!([site.holders("owner:ann").await.len(), site.holders("key:db").await.len()], [1, 1]);
    // A limit of their queue or kind is about them.
    site.manager.set_limit(&caller(), &limit("queue:leasehold.triggers"), at_most(2)).await.expect("set");
    site.submit_all(vec![of_ann(triggers.clone())]).await;
    assert!(site.claim(ClaimRequest { wait: Duration::ZERO, ..by_system(1) }).await.is_empty());
}

/// The first jobs of a limit are in a queue that is paused or from which nobody takes, require what no worker offers,
/// or are of a kind that none takes: each time more of them than are kept in memory.
pub(super) async fn a_limit_keeps_nobody_from_jobs_behind_those_that_nobody_takes(site: Site) {
    let [paused, deserted] = ["paused", "deserted"].map(|name| QueueName::new(name).expect("a name"));
    let requires = || {
        let requires = vec!["gpu".parse().expect("a requirement")];
        Conditions { requires, ..Conditions::default() }.stored()
    };
    let specs = [
        JobSpec { queue: paused.clone(), ..spec() },
        JobSpec { queue: deserted, ..spec() },
        JobSpec { conditions: requires(), ..spec() },
        JobSpec { kind: Kind::new("other").expect("a name"), ..spec() },
        spec(),
    ];
    let of_ann =
        |spec: &JobSpec| NewJob::of(JobSpec { owner: Some(Owner::new("ann").expect("a name")), ..spec.clone() });
    site.manager.set_limit(&caller(), &limit("owner:ann"), at_most(2)).await.expect("set");
    site.manager.pause(&caller(), &paused, None).await.expect("paused");
    for (spec, count) in specs.iter().zip([1_100, 1_100, 1_100, 1_100, 20]) {
        for _ in 0..count / 20 {
            site.submit_all((0..20).map(|_| of_ann(spec)).collect()).await;
        }
    }
    let request = || ClaimRequest {
        queues: vec![queue(), paused.clone()],
        kinds: vec![Kind::new("k").expect("a name")],
        wait: Duration::from_millis(50),
        ..claim(2)
    };
    let mut done = 0;
    until("all are done that somebody can take", async || {
        let claimed = site.claim(request()).await;
        assert!(claimed.iter().all(|claimed| claimed.job.spec.requires().is_empty()));
        for claimed in &claimed {
            site.complete(claimed).await;
        }
        done += claimed.len();
        done == 20
    })
    .await;
    // The others have their turn once somebody takes them.
    site.manager.resume(&paused).await.expect("resumed");
    let labels = BTreeMap::from([("gpu".to_owned(), "a".to_owned())]);
    for queue in [queue(), paused.clone()] {
        let request = || ClaimRequest { queues: vec![queue.clone()], labels: labels.clone(), ..request() };
        until("one of the others is handed out", async || {
            let claimed = site.claim(request()).await;
            for claimed in &claimed {
                site.complete(claimed).await;
            }
            !claimed.is_empty()
        })
        .await;
    }
}

pub(super) async fn jobs_that_a_limit_holds_do_not_hold_others_up(site: Site) {
    let urgent = |job: NewJob| NewJob { spec: JobSpec { priority: Priority::new(9).expect("ok"), ..job.spec }, ..job };
    let mut jobs: Vec<NewJob> = (0..2_500).map(|_| urgent(keyed("db", 1))).collect();
    jobs.extend((0..5).map(|_| new_job()));
    site.submit_all(jobs).await;
    let claimed = site.claim_until(6).await;
    let of_key = |claimed: &&Versioned| claimed.job.spec.concurrency().is_some();
    assert_eq!(claimed.iter().filter(of_key).count(), 1);
    // More than are kept in memory have their turn too.
    let mut first = claimed.iter().find(of_key).cloned().expect("one of the key");
    for _ in 0..20 {
        site.complete(&first).await;
        first = site.claim_until(1).await.remove(0);
    }
}

pub(super) async fn a_limit_that_is_set_counts_what_runs_and_wins_over_the_jobs(site: Site) {
    site.submit_all((0..6).map(|_| new_job()).collect()).await;
    let running = site.claim_until(3).await;
    site.manager.set_limit(&caller(), &limit("queue:q"), at_most(2)).await.expect("set");
    assert!(site.claim(claim(10)).await.is_empty(), "three run already");
    site.complete(&running[0]).await;
    assert!(site.claim(claim(10)).await.is_empty(), "two still run");
    site.complete(&running[1]).await;
    let next = site.claim_until(1).await;
    assert!(site.claim(claim(10)).await.is_empty());
    site.manager.set_limit(&caller(), &limit("queue:q"), at_most(3)).await.expect("raised");
    let more = site.claim_until(1).await;
    assert!(site.claim(claim(10)).await.is_empty());
    assert!(site.manager.remove_limit(&limit("queue:q")).await.expect("removed"));
    let last = site.claim_until(1).await;
    for claimed in [&running[2], &next[0], &more[0], &last[0]] {
        site.complete(claimed).await;
    }

    site.submit_all((0..4).map(|_| keyed("db", 1)).collect()).await;
    site.manager.set_limit(&caller(), &limit("key:db"), at_most(2)).await.expect("set");
    site.claim_until(2).await;
    assert!(site.claim(claim(10)).await.is_empty());
    for wrong in [0, 1_001] {
        let refused = site.manager.set_limit(&caller(), &limit("key:db"), at_most(wrong)).await;
        assert!(matches!(refused, Err(ManagerError::Invalid { field: "max_concurrent", .. })), "{refused:?}");
    }
}

pub(super) async fn a_slot_whose_claim_never_came_is_given_away_and_the_claim_is_refused(site: Site) {
    let first = site.submit(keyed("db", 1)).await.versioned;
    site.engine.settle().await;
    // Another manager has taken the slot, and is to claim the job now.
    let body = format!(r#"{{"limit": "key:db", "holders": [{{"job": "{}", "fence": 1}}]}}"#, first.job.id);
    let key = RecordKey::new(RecordKind::Slots, RecordName::new("key:db").expect("a name"));
    site.store.write_record(RecordWrite::Create { key, body: json(&body) }).await.expect("written");
    site.submit_all(vec![keyed("db", 1)]).await;
    let running = site.claim_until(1).await.remove(0);
    assert!(site.claim(claim(10)).await.is_empty());
    if running.job.id != first.job.id {
        let late = leasehold::store::Write::Replace { job: first.job.clone(), expected: first.version, bodies: vec![] };
        let refused = site.store.write(vec![late]).await.pop().expect("one answer");
        assert!(matches!(refused, Err(leasehold::store::WriteError::Conflict(Some(_)))), "{refused:?}");
    }
    site.complete(&running).await;
    site.claim_until(1).await;
}

pub(super) async fn a_rate_lets_no_more_jobs_begin_than_its_burst_and_the_time(site: Site) {
    let rate = Rate { count: 20, per_ms: 1_000, burst: 3 };
    let set = NewLimit { rate: Some(rate), ..NewLimit::default() };
    site.manager.set_limit(&caller(), &limit("kind:k"), set).await.expect("set");
    site.submit_all((0..30).map(|_| new_job()).collect()).await;
    let begun = tokio::time::Instant::now();
    let mut claimed = 0;
    until("all jobs begin", async || {
        let wait = Duration::from_millis(20);
        claimed += site.claim(ClaimRequest { wait, ..claim(10) }).await.len();
        let most = f64::from(rate.burst) + f64::from(rate.count) * begun.elapsed().as_secs_f64();
        assert!(claimed as f64 <= most, "{claimed} have begun, where {most} may");
        claimed == 30
    })
    .await;
    for (field, rate) in [
        ("rate.count", Rate { count: 0, ..rate }),
        ("rate.burst", Rate { burst: 0, ..rate }),
        ("rate.per_ms", Rate { per_ms: 999, ..rate }),
        ("rate.per_ms", Rate { per_ms: 86_400_001, ..rate }),
    ] {
        let set = NewLimit { rate: Some(rate), ..NewLimit::default() };
        let refused = site.manager.set_limit(&caller(), &limit("kind:k"), set).await;
        assert!(matches!(refused, Err(ManagerError::Invalid { field: wrong, .. }) if wrong == field), "{refused:?}");
    }
    let nothing = site.manager.set_limit(&caller(), &limit("kind:k"), NewLimit::default()).await;
    assert!(matches!(nothing, Err(ManagerError::Invalid { .. })), "{nothing:?}");
}

pub(super) async fn a_key_that_is_paused_begins_nothing_before_its_time(site: Site) {
    let until_then = site.clock.now().plus(Duration::from_secs(60));
    let set = NewLimit { paused_until: Some(until_then), ..NewLimit::default() };
    site.manager.set_limit(&caller(), &limit("key:db"), set).await.expect("set");
    let held = site.submit(keyed("db", 5)).await.versioned.job.id.clone();
    site.submit_all(vec![new_job()]).await;
    let other = site.claim_until(1).await.remove(0);
    assert_ne!(other.job.id, held);
    assert!(site.claim(claim(10)).await.is_empty());
    let reasons = site.manager.explain(&held).await.expect("explained").reasons;
    assert!(reasons.iter().any(|reason| reason.code == "limit_paused"), "{reasons:?}");
    site.clock.advance(Duration::from_secs(60));
    assert_eq!(site.claim_until(1).await.remove(0).job.id, held);
}

/// A limit of so many places, some of which are kept free for jobs from the priority 50 on.
fn with_urgent(jobs: u32, places: u32) -> NewLimit {
    let urgent = Some(Urgent { places, min_priority: Priority::new(50).expect("a priority") });
    NewLimit { urgent, ..at_most(jobs) }
}

fn urgent() -> NewJob {
    NewJob::of(JobSpec { priority: Priority::new(50).expect("a priority"), ..spec() })
}

fn is_urgent(claimed: &Versioned) -> bool {
    claimed.job.spec.priority.get() >= 50
}

pub(super) async fn urgent_jobs_have_the_places_that_are_kept_free_for_them(site: Site) {
    site.manager.set_limit(&caller(), &limit("queue:q"), with_urgent(4, 1)).await.expect("set");
    site.submit_all((0..8).map(|_| new_job()).collect()).await;
    let mut others = site.claim_until(3).await;
    assert!(site.claim(claim(10)).await.is_empty(), "the fourth place is kept free");
    let waiting = site.submit(new_job()).await.versioned.job.id.clone();
    let reasons = site.manager.explain(&waiting).await.expect("explained").reasons;
    assert!(reasons.iter().any(|reason| reason.code == "kept_free_for_urgent"), "{reasons:?}");

    site.submit_all(vec![urgent(), urgent()]).await;
    let first = site.claim_until(1).await.remove(0);
    assert!(is_urgent(&first), "it comes while others are held");
    assert!(site.claim(claim(10)).await.is_empty(), "four run");
    let reasons = site.manager.explain(&waiting).await.expect("explained").reasons;
    assert!(reasons.iter().any(|reason| reason.code == "limit_reached"), "{reasons:?}");
    site.complete(&others.remove(0)).await;
    let second = site.claim_until(1).await.remove(0);
    assert!(is_urgent(&second), "urgent ones may use all places");
    assert!(site.claim(claim(10)).await.is_empty(), "four run");
    site.complete(&first).await;
    others.extend(site.claim_until(1).await);
    site.complete(&second).await;
    assert!(site.claim(claim(10)).await.is_empty(), "three of the others run");
    for last in others {
        site.complete(&last).await;
    }
    assert!(!site.claim_until(3).await.iter().any(is_urgent));
}

pub(super) async fn an_urgent_job_is_found_behind_more_held_jobs_than_are_kept(site: Site) {
    site.manager.set_limit(&caller(), &limit("queue:q"), with_urgent(2, 1)).await.expect("set");
    let later = Duration::from_secs(600);
    let due_later = NewJob { run_at: Some(site.clock.now().plus(later)), ..urgent() };
    let mut jobs: Vec<NewJob> = (0..2_500).map(|_| new_job()).collect();
    jobs.push(due_later);
    site.submit_all(jobs).await;
    site.claim_until(1).await;
    assert!(site.claim(claim(10)).await.is_empty(), "the other place is kept free");
    site.clock.advance(later);
    assert!(is_urgent(&site.claim_until(1).await[0]));
}

/// Submits so many jobs, and an urgent one that is due later than candidates are looked for ahead. Begins one of the
/// others, and returns it once the urgent one is due.
async fn begin_before_an_urgent_one_is_due(site: &Site, others: usize) -> Versioned {
    let later = Duration::from_secs(600);
    let due_later = NewJob { run_at: Some(site.clock.now().plus(later)), ..urgent() };
    site.submit_all((0..others).map(|_| new_job()).chain([due_later]).collect()).await;
    let mut begun = site.claim_until(1).await;
    assert!(site.claim(claim(1)).await.iter().all(|claimed| !is_urgent(claimed)));
    site.clock.advance(later);
    begun.pop().expect("it has begun")
}

pub(super) async fn an_urgent_job_that_is_due_later_begins_before_those_that_wait(site: Site) {
    begin_before_an_urgent_one_is_due(&site, 300).await;
    assert!(is_urgent(&site.claim_until(1).await[0]));
}

pub(super) async fn an_urgent_job_that_is_due_later_begins_before_those_that_a_limit_holds(site: Site) {
    site.manager.set_limit(&caller(), &limit("queue:q"), at_most(1)).await.expect("set");
    let begun = begin_before_an_urgent_one_is_due(&site, 2_500).await;
    // The claim holds what it cannot have, which is not all that there is.
    let held = tokio::spawn({
        let manager = site.manager.clone();
        async move { manager.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await }
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    site.complete(&begun).await;
    let next = taken(held.await.expect("no panic").expect("the claim is answered"));
    assert!(next.iter().all(is_urgent), "{next:?}");
}

pub(super) async fn jobs_that_ran_before_places_were_kept_free_count_by_their_priority(site: Site) {
    site.submit_all((0..3).map(|_| new_job()).chain([urgent()]).collect()).await;
    let running = site.claim_until(3).await;
    assert_eq!(running.iter().filter(|claimed| is_urgent(claimed)).count(), 1);
    site.manager.set_limit(&caller(), &limit("queue:q"), with_urgent(5, 3)).await.expect("set");
    assert!(site.claim(claim(10)).await.is_empty(), "two of the others run");
    site.manager.set_limit(&caller(), &limit("queue:q"), with_urgent(5, 2)).await.expect("set");
    assert!(!is_urgent(&site.claim_until(1).await[0]));
}

pub(super) async fn a_released_job_leaves_its_slot(site: Site) {
    site.submit_all(vec![keyed("db", 1), keyed("db", 1)]).await;
    let first = site.claim_until(1).await.remove(0);
    site.manager.cancel(&caller(), &first.job.id, None).await.expect("asked to stop");
    assert!(site.claim(claim(10)).await.is_empty(), "it runs until it has stopped");
    let released = Outcome::Released { reason: "stopped".to_owned(), delay: Duration::ZERO };
    site.finish(&first, released).await.expect("accepted");
    let second = site.claim_until(1).await.remove(0);
    assert_ne!(second.job.id, first.job.id);
    let order =
        AdminRelease { actor: caller().name, reason: "gone".to_owned(), then: Then::Fail, expected_fence: None };
    site.manager.admin_release(&second.job.id, order).await.expect("released");
    assert!(site.holders("key:db").await.is_empty());
}

/// How many of these jobs run now.
async fn running(store: &dyn Store, ids: &[JobId]) -> usize {
    let jobs = store.get(ids).await.expect("readable");
    jobs.iter().flatten().filter(|found| matches!(found.job.state, State::Running(_))).count()
}

/// Wherever a manager stops in a claim, and however late it goes on, a limit holds and comes free again.
async fn a_manager_that_stops_in_a_claim_exceeds_no_limit_and_keeps_no_slot(fresh: impl AsyncFn() -> Box<dyn Engine>) {
    at_every_point(4, async |points: i64| {
        let pair = Pair::on(fresh().await).await;
        let (store, managers) = (&*pair.store, &pair.managers);
        let mut ids = Vec::new();
        for answer in managers[1].submit(&caller(), vec![keyed("a", 1), keyed("a", 1)]).await {
            ids.push(answer.expect("the job is taken").job.versioned.job.id.clone());
        }
        engines::refresh(store).await;
        let claim_as = |name: &str| ClaimRequest { worker_id: worker(name), ..claim(2) };
        // Where the other one is faster, it waits for as long in vain.
        let (manager, request) = (managers[0].clone(), ClaimRequest { wait: FIRST_WAITS, ..claim_as("first") });
        let first = async move { manager.claim(request).await.map(taken).unwrap_or_default() };
        let second = std::cell::RefCell::new(Vec::new());
        let meanwhile = async {
            // Another manager has all the time that it takes to think the first one dead.
            let begun = tokio::time::Instant::now();
            while second.borrow().is_empty() && begun.elapsed() < Duration::from_secs(6) {
                let claimed = taken(managers[1].claim(claim_as("second")).await.expect("an answer"));
                second.borrow_mut().extend(claimed);
                assert!(running(store, &ids).await <= 1, "stopped after {points}");
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        };
        let (is_stopped, first) = pair.stopped_after(points, first, meanwhile).await;
        let second = second.into_inner();
        assert!(running(store, &ids).await <= 1, "stopped after {points}, and gone on");
        assert!(first.len() + second.len() <= 1, "stopped after {points}: {first:?} and {second:?}");
        // Both jobs have their turn.
        let mut ended = 0;
        let end = async |manager: &Manager, name: &str, claimed: Versioned| {
            let end = Finish { id: claimed.job.id.clone(), fence: claimed.job.fence, outcome: completed("1") };
            manager.finish(&worker(name), vec![end]).await.pop().expect("one answer").expect("accepted");
        };
        for (name, claimed) in [("first", first), ("second", second)] {
            for claimed in claimed {
                end(&managers[0], name, claimed).await;
                ended += 1;
            }
        }
        until("the other job's turn", async || {
            // A job of the first manager's share is the second one's once the first has had no worker for a while.
            pair.clock.advance(Duration::from_millis(10));
            for claimed in taken(managers[1].claim(claim_as("second")).await.expect("an answer")) {
                assert!(running(store, &ids).await <= 1, "stopped after {points}, and ended");
                end(&managers[1], "second", claimed).await;
                ended += 1;
            }
            ended == 2
        })
        .await;
        pair.end().await;
        is_stopped
    })
    .await;
}

at_every_point_of!(a_manager_that_stops_in_a_claim_exceeds_no_limit_and_keeps_no_slot);
