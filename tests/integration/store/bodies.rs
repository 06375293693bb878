//! Payloads and results, in the job's document and apart from it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::job::{Body, BodyRef, Job, NewBody, State};
use leasehold::store::Write;

use super::sample::{at, claimed, json, submitted};
use super::{Engine, conflict, create, get, remove, replace, write};

/// JSON that a store would change if it looked into it.
pub(crate) const TEXTS: &[&str] = &[
    "null",
    "true",
    "0",
    "-0.0",
    "1.0",
    "1e400",
    "12345678901234567890",
    "0.1000000000000000055511151231257827",
    "\"\"",
    "\"\\u00e9 \\ud83e\\udd80 \\/ é 🦀\"",
    "[]",
    "[1, 2 ,3]",
    "[null,[[]],{}]",
    "{ \"b\" : 1 , \"a\" : 2 }",
    "{\"a\":1,\"a\":2}",
    "{\"a.b\":{\"\":0},\"_id\":\"x\",\"@timestamp\":false}",
];

/// Keeps `text` apart from its job, however short it is.
fn apart(text: &str) -> (Body, NewBody) {
    let (body, stored) = Body::place(Some(json(text)), 0);
    (body, stored.expect("longer than nothing"))
}

fn with_payload(name: &str, payload: Body) -> Arc<Job> {
    Arc::new(Job { payload, ..(*submitted(name)).clone() })
}

/// Waits until the body is gone: it is cleared away after its job's write has been answered.
async fn goes(engine: &impl Engine, reference: BodyRef) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while is_kept(engine, reference).await {
        assert!(Instant::now() < deadline, "{reference:?} is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn is_kept(engine: &impl Engine, reference: BodyRef) -> bool {
    let found = engine.store().bodies(&[reference]).await.expect("readable");
    assert_eq!(found.len(), 1);
    found[0].is_some()
}

pub(crate) async fn inline_json_comes_back_to_the_letter(engine: &impl Engine) {
    for (number, text) in TEXTS.iter().enumerate() {
        let job = with_payload(&format!("live-{number}"), Body::Inline(json(text)));
        create(engine, &job).await;
        assert_eq!(get(engine, &job.id).await.map(|found| found.job.payload.clone()), Some(job.payload.clone()));

        let state = State::Completed { finished_at: at(1), result: Body::Inline(json(text)) };
        let job = Arc::new(Job { state, ..(*with_payload(&format!("done-{number}"), Body::Empty)).clone() });
        create(engine, &job).await;
        assert_eq!(get(engine, &job.id).await.map(|found| found.job.result().clone()), Some(job.result().clone()));
    }
}

pub(crate) async fn json_kept_apart_comes_back_to_the_letter(engine: &impl Engine) {
    let long = format!("[\"{}\"]", "long 🦀 ".repeat(100_000));
    for (number, text) in TEXTS.iter().copied().chain([long.as_str()]).enumerate() {
        let (payload, stored) = apart(text);
        let reference = stored.reference;
        let job = with_payload(&format!("job-{number}"), payload);
        write(engine, Write::Create { job, bodies: vec![stored] }).await.expect("a new job is created");
        assert_eq!(engine.store().bodies(&[reference]).await.expect("readable"), [Some(json(text))]);
    }
}

pub(crate) async fn bodies_come_in_the_order_asked_with_gaps(engine: &impl Engine) {
    let (payload, first) = apart("1");
    let (result, second) = apart("2");
    let (_, never) = apart("3");
    let state = State::Completed { finished_at: at(1), result };
    let job = Arc::new(Job { state, ..(*with_payload("a", payload)).clone() });
    let asked = [second.reference, never.reference, first.reference, second.reference];
    write(engine, Write::Create { job, bodies: vec![first, second] }).await.expect("a new job is created");

    let found = engine.store().bodies(&asked).await.expect("readable");

    assert_eq!(found, [Some(json("2")), None, Some(json("1")), Some(json("2"))]);
}

pub(crate) async fn a_body_goes_with_its_job(engine: &impl Engine) {
    let (payload, stored) = apart("{\"large\":true}");
    let reference = stored.reference;
    let job = with_payload("a", payload);
    let version = write(engine, Write::Create { job: Arc::clone(&job), bodies: vec![stored] }).await;
    assert!(is_kept(engine, reference).await);

    remove(engine, &job, version.expect("a new job is created")).await.expect("the version is current");

    goes(engine, reference).await;
}

pub(crate) async fn a_body_stays_while_its_job_refers_to_it(engine: &impl Engine) {
    let (payload, stored) = apart("{\"large\":true}");
    let reference = stored.reference;
    let job = with_payload("a", payload);
    let version = write(engine, Write::Create { job: Arc::clone(&job), bodies: vec![stored] }).await;
    let running = claimed(&job);
    let version = replace(engine, &running, version.expect("a new job is created")).await;

    let (result, stored) = apart("{\"done\":1}");
    let second = stored.reference;
    let done = Arc::new(Job { state: State::Completed { finished_at: at(1), result }, ..(*running).clone() });
    let expected = version.expect("the version is current");
    write(engine, Write::Replace { job: done, expected, bodies: vec![stored] }).await.expect("the version is current");

    assert!(is_kept(engine, reference).await);
    assert!(is_kept(engine, second).await);
}

pub(crate) async fn a_body_no_longer_referred_to_goes(engine: &impl Engine) {
    let (payload, first) = apart("1");
    let (result, second) = apart("2");
    let [kept, dropped] = [first.reference, second.reference];
    let waiting = with_payload("a", payload);
    let done = Arc::new(Job { state: State::Completed { finished_at: at(1), result }, ..(*waiting).clone() });
    let version = write(engine, Write::Create { job: done, bodies: vec![first, second] }).await;
    assert!(is_kept(engine, dropped).await);

    replace(engine, &waiting, version.expect("a new job is created")).await.expect("the version is current");

    goes(engine, dropped).await;
    assert!(is_kept(engine, kept).await);
}

pub(crate) async fn a_conflict_leaves_no_body(engine: &impl Engine) {
    let (payload, stored) = apart("\"first\"");
    let kept = stored.reference;
    let job = with_payload("a", payload);
    let first = write(engine, Write::Create { job: Arc::clone(&job), bodies: vec![stored] }).await;
    let first = first.expect("a new job is created");
    replace(engine, &claimed(&job), first).await.expect("the version is current");

    let (payload, stored) = apart("\"second\"");
    let created = stored.reference;
    let again = with_payload("a", payload);
    conflict(write(engine, Write::Create { job: again, bodies: vec![stored] }).await);
    let (result, stored) = apart("\"third\"");
    let replaced = stored.reference;
    let late = Arc::new(Job { state: State::Completed { finished_at: at(1), result }, ..(*job).clone() });
    conflict(write(engine, Write::Replace { job: late, expected: first, bodies: vec![stored] }).await);

    goes(engine, created).await;
    goes(engine, replaced).await;
    assert!(is_kept(engine, kept).await);
}
