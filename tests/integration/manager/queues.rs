//! Queues that are held back, and claims with room for some jobs only.

use leasehold::job::{Conditions, OrphanPolicy};
use leasehold::manager::{Manager, SeenElsewhere, Worker};
use leasehold::store::elasticsearch::{ElasticsearchOptions, ElasticsearchStore};

use super::*;
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::store::elasticsearch::connect;
use crate::{seed, servers};

cases! {
    a_paused_queues_jobs_wait_until_it_is_resumed_and_go_to_those_who_waited,
    what_runs_goes_on_while_its_queue_is_paused,
    a_pause_outlives_its_manager_and_holds_for_the_first_claim_of_the_next,
    a_queue_keeps_who_paused_it_since_when_and_why,
    a_queues_rule_for_orphans_is_kept_and_removed,
    a_job_that_needs_more_than_is_offered_waits_for_a_worker_that_has_it,
    a_job_that_requires_a_label_waits_for_the_worker_that_offers_it_and_others_overtake_it,
    a_claim_takes_only_jobs_of_the_kinds_that_it_names_and_others_wait_for_who_takes_theirs,
    a_job_of_a_rare_kind_starts_behind_any_number_of_others_of_its_queue,
    a_waiting_job_says_how_many_go_before_it_and_that_nobody_asks,
    a_job_says_how_it_is_doing_in_every_state,
    jobs_that_ended_count_for_their_queue_for_as_long_as_the_window_lasts,
    workers_are_known_by_what_they_ask_and_by_their_leases,
}

fn waiting_claim(manager: &Manager) -> tokio::task::JoinHandle<Result<Claimed, ManagerError>> {
    let manager = manager.clone();
    tokio::spawn(async move { manager.claim(ClaimRequest { wait: PATIENCE, ..claim(10) }).await })
}

async fn pause(manager: &Manager) {
    manager.pause(&caller(), &queue(), Some("repairs")).await.expect("paused");
}

async fn a_paused_queues_jobs_wait_until_it_is_resumed_and_go_to_those_who_waited(site: Site) {
    let early = site.submit(new_job()).await.versioned.job.id.clone();
    pause(&site.manager).await;
    assert!(site.claim(claim(1)).await.is_empty());
    let waiting = waiting_claim(&site.manager);
    until("a waiting claim", async || site.manager.waiting_claims() == 1).await;
    let late = site.submit(new_job()).await.versioned.job.id.clone();
    assert_eq!(site.manager.waiting_claims(), 1, "a submission to a paused queue reaches nobody");
    site.manager.resume(&queue()).await.expect("resumed");
    let mut claimed = taken(waiting.await.expect("no panic").expect("answered"));
    if claimed.len() < 2 {
        claimed.push(site.claim_one().await);
    }
    let mut ids: Vec<JobId> = claimed.iter().map(|found| found.job.id.clone()).collect();
    ids.sort();
    assert_eq!(ids, [early, late]);
}

async fn what_runs_goes_on_while_its_queue_is_paused(site: Site) {
    site.submit(new_job()).await;
    let claimed = site.claim_one().await;
    pause(&site.manager).await;
    site.beat(&claimed).await.expect("heard");
    let again = site.finish(&claimed, failed(true)).await.expect("accepted");
    site.clock.advance(again.job.run_at.since(site.clock.now()));
    assert!(site.claim(claim(1)).await.is_empty(), "its next attempt waits as well");
    site.manager.resume(&queue()).await.expect("resumed");
    let claimed = site.claim_one().await;
    site.finish(&claimed, completed("1")).await.expect("accepted");
}

async fn a_pause_outlives_its_manager_and_holds_for_the_first_claim_of_the_next(site: Site) {
    site.submit(new_job()).await;
    pause(&site.manager).await;
    site.engine.settle().await;
    let next = site.another_manager();
    assert!(taken(next.claim(claim(1)).await.expect("answered")).is_empty());
    next.resume(&queue()).await.expect("resumed");
    let claimed = next.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await.expect("answered");
    assert_eq!(taken(claimed).len(), 1);
}

