//! `leasehold stats`: how many jobs there are, how long they waited and how long they ran.

use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::complete;
use super::count::value;
use super::duration;
use super::failure::Failure;
use super::filter::GroupingArgs;
use super::look::date;
use super::output::table;
use super::server::ClientArgs;
use super::settings::Settings;
use crate::client::StatsQuery;
use crate::wire::{StatsAnswer, StatsFigures};

/// Show how long jobs waited and ran, in total, by group or over time
///
/// The wait of a job is that of its latest attempt from when it was due; its run time is that of its last attempt.
/// Percentiles are approximate.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold stats 'state: completed' --by queue
  leasehold stats --interval 1h --time-field finished_at 'finished_at >= now-1d'
  leasehold stats 'state: running' --by queue --by owner --sum resources.gpus
  leasehold stats --by kind --percentiles 50,99.9 --json")]
pub(super) struct StatsArgs {
    #[command(flatten)]
    jobs: GroupingArgs,
    /// Show a row for each interval of this length: 30s, 5m, 1h, 1d
    #[arg(long, value_name = "INTERVAL")]
    interval: Option<String>,
    /// The time field that puts a job in its interval [default: created_at]
    #[arg(long, value_name = "FIELD", requires = "interval", add = ArgValueCompleter::new(complete::times))]
    time_field: Option<String>,
    /// Show these percentiles, at most ten
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "50,95,99")]
    percentiles: Vec<f64>,
    /// Add up what the jobs need of this resource: resources.gpus; may be given several times
    #[arg(long, value_name = "FIELD")]
    sum: Vec<String>,
    #[command(flatten)]
    answer: ClientArgs,
}

/// Prints the statistics.
pub(super) async fn run(args: StatsArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    let query = StatsQuery {
        jobs: args.jobs.query(),
        by: args.jobs.by,
        interval: args.interval,
        time: args.time_field,
        percentiles: args.percentiles,
        sums: args.sum,
    };
    args.answer.print(&client.stats(&query).await?, |answer| show(answer, &query))
}

fn show(answer: &StatsAnswer, query: &StatsQuery) -> String {
    let over_time = query.interval.is_some();
    let labels = usize::from(over_time) + query.by.len();
    let names: Vec<String> = query.percentiles.iter().map(f64::to_string).collect();
    let mut header: Vec<String> = over_time.then(|| "from".to_owned()).into_iter().chain(query.by.clone()).collect();
    header.push("jobs".to_owned());
    for what in ["wait", "run"] {
        header.extend(names.iter().map(|name| format!("{what} p{name}")));
        header.push(format!("{what} max"));
    }
    header.extend(query.sums.iter().cloned());
    let mut rows: Vec<Vec<String>> = Vec::with_capacity(answer.rows.len() + 1);
    for row in &answer.rows {
        let at = over_time.then(|| row.at.map(date).unwrap_or_default());
        let by = query.by.iter().map(|field| value(row.by.get(field)));
        rows.push(at.into_iter().chain(by).chain(cells(&row.figures, &names, &query.sums)).collect());
    }
    let mut total = vec![String::new(); labels];
    if let Some(first) = total.first_mut() {
        "in all".clone_into(first);
    }
    total.extend(cells(&answer.total, &names, &query.sums));
    rows.push(total);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    table(&header, rows)
}

fn cells(figures: &StatsFigures, percentiles: &[String], sums: &[String]) -> Vec<String> {
    let mut cells = vec![figures.count.to_string()];
    for durations in [&figures.wait_ms, &figures.run_time_ms] {
        cells.extend(percentiles.iter().map(|name| millis(durations.percentiles.get(name).copied().flatten())));
        cells.push(millis(durations.max));
    }
    cells.extend(sums.iter().map(|name| figures.sums.get(name).copied().unwrap_or_default().to_string()));
    cells
}

fn millis(millis: Option<f64>) -> String {
    let known = millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok());
    known.map_or_else(|| "-".to_owned(), duration::show)
}
