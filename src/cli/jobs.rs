//! Jobs as lines of JSON, for `run` and `submit`.
//!
//! A line is a job as `POST /v1/jobs` takes it, with two shortcuts: `queue` and `kind` may be left out (`default` and
//! `shell`), and `command`, `env` and `cwd` may stand in the line itself instead of in its `payload`. Blank lines and
//! lines that begin with `#` are skipped.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::failure::Failure;
use super::json_words;
use crate::job::{Json, OrphanPolicy, strict};
use crate::manager::OnDuplicate;
use crate::wire::{NotifyTarget, RetryOptions, SubmitJob};
use crate::worker::shell::{self, CommandLine, ShellPayload};

/// The queue of a job that names none.
pub(super) const DEFAULT_QUEUE: &str = "default";
/// How many jobs a file may have.
const MAX_JOBS: usize = 10_000_000;
/// What some editors put before a text.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// How many bad lines are reported at most.
const MAX_SHOWN: usize = 20;

/// Returns the kind and the payload of a job that flags describe: a command for a shell, unless another kind is named.
pub(super) fn work_of(
    kind: Option<String>,
    payload: Option<String>,
    command: Vec<String>,
    (env, cwd): (BTreeMap<String, String>, Option<PathBuf>),
) -> Result<(String, Option<Json>), Failure> {
    let payload = match payload {
        Some(text) => Some(
            Json::parse(text)
                .map_err(|error| Failure::Usage(format!("the payload: {}", json_words::plain(&error.to_string()))))?,
        ),
        None if command.is_empty() => None,
        None => {
            let command = CommandLine::Arguments(command);
            Some(Json::of(&ShellPayload { command, env, cwd })?)
        }
    };
    let kind = kind.unwrap_or_else(|| shell::KIND.to_owned());
    if kind == shell::KIND {
        let wrong = |what| Failure::Usage(format!("a shell job needs a command after `--`: {what}"));
        ShellPayload::parse(payload.as_ref()).map_err(wrong)?;
    }
    Ok((kind, payload))
}

/// One job of a file.
#[derive(Clone, Debug)]
pub(super) struct JobLine {
    /// The number of the job's line, from 1.
    pub(super) number: usize,
    /// The line as it is written.
    pub(super) text: String,
    /// The job's name for people, where neither its id nor its command is one.
    pub(super) label: Option<String>,
    /// The job.
    pub(super) job: SubmitJob,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: Option<String>,
    idempotency_key: Option<String>,
    queue: Option<String>,
    kind: Option<String>,
    payload: Option<Json>,
    command: Option<CommandLine>,
    #[serde(default, deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize")]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    priority: Option<i64>,
    owner: Option<String>,
    #[serde(default, deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize")]
    labels: BTreeMap<String, String>,
    run_at: Option<String>,
    expires_at: Option<String>,
    expected_runtime_ms: Option<u64>,
    timeout_ms: Option<u64>,
    max_attempts: Option<u64>,
    retry: Option<RetryOptions>,
    #[serde(default, deserialize_with = "serde_with::rust::maps_duplicate_key_is_error::deserialize")]
    resources: BTreeMap<String, u64>,
    #[serde(default)]
    requires: Vec<String>,
    concurrency_key: Option<String>,
    max_concurrent: Option<u64>,
    unique_key: Option<String>,
    on_duplicate: Option<OnDuplicate>,
    longest_wait_ms: Option<u64>,
    ordering_key: Option<String>,
    orphan_policy: Option<OrphanPolicy>,
    #[serde(default)]
    notify: Vec<NotifyTarget>,
}

/// Reads a file, or standard input for `-`. A byte-order mark at its beginning is left out.
pub(super) fn read_text(file: &Path) -> Result<String, Failure> {
    read_text_up_to(file, u64::MAX - 1)
}

/// Reads a file of at most so many bytes in the same way.
pub(super) fn read_text_up_to(file: &Path, max_bytes: u64) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::Usage(format!("cannot read {}: {error}", file.display()));
    let input: Box<dyn Read> = match file == Path::new("-") {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(File::open(file).map_err(failed)?),
    };
    let mut bytes = Vec::new();
    input.take(max_bytes + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > max_bytes {
        return Err(Failure::Usage(format!("{} has more than {max_bytes} bytes", file.display())));
    }
    let text = String::from_utf8(bytes).map_err(|error| Failure::Usage(not_utf_8(file, &error)))?;
    Ok(text.strip_prefix(BYTE_ORDER_MARK).map(str::to_owned).unwrap_or(text))
}