async fn a_queue_keeps_who_paused_it_since_when_and_why(site: Site) {
    let since = site.clock.now();
    pause(&site.manager).await;
    site.clock.advance(Duration::from_secs(60));
    let other = Caller::system("other");
    site.manager.pause(&other, &queue(), None).await.expect("paused already");
    let status = site.manager.queue(&queue()).await.expect("answered");
    let kept = status.pause.expect("paused");
    assert_eq!((kept.since, kept.by, kept.reason.as_deref()), (since, caller().name, Some("repairs")));
    let listed = site.manager.queues().await.expect("answered");
    assert_eq!(listed.len(), 1, "a queue with settings is listed without any job");
    site.manager.resume(&queue()).await.expect("resumed");
    site.manager.resume(&queue()).await.expect("resumed already");
    assert!(site.manager.queues().await.expect("answered").is_empty());
}

async fn a_queues_rule_for_orphans_is_kept_and_removed(site: Site) {
    site.manager.know_queues().await.expect("listed");
    assert_eq!(site.manager.orphan_policy_of(&queue()), None);
    pause(&site.manager).await;
    let set = site.manager.set_orphan_policy(&queue(), Some(OrphanPolicy::Flag)).await.expect("set");
    assert!(set.paused.is_some(), "what else is set stays");
    site.manager.resume(&queue()).await.expect("resumed");
    assert_eq!(site.manager.orphan_policy_of(&queue()), Some(OrphanPolicy::Flag));
    site.engine.settle().await;
    let other = site.another_manager();
    other.know_queues().await.expect("listed");
    assert_eq!(other.orphan_policy_of(&queue()), Some(OrphanPolicy::Flag));
    site.manager.set_orphan_policy(&queue(), None).await.expect("removed");
    assert_eq!(site.manager.orphan_policy_of(&queue()), None);
}

async fn a_job_that_needs_more_than_is_offered_waits_for_a_worker_that_has_it(site: Site) {
    let memory = |amount: u64| BTreeMap::from([("memory_mib".to_owned(), amount)]);
    let large = NewJob::of(JobSpec { resources: memory(4096), priority: Priority::new(9).expect("ok"), ..spec() });
    let large = site.submit(large).await.versioned.job.id.clone();
    let small = site.submit(NewJob::of(JobSpec { resources: memory(512), ..spec() })).await.versioned.job.id.clone();
    let offering = |amount: u64| ClaimRequest { resources: memory(amount), wait: PATIENCE, ..claim(10) };
    let ids = |claimed: Vec<Versioned>| claimed.iter().map(|found| found.job.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(site.claim(offering(1024)).await), [small]);
    assert!(site.claim(ClaimRequest { wait: Duration::ZERO, ..offering(1024) }).await.is_empty());
    assert_eq!(ids(site.claim(offering(4096)).await), [large]);
}

