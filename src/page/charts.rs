//! How many jobs ended lately, and how long they waited and ran: counted in the store, so that it covers all servers
//! and a restart loses nothing, and once for all who look.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::ask::{Asker, Refused};
use super::kept::Kept;
use crate::clock::Timestamp;
use crate::wire::StatsAnswer;

/// A time that a chart covers.
#[derive(Clone, Copy)]
struct Span {
    name: &'static str,
    /// The time and the interval, in KQL and as the API takes it.
    back: &'static str,
    interval: &'static str,
    length: Duration,
    step: Duration,
    /// How long a count stays as it is.
    kept: Duration,
}

const HOUR: Span = Span {
    name: "hour",
    back: "1h",
    interval: "1m",
    length: Duration::from_secs(3600),
    step: Duration::from_secs(60),
    kept: Duration::from_secs(60),
};
const DAY: Span = Span {
    name: "day",
    back: "1d",
    interval: "30m",
    length: Duration::from_secs(24 * 3600),
    step: Duration::from_secs(30 * 60),
    kept: Duration::from_secs(5 * 60),
};

/// How long a page waits for a chart that is being counted.
const PATIENCE: Duration = Duration::from_millis(150);

/// What happened in one interval.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bar {
    /// When the interval begins.
    pub(super) at: Timestamp,
    /// The number of jobs that completed.
    pub(super) completed: u64,
    /// The number of jobs that failed for good.
    pub(super) failed: u64,
    /// The number of jobs that were cancelled or not begun in time.
    pub(super) other: u64,
    /// The median and the 95th percentile of how long these jobs waited, in milliseconds.
    pub(super) waited: [Option<f64>; 2],
    /// The median and the 95th percentile of how long they ran, in milliseconds.
    pub(super) ran: [Option<f64>; 2],
}

/// The intervals of a span, from the oldest to the one that is now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chart {
    /// The name of the span.
    pub(super) name: &'static str,
    /// The intervals of the span, each with what happened in it.
    pub(super) bars: Vec<Bar>,
    /// The whole span in one.
    pub(super) total: Bar,
}

/// The charts, as last counted.
#[derive(Default)]
pub(super) struct Charts {
    hour: Arc<Kept<Chart>>,
    day: Arc<Kept<Chart>>,
}

impl Charts {
    /// Returns the charts of the last hour and the last day, each as it was counted last; `None` for one that is being
    /// counted for the first time, which takes seconds where millions of jobs have ended.
    pub(super) async fn get(&self, asker: &Asker, now: Timestamp) -> [Option<Arc<Chart>>; 2] {
        let chart = |place, span: Span| {
            let (place, asker): (&Arc<Kept<Chart>>, Asker) = (place, asker.clone());
            place.get_within((span.kept, PATIENCE), async move { count(span, &asker, now).await.ok() })
        };
        let (hour, day) = tokio::join!(chart(&self.hour, HOUR), chart(&self.day, DAY));
        [hour, day]
    }
}

async fn count(span: Span, asker: &Asker, now: Timestamp) -> Result<Chart, Refused> {
    let kql = format!("finished_at >= now-{}", span.back);
    let over = [("kql", kql.as_str()), ("time", "finished_at"), ("interval", span.interval)];
    let over = [&over[..], &[("percentiles", "50"), ("percentiles", "95")]].concat();
    let by_state = [&over[..], &[("by", "state")]].concat();
    let ended: StatsAnswer = asker.get("/v1/jobs/stats", &by_state).await?;
    let times: StatsAnswer = asker.get("/v1/jobs/stats", &over).await?;
    Ok(chart_of(span, now, &ended, &times))
}

fn chart_of(span: Span, now: Timestamp, ended: &StatsAnswer, times: &StatsAnswer) -> Chart {
    let step = span.step.as_millis() as i64;
    let first = now.minus(span.length).as_millis().div_euclid(step) + 1;
    let last = now.as_millis().div_euclid(step);
    let mut bars: BTreeMap<i64, Bar> =
        (first..=last).map(|number| (number * step, empty(Timestamp::from_millis(number * step)))).collect();
    let mut total = empty(Timestamp::from_millis(first * step));
    for row in &ended.rows {
        let state = row.by.get("state").and_then(Option::as_deref).unwrap_or_default();
        let bar = row.at.and_then(|at| bars.get_mut(&at.as_millis()));
        for bar in bar.into_iter().chain([&mut total]) {
            *(match state {
                "completed" => &mut bar.completed,
                "failed" => &mut bar.failed,
                _ => &mut bar.other,
            }) += row.figures.count;
        }
    }
    for (at, figures) in times.rows.iter().map(|row| (row.at, &row.figures)).chain([(None, &times.total)]) {
        let bar = at.map_or(Some(&mut total), |at| bars.get_mut(&at.as_millis()));
        if let Some(bar) = bar {
            let percentile = |of: &BTreeMap<String, Option<f64>>, name| of.get(name).copied().flatten();
            bar.waited = ["50", "95"].map(|name| percentile(&figures.wait_ms.percentiles, name));
            bar.ran = ["50", "95"].map(|name| percentile(&figures.run_time_ms.percentiles, name));
        }
    }
    Chart { name: span.name, bars: bars.into_values().collect(), total }
}

fn empty(at: Timestamp) -> Bar {
    Bar { at, completed: 0, failed: 0, other: 0, waited: [None; 2], ran: [None; 2] }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_interval_has_its_bar_and_those_without_jobs_are_empty() {
        let now = Timestamp::from_millis(10 * 3_600_000 + 30_000);
        let durations = |p50: f64| json!({"count": 2, "mean": 1.0, "max": 2.0, "percentiles": {"50": p50, "95": 9.0}});
        let figures = |at: Option<i64>, count: u64, state: Option<&str>| {
            json!({
                "at": at.map(|at| Timestamp::from_millis(at).to_rfc3339()), "by": {"state": state}, "count": count,
                "wait_ms": durations(3.0), "run_time_ms": durations(5.0),
            })
        };
        let (minute, newest) = (60_000, 10 * 3_600_000);
        let answer = |rows| serde_json::from_value(json!({"total": figures(None, 7, None), "rows": rows})).expect("it");
        let ended: StatsAnswer = answer(json!([
            figures(Some(newest), 4, Some("completed")),
            figures(Some(newest), 2, Some("failed")),
            figures(Some(newest - minute), 1, Some("expired")),
        ]));
        let times: StatsAnswer = answer(json!([figures(Some(newest), 6, None)]));
        let chart = chart_of(HOUR, now, &ended, &times);
        assert_eq!(chart.bars.len(), 60);
        let last = &chart.bars[59];
        assert_eq!((last.at.as_millis(), last.completed, last.failed, last.other), (newest, 4, 2, 0));
        assert_eq!((last.waited, last.ran), ([Some(3.0), Some(9.0)], [Some(5.0), Some(9.0)]));
        assert_eq!((chart.bars[58].other, chart.bars[58].waited), (1, [None; 2]));
        assert_eq!(chart.bars[0], empty(Timestamp::from_millis(newest - 59 * minute)));
        assert_eq!((chart.total.completed, chart.total.failed, chart.total.other), (4, 2, 1));
    }
}
