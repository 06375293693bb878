//! Every recursion over what users send, with the bound of its depth: each is tried at its bound, one beyond and far
//! beyond it, on a quarter of the stack that a thread of a server has.
//!
//! What is read without recursion stands here too where its length is bounded, so that it stays so.

use std::fmt::Write as _;
use std::thread;

use serde_json::Value;

use crate::api;
use crate::cli::recursion::{MAX_CELL_DEPTH, MAX_FOLDERS, cell, find};
use crate::clock::Timestamp;
use crate::job::requirement::MAX_REQUIREMENT_BYTES;
use crate::job::{Json, Requirement, strict};
use crate::query::kql::parse::MAX_GROUPS;
use crate::query::kql::{Expression, MAX_BYTES, MAX_DEPTH};
use crate::schedule::{Cron, MAX_CRON_BYTES};
use crate::store::elasticsearch::kql;
use crate::wire::check::MAX_BODY_DEPTH;
use crate::wire::{BulkChange, PutSchedule, SubmitJob};
use crate::worker::shell::ShellPayload;

/// The stack of each try, in bytes.
const STACK_BYTES: usize = 512 << 10;
/// How deep a try far beyond a bound is.
const FAR_BEYOND: usize = 20_000;
/// How deep `serde_json` builds values.
const MAX_VALUE_DEPTH: usize = 127;

/// Something that recurses over what users send.
struct Recursion {
    what: &'static str,
    /// The greatest depth that is taken.
    bound: usize,
    /// Reads something of a depth, uses it in every way and drops it; says why it is refused.
    read: fn(usize) -> Result<(), String>,
}

const RECURSIONS: [Recursion; 17] = [
    Recursion { what: "the names on a path to a field", bound: api::MAX_PATH_NAMES, read: path_to_a_field },
    Recursion { what: "lists around a selected field", bound: api::MAX_ANSWER_DEPTH, read: lists_around_a_field },
    Recursion { what: "the payload of a job", bound: MAX_BODY_DEPTH, read: payload },
    Recursion { what: "the payload of the job of a schedule", bound: MAX_BODY_DEPTH, read: payload_of_a_schedule },
    Recursion { what: "the body that a schedule sends", bound: MAX_BODY_DEPTH, read: body_of_a_schedule },
    Recursion { what: "a JSON value", bound: MAX_VALUE_DEPTH, read: value },
    Recursion { what: "the command of a shell job", bound: MAX_VALUE_DEPTH - 1, read: command },
    Recursion { what: "the groups of a query", bound: MAX_GROUPS, read: groups },
    Recursion { what: "the groups of a query that is refused", bound: MAX_GROUPS, read: groups_of_a_refused_query },
    Recursion { what: "the lists of values of a query", bound: MAX_DEPTH, read: lists_of_values },
    Recursion { what: "the levels of a query", bound: MAX_DEPTH, read: levels },
    Recursion { what: "the query of a bulk change", bound: MAX_DEPTH, read: query_of_a_bulk_change },
    Recursion { what: "a field of an answer in a table", bound: MAX_CELL_DEPTH, read: field_of_an_answer },
    Recursion { what: "the folders of a pattern", bound: MAX_FOLDERS, read: folders },
    Recursion { what: "the bytes of a query", bound: MAX_BYTES, read: bytes_of_a_query },
    Recursion { what: "the bytes of a requirement", bound: MAX_REQUIREMENT_BYTES, read: requirement },
    Recursion { what: "the bytes of a cron expression", bound: MAX_CRON_BYTES, read: cron },
];

/// Returns what `read` says, on a small stack. A thread without stack left ends the process, by this name.
fn on_a_small_stack(Recursion { what, read, .. }: &Recursion, depth: usize) -> Result<(), String> {
    let read = *read;
    let thread = thread::Builder::new().name(format!("{what}, {depth} deep")).stack_size(STACK_BYTES);
    thread.spawn(move || read(depth)).expect("a thread").join().expect("no panic")
}