/// Describes the first byte of a file that is not UTF-8, with its line and column as an editor counts them.
fn not_utf_8(file: &Path, error: &std::string::FromUtf8Error) -> String {
    let good = error.utf8_error().valid_up_to();
    let before = String::from_utf8_lossy(&error.as_bytes()[..good]);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let byte = error.as_bytes().get(good).copied().unwrap_or_default();
    format!("{}:{line}:{column}: the byte 0x{byte:02x} is not UTF-8", file.display())
}

/// Parses every line, and checks each as the server would. With one bad line there is no job at all.
pub(super) fn parse(name: &str, text: &str) -> Result<Vec<JobLine>, Failure> {
    parse_with(name, text, parse_line)
}

/// Parses lines that are jobs, or commands for `sh -c` where they do not begin with a brace.
pub(super) fn parse_with_commands(name: &str, text: &str) -> Result<Vec<JobLine>, Failure> {
    parse_with(name, text, |line| match line.starts_with('{') {
        true => parse_line(line),
        false => shell_job(line).map_err(|what| (1, what)),
    })
}

/// Returns the job of a command for `sh -c`.
pub(super) fn shell_job(command: &str) -> Result<SubmitJob, String> {
    let payload = ShellPayload { command: CommandLine::Line(command.to_owned()), env: BTreeMap::new(), cwd: None };
    payload.check()?;
    let payload = Json::of(&payload).map_err(|error| error.to_string())?;
    Ok(SubmitJob { payload: Some(payload), ..SubmitJob::new(DEFAULT_QUEUE, shell::KIND) })
}

fn parse_with(
    name: &str,
    text: &str,
    parse: impl Fn(&str) -> Result<SubmitJob, (usize, String)>,
) -> Result<Vec<JobLine>, Failure> {
    let mut jobs = Vec::new();
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        match parse(text) {
            Ok(job) => jobs.push(JobLine { number: index + 1, text: text.to_owned(), label: None, job }),
            Err((column, what)) => faults.push(format!("{name}:{}:{}: {what}", index + 1, indent + column)),
        }
        if jobs.len() > MAX_JOBS {
            return Err(Failure::Usage(format!("{name} has more than {MAX_JOBS} jobs")));
        }
    }
    if faults.is_empty() {
        return Ok(jobs);
    }
    let count = faults.len();
    faults.truncate(MAX_SHOWN);
    let more = if count > MAX_SHOWN { format!("\n\u{2026} and {} more", count - MAX_SHOWN) } else { String::new() };
    Err(Failure::Usage(format!("no job was started, for not every line is one:\n{}{more}", faults.join("\n"))))
}

/// Parses one line. An error has a column, from 1, and a message.
fn parse_line(text: &str) -> Result<SubmitJob, (usize, String)> {
    let line: Line = strict::from_slice(text.as_bytes())
        .map_err(|error| (error.column().max(1), json_words::plain(&error.to_string())))?;
    let job = line.into_job().map_err(|what| (1, what))?;
    job.clone().into_new_job().map_err(|invalid| (1, invalid.to_string()))?;
    if job.kind == shell::KIND {
        ShellPayload::parse(job.payload.as_ref()).map_err(|what| (1, format!("payload: {what}")))?;
    }
    Ok(job)
}

