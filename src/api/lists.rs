//! Lists of jobs, and the filter that they share with counts, statistics and exports.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::App;
use super::call::{Answer, Call, Read};
use super::error::ApiError;
use super::extract::Query;
use super::json::ok;
use super::trim::Fields;
use crate::clock::Timestamp;
use crate::job::{JobState, Kind, Owner, QueueName};
use crate::manager::ManagerError;
use crate::query::kql::{Expression, Zone};
use crate::query::table::Table;
use crate::query::{Cursor, Filter, Search, Sort, SortKey};
use crate::store::Versioned;
use crate::wire::selected::SelectedJob;
use crate::wire::{JobAnswer, Page};

/// The default number of jobs on a page.
const DEFAULT_LIMIT: u64 = 100;
/// The most jobs on a page.
const MAX_LIMIT: u64 = 1000;
/// The most values of one part of a filter.
const MAX_VALUES: usize = 100;
/// The longest cursor, in characters: a cursor holds a job's id and the value that the job is ordered by.
const MAX_CURSOR_CHARS: usize = 16 * 1024;

/// The parameters of a filter.
pub(crate) const FILTER: [&str; 6] = ["state", "queue", "kind", "owner", "kql", "time_zone"];

/// The filter's parameters for the API's description.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read for its description alone")]
pub(crate) struct FilterParams {
    /// Selects only jobs in these states
    #[param(max_items = 100)]
    state: Option<Vec<JobState>>,
    /// Selects only jobs in these queues; without it, none in the system's own
    #[param(max_items = 100)]
    queue: Option<Vec<QueueName>>,
    /// Selects only jobs of these kinds
    #[param(max_items = 100)]
    kind: Option<Vec<Kind>>,
    /// Selects only jobs that belong to these owners
    #[param(max_items = 100)]
    owner: Option<Vec<Owner>>,
    /// Selects only jobs that this KQL query matches: at most 16 KiB, which compare fields with values at most 1024
    /// times; each value counts, once for each field that it is compared with
    #[param(example = "state: running and not owner: team-a")]
    kql: Option<String>,
    /// The time zone of the query's days and of its times without a zone; UTC by default
    #[param(example = "Europe/Berlin")]
    time_zone: Option<String>,
}