async fn a_job_that_requires_a_label_waits_for_the_worker_that_offers_it_and_others_overtake_it(site: Site) {
    let requires = || ["hw = fpga", "build >= 42"].map(|text| text.parse().expect("a requirement")).to_vec();
    let conditions = || Conditions { requires: requires(), ..Conditions::default() }.stored();
    let picky = || JobSpec { conditions: conditions(), priority: Priority::new(9).expect("ok"), ..spec() };
    let first = site.submit(NewJob::of(picky())).await.versioned.job.id.clone();
    let second = site.submit(new_job()).await.versioned.job.id.clone();
    let offering = |build: &str| {
        let labels = [("hw", "fpga"), ("build", build)].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        ClaimRequest { labels, wait: PATIENCE, ..claim(10) }
    };
    let ids = |claimed: Vec<Versioned>| claimed.iter().map(|found| found.job.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(site.claim(ClaimRequest { wait: PATIENCE, ..claim(10) }).await), std::slice::from_ref(&second));
    assert!(site.claim(ClaimRequest { wait: Duration::ZERO, ..offering("41") }).await.is_empty());
    let why = site.manager.explain(&first).await.expect("explained");
    assert_eq!((why.runnable, why.reasons[0].code.as_str()), (true, "requirements_not_met"));
    assert!(why.reasons[0].message.ends_with(" offers build >= 42."), "{why:?}");
    let claimed = site.claim(offering("43")).await.remove(0);
    assert_eq!((&claimed.job.id, claimed.job.spec.requires()), (&first, &requires()[..]));

    // A new job goes to the claim that offers what it requires, whoever has waited longer.
    let any = waiting_claim(&site.manager);
    until("a waiting claim", async || site.manager.waiting_claims() == 1).await;
    let (manager, request) = (site.manager.clone(), offering("43"));
    let fpga = tokio::spawn(async move { manager.claim(request).await });
    until("both wait", async || site.manager.waiting_claims() == 2).await;
    let third = site.submit(NewJob::of(picky())).await.versioned.job.id.clone();
    let given = fpga.await.expect("no panic").expect("answered");
    assert_eq!(given.jobs().iter().map(|view| &view.versioned.job.id).collect::<Vec<_>>(), [&third]);
    given.delivered();
    site.submit(new_job()).await;
    any.await.expect("no panic").expect("answered").delivered();
}

fn of_kind(name: &str, priority: i64) -> NewJob {
    let spec = JobSpec::new(queue(), Kind::new(name).expect("a name"));
    NewJob::of(JobSpec { priority: Priority::new(priority).expect("ok"), ..spec })
}

fn taking(kinds: &[&str], max_jobs: usize) -> ClaimRequest {
    let kinds = kinds.iter().map(|name| Kind::new(name).expect("a name")).collect();
    ClaimRequest { kinds, ..claim(max_jobs) }
}

async fn a_claim_takes_only_jobs_of_the_kinds_that_it_names_and_others_wait_for_who_takes_theirs(site: Site) {
    let mail = site.submit(of_kind("mail", 9)).await.versioned.job.id.clone();
    let report = site.submit(of_kind("report", 0)).await.versioned.job.id.clone();
    let ids = |claimed: Vec<Versioned>| claimed.iter().map(|found| found.job.id.clone()).collect::<Vec<_>>();
    let reports = || ClaimRequest { wait: PATIENCE, ..taking(&["other", "report"], 10) };
    assert_eq!(ids(site.claim(reports()).await), [report]);
    let why = site.manager.explain(&mail).await.expect("explained");
    assert_eq!((why.runnable, why.reasons[0].code.as_str()), (true, "kind_not_taken"), "{why:?}");
    let seen = only(&site.manager, "w").await.expect("known");
    assert_eq!(seen.kinds, reports().kinds);
    assert!(site.claim(taking(&["report"], 10)).await.is_empty());

    // A new job goes to the claim that takes its kind, whoever has waited longer, and with the end of another job.
    let waiting = |request: ClaimRequest| {
        let manager = site.manager.clone();
        tokio::spawn(async move { manager.claim(request).await })
    };
    let other = waiting(ClaimRequest { wait: PATIENCE, ..taking(&["other"], 1) });
    until("a waiting claim", async || site.manager.waiting_claims() == 1).await;
    let first = waiting(ClaimRequest { wait: PATIENCE, ..taking(&["report"], 1) });
    until("both wait", async || site.manager.waiting_claims() == 2).await;
    let second = site.submit(of_kind("report", 0)).await.versioned.job.id.clone();
    let given = taken(first.await.expect("no panic").expect("answered")).remove(0);
    assert_eq!(given.job.id, second);
    let finish = Finish { id: second, fence: given.job.fence, outcome: completed("1") };
    let next = ClaimRequest { wait: PATIENCE, ..taking(&["mail", "report"], 9) };
    let (ended, claimed) = site.manager.finish_and_claim(&worker("w"), vec![finish], next).await;
    assert!(ended.iter().all(Result::is_ok));
    assert_eq!(ids(taken(claimed.expect("answered"))), [mail]);
    let last = site.submit(of_kind("other", 0)).await.versioned.job.id.clone();
    assert_eq!(ids(taken(other.await.expect("no panic").expect("answered"))), [last]);

    // A repeated call gets the jobs of the first answer.
    let again = site.submit(of_kind("mail", 0)).await.versioned.job.id.clone();
    let named = || ClaimRequest { kinds: taking(&["mail"], 1).kinds, wait: PATIENCE, ..named("call") };
    assert_eq!(ids(site.claim(named()).await), std::slice::from_ref(&again));
    site.submit(of_kind("mail", 0)).await;
    assert_eq!(ids(site.claim(ClaimRequest { repeated: true, ..named() }).await), [again]);
}