#[test]
fn whatever_users_send_is_read_to_its_bound_and_refused_beyond_on_a_small_stack() {
    for recursion in &RECURSIONS {
        let Recursion { what, bound, .. } = recursion;
        assert_eq!(on_a_small_stack(recursion, *bound), Ok(()), "{what}, {bound} deep");
        for depth in [bound + 1, bound + FAR_BEYOND] {
            assert!(on_a_small_stack(recursion, depth).is_err(), "{what}, {depth} deep");
        }
    }
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns this many JSON lists, each within the one before, around `inside`.
fn lists(depth: usize, inside: &str) -> String {
    format!("{}{inside}{}", "[".repeat(depth), "]".repeat(depth))
}

fn path_to_a_field(names: usize) -> Result<(), String> {
    let inside = names - 1;
    let path = format!("payload{}", ".a".repeat(inside));
    let answer = format!(r#"{{"payload":{}1{}}}"#, r#"{"a":"#.repeat(inside), "}".repeat(inside));
    let text = api::selected(&[&path], &answer)?;
    assert_eq!(text, answer);
    Ok(())
}

fn lists_around_a_field(depth: usize) -> Result<(), String> {
    let answer = format!(r#"{{"payload":{}}}"#, lists(depth - 2, r#"{"a":1}"#));
    let text = api::selected(&["payload.a"], &answer)?;
    assert_eq!(text, answer);
    Ok(())
}

fn payload(depth: usize) -> Result<(), String> {
    let text = format!(r#"{{"queue":"q","kind":"k","payload":{}}}"#, lists(depth, ""));
    let submission: SubmitJob = strict::from_slice(text.as_bytes()).map_err(said)?;
    submission.into_new_job().map(drop).map_err(said)
}

fn schedule(action: &str) -> Result<(), String> {
    let text = format!(r#"{{"id":"s","period":{{"cron":"@daily"}},"action":{action}}}"#);
    let put: PutSchedule = strict::from_slice(text.as_bytes()).map_err(said)?;
    put.into_definition().map(drop).map_err(said)
}

fn payload_of_a_schedule(depth: usize) -> Result<(), String> {
    let job = format!(r#"{{"queue":"q","kind":"k","payload":{}}}"#, lists(depth, ""));
    schedule(&format!(r#"{{"type":"job","job":{job}}}"#))?;
    // The form of the job is looked at when the schedule is stored.
    let submission: SubmitJob = strict::from_slice(job.as_bytes()).map_err(said)?;
    submission.into_new_job().map(drop).map_err(said)
}

fn body_of_a_schedule(depth: usize) -> Result<(), String> {
    schedule(&format!(r#"{{"type":"http","url":"http://a.example/","body":{}}}"#, lists(depth, "")))
}

fn value(depth: usize) -> Result<(), String> {
    let value: Value = strict::from_slice(lists(depth, "").as_bytes()).map_err(said)?;
    let mut text = String::new();
    write!(text, "{value}").map_err(said)?;
    assert_eq!((text.len(), value.clone() == value), (2 * depth, true));
    Ok(())
}

/// No command is a list of lists, which is known only once they have been read.
fn command(depth: usize) -> Result<(), String> {
    let payload = Json::parse(format!(r#"{{"command":{}}}"#, lists(depth, ""))).map_err(said)?;
    let refused = ShellPayload::parse(Some(&payload)).expect_err("no command");
    if refused.contains("recursion limit") { Err(refused) } else { Ok(()) }
}

/// Uses a query in every way that there is.
fn query(text: &str) -> Result<(), String> {
    let expression = Expression::parse(text).map_err(|error| error.render())?;
    let again = Expression::parse(&expression.node().to_string()).map_err(|error| error.render())?;
    assert_eq!(again.node(), expression.node());
    let _bounds = expression.bounds(Timestamp::default());
    let _doubts = expression.doubts();
    let dsl = kql::compile(&expression);
    let _text = dsl.to_string();
    Ok(())
}

fn groups(depth: usize) -> Result<(), String> {
    query(&format!("{}state: running{}", "(".repeat(depth), ")".repeat(depth)))
}

fn groups_of_a_refused_query(depth: usize) -> Result<(), String> {
    let text = format!("{}b{}", "a or a and not (".repeat(depth), ")".repeat(depth));
    match query(&text) {
        Err(said) if said.contains("levels deep") => Ok(()),
        other => other,
    }
}

fn lists_of_values(depth: usize) -> Result<(), String> {
    query(&format!("id: ({}b{})", "a or (".repeat(depth), ")".repeat(depth)))
}

fn levels(depth: usize) -> Result<(), String> {
    // A phase stands for a query of its own.
    query(&format!("{}phase: scheduled{}", "not (".repeat(depth), ")".repeat(depth)))
}

fn query_of_a_bulk_change(depth: usize) -> Result<(), String> {
    let query = format!("{}state: running{}", "not (".repeat(depth), ")".repeat(depth));
    let text = format!(r#"{{"filter":{{"kql":"{query}"}},"reason":"r"}}"#);
    let change: BulkChange = strict::from_slice(text.as_bytes()).map_err(said)?;
    change.filter.into_selection(Timestamp::default()).map(drop).map_err(said)
}

fn field_of_an_answer(depth: usize) -> Result<(), String> {
    let answer = format!("{}7{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
    let through_lists = cell(&lists(depth - 1, r#"{"a":7}"#), "a");
    let through_objects = cell(&answer, "a.".repeat(depth).trim_end_matches('.'));
    match (through_lists.as_str(), through_objects.as_str()) {
        ("7", "7") => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// A pattern and the folders that it leads through, none of which is there.
fn folders(depth: usize) -> Result<(), String> {
    find(&"a/".repeat(depth))
}

fn bytes_of_a_query(bytes: usize) -> Result<(), String> {
    query(&format!("{:bytes$}", "id: a"))
}

fn requirement(bytes: usize) -> Result<(), String> {
    format!("{:bytes$}", "gpu").parse::<Requirement>().map(drop).map_err(said)
}

fn cron(bytes: usize) -> Result<(), String> {
    format!("{:bytes$}", "0 * * * *").parse::<Cron>().map(drop).map_err(said)
}
