//! The stream of events, which reconnects when a connection breaks.

use std::collections::VecDeque;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::stream::{self, BoxStream, StreamExt as _};
use http::{HeaderName, HeaderValue, Method};
use tokio::time::{sleep, timeout};

use super::error::ClientError;
use super::sse::{Message, Parser, TooLong};
use super::transport::{Call, Client, OpenAnswer, Repeat};
use crate::clock::Timestamp;
use crate::job::{EventName, strict};
use crate::store::recent::RecentMap;
use crate::wire::JobEvent;
use crate::wire::event::{GAP, LIVE};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The silence after which a connection counts as dead: three times the server's interval of keep-alives.
const SILENCE: Duration = Duration::from_secs(45);
/// The waits before a new connection: the shortest and the longest.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The events delivered lately, by job, number and time: after an interruption some come again.
type Delivered = RecentMap<(String, u32, Timestamp), (), 20_000>;

/// Selects the events that satisfy every part. An empty part is satisfied by any event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Selects only these events.
    pub events: Vec<EventName>,
    /// Selects only events of jobs in these queues.
    pub queues: Vec<String>,
    /// Selects only events of jobs of these kinds.
    pub kinds: Vec<String>,
    /// Selects only events of jobs that belong to these owners.
    pub owners: Vec<String>,
    /// Selects only events of these jobs, by id.
    pub jobs: Vec<String>,
    /// The time of the first events. Without a time and an id, the stream begins with the next event.
    pub since: Option<Timestamp>,
    /// The id of the last message of an earlier stream, after which this stream begins.
    pub last_event_id: Option<String>,
}

/// A message of the stream of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventMessage {
    /// An event.
    Event {
        /// The message's id, after which another stream can go on: [`EventQuery::last_event_id`].
        id: String,
        /// The event of the job.
        event: Box<JobEvent>,
    },
    /// Events are missing here: more happened than the server keeps.
    Gap,
    /// All events from before the stream began have been delivered.
    Live,
    /// The connection broke and is being made again; no event is lost by it.
    Interrupted {
        /// Why the connection broke.
        why: String,
    },
}

impl Client {
    /// Follows events. The stream goes on where it was when its connection breaks, reconnects for as long as it is
    /// polled, and delivers each event once. Its first connection is tried as often as any call. Of several servers, it
    /// reconnects to the next one.
    ///
    /// The stream ends after an error: when the server refuses, or cannot be reached at first.
    #[must_use]
    pub fn events(&self, query: EventQuery) -> BoxStream<'static, Result<EventMessage, ClientError>> {
        let last_event_id = query.last_event_id.clone();
        let following = Following {
            client: self.clone(),
            query,
            last_event_id,
            connection: None,
            parser: Parser::default(),
            ready: VecDeque::new(),
            delivered: Delivered::default(),
            waits: None,
            was_connected: false,
            is_live: false,
        };
        let next = |mut following: Following| async { Ok(Some((following.next().await?, following))) };
        stream::try_unfold(following, next).boxed()
    }
}

struct Following {
    client: Client,
    query: EventQuery,
    /// The id to begin after, until the stream itself has sent one.
    last_event_id: Option<String>,
    connection: Option<OpenAnswer>,
    parser: Parser,
    ready: VecDeque<EventMessage>,
    delivered: Delivered,
    /// The remaining waits between tries to connect, since the last one that succeeded.
    waits: Option<ExponentialBackoff>,
    was_connected: bool,
    is_live: bool,
}

impl Following {
    async fn next(&mut self) -> Result<EventMessage, ClientError> {
        // Bounded by the caller: each turn returns a message, reads more, or waits before it connects again.
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(message);
            }
            let Some(connection) = &mut self.connection else {
                self.connect().await?;
                continue;
            };
            let why = match timeout(SILENCE, connection.chunk()).await {
                Ok(Ok(Some(bytes))) => {
                    let messages =
                        self.parser.feed(&bytes).map_err(|TooLong| not_understood("a message is too long"))?;
                    self.waits = None;
                    for (message, id) in messages {
                        self.take(message, id.unwrap_or_default())?;
                    }
                    continue;
                }
                Ok(Ok(None)) => connection.broke_off(ClientError::Broken("the server ended the stream".to_owned())),
                Ok(Err(error)) => error,
                Err(_) => {
                    let silent = format!("nothing came for {} s", SILENCE.as_secs());
                    connection.broke_off(ClientError::Broken(silent))
                }
            };
            self.connection = None;
            self.parser.cut_off();
            self.ready.push_back(EventMessage::Interrupted { why: why.to_string() });
        }
    }

    /// Makes the connection, or waits before the next try.
    async fn connect(&mut self) -> Result<(), ClientError> {
        let call = self.call()?;
        let error = match self.client.open(&call).await {
            Ok(connection) => {
                self.connection = Some(connection);
                self.was_connected = true;
                return Ok(());
            }
            Err(error) => error,
        };
        if !error.is_passing() {
            return Err(error);
        }
        let (shortest, longest) = WAITS;
        let (tries, shortest) = match self.was_connected {
            true => (usize::MAX, self.parser.retry().unwrap_or(shortest).min(longest)),
            false => (self.client.max_retries(), shortest),
        };
        let waits = self.waits.get_or_insert_with(|| {
            let waits = ExponentialBuilder::default().with_min_delay(shortest).with_max_delay(longest).with_jitter();
            waits.with_max_times(tries).build()
        });
        match waits.next() {
            Some(wait) => {
                sleep(wait).await;
                Ok(())
            }
            None => Err(error),
        }
    }

    fn call(&self) -> Result<Call, ClientError> {
        let query = &self.query;
        let call = self.client.call(Method::GET, &["v1", "events"], Repeat::Safe);
        let call = call.each("event", query.events.iter().map(|event| event.as_str()));
        let call = call.each("queue", &query.queues).each("kind", &query.kinds).each("owner", &query.owners);
        let call = call.each("job", &query.jobs).each("since", query.since.map(Timestamp::to_rfc3339));
        match self.parser.last_id().or(self.last_event_id.as_deref()) {
            Some(id) => {
                let id = HeaderValue::from_str(id)
                    .map_err(|_| ClientError::Usage("the event's id has characters that no id has".to_owned()))?;
                Ok(call.header(LAST_EVENT_ID, id))
            }
            None => Ok(call),
        }
    }

    /// Handles a message. One of an unknown type is skipped: a later server may send more types.
    fn take(&mut self, message: Message, id: String) -> Result<(), ClientError> {
        match message.event.as_str() {
            GAP => self.ready.push_back(EventMessage::Gap),
            // Each connection sends this again.
            LIVE if std::mem::replace(&mut self.is_live, true) => {}
            LIVE => self.ready.push_back(EventMessage::Live),
            name if name.parse::<EventName>().is_ok() => {
                let event: JobEvent =
                    strict::from_slice(message.data.as_bytes()).map_err(|error| not_understood(&error.to_string()))?;
                let key = (event.job.id.clone(), event.number, event.at);
                if self.delivered.get(&key).is_none() {
                    self.delivered.insert(key, ());
                    self.ready.push_back(EventMessage::Event { id, event: Box::new(event) });
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn not_understood(what: &str) -> ClientError {
    ClientError::Decode { status: 200, message: what.to_owned() }
}
