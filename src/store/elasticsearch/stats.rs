//! Counts and statistics of jobs, by aggregations over stored fields: counts are exact, percentiles are the server's
//! estimates (Dunning and Ertl, "Computing extremely accurate quantiles using t-digests", 2019).

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::indices::Indices;
use super::search::{Scope, Shards, complete, index_for, query, unreadable};
use crate::clock::Timestamp;
use crate::query::fields::Field;
use crate::query::stats::{Durations, Figures, GroupBy, Stats, StatsRequest, StatsRow, SumOf};
use crate::query::{Filter, Group, GroupField};
use crate::store::StoreError;

/// The most groups that a count returns.
const MAX_GROUPS: usize = 1_000_000;
/// The most rows in one request.
const ROWS_PER_PAGE: usize = 1_000;

/// The fields of the index that hold durations.
const WAIT: &str = "wait_ms";
const RUN_TIME: &str = "run_time_ms";

/// The name of the aggregation that holds the rows.
const ROWS: &str = "rows";
/// The name of the interval's beginning in a row's key.
const AT: &str = "at";

#[derive(Deserialize)]
struct Reply {
    timed_out: bool,
    #[serde(rename = "_shards")]
    shards: Shards,
    hits: Hits,
    #[serde(default)]
    aggregations: Aggregations,
}

#[derive(Deserialize)]
struct Hits {
    total: Option<Total>,
}

#[derive(Deserialize)]
struct Total {
    value: u64,
}

#[derive(Default, Deserialize)]
struct Aggregations {
    rows: Option<Rows>,
    #[serde(flatten)]
    measures: Measures,
}

#[derive(Deserialize)]
struct Rows {
    #[serde(default)]
    after_key: Option<Value>,
    buckets: Vec<Bucket>,
}

#[derive(Deserialize)]
struct Bucket {
    key: Map<String, Value>,
    doc_count: u64,
    #[serde(flatten)]
    measures: Measures,
}

#[derive(Default, Deserialize)]
struct Measures {
    wait: Option<Basics>,
    wait_percentiles: Option<Percentiles>,
    run_time: Option<Basics>,
    run_time_percentiles: Option<Percentiles>,
    /// The sums, by their names in the request ([`sum`]).
    #[serde(flatten)]
    sums: HashMap<String, Sum>,
}

#[derive(Deserialize)]
struct Sum {
    value: f64,
}

#[derive(Deserialize)]
struct Basics {
    count: u64,
    avg: Option<f64>,
    max: Option<f64>,
}

#[derive(Deserialize)]
struct Percentiles {
    values: Vec<PercentileValue>,
}

#[derive(Deserialize)]
struct PercentileValue {
    value: Option<f64>,
}

/// Counts jobs by group, the largest group first. A moving job is counted twice from when searches see its copy until
/// they see its tombstone, one refresh later.
pub(super) async fn count(
    scope: Scope<'_>,
    indices: &Indices,
    filter: &Filter,
    by: &[GroupField],
) -> Result<Vec<Group>, StoreError> {
    let by = by.iter().filter_map(|field| Field::named(field.as_str())).map(GroupBy::Field).collect();
    let request = StatsRequest { filter: filter.clone(), by, ..StatsRequest::default() };
    let Some(Stats { total, rows }) = stats(scope, indices, &request, MAX_GROUPS).await? else {
        return Err(StoreError::Unavailable(format!("there are more than {MAX_GROUPS} groups to count")));
    };
    if !request.has_rows() {
        return Ok(vec![Group { values: Vec::new(), count: total.count }]);
    }
    let groups = rows.into_iter().map(|row| Group { values: row.values, count: row.figures.count });
    Ok(groups.collect())
}

