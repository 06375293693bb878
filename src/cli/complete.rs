//! Shell completion: of fields and their values, and of what the server has: ids, queues, kinds, subscriptions.
//!
//! A person waits for it at the shell, so it is quick, and prints nothing when it fails.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap_complete::CompletionCandidate;
use clap_complete::env::Shells;

use super::context;
use super::failure::Failure;
use super::output::print;
use super::server::{ServerArgs, addresses};
use super::settings::Settings;
use crate::client::{Client, ClientError, CountQuery, JobQuery};
use crate::query::fields::{FIELDS, Field, FieldType, HISTORY, LABELS};
use crate::query::kql::phase::{PHASE, PHASE_FIELD};
use crate::query::table::Table;
use crate::wire::JOB_FIELDS;

/// The environment variable with which the shell requests completions.
pub(super) const VARIABLE: &str = "COMPLETE";
/// The time limit of the call to the server.
const SERVER_WITHIN: Duration = Duration::from_millis(500);
/// How many ids of jobs are offered.
const JOBS: u64 = 200;

/// Print the script that lets a shell complete commands, fields and values
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  source <(leasehold completions bash)
  leasehold completions zsh > ~/.zfunc/_leasehold
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish")]
pub(super) struct CompletionsArgs {
    /// The shell: bash, elvish, fish, powershell or zsh
    #[arg(value_parser = ["bash", "elvish", "fish", "powershell", "zsh"])]
    shell: String,
}

/// Prints the script.
pub(super) fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let shells = Shells::builtins();
    let shell =
        shells.completer(&args.shell).ok_or_else(|| Failure::Usage(format!("no such shell: {}", args.shell)))?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "leasehold", "leasehold", "leasehold", &mut script)?;
    print(String::from_utf8_lossy(&script).trim_end())
}

/// Completes a query for jobs: the word at its end.
pub(super) fn kql(current: &OsStr) -> Vec<CompletionCandidate> {
    query(Table::Jobs, current)
}

/// Completes a query for schedules: the word at its end.
pub(super) fn schedule_kql(current: &OsStr) -> Vec<CompletionCandidate> {
    query(Table::Schedules, current)
}

fn query(table: Table, current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(text) = current.to_str() else { return Vec::new() };
    let word_at = text.rfind(|c: char| c.is_whitespace() || "(){}:<>=".contains(c)).map_or(0, |at| at + 1);
    let (before, word) = text.split_at(word_at);
    let candidates = match field_of_value(table, before) {
        Some(field) => values_of(field).into_iter().map(|value| (value, None)).collect(),
        None => fields_for(table, before),
    };
    let fit = candidates.into_iter().filter(|(candidate, _)| candidate.starts_with(word));
    fit.map(|(candidate, help)| CompletionCandidate::new(format!("{before}{candidate}")).help(help.map(Into::into)))
        .collect()
}

/// Returns the field whose value comes next: the query so far ends with its name, a colon, and perhaps an open list.
fn field_of_value(table: Table, before: &str) -> Option<&'static Field> {
    let before = match before.rfind('(') {
        Some(open) if !before[open..].contains([')', ':', '{']) && before[..open].trim_end().ends_with(':') => {
            &before[..open]
        }
        _ => before,
    };
    let name = before.trim_end().strip_suffix(':')?.trim_end();
    let name = name.rsplit(|c: char| c.is_whitespace() || "(){}".contains(c)).next()?;
    let list = if is_in_history(before) { format!("{HISTORY}.{name}") } else { name.to_owned() };
    if table == Table::Jobs && list == PHASE { Some(&PHASE_FIELD) } else { table.named(&list) }
}

fn is_in_history(before: &str) -> bool {
    before.rfind('{').is_some_and(|open| !before[open..].contains('}'))
}

/// Returns the fields that can come next, and their meaning.
fn fields_for(table: Table, before: &str) -> Vec<(String, Option<&'static str>)> {
    let inside = is_in_history(before);
    let name = |field: &Field| match field.nested_in() {
        Some(list) if inside => {
            field.name.strip_prefix(list).and_then(|rest| rest.strip_prefix('.')).map(str::to_owned)
        }
        None if !inside && field.name != LABELS => Some(field.name.to_owned()),
        _ => None,
    };
    let fields = table.fields().iter().filter(|field| field.is_searchable());
    let mut names: Vec<_> = fields.filter_map(|field| Some((name(field)? + ":", Some(field.meaning)))).collect();
    if !inside {
        names.push((format!("{LABELS}."), None));
        if table.has_history() {
            names.push((format!("{HISTORY}:"), None));
            names.push((format!("{PHASE}:"), Some(PHASE_FIELD.meaning)));
        }
    }
    names
}