/// Lists jobs.
///
/// A parameter of the filter can have several values, repeated or separated by commas, and a job must match one of
/// them; it must match all parameters. A comma within a value is written `%2C`. A `payload` or `result` that is stored
/// apart from its job is left out. The latest writes may be missing for a moment.
///
/// The system's own jobs, such as deliveries of notifications, are left out of lists, counts, statistics and exports
/// unless they are asked for: by `queue`, by an id in the query, or by a query that names `leasehold.`, such as
/// `queue: leasehold.*`.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs",
    params(
        FilterParams,
        ("sort" = Option<String>, Query, example = "-created_at", description = "The order: any field that \
            `GET /v1/fields` calls sortable, smallest first; a leading `-` turns it round. Jobs without the field come \
            last in either"),
        ("fields" = Option<Vec<String>>, Query, max_items = 100,
            example = json!(["id", "lease.worker_id", "labels.team"]),
            description = "Selects only these fields of each job, with dots for nested ones"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000,
            description = "The size of the page; 100 by default"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of jobs", body = Page<SelectedJob>)))]
pub(crate) async fn list(call: Call<Read>, query: Query) -> Answer {
    query.only(&[&FILTER[..], &["sort", "fields", "limit", "cursor"]].concat())?;
    let (filter, fields) = (filter(&call.app, &query)?, Fields::of(&query)?);
    let sort = query.one("sort")?.map(|text| parse::<Sort>("sort", text)).transpose()?.unwrap_or_default();
    let Page { items: jobs, next_cursor } = page(&call.app, &query, filter, sort).await?;
    let items = jobs.iter().map(|job| JobAnswer::of(job, call.sight));
    if !fields.are_all() {
        let items = items.map(|job| fields.of_answer(&job)).collect::<Result<_, ApiError>>()?;
        return ok(&Page { items, next_cursor });
    }
    let items = items.collect();
    ok(&Page { items, next_cursor })
}

/// Searches for the page that the query's `limit` and `cursor` select.
pub(crate) async fn page(app: &App, query: &Query, filter: Filter, sort: Sort) -> Result<Page<Versioned>, ApiError> {
    let find = |after, limit| async move { app.manager.search(&Search { filter, sort, after, limit }).await };
    page_of(query, sort, find, |found| sort.key(&found.job)).await
}

/// Answers with the page that the query's `limit` and `cursor` select of what `find` finds after a key, up to a number.
pub(crate) async fn page_of<T, F: Future<Output = Result<Vec<T>, ManagerError>>>(
    query: &Query,
    sort: Sort,
    find: impl FnOnce(Option<SortKey>, usize) -> F,
    key: impl Fn(&T) -> SortKey,
) -> Result<Page<T>, ApiError> {
    let limit = limit(query)?;
    let after = query.one("cursor")?.map(|text| decode_cursor(text, sort)).transpose()?.map(|cursor| cursor.after);
    // One more than requested shows whether there is another page.
    let mut items = find(after, limit + 1).await?;
    let more = items.len() > limit;
    items.truncate(limit);
    let last = items.last().filter(|_| more);
    let next_cursor = last.map(|last| encode_cursor(&Cursor { sort, after: key(last) }));
    Ok(Page { items, next_cursor })
}

/// Reads the KQL query of a filter, which is about the fields of `table`.
pub(crate) fn kql(app: &App, query: &Query, table: Table) -> Result<Option<crate::query::Query>, ApiError> {
    let zone = query.one("time_zone")?.map(|text| {
        Zone::parse(text).ok_or_else(|| ApiError::field("time_zone", "is not one, such as `Europe/Berlin` or `+02:00`"))
    });
    let zone = zone.transpose()?.unwrap_or_default();
    let Some(text) = query.one("kql")? else { return Ok(None) };
    let expression =
        Expression::parse_about(table, text, zone).map_err(|error| ApiError::field("kql", error.render()))?;
    Ok(Some(crate::query::Query { expression: Arc::new(expression), now: app.manager.now() }))
}

/// Reads the filter from the query.
pub(crate) fn filter(app: &App, query: &Query) -> Result<Filter, ApiError> {
    let filter = Filter {
        query: kql(app, query, Table::Jobs)?,
        states: values(query, "state")?,
        queues: values(query, "queue")?,
        kinds: values(query, "kind")?,
        owners: values(query, "owner")?,
        ..Filter::default()
    };
    Ok(filter.of_users(query.one("kql")?))
}

/// Reads the size of a page from the query.
pub(crate) fn limit(query: &Query) -> Result<usize, ApiError> {
    let limit = query.number("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Parses the values of a parameter that may have several.
pub(crate) fn values<T: FromStr<Err: Display>>(query: &Query, name: &str) -> Result<Vec<T>, ApiError> {
    if query.all(name).nth(MAX_VALUES).is_some() {
        return Err(ApiError::field(name, format!("must have at most {MAX_VALUES} values")));
    }
    query.all(name).map(|text| parse(name, text)).collect()
}

/// Parses the value of a parameter.
pub(crate) fn parse<T: FromStr<Err: Display>>(name: &str, text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|error: T::Err| ApiError::field(name, error.to_string()))
}

/// Parses the time of a parameter.
pub(crate) fn time(query: &Query, name: &str) -> Result<Option<Timestamp>, ApiError> {
    let parse = |text| Timestamp::parse_rfc3339(text).map_err(|error| ApiError::field(name, error));
    query.one(name)?.map(parse).transpose()
}

/// Encodes a place in a list as opaque text.
pub(crate) fn encode_cursor(place: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(place).unwrap_or_default())
}

/// Decodes a place in a list.
pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Result<T, ApiError> {
    Some(text)
        .filter(|text| text.len() <= MAX_CURSOR_CHARS)
        .and_then(|text| URL_SAFE_NO_PAD.decode(text).ok())
        .and_then(|json| serde_json::from_slice(&json).ok())
        .ok_or_else(|| ApiError::field("cursor", "is not one of this server's"))
}

/// Decodes a cursor of a list in this order.
pub(crate) fn decode_cursor(text: &str, sort: Sort) -> Result<Cursor, ApiError> {
    let cursor: Cursor = decode(text)?;
    if cursor.sort == sort {
        Ok(cursor)
    } else {
        Err(ApiError::field("cursor", "belongs to a list in another order; send the same `sort` with it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CURSOR: &str = r#"{"sort":{"by":["created_at","descending"]},"after":{"ranks":[-5,0],"id":"a"}}"#;

    #[test]
    fn a_cursor_comes_back_as_it_went_out() {
        let cursor: Cursor = serde_json::from_str(CURSOR).expect("a cursor");
        let decoded = decode_cursor(&encode_cursor(&cursor), Sort::default()).expect("a cursor");
        assert_eq!(decoded, cursor);
    }

    #[test]
    fn a_cursor_of_another_order_or_of_nobody_is_refused() {
        let cursor: Cursor = serde_json::from_str(CURSOR).expect("a cursor");
        let cursor = encode_cursor(&cursor);
        assert!(decode_cursor(&cursor, "run_at".parse().expect("a sort")).is_err());
        for wrong in ["", "x", "e30", &cursor[1..], &"A".repeat(20_000)] {
            assert!(decode_cursor(wrong, Sort::default()).is_err(), "{wrong}");
        }
    }
}
