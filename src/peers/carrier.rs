//! The background tasks that carry a member's messages to the other members.
//!
//! Each other member has a task of its own and one call under way: what comes meanwhile goes with the next one, so that
//! the calls are as large as the way is slow. Messages that cannot be sent are dropped. The members agree by a protocol
//! that repeats what is lost, and a late message is of less use to it than a fresh one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::Mutex;
use reqwest::Url;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::members::{may_be_earlier, proves_answers};
use super::{ClusterMap, Envelope, MAX_MESSAGES_BYTES, MESSAGES_PATH, PeerCall, Signer, clock_of};
use crate::clock::MemberClocks;
use crate::executor::NoHttpClient;
use crate::outgoing;
use crate::store::waiting::Waiting;
use crate::store::{Member, MemberMessage, Membership};

/// A call takes no further message once it has so many bytes.
const CALL_BYTES: usize = 4 * 1024 * 1024;
/// The longest message that is sent: the others take no longer body of a call, whose beginning is short.
const MAX_MESSAGE_BYTES: usize = MAX_MESSAGES_BYTES - CALL_BYTES;
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a call may take, and how much longer for each MiB of its body.
const TIMEOUT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(1));
/// How long an idle connection is kept: less than the other member keeps it.
const IDLE: Duration = Duration::from_secs(15);
/// The waits after calls that failed: the first, and the longest.
const RESTS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// After how long a member is looked for again where the members have agreed on.
const FIRST_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// The most characters of a refusal that are shown.
const SHOWN_CHARS: usize = 200;

/// Carries the messages of a member until it is dropped or the member's store is closed.
pub struct Carrier {
    _carrying: AbortOnDropHandle<()>,
}

impl Carrier {
    /// Starts the tasks on the current tokio runtime. What the answers say of the clocks of the others is noted in
    /// `clocks`.
    ///
    /// # Errors
    /// [`NoHttpClient`] when TLS cannot be set up.
    pub fn start(
        member: Arc<dyn Member>,
        map: &ClusterMap,
        signer: Signer,
        clocks: Arc<MemberClocks>,
    ) -> Result<Self, NoHttpClient> {
        let http = outgoing::client()
            .redirect(reqwest::redirect::Policy::none())
            .http1_only()
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE)
            .build()?;
        let (map, members) = (map.clone(), member.members());
        let of_ways = Arc::clone(&member);
        let (signer, open) = (Arc::new(signer), BTreeMap::new());
        let mut ways = Ways { http, member: of_ways, signer, clocks, map, members, open };
        // The tasks of the ways end with this one.
        let carrying = tokio::spawn(async move {
            loop {
                let messages = member.outgoing().await;
                if messages.is_empty() {
                    return;
                }
                for message in messages {
                    let is_bulk = member.is_bulk(&message.bytes);
                    ways.carry(message, is_bulk);
                }
            }
        });
        Ok(Self { _carrying: AbortOnDropHandle::new(carrying) })
    }
}

/// The ways to the other members, of which there may come to be more, or which may lead elsewhere.
struct Ways {
    http: reqwest::Client,
    member: Arc<dyn Member>,
    signer: Arc<Signer>,
    clocks: Arc<MemberClocks>,
    map: ClusterMap,
    members: watch::Receiver<Arc<Membership>>,
    open: BTreeMap<u64, Way>,
}

/// The way to another member.
struct Way {
    addresses: Vec<Arc<str>>,
    queue: Arc<Queue>,
    _carrying: AbortOnDropHandle<()>,
}

impl Ways {
    /// Puts a message into the queue of the member that it is for, if it is known where that is.
    fn carry(&mut self, message: MemberMessage, is_bulk: bool) {
        let to = message.to;
        let members = self.members.borrow();
        let is_at = |way: &Way| self.map.addresses_of(to, &members).eq(way.addresses.iter().map(AsRef::as_ref));
        if !self.open.get(&to).is_some_and(is_at) {
            let addresses: Vec<Arc<str>> = self.map.addresses_of(to, &members).map(Arc::from).collect();
            // The settings were checked when they were read; what is no URL is reached by nobody.
            let target = |address: &Arc<str>| {
                let url = Url::parse(&format!("{address}{MESSAGES_PATH}")).ok()?;
                Some(Target { url, address: Arc::clone(address) })
            };
            let targets: Vec<_> = addresses.iter().filter_map(target).collect();
            if targets.is_empty() {
                return;
            }
            let queue = Arc::new(Queue::default());
            let route = Route {
                http: self.http.clone(),
                targets,
                member: Arc::clone(&self.member),
                signer: Arc::clone(&self.signer),
                clocks: Arc::clone(&self.clocks),
                map: self.map.clone(),
                to,
            };
            let carrying = AbortOnDropHandle::new(tokio::spawn(route.carry(Arc::clone(&queue))));
            self.open.insert(to, Way { addresses, queue, _carrying: carrying });
        }
        if let Some(way) = self.open.get(&to) {
            way.queue.push(message.bytes, is_bulk);
        }
    }
}

/// The messages that wait for one member.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting<Bytes>>,
    /// The notification that there are some.
    some: Notify,
}

impl Queue {
    fn push(&self, message: Bytes, is_bulk: bool) {
        let length = message.len();
        let dropped = match length > MAX_MESSAGE_BYTES {
            // It would be refused each time that it is sent, with all that goes with it.
            true => 1,
            false => self.waiting.lock().push(message, length, is_bulk),
        };
        if dropped > 0 {
            metrics::counter!("leasehold_member_messages_total", "outcome" => "dropped").increment(dropped);
        }
        self.some.notify_one();
    }

