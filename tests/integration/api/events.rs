//! The stream of events, as it travels.

use futures::StreamExt;
use leasehold::api::Limits;
use leasehold::api::access::{Access, Role, Token, token_hash};
use leasehold::client::{Client, EventMessage, EventQuery};
use leasehold::job::{Actor, EventName};
use leasehold::wire::{CompleteJob, SubmitJob};
use reqwest::Response;
use tokio::time::timeout;

use super::server::{SOON, Server, Setup, WORKER, problem};
use crate::program::{self, Engine};

/// Reads until the stream has said this, and gives all that it has said.
pub(super) async fn read_until(stream: &mut Response, end: &str) -> String {
    let mut said = String::new();
    while !said.contains(end) {
        let chunk = timeout(SOON, stream.chunk()).await.expect("in time").expect("the connection holds");
        said.push_str(std::str::from_utf8(&chunk.expect("the stream goes on")).expect("text"));
    }
    said
}

/// The id of the message of this kind.
fn id_of(said: &str, event: &str) -> String {
    let message = said.split("\n\n").find(|message| message.contains(&format!("event: {event}\n"))).expect("said");
    let id = message.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id");
    id.to_owned()
}

async fn complete(server: &Server, queue: &str) -> String {
    let job = server.running(queue).await;
    let done = CompleteJob { worker_id: WORKER.to_owned(), fence: job.fence, result: None, next: None };
    server.client().complete(&job.id, &done).await.expect("completed").id.into_owned()
}

#[tokio::test]
async fn a_stream_goes_on_after_the_id_that_is_shown() {
    let server = Server::start().await;
    let mut stream = reqwest::get(server.url("/v1/events")).await.expect("an answer");
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let begun = read_until(&mut stream, "event: live").await;
    assert!(begun.starts_with("retry: 1000\n\n"), "{begun}");
    let job = complete(&server, "q").await;
    let said = read_until(&mut stream, "event: completed\ndata: {").await;
    let (submitted, completed) = (id_of(&said, "submitted"), id_of(&format!("{said}\n\n"), "completed"));
    let message = said.split("\n\n").find(|message| message.contains("event: submitted")).expect("a message");
    let data = message.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
    let data: serde_json::Value = serde_json::from_str(data).expect("json");
    assert_eq!((&data["job"]["id"], &data["number"]), (&job.as_str().into(), &1.into()));
    assert_eq!((&data["event"], &data["job"]["state"]), (&"submitted".into(), &"available".into()));

    let http = reqwest::Client::new();
    let by_header = http.get(server.url(&format!("/v1/events?last_event_id={completed}")));
    for request in [
        by_header.header("last-event-id", &submitted),
        http.get(server.url(&format!("/v1/events?last_event_id={submitted}"))),
    ] {
        let said = read_until(&mut request.send().await.expect("an answer"), "event: live").await;
        assert!(!said.contains("event: submitted"), "it was seen before: {said}");
        assert!(said.find("event: claimed").expect("claimed") < said.find("event: completed").expect("completed"));
    }
}

#[tokio::test]
async fn only_what_is_asked_for_comes() {
    let server = Server::start().await;
    let query =
        EventQuery { events: vec![EventName::Completed], queues: vec!["a,b".to_owned()], ..EventQuery::default() };
    let mut stream = server.client().events(query);
    assert_eq!(stream.next().await.expect("a message").expect("connected"), EventMessage::Live);
    complete(&server, "other").await;
    let wanted = complete(&server, "a,b").await;
    let told = timeout(SOON, stream.next()).await.expect("in time").expect("a message").expect("connected");
    assert!(matches!(&told, EventMessage::Event { event, .. } if event.job.id == wanted), "{told:?}");
    for wrong in ["event=done", "queue=", "last_event_id=7", "since=yesterday", "state=failed", "since=1&since=2"] {
        let answer = reqwest::get(server.url(&format!("/v1/events?{wrong}"))).await.expect("an answer");
        assert_eq!(problem(answer).await.status, 422, "{wrong}");
    }
    let answer = reqwest::Client::new().get(server.url("/v1/events")).header("last-event-id", "x").send().await;
    assert_eq!(problem(answer.expect("an answer")).await.errors[0].field, "Last-Event-ID");
}

#[tokio::test]
async fn who_may_not_read_hears_nothing() {
    let token = |name, role, secret| Token {
        name: Actor::new(name).expect("a name"),
        roles: [role].into(),
        sha256: token_hash(secret),
        may_edit_others: false,
    };
    let tokens = vec![token("reader", Role::Read, "r"), token("worker", Role::Work, "w")];
    let access = Access::new(tokens).expect("tokens");
    let server = Server::start_with(Setup { access, ..Setup::default() }).await;
    for (token, code) in [(None, "unauthorized"), (Some("w"), "forbidden")] {
        let mut refused = server.client_with(token).events(EventQuery::default());
        let error = refused.next().await.expect("an answer").expect_err("refused");
        assert_eq!(error.code(), Some(code));
        assert!(refused.next().await.is_none(), "and that is its end");
    }
    let mut heard = server.client_with(Some("r")).events(EventQuery::default());
    assert_eq!(heard.next().await.expect("a message").expect("allowed"), EventMessage::Live);
}

