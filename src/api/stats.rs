//! Statistics about jobs: counts, and how long jobs waited and ran.

use std::collections::HashSet;

use super::call::{Answer, Call, Read};
use super::error::ApiError;
use super::extract::Query;
use super::json::ok;
use super::lists::{FILTER, FilterParams, filter, parse, values};
use crate::query::stats::{GroupBy, Histogram, MAX_GROUPINGS, MAX_PERCENTILES, MAX_SUMS, Percent, StatsRequest, SumOf};
use crate::query::{Group, GroupField};
use crate::wire::{CountAnswer, StatsAnswer};

/// The default time that assigns a job to its interval.
const DEFAULT_TIME: &str = "created_at";

/// Counts jobs, in total and by group.
///
/// The filter is the same as for a list.
#[utoipa::path(get, path = "/v1/jobs/count", tag = "jobs",
    params(
        FilterParams,
        ("by" = Option<Vec<String>>, Query, max_items = 8, example = json!(["state", "queue"]),
            description = "Groups by these: any field that `GET /v1/fields` calls groupable, or `labels.` with a \
                label's name"),
    ),
    responses((status = 200, description = "The number of jobs", body = CountAnswer)))]
pub(crate) async fn count(call: Call<Read>, query: Query) -> Answer {
    query.only(&[&FILTER[..], &["by"]].concat())?;
    let (filter, by) = (filter(&call.app, &query)?, grouping(&query)?);
    let names: Vec<String> = by.iter().map(GroupBy::name).collect();
    let indexed: Result<Vec<GroupField>, String> = names.iter().map(|name| name.parse()).collect();
    let groups = match indexed {
        Ok(by) => call.app.manager.count(&filter, &by).await?,
        Err(_) => {
            let request = StatsRequest { filter, by, ..StatsRequest::default() };
            let rows = call.app.manager.stats(&request).await?.rows;
            rows.into_iter().map(|row| Group { values: row.values, count: row.figures.count }).collect()
        }
    };
    ok(&CountAnswer::new(&names, groups))
}

/// Computes statistics about jobs: how many there are, how long they waited and how long they took.
///
/// The answer has statistics in total, and by group, by interval, or by both. The filter is the same as for a list. An
/// interval has a fixed length, such as `30s`, `5m`, `1h` or `1d`, and begins at a whole multiple of it in UTC.
/// Intervals without jobs are left out, as are jobs without the requested time. Counts, means and maxima are exact,
/// percentiles are approximate. A wait is the time from when the job was due to its latest attempt; a run time is that
/// of its last attempt. `sum=resources.gpus` adds up what the jobs need of a resource. A request for more than 10,000
/// rows is refused.
#[utoipa::path(get, path = "/v1/jobs/stats", tag = "jobs",
    params(
        FilterParams,
        ("by" = Option<Vec<String>>, Query, max_items = 8, example = json!(["queue", "state"]),
            description = "Groups by these: any field that `GET /v1/fields` calls groupable, or `labels.` with a \
                label's name"),
        ("interval" = Option<String>, Query, example = "1h", description = "The length of an interval"),
        ("time" = Option<String>, Query, example = "finished_at",
            description = "The time that assigns a job to its interval; `created_at` by default"),
        ("percentiles" = Option<Vec<f64>>, Query, max_items = 10, example = json!([50, 95, 99]),
            description = "The percentiles, at most ten; 50, 95 and 99 by default"),
        ("sum" = Option<Vec<String>>, Query, max_items = 10, example = json!(["resources.gpus"]),
            description = "Adds up these over the jobs, at most ten: `resources.` with a resource's name"),
    ),
    responses((status = 200, description = "The statistics", body = StatsAnswer)))]
pub(crate) async fn stats(call: Call<Read>, query: Query) -> Answer {
    query.only(&[&FILTER[..], &["by", "interval", "time", "percentiles", "sum"]].concat())?;
    let filter = filter(&call.app, &query)?;
    let request = StatsRequest {
        filter,
        by: grouping(&query)?,
        over: over(&query)?,
        percentiles: Some(percentiles(&query)?),
        sums: sums(&query)?,
    };
    let stats = call.app.manager.stats(&request).await?;
    ok(&StatsAnswer::new(&request, stats))
}

fn grouping(query: &Query) -> Result<Vec<GroupBy>, ApiError> {
    let by: Vec<GroupBy> = values(query, "by")?;
    if by.len() > MAX_GROUPINGS {
        return Err(ApiError::field("by", format!("must have at most {MAX_GROUPINGS} values")));
    }
    let mut names = HashSet::new();
    match by.iter().map(GroupBy::name).find(|name| !names.insert(name.clone())) {
        Some(twice) => Err(ApiError::field("by", format!("names `{twice}` twice"))),
        None => Ok(by),
    }
}

fn over(query: &Query) -> Result<Option<Histogram>, ApiError> {
    let time = query.one("time")?;
    let Some(interval) = query.one("interval")? else {
        return match time {
            Some(_) => Err(ApiError::field("time", "says what an `interval` goes by, and there is none")),
            None => Ok(None),
        };
    };
    let interval = parse("interval", interval)?;
    let over = Histogram::over(time.unwrap_or(DEFAULT_TIME), interval);
    over.map(Some).map_err(|error| ApiError::field("time", error))
}

fn percentiles(query: &Query) -> Result<Vec<Percent>, ApiError> {
    let percentiles: Vec<Percent> = values(query, "percentiles")?;
    match percentiles.len() {
        0 => Ok(Percent::usual()),
        1..=MAX_PERCENTILES => Ok(percentiles),
        _ => Err(ApiError::field("percentiles", format!("must have at most {MAX_PERCENTILES} values"))),
    }
}

fn sums(query: &Query) -> Result<Vec<SumOf>, ApiError> {
    let sums: Vec<SumOf> = values(query, "sum")?;
    if sums.len() > MAX_SUMS {
        return Err(ApiError::field("sum", format!("must have at most {MAX_SUMS} values")));
    }
    Ok(sums)
}