/// Computes statistics; `None` when there are more than `most` rows.
pub(super) async fn stats(
    scope: Scope<'_>,
    indices: &Indices,
    request: &StatsRequest,
    most: usize,
) -> Result<Option<Stats>, StoreError> {
    let index = index_for(&request.filter, indices);
    let scope = Scope { index: &index, ..scope };
    let mut stats = Stats::default();
    let mut after = None;
    // Ends: every round adds a page of rows up to their bound, or is the last.
    loop {
        let first = after.is_none();
        let reply = scope.search(&body(request, after.as_ref())).await?;
        let reply: Reply = serde_json::from_slice(&reply).map_err(|error| unreadable(&error))?;
        complete(&reply.shards, reply.timed_out)?;
        let Aggregations { rows, measures } = reply.aggregations;
        if first {
            let count = reply.hits.total.map_or(0, |total| total.value);
            stats.total = figures(count, measures, request);
        }
        let Some(page) = rows else { break };
        let found = page.buckets.len();
        if stats.rows.len() + found > most {
            return Ok(None);
        }
        stats.rows.extend(page.buckets.into_iter().map(|bucket| row(bucket, request)));
        after = page.after_key;
        if found < ROWS_PER_PAGE || after.is_none() {
            break;
        }
    }
    stats.rows.sort_unstable_by(StatsRow::in_order);
    Ok(Some(stats))
}

fn body(request: &StatsRequest, after: Option<&Value>) -> Value {
    let mut parts = vec![query(&request.filter)];
    if let Some(over) = &request.over {
        parts.push(json!({ "exists": { "field": over.field() } }));
    }
    let measures = measures(request);
    let mut aggregations = if after.is_none() { measures.clone() } else { Map::new() };
    if request.has_rows() {
        let mut composite = json!({ "size": ROWS_PER_PAGE, "sources": sources(request) });
        if let Some(after) = after {
            composite["after"] = after.clone();
        }
        aggregations.insert(ROWS.to_owned(), json!({ "composite": composite, "aggs": measures }));
    }
    json!({
        "query": { "bool": { "filter": parts } },
        "size": 0,
        "track_total_hits": after.is_none(),
        "aggs": aggregations,
    })
}

fn sources(request: &StatsRequest) -> Vec<Value> {
    let over = request.over.as_ref().map(|over| {
        let interval = format!("{}ms", over.interval.as_millis());
        json!({ AT: { "date_histogram": { "field": over.field(), "fixed_interval": interval } } })
    });
    let by = request
        .by
        .iter()
        .enumerate()
        .map(|(index, by)| json!({ place(index): { "terms": { "field": by.name(), "missing_bucket": true } } }));
    over.into_iter().chain(by).collect()
}

/// Returns the name of a group's value in a row's key. It is generated, since a label's name may be any text.
fn place(index: usize) -> String {
    format!("by{index}")
}

/// Returns the name of a sum in the request and the answer. It is generated, as that of a group's value is.
fn sum(index: usize) -> String {
    format!("sum{index}")
}

fn measures(request: &StatsRequest) -> Map<String, Value> {
    let adding = |(index, of): (usize, &SumOf)| (sum(index), json!({ "sum": { "field": of.name() } }));
    let mut measures: Map<String, Value> = request.sums.iter().enumerate().map(adding).collect();
    let Some(percentiles) = &request.percentiles else { return measures };
    let percents: Vec<f64> = percentiles.iter().map(|percent| percent.get()).collect();
    for (name, field) in [("wait", WAIT), ("run_time", RUN_TIME)] {
        measures.insert(name.to_owned(), json!({ "stats": { "field": field } }));
        if !percents.is_empty() {
            let percentiles = json!({ "field": field, "percents": percents, "keyed": false });
            measures.insert(format!("{name}_percentiles"), json!({ "percentiles": percentiles }));
        }
    }
    measures
}

fn row(bucket: Bucket, request: &StatsRequest) -> StatsRow {
    let at = bucket.key.get(AT).and_then(Value::as_i64).map(Timestamp::from_millis);
    let value = |index: usize| match bucket.key.get(&place(index))? {
        Value::String(text) => Some(text.clone()),
        Value::Null => None,
        other => Some(other.to_string()),
    };
    let values = (0..request.by.len()).map(value).collect();
    StatsRow { at, values, figures: figures(bucket.doc_count, bucket.measures, request) }
}

