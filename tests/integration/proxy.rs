//! A proxy between a store and Elasticsearch that spoils answers, as a network does.
//!
//! The request always reaches the server and is carried out; what happens to it on the way back is up to the proxy. So
//! the client is left with the question that matters: was it written or not?
//!
//! One answer in every [`Faults::one_in`] is spoiled, exactly one; which one of them and how is chosen from a seed, so
//! that a run can be repeated. Nothing is spoiled before [`FaultProxy::inject`] switches it on.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::servers::ports;

/// The largest message that is passed on, in bytes; more than Elasticsearch takes.
const MAX_MESSAGE_BYTES: usize = 128 * 1024 * 1024;

/// The answer to a request that is longer than the proxy passes on.
const TOO_LONG: &[u8] = b"HTTP/1.1 413 Request Entity Too Large\r\ncontent-length: 0\r\n\r\n";

/// What is done to an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It never comes; the connection stays open and silent until the client gives up.
    Swallow,
    /// It comes late.
    Delay(Duration),
    /// The connection is reset instead.
    Reset,
    /// Its first half comes, and then the end of the connection.
    Cut,
}

/// Which answers are spoiled, and how.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    /// Of so many answers one is spoiled.
    pub(crate) one_in: u32,
    /// The same seed chooses the same ones.
    pub(crate) seed: u64,
    /// What can happen to it, each as likely as the others.
    pub(crate) kinds: Vec<Fault>,
}

/// What the proxy did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Answers that came from the server while faults were switched on.
    pub(crate) answers: u64,
    /// Of these, the ones that never reached the client.
    pub(crate) swallowed: u64,
    /// … that came late.
    pub(crate) delayed: u64,
    /// … for which the client got a reset.
    pub(crate) reset: u64,
    /// … that ended in the middle.
    pub(crate) cut: u64,
}

impl Counts {
    /// How many answers were spoiled in all.
    pub(crate) fn spoiled(&self) -> u64 {
        self.swallowed + self.delayed + self.reset + self.cut
    }
}

/// The requests that a proxy keeps back.
#[derive(Clone)]
pub(crate) struct Held {
    start: &'static str,
    /// How many of them have no answer yet.
    count: Arc<watch::Sender<usize>>,
    released: CancellationToken,
}

impl Held {
    /// Waits until a request is kept back.
    pub(crate) async fn any(&self) {
        self.count.subscribe().wait_for(|count| *count > 0).await.expect("the sender is ours");
    }

    /// Passes on what was kept back, also for clients that have given up, and waits until the server has answered it.
    pub(crate) async fn release(&self) {
        self.released.cancel();
        self.count.subscribe().wait_for(|count| *count == 0).await.expect("the sender is ours");
    }

    /// Keeps a request back until it is released; returns what to tell that it was answered.
    async fn keep(self) -> impl FnOnce() {
        self.count.send_modify(|count| *count += 1);
        self.released.cancelled().await;
        move || self.count.send_modify(|count| *count -= 1)
    }
}

/// The proxy. It ends when it is dropped, and needs the runtime that it was started on.
pub(crate) struct FaultProxy {
    address: SocketAddr,
    upstream: String,
    plan: Arc<Mutex<Plan>>,
    accepting: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy to the server at `upstream`, such as `http://127.0.0.1:9200`, on a loopback port that nobody else
    /// is given: not while the proxy is down, and not when it is gone and a client still calls it.
    pub(crate) async fn start(upstream: &str, faults: Faults) -> Self {
        let upstream = upstream.trim_start_matches("http://").trim_end_matches('/').to_owned();
        // Not one that the system gives to outgoing connections: nobody is to take it while the proxy is down.
        let listener = TcpListener::bind(("127.0.0.1", ports::free())).await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let plan = Arc::new(Mutex::new(Plan::new(faults)));
        let accepting = Some(tokio::spawn(accept(listener, upstream.clone(), plan.clone())));
        Self { address, upstream, plan, accepting }
    }

