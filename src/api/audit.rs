//! The audit, page by page.

use super::call::{Answer, Call, Read};
use super::error::ApiError;
use super::extract::Query;
use super::json::ok;
use super::lists::{decode, encode_cursor, limit, time, values};
use crate::clock::Timestamp;
use crate::job::{Actor, JobId, Kind, Owner, QueueName, WorkerId};
use crate::manager::{AuditEventName, AuditQuery};
use crate::wire::AuditAnswer;

/// Reads the audit: what happened to jobs, also to those that are removed, and who changed something else.
///
/// The newest events come first. A page can have fewer than `limit`, even none, although there is a next one: the
/// server ends a page where it has read enough. `kept` is false where no audit is kept. The latest events may be
/// missing for a while. The filter's parameters can have several values, as for a list.
#[utoipa::path(get, path = "/v1/audit", tag = "jobs",
    params(
        ("job" = Option<Vec<JobId>>, Query, max_items = 100, description = "Selects events of these jobs, by id"),
        ("queue" = Option<Vec<QueueName>>, Query, max_items = 100, description = "Selects jobs of these queues"),
        ("kind" = Option<Vec<Kind>>, Query, max_items = 100, description = "Selects jobs of these kinds"),
        ("owner" = Option<Vec<Owner>>, Query, max_items = 100, description = "Selects jobs of these owners"),
        ("event" = Option<Vec<AuditEventName>>, Query, max_items = 100, description = "Selects these events"),
        ("actor" = Option<Vec<Actor>>, Query, max_items = 100,
            description = "Selects events that these workers, people or parts of the system caused"),
        ("worker" = Option<Vec<WorkerId>>, Query, max_items = 100,
            description = "Selects transitions that these workers caused with a token, whatever that is \
                called; without tokens they are `actor`"),
        ("from" = Option<Timestamp>, Query, description = "Selects what happened at this time or later"),
        ("to" = Option<Timestamp>, Query, description = "Selects what happened at this time or earlier"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000,
            description = "The most events of the page; 100 by default"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of the audit", body = AuditAnswer)))]
pub(crate) async fn audit(call: Call<Read>, query: Query) -> Answer {
    query.only(&["job", "queue", "kind", "owner", "event", "actor", "worker", "from", "to", "limit", "cursor"])?;
    let wanted = AuditQuery {
        from: time(&query, "from")?,
        to: time(&query, "to")?,
        jobs: values(&query, "job")?,
        queues: values(&query, "queue")?,
        kinds: values(&query, "kind")?,
        owners: values(&query, "owner")?,
        events: values(&query, "event")?,
        actors: values(&query, "actor")?,
        workers: values(&query, "worker")?,
        after: query.one("cursor")?.map(decode).transpose()?,
        limit: limit(&query)?,
    };
    if wanted.from.zip(wanted.to).is_some_and(|(from, to)| from > to) {
        return Err(ApiError::field("to", "is before `from`"));
    }
    let page = call.app.manager.audit(wanted).await?;
    ok(&AuditAnswer::new(&page, page.next.as_ref().map(encode_cursor)))
}