    /// Waits for messages, and takes the oldest, for one call.
    async fn next(&self) -> Vec<Bytes> {
        loop {
            let messages = self.take();
            if !messages.is_empty() {
                return messages;
            }
            self.some.notified().await;
        }
    }

    fn take(&self) -> Vec<Bytes> {
        let (mut waiting, mut taken, mut bytes) = (self.waiting.lock(), Vec::new(), 0);
        while bytes < CALL_BYTES
            && let Some((message, length)) = waiting.pop()
        {
            bytes += length;
            taken.push(message);
        }
        taken
    }
}

/// The way to one other member.
struct Route {
    http: reqwest::Client,
    /// Where the member may be reached, at least one.
    targets: Vec<Target>,
    member: Arc<dyn Member>,
    signer: Arc<Signer>,
    clocks: Arc<MemberClocks>,
    map: ClusterMap,
    to: u64,
}

/// Where messages are sent to.
struct Target {
    address: Arc<str>,
    url: Url,
}

impl Route {
    async fn carry(self, queue: Arc<Queue>) {
        let (first, longest) = RESTS;
        let (mut rest, mut is_cut_off) = (first, false);
        // Which of the targets is tried, and when it was last found that the member is not at the first.
        let (mut at, mut elsewhere) = (0, None::<Instant>);
        // Ends with the carrier, which drops it.
        loop {
            let messages = queue.next().await;
            let count = messages.len() as u64;
            // Whoever has the other address may answer as well, such as the member's former machine.
            if elsewhere.is_some_and(|since| since.elapsed() >= FIRST_AGAIN_AFTER) {
                (at, elsewhere) = (0, None);
            }
            let mut sent = self.send(&self.targets[at], messages.clone()).await;
            if sent.is_err() && self.targets.len() > 1 {
                at = (at + 1) % self.targets.len();
                sent = self.send(&self.targets[at], messages).await;
            }
            elsewhere = if at == 0 { None } else { elsewhere.or_else(|| Some(Instant::now())) };
            let target = &self.targets[at];
            match sent {
                Ok(is_proved) => {
                    metrics::counter!("leasehold_member_messages_total", "outcome" => "sent").increment(count);
                    self.map.reached.is_at(self.to, &target.address, is_proved);
                    if is_cut_off {
                        info!(member = self.to, address = %target.url.authority(), "the member is reached again");
                    }
                    (rest, is_cut_off) = (first, false);
                }
                Err(why) => {
                    metrics::counter!("leasehold_member_messages_total", "outcome" => "failed").increment(count);
                    if !is_cut_off {
                        warn!(member = self.to, address = %target.url.authority(), why, "a member cannot be reached");
                    }
                    is_cut_off = true;
                    sleep(rest).await;
                    rest = (rest * 2).min(longest);
                }
            }
        }
    }

    /// Makes one call with these messages. Returns whether the member has proved with its answer that it has the
    /// secret.
    async fn send(&self, target: &Target, messages: Vec<Bytes>) -> Result<bool, String> {
        let cluster = self.map.cluster.to_string();
        let body = Envelope { cluster, from: self.map.member, to: self.to, messages }.encode();
        let (least, for_each_mib) = TIMEOUT;
        let timeout = least + for_each_mib * u32::try_from(body.len() >> 20).unwrap_or(u32::MAX);
        let send = |mut headers: HeaderMap, body: Bytes| {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            self.http.post(target.url.clone()).headers(headers).timeout(timeout).body(body).send()
        };
        let call = PeerCall {
            address: &target.address,
            receiver: &self.map.name(self.to),
            path: MESSAGES_PATH,
            body: &body,
            may_be_earlier: may_be_earlier(&*self.member, self.to),
        };
        // It may say so while the call is under way that is signed as before, to which nothing is proved.
        let proves = proves_answers(&*self.member, self.to);
        let asked = self.clocks.moment();
        let (answer, is_proved) = self.signer.call_and_prove(&call, send).await.map_err(|error| cause(&error))?;
        let (status, clock) = (answer.status(), clock_of(answer.headers()));
        let is_taken = status == StatusCode::NO_CONTENT && (is_proved || !proves);
        if !is_taken && !status.is_server_error() {
            self.map.reached.is_not_at(self.to, &target.address);
        }
        if is_taken && let Some(time) = clock {
            self.clocks.note(self.to, asked, time);
        }
        // Read to its end, so that the connection is used again.
        let said = answer.bytes().await.map_err(|error| cause(&error))?;
        match status {
            // What else is at this address may answer anything with 200.
            StatusCode::NO_CONTENT if is_taken => Ok(is_proved),
            StatusCode::NO_CONTENT => Err("what answers there does not have the `--cluster-secret`".to_owned()),
            StatusCode::UNAUTHORIZED => Err("it has another `--cluster-secret`, or its clock differs".to_owned()),
            StatusCode::NOT_FOUND => Err("there is no member of a cluster at this address".to_owned()),
            status => Err(format!("it answers {}{}", status.as_u16(), detail(&said))),
        }
    }
}

/// Returns the innermost cause of an error, which is the specific one.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Returns what a refusal says of itself.
fn detail(said: &[u8]) -> String {
    let problem: serde_json::Value = serde_json::from_slice(said).unwrap_or_default();
    let detail = problem["detail"].as_str().unwrap_or_default();
    let detail: String = detail.chars().filter(|letter| !letter.is_control()).take(SHOWN_CHARS).collect();
    if detail.is_empty() { detail } else { format!(": {detail}") }
}

#[cfg(test)]
mod tests;
