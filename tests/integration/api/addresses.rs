//! The client with several servers, some of which cannot serve.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use leasehold::client::{Client, ClientError, EventMessage, EventQuery, JobQuery};
use leasehold::store::Store;
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::wire::{ClaimJobs, JobState, SubmitJob};
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::schedules::line;
use super::server::{SOON, Server, Setup, claim};
use crate::servers::ports;

/// How long a caller waits for a server that hangs: longer than one that serves may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// A server that cannot serve.
struct Trouble {
    url: String,
    /// The requests that it has read.
    heard: Arc<Mutex<Vec<String>>>,
}

impl Trouble {
    /// Starts a server that reads each request and answers with these bytes, or breaks the connection without any.
    async fn answering(answer: String) -> Self {
        Self::start(Some(answer)).await
    }

    /// Starts a server that breaks the connection instead of answering.
    async fn breaking() -> Self {
        Self::answering(String::new()).await
    }

    /// Starts a server that never answers.
    async fn hanging() -> Self {
        Self::start(None).await
    }

    async fn start(answer: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let requests = Arc::clone(&heard);
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 8192];
                let read = stream.read(&mut request).await.unwrap_or_default();
                if read == 0 {
                    continue;
                }
                requests.lock().push(String::from_utf8_lossy(&request[..read]).into_owned());
                match &answer {
                    Some(answer) => drop(stream.write_all(answer.as_bytes()).await),
                    None => open.push(stream),
                }
            }
        });
        Self { url, heard }
    }

    /// Waits until it has read a request, and for so long after that.
    async fn hangs_for(&self, time: Duration) {
        while self.heard() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(time).await;
    }

    fn heard(&self) -> usize {
        self.heard.lock().len()
    }
}

