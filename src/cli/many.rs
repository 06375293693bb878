//! A change of all that a filter selects: counted first, confirmed, then carried out call by call.

use std::io::{BufRead as _, IsTerminal as _};

use clap::Args;
use serde::Serialize;

use super::failure::Failure;
use super::layout::Column;
use super::output::{complain, print, table_with};
use super::server::ClientArgs;
use crate::client::{Client, ClientError};
use crate::wire::BulkReport;

/// The heading of the flags that select many.
pub(super) const HEADING: &str = "Many at once";

/// Whether a change is only tried, or made without a question.
#[derive(Debug, Args)]
pub(super) struct Confirmation {
    /// Only count what would be changed, and show some of it
    #[arg(long, requires = "filter", help_heading = HEADING)]
    pub(super) dry_run: bool,
    /// Do not ask before anything is changed
    #[arg(long, short, requires = "filter", conflicts_with = "dry_run", help_heading = HEADING)]
    yes: bool,
}

/// A change of all that a filter selects.
pub(super) trait ManyChange {
    /// What is changed, as the server shows it.
    type Item: Serialize;

    /// The words for one item and for several.
    const NOUNS: [&'static str; 2];
    /// How the samples are chosen.
    const SAMPLE: &'static str;
    /// The columns of a table of samples.
    const COLUMNS: &'static [Column];

    /// Returns the change as a verb.
    fn verb(&self) -> &'static str;

    /// Returns whether the change needs a reason that was not given.
    fn lacks_reason(&self) -> bool;

    /// Changes what the filter selects, or counts it.
    async fn call(
        &self,
        client: &Client,
        dry_run: bool,
        cursor: Option<String>,
    ) -> Result<BulkReport<Self::Item>, ClientError>;

    /// Returns a row of a table of samples.
    fn row(item: &Self::Item) -> Vec<String>;
}

/// Shows how many items match and some of them, asks for confirmation unless `--yes` is given, and changes them.
pub(super) async fn run<C: ManyChange>(
    client: &Client,
    change: &C,
    confirmation: &Confirmation,
    answer: &ClientArgs,
) -> Result<(), Failure> {
    let [_, nouns] = C::NOUNS;
    if change.lacks_reason() && !confirmation.dry_run {
        return Err(Failure::Usage(format!("say why with --reason before you {} many {nouns}", change.verb())));
    }
    let preview = change.call(client, true, None).await?;
    if answer.json() || !answer.is_for_programs() {
        answer.print(&preview, |preview| describe(change, preview))?;
    } else {
        preview.sample.iter().try_for_each(|item| answer.print_item(item))?;
    }
    if confirmation.dry_run || preview.matched == 0 {
        return Ok(());
    }
    if !confirmation.yes && !confirmed(change, preview.matched)? {
        return Err(Failure::Failed("nothing was changed".to_owned()));
    }
    let (mut total, mut cursor) = (Total::default(), None);
    // Bounded by the number of items: each call goes on where the one before ended.
    loop {
        let report = change.call(client, false, cursor).await.inspect_err(|_| {
            complain(&format!("so far: {total}"));
        })?;
        total.add(&report);
        if answer.json() {
            answer.print_item(&report)?;
        }
        for failure in &report.failed {
            complain(&format!("{}: {}: {}", failure.id, failure.error.code, failure.error.message));
        }
        cursor = report.next_cursor;
        if cursor.is_none() {
            break;
        }
        if !answer.is_for_programs() {
            complain(&format!("so far: {total}"));
        }
    }
    if !answer.is_for_programs() {
        print(&total.to_string())?;
    }
    if total.failed > 0 {
        return Err(Failure::Failed(format!("{} {nouns} could not be changed", total.failed)));
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
    fn add<T>(&mut self, report: &BulkReport<T>) {
        self.changed += report.changed;
        self.skipped += report.skipped;
        self.failed += report.failed_total;
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} changed, {} left alone, {} failed", self.changed, self.skipped, self.failed)
    }
}

fn describe<C: ManyChange>(change: &C, preview: &BulkReport<C::Item>) -> String {
    let [one, several] = C::NOUNS;
    let nouns = if preview.matched == 1 { one } else { several };
    let headline = format!("{} {nouns} to {}", preview.matched, change.verb());
    if preview.sample.is_empty() {
        return headline;
    }
    let listed = table_with(C::COLUMNS, preview.sample.iter().map(C::row));
    let shown = preview.sample.len() as u64;
    let which = if shown < preview.matched { format!(", the {} {shown} of them:", C::SAMPLE) } else { ":".to_owned() };
    format!("{headline}{which}\n{listed}")
}

/// Asks the person at the terminal for confirmation. Fails where there is no terminal.
fn confirmed<C: ManyChange>(change: &C, items: u64) -> Result<bool, Failure> {
    let verb = change.verb();
    if !std::io::stdin().is_terminal() {
        let [_, nouns] = C::NOUNS;
        return Err(Failure::Usage(format!("{items} {nouns} would be changed: say --yes to {verb} them")));
    }
    complain(&format!("{verb} them? [y/N]"));
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|error| Failure::Failed(format!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