fn values_of(field: &Field) -> Vec<String> {
    if ["queue", "action.job.queue"].contains(&field.name) {
        queue_names().iter().filter(|name| is_plain(name)).map(|name| quoted(name)).collect()
    } else {
        field.values().into_iter().map(str::to_owned).collect()
    }
}

/// Returns a name as it stands in a query: in quotes where it is more than a word.
fn quoted(name: &str) -> String {
    let is_word = name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
    if is_word { name.to_owned() } else { format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"")) }
}

/// Completes the fields that a list can be ordered by, either way.
pub(super) fn sortable(current: &OsStr) -> Vec<CompletionCandidate> {
    let sign = if current.to_str().is_some_and(|text| text.starts_with('-')) { "-" } else { "" };
    let fields = FIELDS.iter().filter(|field| field.sortable);
    starting_with(current, fields.map(|field| (format!("{sign}{}", field.name), Some(field.meaning))))
}

/// Completes the fields that jobs can be grouped by.
pub(super) fn groupable(current: &OsStr) -> Vec<CompletionCandidate> {
    let fields = FIELDS.iter().filter(|field| field.groupable);
    starting_with(current, fields.map(|field| (field.name.to_owned(), Some(field.meaning))))
}

/// Completes the fields that hold a time.
pub(super) fn times(current: &OsStr) -> Vec<CompletionCandidate> {
    let fields = FIELDS.iter().filter(|field| field.kind == FieldType::Date && field.nested_in().is_none());
    starting_with(current, fields.map(|field| (field.name.to_owned(), Some(field.meaning))))
}

/// Completes the fields of a job in an answer.
pub(super) fn job_fields(current: &OsStr) -> Vec<CompletionCandidate> {
    starting_with(current, JOB_FIELDS.iter().map(|name| ((*name).to_owned(), None)))
}

/// Completes states.
pub(super) fn states(current: &OsStr) -> Vec<CompletionCandidate> {
    let states = Field::named("state").map(Field::values).unwrap_or_default();
    starting_with(current, states.into_iter().map(|state| (state.to_owned(), None)))
}

/// Completes the names of the server's queues.
pub(super) fn queues(current: &OsStr) -> Vec<CompletionCandidate> {
    of_server(current, queue_names())
}

/// Returns the names that the server has and that begin with what is typed. Not every shell quotes what it puts into
/// the line, and none says in which quotes that stands: a name is left out that is not read as it is everywhere.
fn of_server(current: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    starting_with(current, names.into_iter().filter(|name| is_plain(name)).map(|name| (name, None)))
}

/// Returns whether a name is one word in every shell and in any quotes, and no flag.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_alphanumeric() || "-_.:/@%+=,".contains(c))
        && name.starts_with(|c: char| c.is_alphanumeric() || "_./".contains(c))
}