fn status(line: &str, body: &str) -> String {
    format!("HTTP/1.1 {line}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

/// An answer of a proxy, which does not say whether a server has heard the call.
fn proxy(line: &str) -> String {
    status(line, "<html>later</html>")
}

/// The answer of a server that has not carried out the call.
fn overloaded() -> String {
    let problem = json!({
        "type": "urn:leasehold:problem:overloaded", "title": "Overloaded", "status": 503, "detail": "too much to do",
        "code": "overloaded",
    });
    status("503 Service Unavailable", &problem.to_string())
}

/// The address of nobody.
fn nobody() -> String {
    format!("http://127.0.0.1:{}", ports::free())
}

/// A client that tries each server once.
fn client(urls: &[&str]) -> Client {
    Client::with_servers(urls, None).expect("a client").with_max_retries(0)
}

#[tokio::test]
async fn a_call_goes_on_until_a_server_serves_and_the_next_one_begins_there() {
    let server = Server::start().await;
    let broken = Trouble::breaking().await;
    let busy = Trouble::answering(overloaded()).await;
    let gateways = [
        Trouble::answering(proxy("502 Bad Gateway")).await,
        Trouble::answering(proxy("503 Service Unavailable")).await,
        Trouble::answering(proxy("504 Gateway Timeout")).await,
    ];
    let (refusing, real) = (nobody(), server.url(""));
    let [one, two, three] = [0, 1, 2].map(|number| gateways[number].url.as_str());
    let client = client(&[&refusing, &broken.url, &busy.url, one, two, three, &real]);
    let job = client.submit(&SubmitJob::new("q", "k")).await.expect("the last one takes it");
    let troubles = || [&broken, &busy].into_iter().chain(&gateways).map(Trouble::heard).collect::<Vec<_>>();
    assert_eq!(troubles(), [1; 5]);
    assert_eq!(client.clone().job(&job.id).await.expect("the job").id, job.id);
    client.retry(&job.id, None).await.expect_err("an answer of the server's, and no reason to go on");
    assert_eq!(troubles(), [1; 5], "nobody is asked in vain again");
    let all = client.jobs(&JobQuery::default()).await.expect("a list").items;
    assert_eq!(all.len(), 1, "each server was given the same id");
}

#[tokio::test]
async fn a_call_that_may_have_been_heard_is_made_at_another_server_only_where_that_does_no_harm() {
    let server = Server::start().await;
    for answer in [String::new(), proxy("502 Bad Gateway"), proxy("503 Service Unavailable")] {
        let trouble = Trouble::answering(answer).await;
        let client = || Client::with_servers(&[&trouble.url, &server.url("")], None).expect("a client");
        let failed = client().retry("x", None).await.expect_err("it is not known whether it was heard");
        let text = failed.to_string();
        assert!(failed.code().is_none() && text.contains(&trouble.url) && !text.contains(&server.url("")), "{text}");
        assert!(client().claim(&claim("q")).await.is_err(), "it might take twice as many jobs");
        assert_eq!(trouble.heard(), 2);
        let missing = client().job("x").await.expect_err("there is no such job");
        assert_eq!((missing.code(), trouble.heard()), (Some("not_found"), 3), "a read goes on");
    }
    // Nobody has heard of these calls.
    let busy = Trouble::answering(overloaded()).await;
    for url in [&nobody(), &busy.url] {
        let missing = client(&[url, &server.url("")]).retry("x", None).await.expect_err("there is no such job");
        assert_eq!(missing.code(), Some("not_found"), "{missing}");
    }
}

#[tokio::test]
async fn an_error_names_every_server_that_was_tried() {
    let (refusing, broken, busy) = (nobody(), Trouble::breaking().await, Trouble::answering(overloaded()).await);
    let client = client(&[&refusing, &broken.url, &busy.url]).with_max_retries(1);
    let failed = client.job("x").await.expect_err("no server serves");
    let said = failed.to_string();
    for url in [&refusing, &broken.url, &busy.url] {
        assert_eq!(said.matches(url.as_str()).count(), 1, "{said}");
    }
    assert!(said.contains("too much to do") && said.lines().count() == 1, "{said}");
    assert_eq!((broken.heard(), busy.heard()), (2, 2), "each is tried as often as a single one");
    let ClientError::Servers(failures) = failed else { panic!("{failed:?}") };
    assert!(matches!(failures[0].error, ClientError::Connect(_)), "{failures:?}");
}

#[tokio::test]
async fn a_claim_is_made_at_the_next_server_under_its_name_and_said_to_be_repeated() {
    let (first, second) = (Trouble::breaking().await, Trouble::breaking().await);
    let named = ClaimJobs { request_id: Some("my-claim".to_owned()), ..claim("q") };
    client(&[&first.url, &second.url]).claim(&named).await.expect_err("no server serves");
    let (first, second) = (first.heard.lock(), second.heard.lock());
    assert!(first[0].contains("my-claim") && !first[0].contains("\"repeated\":true"), "{}", first[0]);
    assert!(second[0].contains("my-claim") && second[0].contains("\"repeated\":true"), "{}", second[0]);
}

#[tokio::test]
async fn a_server_that_hangs_is_passed_over_by_a_caller_that_has_given_it_up() {
    let (server, hanging) = (Server::start().await, Trouble::hanging().await);
    let client = client(&[&hanging.url, &server.url("")]);
    tokio::select! {
        answer = client.job("x") => panic!("it hangs: {answer:?}"),
        () = hanging.hangs_for(PATIENCE) => {}
    }
    let missing = timeout(SOON, client.job("x")).await.expect("an answer").expect_err("there is no such job");
    assert_eq!((missing.code(), hanging.heard()), (Some("not_found"), 1));
}

#[tokio::test]
async fn a_body_that_can_be_sent_once_goes_to_the_first_server_that_there_is() {
    let (server, refusing) = (Server::start().await, nobody());
    let lines = || stream::iter([Bytes::from(line("s", "a", &json!({})) + "\n")]);
    let two = client(&[&refusing, &server.url("")]);
    let mut answers = two.store_schedules(lines()).await.expect("an answer begins");
    let stored = answers.next().await.expect("an answer").expect("one item");
    assert_eq!((stored[0].status, stored[0].id.as_deref()), (201, Some("s")));

    let broken = Trouble::breaking().await;
    let failed = client(&[&broken.url, &server.url("")]).store_schedules(lines()).await.expect_err("it broke");
    assert!(failed.to_string().contains(&broken.url), "{failed}");
}

#[tokio::test]
async fn streams_begin_and_go_on_at_a_server_that_there_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = EmbeddedStore::open(directory.path(), &EmbeddedOptions::default()).expect("the store opens");
    let store: Arc<dyn Store> = Arc::new(store);
    let start = || Server::start_with(Setup { store: Some(Arc::clone(&store)), ..Setup::default() });
    let (first, second) = (start().await, start().await);
    let (refusing, one, other) = (nobody(), first.url(""), second.url(""));
    let client = client(&[&refusing, &one, &other]);
    let mut stream = client.events(EventQuery::default());
    assert_eq!(stream.next().await.expect("a message").expect("connected"), EventMessage::Live);
    client.submit(&SubmitJob { id: Some("early".to_owned()), ..SubmitJob::new("q", "k") }).await.expect("submitted");
    // Its streams end; what it still answers is that it stops.
    first.shut_down();
    client.submit(&SubmitJob { id: Some("late".to_owned()), ..SubmitJob::new("q", "k") }).await.expect("submitted");
    let mut seen = Vec::new();
    while seen.len() < 2 {
        match timeout(SOON, stream.next()).await.expect("in time").expect("it goes on").expect("a message") {
            EventMessage::Event { event, .. } => seen.push(event.job.id),
            EventMessage::Interrupted { why } => assert!(why.contains(&one), "{why}"),
            EventMessage::Gap | EventMessage::Live => {}
        }
    }
    seen.sort();
    assert_eq!(seen, ["early", "late"]);

    let fresh = Client::with_servers(&[&refusing, &one, &other], None).expect("a client").with_max_retries(0);
    let waiting = JobQuery { states: vec![JobState::Available], ..JobQuery::default() };
    let mut export = fresh.export(&waiting, &[]).await.expect("an export begins");
    let mut text = Vec::new();
    while let Some(part) = export.next().await.expect("it goes on") {
        text.extend_from_slice(&part);
    }
    assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 2);
}
