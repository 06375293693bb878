//! The call that stores many schedules: lines as they come, and an answer to each.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use leasehold::api::Limits;
use leasehold::client::ScheduleQuery;
use leasehold::wire::{BulkAnswer, SubmitItem};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::super::server::{SOON, Server, Setup, problem};
use super::{asked, ids, line};

const NDJSON: &str = "application/x-ndjson";

fn plain(number: usize) -> String {
    line(&format!("s{number:05}"), "a", &json!({})) + "\n"
}

/// A body that the test goes on with as it likes.
fn open_body() -> (mpsc::UnboundedSender<Result<Bytes, std::io::Error>>, reqwest::Body) {
    let (parts, taken) = mpsc::unbounded_channel();
    let body = stream::unfold(taken, |mut taken| async { Some((taken.recv().await?, taken)) });
    (parts, reqwest::Body::wrap_stream(body))
}

fn post(server: &Server, body: reqwest::Body, accept: &str) -> reqwest::RequestBuilder {
    let call = reqwest::Client::new().post(server.url("/v1/schedules/bulk"));
    call.header("content-type", NDJSON).header("accept", accept).body(body)
}

/// Reads answers, one per line, until there are so many.
async fn items(answer: &mut reqwest::Response, count: usize) -> Vec<SubmitItem> {
    let mut text = Vec::new();
    while text.iter().filter(|byte| **byte == b'\n').count() < count {
        let part = tokio::time::timeout(SOON, answer.chunk()).await.expect("in time").expect("readable");
        text.extend_from_slice(&part.expect("there are more"));
    }
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("an item"))
        .collect()
}

#[tokio::test]
async fn lines_are_stored_and_answered_while_more_are_to_come() {
    let server = Server::start().await;
    let (parts, body) = open_body();
    parts.send(Ok(plain(0).into())).expect("open");
    let mut answer = post(&server, body, NDJSON).send().await.expect("an answer begins");
    assert_eq!((answer.status().as_u16(), &answer.headers()["content-type"]), (200, &NDJSON.parse().expect("text")));
    let first = items(&mut answer, 1).await;
    assert_eq!((first[0].status, first[0].id.as_deref()), (201, Some("s00000")));
    assert_eq!(ids(&server, &asked("")).await, ["s00000"]);

    // A line in two parts, one that is no schedule, and an empty one.
    let second = plain(1);
    let (head, tail) = second.split_at(20);
    parts.send(Ok(head.to_owned().into())).expect("open");
    parts.send(Ok(format!("{tail}\nno json\n").into())).expect("open");
    let more = items(&mut answer, 2).await;
    assert_eq!((more[0].status, more[0].id.as_deref(), more[1].status), (201, Some("s00001"), 400));
    parts.send(Ok(plain(0).trim_end().to_owned().into())).expect("open");
    drop(parts);
    assert_eq!(items(&mut answer, 1).await[0].status, 200, "the last line needs no end");
    assert!(answer.chunk().await.expect("it ends as it should").is_none());
}

#[tokio::test]
async fn any_number_of_lines_is_answered_in_order_and_as_one_text_unless_lines_are_asked_for() {
    /// The first are more than a call may submit jobs.
    const MOST: usize = 10_321;
    const FEWER: usize = 2_321;
    let server = Server::start().await;
    let wrong = |number: usize| number.is_multiple_of(1_000);
    let text = move |number: usize| if wrong(number) { "{\"id\": 7}\n".to_owned() } else { plain(number) };
    let accepted =
        [("*/*", 201, MOST), ("application/json", 200, FEWER), ("text/html, application/x-ndjson;q=0.9", 200, FEWER)];
    for (accept, again, count) in accepted {
        let lines = stream::iter((0..count).map(move |number| Ok::<_, std::io::Error>(Bytes::from(text(number)))));
        let answer = post(&server, reqwest::Body::wrap_stream(lines), accept).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        let is_lines = accept.contains(NDJSON);
        let text = answer.text().await.expect("it is whole");
        let items: Vec<SubmitItem> = match is_lines {
            true => text.lines().map(|line| serde_json::from_str(line).expect("an item")).collect(),
            false => serde_json::from_str::<BulkAnswer<SubmitItem>>(&text).expect("one answer").items,
        };
        assert_eq!(items.len(), count);
        for (number, item) in items.iter().enumerate() {
            let expected = if wrong(number) { (422, None) } else { (again, Some(format!("s{number:05}"))) };
            assert_eq!((item.status, item.id.clone()), expected, "{item:?}");
        }
    }
    let none = post(&server, "\n\n".into(), "*/*").send().await.expect("an answer");
    assert_eq!(none.text().await.expect("text"), "{\"items\":[]}");
}

