//! `leasehold status`: whether all is well, and if not, what to do.

use clap::Args;

use super::clean::clean;
use super::failure::{ExitStatus, Failure};
use super::output::{print, wrap};
use super::server::ClientArgs;
use super::settings::Settings;
use crate::client::{Client, ClientError, CountQuery, JobQuery};
use crate::job::shell::leasehold;
use crate::wire::{HealthCheck, HealthStatus, JobState};

/// The indent of what belongs to a line.
const INDENT: usize = 6;

/// Show whether all is well, and if not, what to do
///
/// Exits with 0 when all is well or only something is to be looked at, and with 1 when something is wrong.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    answer: ClientArgs,
}

/// What was found out about one thing.
struct Finding {
    status: HealthStatus,
    what: String,
    /// What can be done about it, where something can.
    remedy: Option<String>,
}

impl Finding {
    /// Returns what a check of the server found, if it found something.
    fn of(HealthCheck { status, found, advice, .. }: HealthCheck) -> Option<Self> {
        Some(Self { status, what: found?, remedy: advice.map(|advice| clean(&advice)) })
    }

    fn ok(what: impl Into<String>) -> Self {
        Self { status: HealthStatus::Ok, what: what.into(), remedy: None }
    }

    fn warn(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: HealthStatus::Warn, what: what.into(), remedy: Some(remedy.into()) }
    }
}

/// Prints the findings.
pub(super) async fn run(args: StatusArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    let health = client.health().await?;
    if args.answer.is_for_programs() {
        args.answer.print_item(&health)?;
    } else {
        let mut findings: Vec<Finding> = health.checks.into_iter().filter_map(Finding::of).collect();
        if findings.is_empty() {
            findings.push(Finding::ok("the server is well"));
        }
        // What is wrong with the store may be why it cannot be asked.
        let looked = look(&client).await.map(|more| findings.extend(more));
        print(&findings.iter().map(line).collect::<Vec<_>>().join("\n"))?;
        looked?;
    }
    if health.status == HealthStatus::Error { Err(Failure::Reported(ExitStatus::Failed)) } else { Ok(()) }
}

async fn look(client: &Client) -> Result<Vec<Finding>, ClientError> {
    let count = async |kql: &str| {
        let jobs = JobQuery { kql: Some(kql.to_owned()), ..JobQuery::default() };
        client.count(&CountQuery { jobs, by: Vec::new() }).await.map(|counted| counted.total)
    };
    let (queues, workers) = tokio::try_join!(client.queues(), client.workers())?;
    let queues: Vec<_> = queues.items.into_iter().filter(|queue| !queue.name.is_internal()).collect();
    let total = |state| queues.iter().map(|queue| queue.jobs.get(&state).copied().unwrap_or(0)).sum::<u64>();
    let (waiting, running) = (total(JobState::Available), total(JobState::Running));
    let mut findings = vec![Finding::ok(format!("{waiting} jobs wait, {running} run, in {} queues", queues.len()))];
    findings.push(match workers.items.len() {
        0 if waiting > 0 => Finding::warn("jobs wait, and no worker has called", "start one: `leasehold worker`"),
        count => Finding::ok(format!("{count} workers have called")),
    });
    for queue in queues.iter().filter(|queue| queue.paused) {
        let reason = queue.pause.as_ref().and_then(|pause| pause.reason.as_deref());
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        findings.push(Finding::warn(
            format!("the queue {} is paused{reason}", queue.name),
            format!("`{}` lets it go on", leasehold("queue resume").operand(queue.name.as_str())),
        ));
    }
    let orphaned = count("state: running and orphan.flagged_at: *").await?;
    if orphaned > 0 {
        findings.push(Finding::warn(
            format!("{orphaned} running jobs look abandoned"),
            "`leasehold orphans` shows them, and `leasehold release ID --reason …` takes them from their workers",
        ));
    }
    let failed = count("state: failed and finished_at >= now-1d").await?;
    findings.push(match failed {
        0 => Finding::ok("no job has failed for good in the last day"),
        failed => Finding::warn(
            format!("{failed} jobs have failed for good in the last day"),
            "`leasehold list 'state: failed and finished_at >= now-1d'` shows them; `leasehold describe ID` why",
        ),
    });
    Ok(findings)
}

fn line(finding: &Finding) -> String {
    let mark = match finding.status {
        HealthStatus::Ok => "ok   ",
        HealthStatus::Warn => "look ",
        HealthStatus::Error => "WRONG",
    };
    let remedy = finding.remedy.as_ref().map(|remedy| format!("\n{}", wrap_each(remedy))).unwrap_or_default();
    format!("{mark} {}{remedy}", clean(&finding.what))
}

fn wrap_each(text: &str) -> String {
    text.lines().map(|line| wrap(line, INDENT)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::command;
    use crate::wire::HealthCheckName;

    #[test]
    fn every_command_that_advice_names_is_one() {
        let mut commands = 0;
        for name in HealthCheckName::ALL {
            for line in name.advice().split('`').skip(1).step_by(2).filter(|line| line.starts_with("leasehold ")) {
                // A number is to be put in for this one.
                let words = shlex::split(line).expect("words").into_iter();
                let words = words.map(|word| if word == "N" { "8".to_owned() } else { word });
                let words = words.chain(["--help".to_owned()]);
                let error = command().try_get_matches_from(words).expect_err("it is shown");
                assert_eq!(error.kind(), clap::error::ErrorKind::DisplayHelp, "{line}: {error}");
                commands += 1;
            }
        }
        assert!(commands > 3, "{commands}");
    }
}