    /// Where to reach the server through it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Switches faults on or off. Off, everything passes.
    pub(crate) fn inject(&self, on: bool) {
        let mut plan = self.plan.lock();
        (plan.on, plan.only) = (on, &[]);
    }

    /// Switches faults on for answers to requests to these endpoints alone.
    pub(crate) fn inject_into(&self, endpoints: &'static [&'static str]) {
        let mut plan = self.plan.lock();
        (plan.on, plan.only) = (true, endpoints);
    }

    /// Lets so many more requests through and then breaks every connection, as if the client had died after them; `None`
    /// lets all through again.
    pub(crate) fn allow(&self, requests: Option<u64>) {
        self.allow_of(requests, false);
    }

    /// The same, where requests that only read are let through in any number until then.
    pub(crate) fn allow_changes(&self, requests: Option<u64>) {
        self.allow_of(requests, true);
    }

    fn allow_of(&self, requests: Option<u64>, only_changes: bool) {
        let mut plan = self.plan.lock();
        (plan.allowed, plan.only_changes) = (requests, only_changes);
        plan.cut_off = CancellationToken::new();
    }

    /// Waits until a request was not let through, since [`Self::allow`] said how many are, and the server has answered
    /// those that were: after that, nothing changes there by what the client did.
    pub(crate) async fn cut_off(&self) {
        let (cut_off, mut passing) = {
            let plan = self.plan.lock();
            (plan.cut_off.clone(), plan.passing.subscribe())
        };
        cut_off.cancelled().await;
        passing.wait_for(|count| *count == 0).await.expect("the sender is the plan's");
    }

    /// Answers every longer request with 413 from now on, as a proxy with a bound of its own does. It does not pass it on.
    pub(crate) fn refuse_longer_than(&self, bytes: usize) {
        self.plan.lock().longest = bytes;
    }

    /// Keeps back every request that starts with `start` from now on.
    pub(crate) fn hold(&self, start: &'static str) -> Held {
        let held = Held { start, count: Arc::new(watch::Sender::new(0)), released: CancellationToken::new() };
        self.plan.lock().held = Some(held.clone());
        held
    }

    /// What it did so far.
    pub(crate) fn counts(&self) -> Counts {
        self.plan.lock().counts
    }

    /// Goes down: open connections end, new ones are refused.
    pub(crate) async fn go_down(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
            // Its end is what frees the port; that it was aborted is what we want to hear.
            let _aborted = accepting.await;
        }
    }

    /// Comes up again at the same address.
    pub(crate) async fn come_up(&mut self) {
        if self.accepting.is_none() {
            let listener = ports::listen_again(self.address).await;
            self.accepting = Some(tokio::spawn(accept(listener, self.upstream.clone(), self.plan.clone())));
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        if let Some(accepting) = &self.accepting {
            accepting.abort();
        }
    }
}

/// Chooses what happens to each answer.
struct Plan {
    faults: Faults,
    random: StdRng,
    on: bool,
    /// The endpoints whose answers can be spoiled; all when empty.
    only: &'static [&'static str],
    /// The place of the next answer among `one_in`, and the place of the one to be spoiled.
    place: u32,
    spoiled_place: u32,
    counts: Counts,
    /// How many requests are still let through; all when not said.
    allowed: Option<u64>,
    /// Whether requests that only read are not among those.
    only_changes: bool,
    /// The longest request that is passed on, in bytes.
    longest: usize,
    /// Cancelled by the first request that is not let through.
    cut_off: CancellationToken,
    /// How many requests were let through and have no answer yet.
    passing: Arc<watch::Sender<usize>>,
    held: Option<Held>,
}

/// A request on its way: it was let through and has no answer yet.
struct Passing(Arc<watch::Sender<usize>>);