#[tokio::test]
async fn more_streams_than_the_server_takes_are_refused_and_room_comes_back() {
    let limits = Limits { event_streams: 1, ..Limits::default() };
    let server = Server::start_with(Setup { limits, ..Setup::default() }).await;
    let mut first = reqwest::get(server.url("/v1/events")).await.expect("an answer");
    read_until(&mut first, "event: live").await;
    let refused = problem(reqwest::get(server.url("/v1/events")).await.expect("an answer")).await;
    assert_eq!((refused.status, refused.code.as_str()), (503, "overloaded"));
    drop(first);
    let patient = server.client().with_max_retries(50);
    let mut second = patient.events(EventQuery::default());
    let told = timeout(SOON, second.next()).await.expect("in time").expect("a message").expect("there is room again");
    assert_eq!(told, EventMessage::Live);
}

#[tokio::test]
async fn a_server_told_to_end_ends_its_streams_at_once() {
    let limits = Limits { drain_within: 10 * SOON, ..Limits::default() };
    let server = Server::start_with(Setup { limits, ..Setup::default() }).await;
    let mut stream = reqwest::get(server.url("/v1/events")).await.expect("an answer");
    read_until(&mut stream, "event: live").await;
    server.shut_down();
    let ended = timeout(SOON, stream.chunk()).await.expect("in time").expect("in good order");
    assert_eq!(ended, None);
    server.ended().await;
}

/// Reads events until the one of this job comes. None may come twice.
async fn until_job(
    stream: &mut (impl futures::Stream<Item = Result<EventMessage, leasehold::client::ClientError>> + Unpin),
    job: &str,
    seen: &mut Vec<(String, u32)>,
) {
    loop {
        let told = timeout(3 * SOON, stream.next()).await.expect("in time").expect("it goes on").expect("connected");
        match told {
            EventMessage::Event { event, .. } => {
                let name = (event.job.id.clone(), event.number);
                assert!(!seen.contains(&name), "{name:?} came twice");
                seen.push(name);
                if event.job.id == job {
                    return;
                }
            }
            EventMessage::Gap => panic!("nothing should be missing"),
            EventMessage::Live | EventMessage::Interrupted { .. } => {}
        }
    }
}

async fn submit(client: &Client, id: &str) {
    let job = SubmitJob { id: Some(id.to_owned()), ..SubmitJob::new("q", "k") };
    client.submit(&job).await.expect("submitted");
}

#[tokio::test]
async fn a_stream_outlives_a_server_that_is_killed() {
    let place = tempfile::tempdir().expect("a directory");
    let mut server =
        program::Server::start(Engine::Embedded(place.path().join("data")), &place.path().join("log")).await;
    let client = Client::new(&server.url(), None).expect("a client");
    let mut stream = client.events(EventQuery::default());
    assert_eq!(stream.next().await.expect("a message").expect("connected"), EventMessage::Live);
    let mut seen = Vec::new();
    submit(&client, "before").await;
    until_job(&mut stream, "before", &mut seen).await;
    // Told by the server that is killed, and not read: the next one has to tell of it.
    submit(&client, "unread").await;
    server.kill_and_restart().await;
    submit(&client, "after").await;
    until_job(&mut stream, "after", &mut seen).await;
    if !seen.iter().any(|(id, _)| id == "unread") {
        until_job(&mut stream, "unread", &mut seen).await;
    }
    let mut late =
        client.events(EventQuery { jobs: vec!["unread".to_owned()], since: Some(long_ago()), ..EventQuery::default() });
    until_job(&mut late, "unread", &mut Vec::new()).await;
}

fn long_ago() -> leasehold::clock::Timestamp {
    leasehold::clock::Timestamp::from_millis(1)
}

#[tokio::test]
async fn servers_of_one_store_tell_of_each_others_jobs_and_take_over_each_others_streams() {
    let place = tempfile::tempdir().expect("a directory");
    let engine = Engine::elasticsearch().await;
    let mut one = program::Server::start(engine.clone(), &place.path().join("one")).await;
    let other = program::Server::start(engine, &place.path().join("other")).await;
    let client = |server: &program::Server| Client::new(&server.url(), None).expect("a client");
    let (here, there) = (client(&one), client(&other));
    let mut stream = here.events(EventQuery::default());
    assert_eq!(stream.next().await.expect("a message").expect("connected"), EventMessage::Live);
    submit(&there, "elsewhere").await;
    let last_event_id = loop {
        match timeout(SOON, stream.next()).await.expect("in time").expect("it goes on").expect("connected") {
            EventMessage::Event { id, event } if event.job.id == "elsewhere" => break id,
            EventMessage::Event { .. } | EventMessage::Live => {}
            other => panic!("{other:?}"),
        }
    };
    submit(&here, "missed").await;
    drop(stream);
    one.kill();
    let mut moved = there.events(EventQuery { last_event_id: Some(last_event_id), ..EventQuery::default() });
    until_job(&mut moved, "missed", &mut Vec::new()).await;
}
