//! The events of jobs, as a stream of Server-Sent Events (WHATWG HTML, section 9.2).
//!
//! A stream holds one message at a time: a client that reads slowly delays only its own stream, and gets a `gap`
//! when it has fallen too far behind.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use futures::stream;
use http::{HeaderMap, HeaderName, HeaderValue};
use metrics::Gauge;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::budget::{Holder, Share};
use super::call::{Answer, Call, Read};
use super::error::ApiError;
use super::extract::Query;
use super::lists::values;
use crate::clock::Timestamp;
use crate::job::{EventName, JobId, Kind, Owner, QueueName};
use crate::manager::{EventFeed, EventFilter, EventId, EventsFrom, FeedItem};
use crate::wire::JobEvent;
use crate::wire::event::{EventMessage, GAP, LIVE, NO_DATA};

/// The header that names the last message that a client received.
const LAST_EVENT_ID: &str = "last-event-id";
/// The parameter with the same meaning, for a browser's first connection, which cannot send headers.
const LAST_EVENT_ID_PARAMETER: &str = "last_event_id";
/// Tells proxies not to buffer the answer.
const UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");
/// The longest silence of a stream, after which a comment is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a client should wait before it reconnects.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// Streams the events of jobs.
///
/// The answer is a stream of Server-Sent Events: each message's `event` is the name of the event, and its `data` is a
/// `JobEvent`. Two kinds of message are about the stream itself: `live` once all earlier events have been sent, and
/// `gap` where events are missing, because more happened than is kept or than was read in time. Each event comes at
/// least once: after an interruption some come again, with the same `job.id` and `number`.
///
/// The filter's parameters can have several values, as for a list. Jobs of the system itself are left out unless they
/// or their queue are named.
#[utoipa::path(get, path = "/v1/events", tag = "jobs",
    params(
        ("event" = Option<Vec<EventName>>, Query, max_items = 100, description = "Selects these events"),
        ("queue" = Option<Vec<QueueName>>, Query, max_items = 100, description = "Selects jobs of these queues"),
        ("kind" = Option<Vec<Kind>>, Query, max_items = 100, description = "Selects jobs of these kinds"),
        ("owner" = Option<Vec<Owner>>, Query, max_items = 100, description = "Selects jobs of these owners"),
        ("job" = Option<Vec<JobId>>, Query, max_items = 100, description = "Selects these jobs, by id"),
        ("since" = Option<Timestamp>, Query, description = "Begins with the events of this time; with the present \
            when neither this nor an id is given"),
        ("last_event_id" = Option<String>, Query, description = "The same as the header, which takes precedence"),
        ("Last-Event-ID" = Option<String>, Header, description = "Continues after the message with this id"),
    ),
    responses(
        (status = 200, description = "The events, until the server ends", body = EventMessage,
            content_type = "text/event-stream"),
        (status = 429, description = "`share_taken`: the caller has as many open streams as it may"),
        (status = 503, description = "`overloaded`: the server has as many open streams as it can"),
    ))]
pub(crate) async fn events(call: Call<Read>, holder: Holder, headers: HeaderMap, query: Query) -> Answer {
    query.only(&["event", "queue", "kind", "owner", "job", "since", LAST_EVENT_ID_PARAMETER])?;
    let filter = EventFilter {
        events: values(&query, "event")?,
        queues: values(&query, "queue")?,
        kinds: values(&query, "kind")?,
        owners: values(&query, "owner")?,
        jobs: values(&query, "job")?,
    };
    let from = beginning(&headers, &query)?;
    let place = call.app.guard.budgets.streams.take(&holder, 1)?;
    let feed = call.app.manager.events(filter, from).await?;
    let open = Open::new(place);
    let streaming = Streaming { feed, shutdown: call.app.shutdown.clone(), greeted: false, _open: open };
    let mut response = Sse::new(stream::unfold(streaming, Streaming::next)).into_response();
    response.headers_mut().insert(UNBUFFERED, HeaderValue::from_static("no"));
    Ok(response)
}

/// Returns where the stream begins. A browser that reconnects sends the header beside the parameters of its first call.
fn beginning(headers: &HeaderMap, query: &Query) -> Result<EventsFrom, ApiError> {
    let id = |field: &str, text: &str| {
        text.parse::<EventId>().map(EventsFrom::After).map_err(|error| ApiError::field(field, error))
    };
    if let Some(header) = headers.get(LAST_EVENT_ID) {
        return id("Last-Event-ID", header.to_str().unwrap_or_default());
    }
    if let Some(text) = query.one(LAST_EVENT_ID_PARAMETER)? {
        return id(LAST_EVENT_ID_PARAMETER, text);
    }
    match query.one("since")? {
        Some(text) => {
            Timestamp::parse_rfc3339(text).map(EventsFrom::Since).map_err(|error| ApiError::field("since", error))
        }
        None => Ok(EventsFrom::Now),
    }
}

/// An open stream.
struct Streaming {
    feed: EventFeed,
    shutdown: CancellationToken,
    greeted: bool,
    _open: Open,
}

impl Streaming {
    /// Returns the next message; `None` once the server shuts down.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if !self.greeted {
            self.greeted = true;
            return Some((Ok(Event::default().retry(RECONNECT_AFTER)), self));
        }
        let message = tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return None,
            item = self.feed.next() => message(&item?),
            // The id moves a client on whose filter lets nothing through, so that it need not read the past again.
            () = sleep(KEEP_ALIVE) => Event::default().comment("").id(self.feed.position().to_string()),
        };
        Some((Ok(message), self))
    }
}

fn message(item: &FeedItem) -> Event {
    let of_stream = |id: &EventId, name: &str| Event::default().id(id.to_string()).event(name).data(NO_DATA);
    match item {
        FeedItem::Event(id, event) => {
            let data = serde_json::to_string(&JobEvent::from(event)).unwrap_or_default();
            Event::default().id(id.to_string()).event(event.entry.event.as_str()).data(data)
        }
        FeedItem::Gap(id) => of_stream(id, GAP),
        FeedItem::Live(id) => of_stream(id, LIVE),
    }
}

/// An open stream in the metrics, until it is dropped.
struct Open {
    gauge: Gauge,
    _place: Share,
}

impl Open {
    fn new(place: Share) -> Self {
        let gauge = metrics::gauge!("leasehold_event_streams");
        gauge.increment(1);
        Self { gauge, _place: place }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.gauge.decrement(1);
    }
}