async fn a_job_of_a_rare_kind_starts_behind_any_number_of_others_of_its_queue(site: Site) {
    /// More than this manager keeps of a queue.
    const USUAL: usize = 1_000;
    let (store, clock) = (Arc::clone(&site.store), Arc::clone(&site.clock) as Arc<dyn Clock>);
    let manager = Manager::start(store, clock, ManagerConfig { candidates_per_queue: 100, ..config() });
    let submit = async |jobs: Vec<NewJob>| {
        let submitted = manager.submit(&caller(), jobs).await;
        submitted.into_iter().map(|job| job.expect("taken").job.versioned.job.id.clone()).collect::<Vec<_>>()
    };
    submit(vec![of_kind("usual", 9); USUAL]).await;
    let rare = submit(vec![of_kind("rare", 0); 3]).await;
    site.engine.settle().await;
    let claim = async |kinds: &[&str], max_jobs: usize| {
        let claimed = manager.claim(ClaimRequest { wait: PATIENCE, ..taking(kinds, max_jobs) }).await;
        taken(claimed.expect("answered")).into_iter().map(|job| job.job.id.clone()).collect::<Vec<_>>()
    };
    let mut found = claim(&["rare"], 2).await;
    found.extend(claim(&["rare", "none"], 2).await);
    found.sort();
    let mut all = rare.clone();
    all.sort();
    assert_eq!(found, all);
    // One that is submitted while the claim waits starts as well.
    let waiting = {
        let manager = manager.clone();
        let request = ClaimRequest { wait: PATIENCE, ..taking(&["rare"], 1) };
        tokio::spawn(async move { manager.claim(request).await })
    };
    until("a waiting claim", async || manager.waiting_claims() == 1).await;
    let late = submit(vec![of_kind("rare", -5)]).await;
    let given = taken(waiting.await.expect("no panic").expect("answered"));
    assert_eq!(given.iter().map(|job| job.job.id.clone()).collect::<Vec<_>>(), late);
    let mut usual = 0;
    while usual < USUAL {
        let some = claim(&[], 200).await;
        assert!(!some.is_empty());
        usual += some.len();
    }
    assert_eq!(usual, USUAL, "each once");
    manager.shutdown().await;
}

async fn a_waiting_job_says_how_many_go_before_it_and_that_nobody_asks(site: Site) {
    let job = |priority: i64| NewJob::of(JobSpec { priority: Priority::new(priority).expect("ok"), ..spec() });
    let last = site.submit(job(-1)).await.versioned.job.id.clone();
    for _ in 0..3 {
        site.submit(job(1)).await;
    }
    site.submit(job(-2)).await;
    let later = site.clock.now().plus(Duration::from_secs(60));
    site.submit(NewJob { run_at: Some(later), ..job(9) }).await;
    site.engine.settle().await;
    let why = site.manager.explain(&last).await.expect("explained");
    let codes: Vec<&str> = why.reasons.iter().map(|reason| reason.code.as_str()).collect();
    assert_eq!((why.runnable, codes), (true, vec!["no_worker_since_start", "jobs_ahead"]));
    assert_eq!(why.reasons[1].evidence["ahead"], 3, "those that are not due do not count");
    let none = site.manager.explain(&JobId::new("none").expect("a name")).await;
    assert!(matches!(none, Err(ManagerError::NotFound(_))), "{none:?}");
}

