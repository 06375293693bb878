use std::sync::Arc;

use super::*;
use crate::job::{Actor, Body, Conditions, JobSpec, Kind};
use crate::manager::request::ClaimOrder;

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

fn request(name: &str) -> ClaimRequest {
    ClaimRequest {
        worker_id: worker(name),
        bearer: None,
        queues: vec![QueueName::new("q").expect("a name")],
        max_jobs: 1,
        resources: Resources::new(),
        labels: Offers::new(),
        kinds: Vec::new(),
        wait: Duration::ZERO,
        lease: Duration::from_secs(1),
        order: ClaimOrder::default(),
        request_id: None,
        repeated: false,
    }
}

#[test]
fn one_who_waits_is_there_until_the_wait_ends() {
    let workers = Workers::default();
    let (then, now) = (Timestamp::from_millis(1), Timestamp::from_millis(9));
    workers.claims(&request("w"), then);
    let id = worker("w");
    let waits = workers.waits(&id);
    let seen = workers.of(&id, now).expect("seen");
    assert_eq!((seen.waiting, seen.last_seen_at), (true, Some(now)));
    drop(waits);
    let seen = workers.of(&id, now).expect("seen");
    assert_eq!((seen.waiting, seen.last_seen_at), (false, Some(then)));
}

#[test]
fn what_a_worker_said_last_holds_whichever_manager_it_told() {
    let (here, there) = (Workers::default(), Workers::default());
    let id = worker("w");
    let kinds = vec![Kind::new("k").expect("a name")];
    here.claims(&request("w"), Timestamp::from_millis(1));
    here.calls_by(&id, "old/1", Timestamp::from_millis(1));
    there.claims(&ClaimRequest { kinds: kinds.clone(), ..request("w") }, Timestamp::from_millis(2));
    there.calls_by(&id, &"é".repeat(300), Timestamp::from_millis(2));
    // A heartbeat is no claim.
    here.is_alive(&id, Timestamp::from_millis(3));
    let seen = [&here, &there].map(|workers| workers.all(Timestamp::from_millis(9)).remove(0));
    for order in [seen.clone(), [seen[1].clone(), seen[0].clone()]] {
        let mut both = Worker::named(id.clone());
        order.into_iter().for_each(|seen| both.add_seen(seen));
        assert_eq!((&both.kinds, both.user_agent.as_deref()), (&kinds, Some("é".repeat(200).as_str())));
        assert_eq!(both.last_seen_at, Some(Timestamp::from_millis(3)));
    }
}

#[test]
fn only_workers_whose_labels_meet_what_a_job_requires_count_as_able() {
    let workers = Workers::default();
    let now = Timestamp::from_millis(1);
    let offering = |name: &str, labels: &[(&str, &str)], gpus: u64| {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let resources = if gpus > 0 { [("gpus".to_owned(), gpus)].into() } else { Resources::new() };
        workers.claims(&ClaimRequest { labels, resources, ..request(name) }, now);
    };
    offering("none", &[], 0);
    offering("old", &[("hw", "fpga"), ("build", "41")], 8);
    let requires: Vec<Requirement> =
        ["hw = fpga", "build >= 42"].map(|text| text.parse().expect("a requirement")).to_vec();
    let spec = JobSpec {
        conditions: Conditions { requires: requires.clone(), ..Conditions::default() }.stored(),
        resources: [("gpus".to_owned(), 2)].into(),
        ..JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"))
    };
    let id = JobId::new("j").expect("an id");
    let job = Job::submit(id, Arc::new(spec), Body::Empty, (now, None), &Actor::system("ann"), now);
    let seen = workers.claimants(&job, now);
    assert_eq!((seen.lately, seen.able, seen.with_room, seen.unmet), (2, 0, 0, requires[1..].to_vec()));
    offering("new", &[("hw", "fpga"), ("build", "43")], 1);
    let seen = workers.claimants(&job, now);
    assert_eq!((seen.lately, seen.able, seen.with_room, seen.unmet), (3, 1, 0, Vec::new()));
    assert_eq!(seen.most_offered["gpus"], 1, "that of the able one");
}

#[test]
fn those_heard_of_longest_ago_are_forgotten_first() {
    let workers = Workers::default();
    let now = Timestamp::from_millis(1);
    workers.claims(&request("often"), now);
    for number in 0..3 * REMEMBERED {
        workers.claims(&request(&format!("w{number}")), now);
        workers.is_alive(&worker("often"), now);
    }
    assert!(workers.of(&worker("w0"), now).is_none());
    assert_eq!(workers.of(&worker("often"), now).and_then(|seen| seen.last_claim_at), Some(now));
    assert!(workers.all(now).len() <= 2 * REMEMBERED);
}