impl Drop for Passing {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Plan {
    fn new(faults: Faults) -> Self {
        assert!(faults.one_in > 0 && !faults.kinds.is_empty(), "a plan spoils one answer in some, somehow");
        let mut random = StdRng::seed_from_u64(faults.seed);
        let spoiled_place = random.random_range(0..faults.one_in);
        Self {
            faults,
            random,
            on: false,
            only: &[],
            place: 0,
            spoiled_place,
            counts: Counts::default(),
            allowed: None,
            only_changes: false,
            longest: MAX_MESSAGE_BYTES,
            cut_off: CancellationToken::new(),
            passing: Arc::new(watch::Sender::new(0)),
            held: None,
        }
    }

    /// Lets one more request through, if it may.
    fn let_through(&mut self, request: &[u8]) -> Option<Passing> {
        let is_free = self.only_changes && !self.cut_off.is_cancelled() && request.starts_with(b"GET ");
        match &mut self.allowed {
            Some(_) if is_free => {}
            Some(0) => {
                self.cut_off.cancel();
                return None;
            }
            Some(requests) => *requests -= 1,
            None => {}
        }
        self.passing.send_modify(|count| *count += 1);
        Some(Passing(Arc::clone(&self.passing)))
    }

    fn next(&mut self, first_line: &str) -> Option<Fault> {
        let can_be = self.only.is_empty() || self.only.iter().any(|endpoint| first_line.contains(endpoint));
        if !self.on || !can_be {
            return None;
        }
        self.counts.answers += 1;
        let spoiled = self.place == self.spoiled_place;
        self.place += 1;
        if self.place == self.faults.one_in {
            self.place = 0;
            self.spoiled_place = self.random.random_range(0..self.faults.one_in);
        }
        if !spoiled {
            return None;
        }
        let fault = self.faults.kinds[self.random.random_range(0..self.faults.kinds.len())];
        match fault {
            Fault::Swallow => self.counts.swallowed += 1,
            Fault::Delay(_) => self.counts.delayed += 1,
            Fault::Reset => self.counts.reset += 1,
            Fault::Cut => self.counts.cut += 1,
        }
        Some(fault)
    }
}

async fn accept(listener: TcpListener, upstream: String, plan: Arc<Mutex<Plan>>) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let (upstream, plan) = (upstream.clone(), plan.clone());
        connections.spawn(async move {
            // A connection that breaks, on either side, is what this is for.
            let _ended = pass_on(client, &upstream, &plan).await;
        });
    }
}