fn figures(count: u64, measures: Measures, request: &StatsRequest) -> Figures {
    let requested = request.percentiles.as_ref().map_or(0, Vec::len);
    let sums = (0..request.sums.len()).map(|index| measures.sums.get(&sum(index)).map_or(0.0, |sum| sum.value));
    Figures {
        sums: sums.collect(),
        count,
        wait: durations(measures.wait, measures.wait_percentiles, requested),
        run_time: durations(measures.run_time, measures.run_time_percentiles, requested),
    }
}

fn durations(basics: Option<Basics>, percentiles: Option<Percentiles>, requested: usize) -> Durations {
    let Some(Basics { count, avg, max }) = basics else { return Durations::default() };
    let values = percentiles.map(|percentiles| percentiles.values).unwrap_or_default();
    let mut percentiles: Vec<Option<f64>> = values.into_iter().map(|value| value.value).collect();
    percentiles.resize(requested, None);
    Durations { count, mean: avg, max, percentiles }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::stats::{Histogram, Percent};

    fn request() -> StatsRequest {
        StatsRequest {
            by: vec!["queue".parse().expect("a group"), "labels.a[b]".parse().expect("a group")],
            over: Some(Histogram::over("finished_at", "1h".parse().expect("an interval")).expect("a time")),
            percentiles: Some(Percent::usual()),
            sums: vec!["resources.gpus".parse().expect("a resource"), "resources.a".parse().expect("a resource")],
            ..StatsRequest::default()
        }
    }

    #[test]
    fn all_jobs_together_are_reckoned_with_the_first_page_only() {
        let first = body(&request(), None);
        assert_eq!(first["track_total_hits"], true);
        assert_eq!(first["aggs"]["wait"]["stats"]["field"], WAIT);
        let next = body(&request(), Some(&json!({ "at": 1 })));
        assert_eq!(next["track_total_hits"], false);
        assert_eq!(next["aggs"].as_object().map(Map::len), Some(1));
        assert_eq!(next["aggs"][ROWS]["composite"]["after"], json!({ "at": 1 }));
    }

    #[test]
    fn a_row_has_its_interval_and_its_values_in_the_order_asked() {
        let bucket = json!({
            "key": { "by1": null, "at": 3_600_000, "by0": "q" },
            "doc_count": 3,
            "wait": { "count": 2, "min": 1.0, "max": 3.0, "avg": 2.0, "sum": 4.0 },
            "wait_percentiles": { "values": [
                { "key": 50.0, "value": 1.5 }, { "key": 95.0, "value": 3.0 }, { "key": 99.0, "value": 3.0 },
            ] },
            "run_time": { "count": 0, "min": null, "max": null, "avg": null, "sum": 0.0 },
            "run_time_percentiles": { "values": [
                { "key": 50.0, "value": null }, { "key": 95.0, "value": null }, { "key": 99.0, "value": null },
            ] },
            "sum0": { "value": 12.0 },
            "sum1": { "value": 0.0 },
        });
        let row = row(serde_json::from_value(bucket).expect("a bucket"), &request());
        assert_eq!(row.at, Some(Timestamp::from_millis(3_600_000)));
        assert_eq!(row.values, [Some("q".to_owned()), None]);
        assert_eq!((row.figures.count, row.figures.wait.count, row.figures.wait.mean), (3, 2, Some(2.0)));
        assert_eq!(row.figures.wait.percentiles, [Some(1.5), Some(3.0), Some(3.0)]);
        assert_eq!((row.figures.run_time.mean, row.figures.run_time.max), (None, None));
        assert_eq!(row.figures.sums, [12.0, 0.0]);
    }

    #[test]
    fn groups_are_in_the_order_of_the_fields_and_may_lack_a_value() {
        let fields = [GroupField::State, GroupField::Owner, GroupField::State];
        let by = fields.iter().filter_map(|field| Field::named(field.as_str())).map(GroupBy::Field).collect();
        let request = StatsRequest { by, ..StatsRequest::default() };
        assert_eq!(sources(&request).len(), fields.len());
        let bucket = json!({ "key": { "by0": "running", "by1": null, "by2": "running" }, "doc_count": 3 });
        let row = row(serde_json::from_value(bucket).expect("a bucket"), &request);
        assert_eq!(row.values, [Some("running".to_owned()), None, Some("running".to_owned())]);
        assert_eq!(row.figures.count, 3);
    }
}
