//! Statistics of jobs, reckoned in the plainest way.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::clock::Timestamp;
use leasehold::job::Job;
use leasehold::query::stats::{Durations, Figures, MAX_ROWS, Stats, StatsRequest, StatsRow};
use leasehold::query::{Filter, Group, GroupField};

/// A row's interval and group.
type Row = (Option<Timestamp>, Vec<Option<String>>);

/// Counts jobs by group.
pub(super) fn count<'j>(jobs: impl Iterator<Item = &'j Job>, filter: &Filter, by: &[GroupField]) -> Vec<Group> {
    let mut counts: BTreeMap<Vec<Option<String>>, u64> = BTreeMap::new();
    if by.is_empty() {
        counts.insert(Vec::new(), 0);
    }
    for job in jobs.filter(|job| filter.matches(job)) {
        *counts.entry(by.iter().map(|field| field.value(job).map(str::to_owned)).collect()).or_default() += 1;
    }
    let mut groups: Vec<Group> = counts.into_iter().map(|(values, count)| Group { values, count }).collect();
    groups.sort_by(Group::most_first);
    groups
}

/// Computes statistics; `None` where they have too many rows.
pub(super) fn stats<'j>(jobs: impl Iterator<Item = &'j Job>, request: &StatsRequest) -> Option<Stats> {
    let mut total = Vec::new();
    let mut rows: BTreeMap<Row, Vec<&Job>> = BTreeMap::new();
    for job in jobs.filter(|job| request.filter.matches(job)) {
        let at = request.over.map(|over| over.row(job));
        // A job without the time that rows go by is left out.
        if at == Some(None) {
            continue;
        }
        total.push(job);
        if request.has_rows() {
            let values = request.by.iter().map(|by| by.value(job)).collect();
            rows.entry((at.flatten(), values)).or_default().push(job);
        }
    }
    if rows.len() > MAX_ROWS {
        return None;
    }
    let row = |((at, values), jobs): (Row, Vec<&Job>)| StatsRow { at, values, figures: figures(&jobs, request) };
    let mut rows: Vec<StatsRow> = rows.into_iter().map(row).collect();
    rows.sort_unstable_by(StatsRow::in_order);
    Some(Stats { total: figures(&total, request), rows })
}

fn figures(jobs: &[&Job], request: &StatsRequest) -> Figures {
    let durations = |of: fn(&Job) -> Option<Duration>| match request.percentiles {
        Some(_) => durations(jobs.iter().filter_map(|job| of(job)).collect(), request),
        None => Durations::default(),
    };
    let sum = |of: &leasehold::query::stats::SumOf| jobs.iter().map(|job| of.amount(job) as f64).sum();
    Figures {
        count: jobs.len() as u64,
        wait: durations(Job::wait),
        run_time: durations(Job::run_time),
        sums: request.sums.iter().map(sum).collect(),
    }
}

fn durations(mut values: Vec<Duration>, request: &StatsRequest) -> Durations {
    values.sort_unstable();
    let values: Vec<f64> = values.iter().map(|value| value.as_millis() as f64).collect();
    let percentile = |percent: f64| {
        let rank = (percent / 100.0 * values.len() as f64).ceil().max(1.0) as usize - 1;
        values.get(rank).copied()
    };
    let wanted = request.percentiles.iter().flatten();
    Durations {
        count: values.len() as u64,
        mean: (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64),
        max: values.last().copied(),
        percentiles: wanted.map(|percent| percentile(percent.get())).collect(),
    }
}
