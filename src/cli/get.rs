//! `leasehold get`: shows everything about jobs.

use std::time::Duration;

use clap::Args;

use super::chosen::Ids;
use super::duration;
use super::failure::Failure;
use super::job_id;
use super::job_row::{error_of, phase_of};
use super::look::date;
use super::output::Page;
use super::settings::Settings;
use crate::wire::Job;

/// Show everything about jobs
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold get 0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5
  leasehold get --json my-job | jq .result")]
pub(super) struct GetArgs {
    /// Show the values of `env` and the addresses too, which needs the role `admin`; the audit keeps who asked
    #[arg(long)]
    reveal: bool,
    #[command(flatten)]
    jobs: Ids,
}

/// Prints the jobs.
pub(super) async fn run(args: GetArgs, settings: Settings) -> Result<(), Failure> {
    let Ids { ids, answer } = args.jobs;
    let client = answer.connect(&settings.client)?;
    let (mut gap, mut missing) = ("", Vec::new());
    for id in &job_id::resolve_all(&client, &ids).await? {
        let found = if args.reveal { client.revealed_job(id).await } else { client.job(id).await };
        match found {
            Ok(job) => {
                answer.print(&job, |job| format!("{gap}{}", describe(job)))?;
                gap = "\n";
            }
            Err(error) if error.code() == Some("not_found") => missing.push(error.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(Failure::Failed(missing.join("\nleasehold: "))) }
}

/// Formats a job on a page, without the fields that are empty.
pub(super) fn describe(job: &Job) -> String {
    let mut page = Page::new(13);
    page.line("id", &job.id);
    page.line("queue", &job.queue);
    page.line("kind", &job.kind);
    page.line("phase", &phase_of(job));
    page.line("attempt", &format!("{} of {}", job.attempt, job.max_attempts));
    page.line("fence", &job.fence.to_string());
    page.option("owner", job.owner.as_deref());
    if job.priority != 0 {
        page.line("priority", &job.priority.to_string());
    }
    let labels: Vec<String> = job.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    page.option("labels", (!labels.is_empty()).then(|| labels.join(", ")).as_deref());
    let requires: Vec<String> = job.requires.iter().map(ToString::to_string).collect();
    page.option("requires", (!requires.is_empty()).then(|| requires.join("; ")).as_deref());
    page.option("unique key", job.unique_key.as_deref());
    page.option("ordering key", job.ordering_key.as_deref());
    page.option("schedule", job.schedule_id.as_deref());
    page.time("due", job.due_at);
    page.time("created", Some(job.created_at));
    page.time("runs from", Some(job.run_at).filter(|time| *time > job.created_at));
    page.time("expires", job.expires_at);
    page.time("started", job.started_at);
    page.time("finished", job.finished_at);
    if let (Some(started), Some(finished)) = (job.started_at, job.finished_at) {
        page.line("took", &duration::show(finished.since(started)));
    }
    page.option("time limit", job.timeout_ms.map(|limit| duration::show(Duration::from_millis(limit))).as_deref());
    if let Some(lease) = &job.lease {
        page.line("worker", &lease.worker_id);
        page.time("lease until", Some(lease.expires_at));
    }
    if let Some(progress) = &job.progress {
        let percent = progress.percent.map(|percent| format!("{percent:.0} %"));
        let parts: Vec<String> = percent.into_iter().chain(progress.message.clone()).collect();
        page.line("progress", &parts.join(", "));
    }
    page.time("cancel asked", job.cancel_requested_at);
    page.option("orphan", job.orphan.as_ref().map(|orphan| orphan.reason.as_str()));
    page.option("payload", job.payload.as_json().map(|json| json.as_str()));
    page.option("result", job.result.as_json().map(|json| json.as_str()));
    page.option("error", Some(error_of(job)).filter(|error| !error.is_empty()).as_deref());
    for (index, entry) in job.history.iter().enumerate() {
        let reason = entry.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let worker = entry.worker_id.as_ref().map(|worker| format!(", worker {worker}")).unwrap_or_default();
        let entry = format!("{} {} by {}{worker}{reason}", date(entry.at), entry.to.as_str(), entry.actor);
        page.line(if index == 0 { "history" } else { "" }, &entry);
    }
    page.text()
}