/// Returns the names, with their help, that begin with what is typed.
fn starting_with(
    current: &OsStr,
    names: impl IntoIterator<Item = (String, Option<&'static str>)>,
) -> Vec<CompletionCandidate> {
    let current = current.to_str().unwrap_or_default();
    let fit = names.into_iter().filter(|(name, _)| name.starts_with(current));
    fit.map(|(name, help)| CompletionCandidate::new(name).help(help.map(Into::into))).collect()
}

/// Completes the ids of the jobs that were submitted last.
pub(super) fn job_ids(current: &OsStr) -> Vec<CompletionCandidate> {
    let query = JobQuery { limit: Some(JOBS), ..JobQuery::default() };
    let jobs = ask(async |client| client.jobs(&query).await).map(|page| page.items).unwrap_or_default();
    of_server(current, jobs.into_iter().map(|job| job.id.into_owned()))
}

/// Completes the kinds of the server's jobs.
pub(super) fn kinds(current: &OsStr) -> Vec<CompletionCandidate> {
    let query = CountQuery { jobs: JobQuery::default(), by: vec!["kind".to_owned()] };
    let groups = ask(async |client| client.count(&query).await).map(|counted| counted.groups).unwrap_or_default();
    of_server(current, groups.into_iter().flat_map(|group| group.by.into_values().flatten()))
}

/// Completes the ids of the server's subscriptions.
pub(super) fn subscriptions(current: &OsStr) -> Vec<CompletionCandidate> {
    let all = ask(async |client| client.subscriptions().await).unwrap_or_default();
    of_server(current, all.into_iter().map(|subscription| subscription.id.to_string()))
}

/// Completes the names of contexts.
pub(super) fn contexts(current: &OsStr) -> Vec<CompletionCandidate> {
    starting_with(current, context::names().into_iter().map(|name| (name, None)))
}

/// Returns the names of the server's queues; none when it does not answer at once.
fn queue_names() -> Vec<String> {
    let queues = ask(async |client| client.queues().await).map(|page| page.items).unwrap_or_default();
    queues.into_iter().map(|queue| queue.name.into()).collect()
}

/// Returns the server's answer to a call; `None` when it does not answer at once.
fn ask<T>(call: impl AsyncFnOnce(Client) -> Result<T, ClientError>) -> Option<T> {
    let variable = |name| std::env::var(name).ok();
    let config = std::env::var_os("LEASEHOLD_CONFIG").map(PathBuf::from);
    let settings = Settings::read(config.as_deref()).ok()?;
    let settings = context::apply(settings.client, variable("LEASEHOLD_CONTEXT").as_deref()).ok()?;
    let servers = variable("LEASEHOLD_SERVER").map(|text| addresses(&text));
    let server = ServerArgs { server: servers, token: variable("LEASEHOLD_TOKEN"), ..ServerArgs::default() };
    let client = server.connect(&settings).ok()?.with_max_retries(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async { tokio::time::timeout(SERVER_WITHIN, call(client)).await }).ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(text: &str) -> Vec<String> {
        kql(OsStr::new(text)).iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_field_is_completed_wherever_one_can_stand() {
        assert_eq!(completed("lease.w"), ["lease.worker_id:"]);
        assert_eq!(completed("state: running and not (orphan_p"), ["state: running and not (orphan_policy:"]);
        assert_eq!(completed("history: { act"), ["history: { actor:"]);
        assert!(completed("").len() > 30 && !completed("").contains(&"payload:".to_owned()));
        assert!(completed("history.").is_empty(), "they stand in braces only");
    }

    #[test]
    fn a_value_is_completed_where_there_are_few() {
        assert_eq!(completed("state:ru"), ["state:running"]);
        assert_eq!(completed("phase:sch"), ["phase:scheduled"]);
        assert_eq!(completed("owner: a and state: (failed or canc"), ["owner: a and state: (failed or cancelled"]);
        assert_eq!(completed("history: { to: exp"), ["history: { to: expired"]);
        assert_eq!(completed("orphan.held: "), ["orphan.held: true", "orphan.held: false"]);
        assert!(completed("owner: te").is_empty());
    }

    #[test]
    fn a_query_for_schedules_is_completed_with_their_fields() {
        let completed = |text: &str| -> Vec<String> {
            let candidates = schedule_kql(OsStr::new(text)).into_iter();
            candidates.map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(completed("paused: true and period.t"), ["paused: true and period.time_zone:"]);
        assert_eq!(completed("overlap: sk"), ["overlap: skip"]);
        assert_eq!(completed("his"), [""; 0], "they have none");
    }

    #[test]
    fn a_name_is_offered_only_where_every_shell_reads_it_as_it_is() {
        for name in ["0197b2f0-6c1e-7c57", "reports", "team/été:1", "_x", "a@b.example", "a=1,b+2%"] {
            assert!(is_plain(name), "{name}");
        }
        for name in [
            "abc$(touch F)",
            "a`b`",
            "a b",
            "a;b",
            "a'b",
            "a\"b",
            "a*",
            "a!b",
            "-rf",
            "~a",
            "=ls",
            "a{b,c}",
            "a#",
            "x\u{202e}y",
        ] {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn every_shell_has_its_script() {
        for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
            assert!(Shells::builtins().completer(shell).is_some(), "{shell}");
        }
    }
}
