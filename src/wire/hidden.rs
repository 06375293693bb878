//! What answers show of jobs, and what stands in the place of secrets.
//!
//! The values of a command's `env` and the addresses in `notify` are secrets of who submitted the job: they are for the
//! worker that claims it, and for administrators who ask.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::job::{Json, NoticeTarget};
use crate::notify::delivery::KIND as DELIVERY;

/// What stands in the place of a value that is not shown.
pub(crate) const HIDDEN: &str = "***";
/// What stood there in answers of earlier versions, which people keep in files.
const HIDDEN_BEFORE: &str = "(hidden)";
/// Why these cannot be stored.
pub(crate) const WAS_HIDDEN: &str = "stands for a value that was not shown: send the value itself";

/// The place of a command's variables in a payload, in the job of a schedule, and of an address in the payload of a
/// delivery and in that job.
const ENV: &[&str] = &["env"];
const ENV_OF_ACTION: &[&str] = &["payload", "env"];
const ADDRESS: &[&str] = &["to", "target", "url"];
const ADDRESS_OF_ACTION: &[&str] = &["notify", "url"];

/// How much of a job an answer shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The job's id, its place, its state and its times: for callers without the role `read`.
    Course,
    /// All of the job but its secrets: for callers with the role `read`.
    Reader,
    /// All of it: for the worker that claims the job, and for administrators who ask.
    Everything,
}

/// Returns a payload without secrets.
pub(super) fn payload(payload: &Json, kind: &str) -> Json {
    let path = if kind == DELIVERY { ADDRESS } else { ENV };
    without(payload, path)
}

/// Returns the job of a schedule's action without secrets.
pub(super) fn action_job(job: &Json) -> Json {
    without(&without(job, ENV_OF_ACTION), ADDRESS_OF_ACTION)
}

/// Returns receivers without their addresses.
pub(super) fn targets(targets: &[NoticeTarget]) -> Cow<'_, [NoticeTarget]> {
    let hidden = |target: &NoticeTarget| NoticeTarget { url: HIDDEN.to_owned(), ..target.clone() };
    if targets.is_empty() { Cow::Borrowed(targets) } else { targets.iter().map(hidden).collect() }
}

/// Returns whether a text stands for a value that was not shown, by this version or an earlier one.
pub(super) fn is_hidden(text: &str) -> bool {
    [HIDDEN, HIDDEN_BEFORE].contains(&text)
}

/// Returns where in a payload, such as `env.TOKEN`, something stands for a variable that was not shown: wherever
/// [`payload`] puts it.
pub(super) fn hidden_variables(payload: &Json) -> Vec<String> {
    let text = payload.as_str();
    if ![HIDDEN, HIDDEN_BEFORE, "\\u"].iter().any(|sign| text.contains(sign)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    match serde_json::from_str(text) {
        Ok(Value::Array(commands)) => {
            for (index, command) in commands.iter().enumerate() {
                hidden_in_env(command, |place| found.push(format!("[{index}].{place}")));
            }
        }
        Ok(command) => hidden_in_env(&command, |place| found.push(format!(".{place}"))),
        Err(_) => {}
    }
    found
}

/// Names the places of a command at which something stands for a variable that was not shown.
fn hidden_in_env(command: &Value, mut found: impl FnMut(String)) {
    match command.get("env").filter(|_| command.get("command").is_some()) {
        Some(Value::Object(variables)) => {
            let hidden = variables.iter().filter(|(_, value)| value.as_str().is_some_and(is_hidden));
            hidden.for_each(|(name, _)| found(format!("env.{name}")));
        }
        Some(Value::String(env)) if is_hidden(env) => found("env".to_owned()),
        _ => {}
    }
}

/// Returns a text in which what is at this path is hidden: of an object, each value.
fn without(json: &Json, path: &[&str]) -> Json {
    let text = json.as_str();
    // Most texts have nothing of the kind. A name can also be written with escapes.
    if !path.iter().all(|name| text.contains(&format!("\"{name}\""))) && !text.contains("\\u") {
        return json.clone();
    }
    let mut out = Vec::with_capacity(text.len());
    let hides = copy(text, path, &mut out).unwrap_or_default();
    let written = String::from_utf8(out).ok().filter(|_| hides);
    written.and_then(|text| Json::parse(text).ok()).unwrap_or_else(|| json.clone())
}

/// Copies a value without what is at this path, and returns whether there is something.
fn copy(value: &str, path: &[&str], out: &mut Vec<u8>) -> Result<bool, serde_json::Error> {
    let mut hides = false;
    match (value.as_bytes().first(), path) {
        (Some(b'{'), _) => {
            let members: IndexMap<String, &RawValue> = serde_json::from_str(value)?;
            // An `env` beside no command is the handler's own: the name of a stage, say.
            let is_left = path.first() == ENV.first() && !members.contains_key("command");
            out.push(b'{');
            for (index, (name, member)) in members.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                serde_json::to_writer(&mut *out, name)?;
                out.push(b':');
                match path {
                    [first, rest @ ..] if *first == name && !is_left => hides |= copy(member.get(), rest, out)?,
                    [] => hides |= hide(out)?,
                    _ => out.extend_from_slice(member.get().as_bytes()),
                }
            }
            out.push(b'}');
        }
        (_, []) => hides = hide(out)?,
        (Some(b'['), _) => {
            let entries: Vec<&RawValue> = serde_json::from_str(value)?;
            out.push(b'[');
            for (index, entry) in entries.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                // There are no lists of lists in what is looked for.
                match entry.get().as_bytes().first() {
                    Some(b'{') => hides |= copy(entry.get(), path, out)?,
                    _ => out.extend_from_slice(entry.get().as_bytes()),
                }
            }
            out.push(b']');
        }
        _ => out.extend_from_slice(value.as_bytes()),
    }
    Ok(hides)
}

