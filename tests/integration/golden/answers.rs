//! What a server answers: each call of the API's description, at one time of a clock that a test moves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use leasehold::clock::{ManualClock, Timestamp};
use regex::Regex;
use reqwest::{Method, Response};
use serde_json::Value;

use super::{Files, check};
use crate::api::description;
use crate::api::server::{SOON, Server, Setup};

/// Calls in their order: a method, a path and a body, divided by spaces; lines of a body by ` | `. Each block is a
/// file, which begins with its name.
const CALLS: &str = include_str!("answers.txt");
/// What stands before the seconds that the clock goes on.
const WAIT: &str = "wait ";
/// What stands for the id that was made last.
const LAST_ID: &str = "<id>";
/// Headers that are part of an answer.
const HEADERS: [&str; 6] = ["content-type", "etag", "location", "retry-after", "allow", "content-disposition"];
/// Answers that are never twice the same, of which only the head is compared: those of the process, and the description,
/// which is compared by itself.
const UNLIKE: [&str; 3] = ["/metrics", "/openapi.json", "/v1/health"];
/// What is of one process, one write or one call.
const OF_ONE_RUN: [(&str, &str); 5] = [
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uuid>"),
    (r"whsec_[A-Za-z0-9+/=]+", "<secret>"),
    (r#""seq_no": \d+"#, "\"seq_no\": <number>"),
    // A retry that meets another write of its job takes a further place.
    (r#""order_seq": \d+"#, "\"order_seq\": <place>"),
    (r#""\d+(-\d+)+""#, "\"<version>\""),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_answered_as_recorded() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_893_553_445_678)));
    let setup = Setup { clock: Arc::clone(&clock) as _, is_notifying: true, ..Setup::default() };
    let server = Server::start_with(setup).await;
    let of_one_run: Vec<(Regex, &str)> =
        OF_ONE_RUN.iter().map(|(pattern, name)| (Regex::new(pattern).expect("an expression"), *name)).collect();

    let made_id = Regex::new(r#"(?m)^  "id": "([^"]+)"#).expect("an expression");
    let mut last_id = String::new();
    let (mut files, mut asked, mut media) = (Files::new(), BTreeSet::new(), BTreeSet::new());
    for block in CALLS.split("\n\n") {
        let (name, calls) = block.split_once('\n').expect("a name and calls");
        let mut text = String::new();
        for call in calls.lines() {
            if let Some(seconds) = call.strip_prefix(WAIT) {
                clock.advance(Duration::from_secs(seconds.parse().expect("seconds")));
                text += &format!("{call}\n\n");
                continue;
            }
            let mut parts = call.splitn(3, ' ');
            let (method, path) = (parts.next().expect("a method"), parts.next().expect("a path"));
            let answer = ask(&server, method, &path.replace(LAST_ID, &last_id), parts.next()).await;
            if let Some(made) = made_id.captures(&answer).filter(|_| method == "POST") {
                last_id = made[1].to_owned();
            }
            let answer =
                of_one_run.iter().fold(answer, |answer, (found, name)| found.replace_all(&answer, *name).into());
            text += &format!("{call}\n{answer}\n");
            let called = format!("{method} {}", path.split('?').next().expect("a path"));
            let kind = answer.lines().find_map(|line| line.strip_prefix("content-type: "));
            if let (true, Some(kind)) = (answer.starts_with('2'), kind) {
                media.insert((called.clone(), kind.split(';').next().unwrap_or_default().to_owned()));
            }
            asked.insert(called);
        }
        assert!(files.insert(format!("{name}.txt"), text).is_none(), "two blocks are named {name}");
    }
    let description = description::document();
    let operations = description::operations(&description);
    let calls: Vec<_> =
        operations.iter().map(|(method, path, operation)| (pattern(method, path), path, operation)).collect();
    let unasked = calls.iter().filter(|(call, ..)| !asked.iter().any(|asked| call.is_match(asked)));
    let unasked: Vec<_> = unasked.map(|(call, ..)| call).collect();
    assert!(unasked.is_empty(), "nobody asks {unasked:?}");
    let is_described = |(called, kind): &&(String, String)| {
        let found = calls.iter().filter(|(call, ..)| call.is_match(called));
        // The call whose path is spelled out is meant rather than one with a parameter in its place.
        let (.., operation) = found.min_by_key(|(_, path, _)| path.matches('{').count()).expect("a call");
        let mut answers = operation["responses"].as_object().expect("answers").iter();
        answers.any(|(status, answer)| status.starts_with('2') && answer["content"].get(kind).is_some())
    };
    let undescribed: Vec<_> = media.iter().filter(|answer| !is_described(answer)).collect();
    assert!(undescribed.is_empty(), "the description lacks the media types {undescribed:?}");
    check("answers", &files);
}

/// Calls the server, and returns the answer as text.
async fn ask(server: &Server, method: &str, path: &str, body: Option<&str>) -> String {
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    let mut request = reqwest::Client::new().request(method, server.url(path)).timeout(SOON);
    if let Some(body) = body {
        let is_lines = path.contains("bulk");
        let kind = if is_lines { "application/x-ndjson" } else { "application/json" };
        request = request.header("content-type", kind).body(body.replace(" | ", "\n"));
    }
    let answer = request.send().await.expect("an answer");
    let mut text = format!("{}\n", answer.status().as_u16());
    for (name, value) in HEADERS.iter().filter_map(|name| Some((name, answer.headers().get(*name)?))) {
        text += &format!("{name}: {}\n", value.to_str().expect("text"));
    }
    if UNLIKE.contains(&path) {
        return text;
    }
    text + &shown(answer).await
}

/// The body of an answer: JSON by fields, of events those that are there.
async fn shown(answer: Response) -> String {
    let kind = answer.headers().get("content-type").map(|kind| kind.to_str().expect("text").to_owned());
    let kind = kind.unwrap_or_default();
    if kind.starts_with("text/event-stream") {
        let mut stream = answer.bytes_stream();
        let mut text = String::new();
        while !text.contains("data:") || !text.ends_with("\n\n") {
            let part = stream.next().await.expect("an event").expect("it arrives");
            text += std::str::from_utf8(&part).expect("text");
        }
        return text;
    }
    let text = answer.text().await.expect("it arrives");
    let by_field = |text: &str| match serde_json::from_str::<Value>(text) {
        Ok(json) => serde_json::to_string_pretty(&json).expect("JSON") + "\n",
        Err(_) => text.to_owned(),
    };
    if kind.contains("json") && !kind.contains("ndjson") {
        by_field(&text)
    } else {
        text.lines().map(by_field).collect()
    }
}

/// Finds the calls of a path of the API's description, in which parameters are in braces.
fn pattern(method: &str, path: &str) -> Regex {
    let parts =
        path.split('/').map(|part| if part.starts_with('{') { "[^/]+".to_owned() } else { regex::escape(part) });
    Regex::new(&format!("^{method} {}$", parts.collect::<Vec<_>>().join("/"))).expect("an expression")
}