/// Passes requests and answers on, one after the other, until one side ends or a fault does.
async fn pass_on(client: TcpStream, upstream: &str, plan: &Mutex<Plan>) -> io::Result<()> {
    let server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut client, mut server) = (BufReader::new(client), BufReader::new(server));
    while let Some(request) = Message::read(&mut client, Kind::Request).await? {
        let Some(passing) = plan.lock().let_through(&request.bytes) else { return Ok(()) };
        if request.bytes.len() > plan.lock().longest {
            client.write_all(TOO_LONG).await?;
            continue;
        }
        let held = plan.lock().held.clone().filter(|held| request.bytes.starts_with(held.start.as_bytes()));
        let answered = match held {
            Some(held) => Some(held.keep().await),
            None => None,
        };
        server.write_all(&request.bytes).await?;
        let kind = Kind::Answer { to_head: request.bytes.starts_with(b"HEAD ") };
        let Some(answer) = Message::read(&mut server, kind).await? else { return Ok(()) };
        drop(passing);
        if let Some(answered) = answered {
            answered();
        }
        let fault = plan.lock().next(&request.first_line());
        match fault {
            None => client.write_all(&answer.bytes).await?,
            Some(Fault::Delay(by)) => {
                tokio::time::sleep(by).await;
                client.write_all(&answer.bytes).await?;
            }
            Some(Fault::Swallow) => {
                tokio::io::copy_buf(&mut client, &mut tokio::io::sink()).await?;
                return Ok(());
            }
            Some(Fault::Reset) => return client.get_ref().set_zero_linger(),
            Some(Fault::Cut) => {
                client.write_all(answer.first_half()).await?;
                return client.shutdown().await;
            }
        }
        if answer.ends_connection {
            return client.shutdown().await;
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Kind {
    Request,
    Answer { to_head: bool },
}

/// One HTTP/1.1 message as it came, whose end was found (RFC 9112, section 6).
struct Message {
    bytes: Vec<u8>,
    head: usize,
    ends_connection: bool,
}

impl Message {
    /// Reads the next message; `None` when the other side has ended before it began.
    async fn read(from: &mut (impl AsyncBufRead + Unpin), kind: Kind) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            if from.read_until(b'\n', &mut bytes).await? == 0 {
                return if bytes.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            bounded(bytes.len())?;
        }
        let head = bytes.len();
        let body = BodyEnd::told_by(&bytes, kind)?;
        match body {
            BodyEnd::After(length) => read_exactly(from, &mut bytes, length).await?,
            BodyEnd::AfterLastChunk => read_chunks(from, &mut bytes).await?,
            BodyEnd::WithConnection => {
                from.read_to_end(&mut bytes).await?;
            }
        }
        Ok(Some(Self { bytes, head, ends_connection: matches!(body, BodyEnd::WithConnection) }))
    }

    /// The method and the path of a request, as text.
    fn first_line(&self) -> String {
        let line = self.bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        String::from_utf8_lossy(line).into_owned()
    }

    /// The head and half of the body, or half of the head when there is no body to cut.
    fn first_half(&self) -> &[u8] {
        let body = self.bytes.len() - self.head;
        if body < 2 { &self.bytes[..self.head / 2] } else { &self.bytes[..self.head + body / 2] }
    }
}

/// Where a body ends.
enum BodyEnd {
    After(usize),
    AfterLastChunk,
    WithConnection,
}

impl BodyEnd {
    fn told_by(head: &[u8], kind: Kind) -> io::Result<Self> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let text = std::str::from_utf8(head).map_err(|_| invalid("the head is not text"))?;
        let header = |name: &str| {
            text.lines().skip(1).find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        if let Kind::Answer { to_head } = kind {
            let status = text.split(' ').nth(1).unwrap_or_default();
            if to_head || status.starts_with('1') || status == "204" || status == "304" {
                return Ok(Self::After(0));
            }
        }
        if header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Ok(Self::AfterLastChunk);
        }
        match (header("content-length"), kind) {
            (Some(length), _) => {
                let length = length.parse().map_err(|_| invalid("not a length"))?;
                Ok(Self::After(bounded(length)?))
            }
            (None, Kind::Request) => Ok(Self::After(0)),
            (None, Kind::Answer { .. }) => Ok(Self::WithConnection),
        }
    }
}

async fn read_exactly(from: &mut (impl AsyncBufRead + Unpin), bytes: &mut Vec<u8>, count: usize) -> io::Result<()> {
    let start = bytes.len();
    bytes.resize(bounded(start + count)?, 0);
    from.read_exact(&mut bytes[start..]).await?;
    Ok(())
}

async fn read_chunks(from: &mut (impl AsyncBufRead + Unpin), bytes: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let line = read_line(from, bytes).await?;
        let size = line.split(';').next().unwrap_or_default().trim().to_owned();
        let size =
            usize::from_str_radix(&size, 16).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if size == 0 {
            break;
        }
        // A chunk's data ends with a line break of its own.
        read_exactly(from, bytes, bounded(size)? + 2).await?;
    }
    // Trailer fields, up to an empty line.
    while !read_line(from, bytes).await?.trim().is_empty() {}
    Ok(())
}

/// Appends the next line to `bytes`, and gives it.
async fn read_line(from: &mut (impl AsyncBufRead + Unpin), bytes: &mut Vec<u8>) -> io::Result<String> {
    let start = bytes.len();
    if from.read_until(b'\n', bytes).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    bounded(bytes.len())?;
    Ok(String::from_utf8_lossy(&bytes[start..]).into_owned())
}

fn bounded(length: usize) -> io::Result<usize> {
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too large"));
    }
    Ok(length)
}