fn hide(out: &mut Vec<u8>) -> Result<bool, serde_json::Error> {
    serde_json::to_writer(out, HIDDEN).map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).expect("JSON")
    }

    #[test]
    fn the_values_of_a_commands_variables_are_hidden_and_all_else_is_left_to_the_letter() {
        let hidden = |text: &str| payload(&json(text), "shell").as_str().to_owned();
        let given = r#"{"command":["a", 1.50],"env":{"TOKEN":"s3cret","N":7},"cwd":"/"}"#;
        assert_eq!(hidden(given), r#"{"command":["a", 1.50],"env":{"TOKEN":"***","N":"***"},"cwd":"/"}"#);
        let escaped = r#"{"command":"a","\u0065nv":{"TOKEN":"s3cret"}}"#;
        assert_eq!(hidden(escaped), r#"{"command":"a","env":{"TOKEN":"***"}}"#);
        assert_eq!(hidden(r#"{"command":"a","env":["s3cret"]}"#), r#"{"command":"a","env":"***"}"#);
        for left in [r#"{"env": "prod"}"#, r#"{"env": {"a":"b"}}"#, r#"{"x": {"command":"a", "env": {"b":"c"}}}"#, "7"]
        {
            assert_eq!(hidden(left), left);
        }
    }

    #[test]
    fn the_addresses_of_deliveries_and_actions_are_hidden() {
        let delivery = json(r#"{"event":{"url":"x"},"to":{"target":{"url":"https://a/s3cret","format":"slack"}}}"#);
        let hidden = r#"{"event":{"url":"x"},"to":{"target":{"url":"***","format":"slack"}}}"#;
        assert_eq!(payload(&delivery, DELIVERY).as_str(), hidden);
        let subscribed = json(r#"{"event":{"url":"x"},"to":{"subscription":"target"}}"#);
        assert_eq!(payload(&subscribed, DELIVERY), subscribed);
        let action = json(
            r#"{"payload":{"command":"a","env":{"A":"s3cret"}},"notify":[{"url":"https://a"},{"url":"https://b"}]}"#,
        );
        let hidden = r#"{"payload":{"command":"a","env":{"A":"***"}},"notify":[{"url":"***"},{"url":"***"}]}"#;
        assert_eq!(action_job(&action).as_str(), hidden);
    }

    #[test]
    fn what_stands_for_a_value_that_was_not_shown_is_found_wherever_it_is_put() {
        for (shown, places) in [
            (r#"{"command":"a","env":{"A":"s","B":7}}"#, vec![".env.A", ".env.B"]),
            (r#"{"command":"a","\u0065nv":{"A":"s"}}"#, vec![".env.A"]),
            (r#"{"command":"a","env":"s"}"#, vec![".env"]),
            (r#"{"command":"a","env":["s"]}"#, vec![".env"]),
            (
                r#"[{"command":"a","env":{"A":"s"}},7,{"command":"a"},{"command":"a","env":null}]"#,
                vec!["[0].env.A", "[3].env"],
            ),
            (r#"{"command":"a","env":{}}"#, vec![]),
            (r#"{"env":{"A":"s"}}"#, vec![]),
            (r#"{"x":{"command":"a","env":{"A":"s"}}}"#, vec![]),
            (r#"[[{"command":"a","env":{"A":"s"}}]]"#, vec![]),
        ] {
            assert!(hidden_variables(&json(shown)).is_empty(), "{shown}");
            let hidden = payload(&json(shown), "shell");
            assert_eq!(hidden_variables(&hidden), places, "{shown}");
            let by_earlier = json(&hidden.as_str().replace(HIDDEN, HIDDEN_BEFORE));
            assert_eq!(hidden_variables(&by_earlier), places, "{shown}");
        }
        assert_eq!(hidden_variables(&json(r#"{"command":"a","env":{"A":"\u002a**","B":"****"}}"#)), [".env.A"]);
        assert!(hidden_variables(&json(r#"{"command":"echo ***","env":{"A":"b"}}"#)).is_empty());
    }
}