#[tokio::test]
async fn of_lines_with_one_id_the_last_counts() {
    let server = Server::start().await;
    // Far more than one batch, so that several are under way at once.
    let lines: String = (0..2_500).map(|number| line("same", &format!("o{number}"), &json!({})) + "\n").collect();
    let items = server.client().put_schedules(lines).await.expect("an answer");
    assert!(items.len() == 2_500 && items.iter().all(|item| item.error.is_none()), "{:?}", items.first());
    let stored = server.client().schedule("same").await.expect("a schedule");
    assert_eq!(stored.owner.map(String::from).as_deref(), Some("o2499"));
}

#[tokio::test]
async fn a_call_that_breaks_off_has_stored_whole_lines_and_can_be_made_again() {
    let server = Server::start().await;
    let lines: String = (0..3_000).map(plain).collect();
    let cut = lines.len() - 30;
    let mut connection = TcpStream::connect(server.address()).await.expect("connected");
    let head = format!(
        "POST /v1/schedules/bulk HTTP/1.1\r\nhost: localhost\r\ncontent-type: {NDJSON}\r\ncontent-length: {}\r\n\r\n",
        lines.len()
    );
    connection.write_all(head.as_bytes()).await.expect("sent");
    connection.write_all(&lines.as_bytes()[..cut]).await.expect("sent");
    // Everything that arrived is answered, and then nothing is.
    connection.shutdown().await.expect("half closed");
    let mut said = Vec::new();
    tokio::time::timeout(SOON, connection.read_to_end(&mut said)).await.expect("in time").ok();
    let said = String::from_utf8_lossy(&said);
    assert!(said.starts_with("HTTP/1.1 200") && !said.trim_end().ends_with("]}"), "{}", &said[..100]);
    let query = ScheduleQuery { limit: Some(1_000), ..asked("id: s02*") };
    let stored = ids(&server, &query).await;
    assert_eq!(stored.last().map(String::as_str), Some("s02998"), "the line that was cut off is none");
    assert_eq!(stored.len(), 999);

    let again = server.client().put_schedules(lines).await.expect("an answer");
    let statuses = again.iter().map(|item| item.status);
    assert!(statuses.eq((0..3_000).map(|number| if number < 2_999 { 200 } else { 201 })), "{:?}", again.last());
}

#[tokio::test]
async fn a_client_that_falls_silent_is_answered_and_left() {
    let limits = Limits { body_within: Duration::from_millis(300), ..Limits::default() };
    let server = Server::start_with(Setup { limits, ..Setup::default() }).await;
    let (parts, body) = open_body();
    parts.send(Ok(plain(0).into())).expect("open");
    let mut answer = post(&server, body, NDJSON).send().await.expect("an answer begins");
    assert_eq!(items(&mut answer, 1).await[0].status, 201);
    let broken = tokio::time::timeout(SOON, answer.chunk()).await.expect("in time");
    assert!(broken.is_err(), "half an answer must not look like a whole one: {broken:?}");

    // Nothing that is a line has come: the refusal still has a status.
    let (parts, body) = open_body();
    parts.send(Ok("\n{\"id\"".into())).expect("open");
    let refused = problem(post(&server, body, NDJSON).send().await.expect("an answer")).await;
    assert_eq!((refused.status, refused.code.as_str()), (408, "body_stalled"));
}

#[tokio::test]
async fn a_line_that_is_too_long_is_refused_alone() {
    let server = Server::start().await;
    let long = format!("{{\"id\": \"{}\"}}\n", "x".repeat(5 << 20));
    let items = server.client().put_schedules(format!("{}{long}{}", plain(0), plain(1))).await.expect("an answer");
    let statuses: Vec<u16> = items.iter().map(|item| item.status).collect();
    assert_eq!(statuses, [201, 413, 201]);
    assert_eq!(items[1].error.as_ref().map(|error| error.code.as_str()), Some("body_too_large"));
}

#[tokio::test]
async fn a_client_stores_what_it_makes_up_as_it_goes() {
    let server = Server::start().await;
    let lines = stream::iter(0..2_500).map(|number| Bytes::from(plain(number)));
    let mut answers = server.client().store_schedules(lines).await.expect("an answer begins");
    let mut stored = Vec::new();
    while let Some(items) = answers.next().await.expect("it goes on") {
        stored.extend(items.into_iter().filter_map(|item| item.id));
    }
    assert!(stored.iter().cloned().eq((0..2_500).map(|number| format!("s{number:05}"))));
}

#[tokio::test]
async fn a_body_of_another_type_is_refused_before_it_is_read() {
    let server = Server::start().await;
    let (_parts, body) = open_body();
    let call = reqwest::Client::new().post(server.url("/v1/schedules/bulk")).header("content-type", "application/json");
    let refused = problem(call.body(body).send().await.expect("an answer")).await;
    assert_eq!((refused.status, refused.code.as_str()), (415, "unsupported_media_type"));
}