mod tests {
    use super::*;
    use axum::body::{Body, Bytes};
    use axum::extract::State;
    use axum::routing::{get, post};
    use std::sync::atomic::{AtomicU64, Ordering};

    const EVERY_ONE: u32 = 1;
    /// How long an answer is waited for that comes.
    const AMPLE: Duration = Duration::from_secs(30);

    /// A server that counts what reaches it, and answers with a length, in chunks, or with nothing.
    async fn server() -> (String, Arc<AtomicU64>) {
        let seen = Arc::new(AtomicU64::new(0));
        let echo = async |State(seen): State<Arc<AtomicU64>>, body: Bytes| {
            seen.fetch_add(1, Ordering::SeqCst);
            body
        };
        let chunks = async |State(seen): State<Arc<AtomicU64>>| {
            seen.fetch_add(1, Ordering::SeqCst);
            let parts = ["one ", "", "two ", "three"].map(|part| Ok::<_, io::Error>(Bytes::from(part)));
            Body::from_stream(futures::stream::iter(parts))
        };
        let router = axum::Router::new()
            .route("/echo", post(echo))
            .route("/chunks", get(chunks))
            .route("/nothing", get(async || axum::http::StatusCode::NO_CONTENT))
            .with_state(seen.clone());
        // Not one that the system gives to outgoing connections: nobody is to take it while the proxy is down.
        let listener = TcpListener::bind(("127.0.0.1", ports::free())).await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (url, seen)
    }

    async fn proxy(upstream: &str, one_in: u32, kinds: &[Fault]) -> FaultProxy {
        let proxy = FaultProxy::start(upstream, Faults { one_in, seed: 7, kinds: kinds.to_vec() }).await;
        proxy.inject(true);
        proxy
    }

    async fn echo(http: &reqwest::Client, proxy: &FaultProxy, text: &str) -> reqwest::Result<String> {
        echo_within(AMPLE, http, proxy, text).await
    }

    async fn echo_within(
        time: Duration,
        http: &reqwest::Client,
        proxy: &FaultProxy,
        text: &str,
    ) -> reqwest::Result<String> {
        let request = http.post(format!("{}/echo", proxy.url())).body(text.to_owned());
        request.timeout(time).send().await?.text().await
    }

    #[tokio::test]
    async fn messages_of_every_framing_pass_unchanged_over_one_connection_when_faults_are_off() {
        let (upstream, _) = server().await;
        let proxy = proxy(&upstream, EVERY_ONE, &[Fault::Reset]).await;
        proxy.inject(false);
        let http = reqwest::Client::builder().pool_max_idle_per_host(1).build().expect("a client");
        let large = "x".repeat(1_500_000);
        for _ in 0..3 {
            assert_eq!(echo(&http, &proxy, &large).await.expect("passes"), large);
            let chunks = http.get(format!("{}/chunks", proxy.url())).send().await.expect("passes");
            assert_eq!(chunks.text().await.expect("whole"), "one two three");
            let nothing = http.get(format!("{}/nothing", proxy.url())).send().await.expect("passes");
            assert_eq!(nothing.status(), 204);
            let head = http.head(format!("{}/chunks", proxy.url())).send().await.expect("passes");
            assert_eq!(head.status(), 200);
            let streamed = reqwest::Body::wrap_stream(futures::stream::iter(["a", "b"].map(Ok::<_, io::Error>)));
            let answer = http.post(format!("{}/echo", proxy.url())).body(streamed).send().await.expect("passes");
            assert_eq!(answer.text().await.expect("whole"), "ab");
        }
        assert_eq!(proxy.counts(), Counts::default());
    }

