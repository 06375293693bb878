//! A bulk change: counted first, confirmed, then carried out call by call.

use std::io::{BufRead as _, IsTerminal as _};

use super::chosen::Chosen;
use super::failure::Failure;
use super::output::{complain, print, print_json, table};
use crate::client::{Client, ClientError};
use crate::wire::{AdminRelease, BulkChange, BulkFilter, BulkReport, Job, JobAnswer, Then};

/// A change to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Release { then: Then, expected_fence: Option<u64> },
    Cancel,
    Retry,
}

impl Action {
    /// Returns the change as a verb.
    const fn verb(self) -> &'static str {
        match self {
            Self::Release { .. } => "release",
            Self::Cancel => "cancel",
            Self::Retry => "retry",
        }
    }

    /// Changes one job.
    pub(super) async fn one(self, client: &Client, id: &str, reason: Option<&str>) -> Result<Job, ClientError> {
        match self {
            Self::Release { then, expected_fence } => {
                let reason = reason.unwrap_or_default().to_owned();
                client.admin_release(id, &AdminRelease { reason, then, expected_fence }).await
            }
            Self::Cancel => client.cancel(id, reason).await,
            Self::Retry => client.retry(id, reason).await,
        }
    }

    /// Changes the jobs of a filter, or counts them.
    async fn many(self, client: &Client, order: BulkChange) -> Result<BulkReport<'static>, ClientError> {
        match self {
            Self::Release { then, .. } => client.release_many(&BulkChange { then: Some(then), ..order }).await,
            Self::Cancel => client.cancel_many(&order).await,
            Self::Retry => client.retry_many(&order).await,
        }
    }
}

/// Shows how many jobs match and some of them, asks for confirmation unless `--yes` is given, and changes them.
pub(super) async fn run(
    client: &Client,
    action: Action,
    filter: BulkFilter,
    reason: Option<String>,
    chosen: &Chosen,
) -> Result<(), Failure> {
    let json = chosen.answer.json;
    if reason.is_none() && !chosen.dry_run {
        return Err(Failure::Usage(format!("say why with --reason before you {} many jobs", action.verb())));
    }
    let dry_run = BulkChange { filter: filter.clone(), dry_run: true, ..BulkChange::default() };
    let preview = action.many(client, dry_run).await?;
    chosen.answer.print(&preview, |preview| describe(action, preview))?;
    if chosen.dry_run || preview.matched == 0 {
        return Ok(());
    }
    if !chosen.yes && !confirmed(action, preview.matched)? {
        return Err(Failure::Failed("nothing was changed".to_owned()));
    }
    let mut order = BulkChange { filter, reason, dry_run: false, ..BulkChange::default() };
    let mut total = Total::default();
    // Bounded by the number of jobs: each call goes on where the one before ended.
    loop {
        let answer = action.many(client, order.clone()).await.inspect_err(|_| {
            complain(&format!("so far: {total}"));
        })?;
        total.add(&answer);
        if json {
            print_json(&answer)?;
        }
        for failure in &answer.failed {
            complain(&format!("{}: {}: {}", failure.id, failure.error.code, failure.error.message));
        }
        if answer.next_cursor.is_none() {
            break;
        }
        if !json {
            complain(&format!("so far: {total}"));
        }
        order.cursor = answer.next_cursor;
    }
    if !json {
        print(&total.to_string())?;
    }
    if total.failed > 0 {
        return Err(Failure::Failed(format!("{} jobs could not be changed", total.failed)));
    }
    Ok(())
}

/// The sum of the reports of all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Total {
    changed: u64,
    skipped: u64,
    failed: u64,
}

impl Total {
    fn add(&mut self, answer: &BulkReport<'_>) {
        self.changed += answer.changed;
        self.skipped += answer.skipped;
        self.failed += answer.failed_total;
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} changed, {} left alone, {} failed", self.changed, self.skipped, self.failed)
    }
}

fn describe(action: Action, preview: &BulkReport<'_>) -> String {
    let jobs = if preview.matched == 1 { "job" } else { "jobs" };
    let headline = format!("{} {jobs} to {}", preview.matched, action.verb());
    if preview.sample.is_empty() {
        return headline;
    }
    let rows = preview.sample.iter().map(row);
    let listed = table(&["id", "queue", "kind", "state", "worker", "created"], rows);
    let shown = preview.sample.len() as u64;
    let which = if shown < preview.matched { format!(", the {shown} youngest of them:") } else { ":".to_owned() };
    format!("{headline}{which}\n{listed}")
}

fn row(job: &JobAnswer<'_>) -> Vec<String> {
    vec![
        job.id.to_string(),
        job.queue.to_string(),
        job.kind.to_string(),
        job.state.as_str().to_owned(),
        job.lease.as_ref().map(|lease| lease.worker_id.to_string()).unwrap_or_default(),
        job.created_at.to_rfc3339(),
    ]
}

/// Asks the person at the terminal for confirmation. Fails where there is no terminal.
fn confirmed(action: Action, jobs: u64) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        let verb = action.verb();
        return Err(Failure::Usage(format!("{jobs} jobs would be changed: say --yes to {verb} them")));
    }
    complain(&format!("{} them? [y/N]", action.verb()));
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|error| Failure::Failed(format!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