impl Line {
    fn into_job(self) -> Result<SubmitJob, String> {
        let payload = match self.command {
            Some(_) if self.payload.is_some() => {
                return Err("`command` and `payload` cannot stand side by side".to_owned());
            }
            Some(command) => {
                let payload = ShellPayload { command, env: self.env, cwd: self.cwd };
                Some(Json::of(&payload).map_err(|error| error.to_string())?)
            }
            None if !self.env.is_empty() || self.cwd.is_some() => {
                return Err("`env` and `cwd` stand beside a `command`, or in the `payload`".to_owned());
            }
            None => self.payload,
        };
        Ok(SubmitJob {
            id: self.id,
            idempotency_key: self.idempotency_key,
            queue: self.queue.unwrap_or_else(|| DEFAULT_QUEUE.to_owned()),
            kind: self.kind.unwrap_or_else(|| shell::KIND.to_owned()),
            payload,
            priority: self.priority,
            owner: self.owner,
            labels: self.labels,
            run_at: self.run_at,
            expires_at: self.expires_at,
            expected_runtime_ms: self.expected_runtime_ms,
            timeout_ms: self.timeout_ms,
            max_attempts: self.max_attempts,
            retry: self.retry,
            resources: self.resources,
            requires: self.requires,
            concurrency_key: self.concurrency_key,
            max_concurrent: self.max_concurrent,
            unique_key: self.unique_key,
            on_duplicate: self.on_duplicate,
            longest_wait_ms: self.longest_wait_ms,
            ordering_key: self.ordering_key,
            orphan_policy: self.orphan_policy,
            notify: self.notify,
        })
    }
}

/// Describes a job in a few words: by its command, or by its kind.
pub(super) fn describe(job: &SubmitJob) -> String {
    let payload = ShellPayload::parse(job.payload.as_ref()).ok().filter(|_| job.kind == shell::KIND);
    match payload.map(|payload| payload.command) {
        Some(CommandLine::Arguments(words)) => words.join(" "),
        Some(CommandLine::Line(line)) => line,
        None => job.kind.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> String {
        match parse("jobs.jsonl", text) {
            Err(Failure::Usage(said)) => said,
            other => panic!("taken: {other:?}"),
        }
    }

    #[test]
    fn a_command_alone_is_a_shell_job() {
        let jobs = parse("jobs", "# a comment\n\n  {\"command\": [\"wc\", \"-l\"], \"priority\": 3}\n").expect("good");
        let [line] = jobs.as_slice() else { panic!("{jobs:?}") };
        assert_eq!((line.number, line.job.queue.as_str(), line.job.kind.as_str()), (3, "default", "shell"));
        assert_eq!(line.job.payload.as_ref().map(Json::as_str), Some("{\"command\":[\"wc\",\"-l\"]}"));
        assert_eq!(line.job.priority, Some(3));
        assert_eq!(describe(&line.job), "wc -l");
    }

    #[test]
    fn a_job_as_the_api_takes_it_is_one_too() {
        let text = r#"{"queue": "q", "kind": "shell", "payload": {"command": "wc -l"}, "max_attempts": 2}"#;
        let jobs = parse("jobs", text).expect("good");
        assert_eq!((jobs[0].job.queue.as_str(), describe(&jobs[0].job).as_str()), ("q", "wc -l"));
    }

    #[test]
    fn every_bad_line_is_named_with_its_line_and_column() {
        let said = faults("{\"command\": [\"a\"]}\n{\"comand\": [\"a\"]}\n  {\"command\": [\"a\"]\n");
        assert!(said.contains("jobs.jsonl:2:9: unknown field `comand`"), "{said}");
        assert!(said.contains("jobs.jsonl:3:19: the JSON ends too early"), "{said}");
    }

    #[test]
    fn what_the_server_would_refuse_is_refused_before_anything_runs() {
        for (line, word) in [
            (r#"{"command": []}"#, "names no program"),
            (r#"{"command": " "}"#, "empty"),
            (r#"{"command": 7}"#, "a list of a program"),
            (r#"{"command": ["a"], "payload": {}}"#, "side by side"),
            (r#"{"env": {"A": "b"}}"#, "beside a `command`"),
            (r#"{"payload": {"command": ["a"], "stdin": ""}}"#, "unknown field `stdin`"),
            (r#"{"command": ["a"], "env": {"A=B": "b"}}"#, "env"),
            (r#"{"command": ["a"], "env": {"A": "b", "A": "c"}}"#, "duplicate key"),
            (r#"{"command": ["a"], "labels": {"a": "b", "a": "b"}}"#, "duplicate key"),
            (r#"["a", null, null, null, null, ["a"]]"#, "expected an object"),
            (r#"{"payload": ["a"]}"#, "expected an object"),
            (r#"{"command": ["a"], "priority": 101}"#, "priority"),
            (r#"{"command": ["a"], "max_attempts": 0}"#, "max_attempts"),
            (r#"{}"#, "there is none"),
        ] {
            let said = faults(line);
            assert!(said.contains(word), "{line}: {said}");
        }
    }
}