    #[tokio::test]
    async fn a_spoiled_answer_belongs_to_a_request_that_the_server_has_seen() {
        let (upstream, seen) = server().await;
        let http = reqwest::Client::new();
        let mut expected = 0;
        for fault in [Fault::Swallow, Fault::Reset, Fault::Cut] {
            let proxy = proxy(&upstream, EVERY_ONE, &[fault]).await;
            let time = if fault == Fault::Swallow { Duration::from_secs(2) } else { AMPLE };
            let spoiled = echo_within(time, &http, &proxy, "a body to be cut").await;
            let error = spoiled.expect_err("the answer is spoiled");
            assert_eq!(error.is_timeout(), fault == Fault::Swallow, "{fault:?}: {error:?}");
            expected += 1;
            // Who gives up by the clock may do so before the server has answered.
            let answered = async {
                while proxy.counts().answers == 0 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            assert!(tokio::time::timeout(AMPLE, answered).await.is_ok(), "{fault:?}: the server has not seen it");
            assert_eq!(seen.load(Ordering::SeqCst), expected, "{fault:?}");
            assert_eq!((proxy.counts().answers, proxy.counts().spoiled()), (1, 1), "{fault:?}");
        }
    }

    #[tokio::test]
    async fn a_delayed_answer_comes_after_its_delay() {
        let (upstream, _) = server().await;
        let by = Duration::from_millis(200);
        let proxy = proxy(&upstream, EVERY_ONE, &[Fault::Delay(by)]).await;
        let before = std::time::Instant::now();
        assert_eq!(echo(&reqwest::Client::new(), &proxy, "late").await.expect("comes"), "late");
        assert!(before.elapsed() >= by);
        assert_eq!(proxy.counts().delayed, 1);
    }

    #[tokio::test]
    async fn a_reset_is_a_reset_and_a_cut_answer_ends_early() {
        let (upstream, _) = server().await;
        let request = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 8\r\n\r\n12345678";
        let mut answers = Vec::new();
        for fault in [Fault::Reset, Fault::Cut] {
            let proxy = proxy(&upstream, EVERY_ONE, &[fault]).await;
            let mut client = TcpStream::connect(proxy.address).await.expect("connects");
            client.write_all(request).await.expect("sent");
            let mut answer = String::new();
            let end = client.read_to_string(&mut answer).await.map_err(|error| error.kind());
            answers.push((end.map(|_| ()), answer));
        }
        assert_eq!(answers[0], (Err(io::ErrorKind::ConnectionReset), String::new()));
        assert_eq!(answers[1].0, Ok(()));
        assert!(answers[1].1.ends_with("\r\n\r\n1234"), "{}", answers[1].1);
    }

    #[test]
    fn exactly_one_answer_in_n_is_spoiled_and_the_same_seed_spoils_the_same_ones() {
        let plan = || {
            let kinds = vec![Fault::Swallow, Fault::Reset, Fault::Cut, Fault::Delay(Duration::ZERO)];
            let mut plan = Plan::new(Faults { one_in: 5, seed: 42, kinds });
            plan.on = true;
            plan
        };
        let (mut one, mut other) = (plan(), plan());
        let chosen: Vec<Option<Fault>> = (0..500).map(|_| one.next("")).collect();
        assert_eq!(chosen, (0..500).map(|_| other.next("")).collect::<Vec<_>>());
        for of_five in chosen.chunks(5) {
            assert_eq!(of_five.iter().flatten().count(), 1);
        }
        let counts = one.counts;
        assert_eq!((counts.answers, counts.spoiled()), (500, 100));
        assert!([counts.swallowed, counts.reset, counts.cut, counts.delayed].iter().all(|count| *count > 0));
    }

    #[tokio::test]
    async fn a_proxy_that_is_down_refuses_connections_and_comes_up_at_the_same_address() {
        let (upstream, _) = server().await;
        let mut proxy = proxy(&upstream, EVERY_ONE, &[Fault::Reset]).await;
        proxy.inject(false);
        let http = reqwest::Client::new();
        assert_eq!(echo(&http, &proxy, "before").await.expect("passes"), "before");

        proxy.go_down().await;
        ports::closed(proxy.address).await;
        assert!(echo(&http, &proxy, "while down").await.is_err());

        proxy.come_up().await;
        assert_eq!(echo(&http, &proxy, "after").await.expect("passes"), "after");
    }
}