async fn a_job_says_how_it_is_doing_in_every_state(site: Site) {
    let first_code = async |id: &JobId| site.manager.explain(id).await.expect("explained").reasons[0].code.clone();
    let id = site.submit(NewJob::of(JobSpec { max_attempts: 2, ..spec() })).await.versioned.job.id.clone();
    let claimed = site.claim_one().await;
    assert_eq!(first_code(&id).await, "running");
    let again = site.finish(&claimed, failed(true)).await.expect("accepted");
    assert_eq!(first_code(&id).await, "waiting_for_retry");
    site.clock.advance(again.job.run_at.since(site.clock.now()));
    pause(&site.manager).await;
    assert_eq!(first_code(&id).await, "queue_paused");
    site.manager.resume(&queue()).await.expect("resumed");
    let claimed = site.claim_one().await;
    site.clock.advance(LEASE);
    let why = site.manager.explain(&id).await.expect("explained");
    assert_eq!(why.reasons.iter().map(|reason| reason.code.as_str()).collect::<Vec<_>>(), ["running", "lease_expired"]);
    site.finish(&claimed, failed(true)).await.expect("accepted");
    let why = site.manager.explain(&id).await.expect("explained");
    assert_eq!((why.state, why.reasons[0].code.as_str()), (JobState::Failed, "failed"));
    assert!(why.reasons[0].message.contains("exit status 1"), "{why:?}");
}

async fn jobs_that_ended_count_for_their_queue_for_as_long_as_the_window_lasts(site: Site) {
    for outcome in [completed("1"), completed("2"), failed(false)] {
        site.submit(new_job()).await;
        let claimed = site.claim_one().await;
        site.finish(&claimed, outcome).await.expect("accepted");
    }
    site.engine.settle().await;
    let ended = async || {
        let status = site.manager.queue(&queue()).await.expect("answered");
        status.throughput.iter().map(|ended| (ended.completed, ended.failed)).collect::<Vec<_>>()
    };
    assert_eq!(ended().await, [(2, 1); 3]);
    site.clock.advance(Duration::from_secs(120));
    assert_eq!(ended().await, [(0, 0), (2, 1), (2, 1)]);
    let listed = site.manager.queues().await.expect("answered");
    let completed: Vec<u64> = listed[0].throughput.iter().map(|ended| ended.completed).collect();
    assert_eq!(completed, [0, 2, 2]);
    site.clock.advance(Duration::from_secs(1_000));
    assert_eq!(ended().await, [(0, 0); 3]);
}

/// Returns what a manager knows of the worker of this name.
async fn only(manager: &Manager, name: &str) -> Option<Worker> {
    let found = manager.workers(Some(&worker(name)), SeenElsewhere::default()).await;
    found.expect("answered").workers.pop()
}

async fn workers_are_known_by_what_they_ask_and_by_their_leases(site: Site) {
    let start = site.clock.now();
    for _ in 0..2 {
        site.submit(new_job()).await;
    }
    site.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await;
    site.clock.advance(Duration::from_secs(10));
    let second = site.claim(ClaimRequest { wait: PATIENCE, ..claim(1) }).await.pop().expect("a job");
    site.beat(&second).await.expect("heard");
    site.claim(ClaimRequest { worker_id: worker("idle"), ..claim(1) }).await;
    site.engine.settle().await;
    let found = site.manager.workers(None, SeenElsewhere::default()).await.expect("answered");
    assert_eq!(found.workers.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(), ["idle", "w"]);
    let leases = |worker: &Worker| (worker.running, worker.oldest_heartbeat_at, worker.lease_expires_at);
    assert!(!found.truncated);
    assert_eq!(leases(&found.workers[0]), (0, None, None));
    let busy = &found.workers[1];
    assert_eq!((busy.last_claim_at, &busy.queues[..]), (Some(start.plus(Duration::from_secs(10))), &[queue()][..]));
    assert_eq!(leases(busy), (2, Some(start), Some(start.plus(LEASE))));
    let elsewhere = only(&site.another_manager(), "w").await.expect("it runs jobs");
    assert_eq!((elsewhere.last_seen_at, elsewhere.last_claim_at, elsewhere.waiting), (None, None, false));
    assert_eq!((leases(&elsewhere), elsewhere.queues.is_empty()), (leases(busy), true));
    assert_eq!(only(&site.manager, "nobody").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn elasticsearch_what_one_manager_sets_for_a_queue_holds_at_the_others() {
    let site = Site::on(engines::elasticsearch().await, config()).await;
    let other = site.another_manager();
    other.know_queues().await.expect("listed");
    let paused_there = async || other.queue(&queue()).await.expect("answered").paused;
    pause(&site.manager).await;
    until("the other manager's hearing of the pause", paused_there).await;
    let waiting = waiting_claim(&other);
    until("a waiting claim", async || other.waiting_claims() == 1).await;
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    site.engine.settle().await;
    assert!(taken(other.claim(claim(1)).await.expect("answered")).is_empty());
    assert_eq!(other.waiting_claims(), 1);
    site.manager.resume(&queue()).await.expect("resumed");
    let claimed = taken(waiting.await.expect("no panic").expect("answered"));
    assert_eq!(claimed.iter().map(|found| found.job.id.clone()).collect::<Vec<_>>(), [id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn elasticsearch_a_queue_is_as_it_was_last_set_also_where_answers_are_lost() {
    let server = servers::elasticsearch().await;
    let faults = Faults { one_in: 3, seed: seed::any(), kinds: vec![Fault::Swallow, Fault::Reset] };
    let proxy = FaultProxy::start(server.url(), faults).await;
    let options = |url: &str, prefix: &str| ElasticsearchOptions {
        urls: vec![url.to_owned()],
        index_prefix: prefix.to_owned(),
        ..ElasticsearchOptions::default()
    };
    let set = server.index_set().await;
    let clean = connect(options(set.url(), set.prefix())).await;
    let hasty = ElasticsearchOptions {
        // Short, so that some outcomes stay unknown to the store and are the manager's to find out.
        request_timeout: Duration::from_millis(500),
        write_timeout: Duration::from_millis(700),
        ..options(&proxy.url(), set.prefix())
    };
    let store = connect(hasty).await;
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
    let start =
        |store: ElasticsearchStore| Manager::start(Arc::new(store), Arc::clone(&clock) as Arc<dyn Clock>, config());
    let (manager, onlooker) = (start(store), start(clean));
    proxy.inject(true);
    // Until enough answers were spoiled, in each way.
    let enough = |proxy: &FaultProxy| proxy.counts().swallowed >= 3 && proxy.counts().reset >= 3;
    for round in 0.. {
        let paused = round % 2 == 0;
        if round >= 6 && enough(&proxy) {
            break;
        }
        assert!(round < 200, "too few answers were spoiled: {:?}", proxy.counts());
        until("a change that is acknowledged", async || match paused {
            true => manager.pause(&caller(), &queue(), None).await.is_ok(),
            false => manager.resume(&queue()).await.is_ok(),
        })
        .await;
        // A change that is acknowledged is the truth for one who sets something else.
        let seen = onlooker.set_orphan_policy(&queue(), Some(OrphanPolicy::ALL[round % 3])).await.expect("set");
        assert_eq!(seen.paused.is_some(), paused, "round {round}");
    }
}
