use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::*;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Where a child of this test binary finds whom to call.
const CHILD_TARGET: &str = "LEASEHOLD_TEST_TARGET";
/// Long enough for whatever comes at all.
const AMPLE: Duration = Duration::from_secs(30);
/// For calls that never end by themselves.
const SHORT: Duration = Duration::from_millis(300);

/// The first byte of a connection with TLS, which the servers here do not speak.
const TLS_HANDSHAKE: u8 = 0x16;

/// What a server answers.
#[derive(Clone)]
enum Answer {
    /// This, and the connection's end.
    Whole(String),
    /// This, and then the second for ever.
    Endless(&'static str, &'static str),
    /// This, and then the second for ever, with pauses.
    Drip(&'static str, &'static str),
    /// Nothing.
    Silence,
}

fn whole(status: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    Answer::Whole(format!("HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"))
}

/// A server on loopback that gives one answer to all, and remembers what it was asked.
struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answer.clone(), seen.clone()));
            }
        });
        Self { address, requests }
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

async fn serve(mut stream: TcpStream, answer: Answer, seen: Arc<Mutex<Vec<String>>>) -> io::Result<()> {
    let request = read_request(&mut stream).await?;
    seen.lock().push(request);
    match answer {
        Answer::Whole(text) => stream.write_all(text.as_bytes()).await,
        Answer::Endless(head, again) => {
            stream.write_all(head.as_bytes()).await?;
            loop {
                stream.write_all(again.as_bytes()).await?;
            }
        }
        Answer::Drip(head, again) => {
            stream.write_all(head.as_bytes()).await?;
            loop {
                stream.write_all(again.as_bytes()).await?;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        Answer::Silence => std::future::pending().await,
    }
}

async fn read_request(stream: &mut TcpStream) -> io::Result<String> {
    let mut request = String::new();
    let mut part = [0; 4096];
    loop {
        let read = stream.read(&mut part).await?;
        if part[0] == TLS_HANDSHAKE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        request.push_str(&String::from_utf8_lossy(&part[..read]));
        if let Some((head, body)) = request.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().expect("a length")) {
                return Ok(request);
            }
        }
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// A resolver that gives the next of its answers each time it is asked.
struct Scripted(Mutex<VecDeque<Vec<IpAddr>>>);

impl Scripted {
    fn new<const N: usize>(answers: [&[IpAddr]; N]) -> Arc<Self> {
        Arc::new(Self(Mutex::new(answers.iter().map(|answer| answer.to_vec()).collect())))
    }

    fn left(&self) -> usize {
        self.0.lock().len()
    }
}

#[async_trait]
impl Resolve for Scripted {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        self.0.lock().pop_front().ok_or_else(|| io::Error::other(format!("asked for {host} too often")))
    }
}

fn private() -> TargetPolicy {
    TargetPolicy { allow_private: true, allow: Vec::new() }
}

fn executor(policy: TargetPolicy) -> HttpExecutor {
    HttpExecutor::new(policy, Limits::default()).expect("a client")
}

fn executor_with(policy: TargetPolicy, resolver: Arc<Scripted>) -> HttpExecutor {
    HttpExecutor::with_resolver(policy, Limits::default(), resolver).expect("a client")
}

fn post(url: &str) -> HttpCall {
    HttpCall {
        method: Method::POST,
        url: TargetUrl::parse(url).expect("a target"),
        headers: HeaderMap::new(),
        body: Bytes::from_static(b"{}"),
        timeout: AMPLE,
    }
}

#[tokio::test]
async fn a_call_arrives_as_it_is_and_the_answer_comes_back() {
    let server = Server::start(whole("503 Busy", "retry-after: 7\r\n", "later")).await;
    let mut call = post(&server.url());
    call.headers.insert("x-mark", HeaderValue::from_static("one"));
    let answer = executor(private()).call(&call).await.expect("an answer");
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!((&answer.body[..], answer.truncated), (&b"later"[..], false));
    assert_eq!(answer.retry_after, Some(RetryAfter::In(Duration::from_secs(7))));
    let request = server.requests().pop().expect("a request");
    assert!(request.starts_with("POST /hook HTTP/1.1\r\n") && request.ends_with("\r\n\r\n{}"), "{request}");
    assert!(request.contains("x-mark: one\r\n") && !request.contains("accept-encoding"), "{request}");
}

#[test]
fn a_time_to_come_back_is_seconds_or_a_date() {
    let parse = |text: &'static str| RetryAfter::parse(&HeaderValue::from_static(text));
    assert_eq!(parse("120"), Some(RetryAfter::In(Duration::from_secs(120))));
    let date = Timestamp::parse_rfc3339("2015-10-21T07:28:00Z").expect("a time");
    assert_eq!(parse("Wed, 21 Oct 2015 07:28:00 GMT"), Some(RetryAfter::At(date)));
    assert_eq!((parse("-1"), parse("soon"), parse("")), (None, None, None));
}

#[tokio::test]
async fn this_machine_is_refused_by_default_and_hears_nothing_of_it() {
    let listener = StdListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    for host in ["127.0.0.1", "localhost", "[::1]", "2130706433", "[::ffff:127.0.0.1]", "0.0.0.0", "innocent.example"] {
        let executor = executor_with(TargetPolicy::default(), Scripted::new([&[LOOPBACK]]));
        let error = executor.call(&post(&format!("http://{host}:{port}/"))).await.expect_err("refused");
        assert!(matches!(error, CallError::Refused(_)) && !error.is_transient(), "{host}: {error:?}");
        let heard = listener.accept().expect_err("nobody called");
        assert_eq!(heard.kind(), io::ErrorKind::WouldBlock, "{host}");
    }
}

#[tokio::test]
async fn the_systems_resolver_is_checked_too() {
    // By its name alone it would be refused before: here it is what it resolves to that must be.
    let policy = TargetPolicy::default();
    let checked = CheckedResolver { resolver: Arc::new(SystemResolver::default()), policy: Arc::new(policy) };
    let error = reqwest::dns::Resolve::resolve(&checked, "localhost".parse().expect("a name")).await.err();
    let error = error.expect("refused").downcast::<CallError>().expect("a reason");
    assert!(matches!(*error, CallError::Refused(RefusedTarget::Address { .. })), "{error}");
}

#[tokio::test]
async fn a_name_with_one_refused_address_is_refused_whatever_its_others_are() {
    let server = Server::start(whole("200 OK", "", "")).await;
    let policy = TargetPolicy { allow_private: false, allow: vec!["127.0.0.1".parse().expect("an address")] };
    let forbidden = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let url = format!("http://mixed.example:{}/", server.address.port());
    for addresses in [[LOOPBACK, forbidden], [forbidden, LOOPBACK]] {
        let error = executor_with(policy.clone(), Scripted::new([&addresses])).call(&post(&url)).await;
        assert!(matches!(error, Err(CallError::Refused(RefusedTarget::Address { .. }))), "{error:?}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn a_name_is_resolved_once_and_the_call_goes_to_the_address_that_was_checked() {
    let server = Server::start(whole("200 OK", "", "")).await;
    let policy = TargetPolicy { allow_private: false, allow: vec!["127.0.0.1".parse().expect("an address")] };
    let rebound = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let resolver = Scripted::new([&[LOOPBACK], &[rebound]]);
    let executor = executor_with(policy, resolver.clone());
    let call = post(&format!("http://rebinding.example:{}/", server.address.port()));
    assert_eq!(executor.call(&call).await.map(|answer| answer.status), Ok(StatusCode::OK));
    assert_eq!((server.requests().len(), resolver.left()), (1, 1));
    // The next connection asks again, and is refused where the name leads by now.
    let error = executor.call(&call).await.expect_err("refused");
    assert!(matches!(error, CallError::Refused(RefusedTarget::Address { address, .. }) if address == rebound));
    assert_eq!((server.requests().len(), resolver.left()), (1, 0));
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let elsewhere = Server::start(whole("200 OK", "", "secret")).await;
    let redirect = whole("307 Elsewhere", &format!("location: {}\r\n", elsewhere.url()), "");
    let server = Server::start(redirect).await;
    let answer = executor(private()).call(&post(&server.url())).await.expect("an answer");
    assert_eq!(answer.status, StatusCode::TEMPORARY_REDIRECT);
    assert_eq!((server.requests().len(), elsewhere.requests().len()), (1, 0));
}

#[tokio::test]
async fn proxies_of_the_environment_are_ignored() {
    if let Ok(target) = std::env::var(CHILD_TARGET) {
        return call_with_proxies(&target).await;
    }
    let target = Server::start(whole("200 OK", "", "direct")).await;
    let proxy = Server::start(whole("200 OK", "", "by proxy")).await;
    let mut child = tokio::process::Command::new(std::env::current_exe().expect("this test's binary"));
    child.args(["--exact", "executor::tests::proxies_of_the_environment_are_ignored"]);
    child.env(CHILD_TARGET, target.url()).env_remove("NO_PROXY").env_remove("no_proxy");
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(name, format!("http://{}", proxy.address));
    }
    let output = child.output().await.expect("the child runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!((target.requests().len(), proxy.requests().len()), (1, 1));
}

/// In the child: an ordinary client goes by the proxy, and the executor does not.
async fn call_with_proxies(target: &str) {
    let ordinary = reqwest::get(target).await.expect("an answer").text().await.expect("a text");
    assert_eq!(ordinary, "by proxy");
    let answer = executor(private()).call(&post(target)).await.expect("an answer");
    assert_eq!(&answer.body[..], b"direct");
}

#[tokio::test]
async fn a_body_that_drips_is_given_up_when_the_time_is_over() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let server = Server::start(Answer::Drip(head, "1\r\nx\r\n")).await;
    let outcome = executor(private()).call(&HttpCall { timeout: SHORT, ..post(&server.url()) }).await;
    assert_eq!(outcome, Err(CallError::TimedOut(SHORT)));
}

#[tokio::test]
async fn headers_that_drip_are_given_up_when_the_time_is_over() {
    let server = Server::start(Answer::Drip("HTTP/1.1 200 OK\r\nx: ", "y")).await;
    let outcome = executor(private()).call(&HttpCall { timeout: SHORT, ..post(&server.url()) }).await;
    assert_eq!(outcome, Err(CallError::TimedOut(SHORT)));
}

#[tokio::test]
async fn no_call_takes_longer_than_the_limit_whatever_it_asks_for() {
    let server = Server::start(Answer::Silence).await;
    let limits = Limits { max_timeout: SHORT, ..Limits::default() };
    let executor = HttpExecutor::new(private(), limits).expect("a client");
    assert_eq!(executor.call(&post(&server.url())).await, Err(CallError::TimedOut(SHORT)));
}

#[tokio::test]
async fn an_endless_body_is_cut_at_the_limit() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let server = Server::start(Answer::Endless(head, "8\r\nabcdefgh\r\n")).await;
    let answer = executor(private()).call(&post(&server.url())).await.expect("an answer");
    assert_eq!((answer.body.len(), answer.truncated), (Limits::default().max_answer_bytes, true));
    assert!(answer.body.starts_with(b"abcdefghabcdefgh"));
}

#[tokio::test]
async fn a_body_as_long_as_the_limit_is_whole() {
    let body = "x".repeat(Limits::default().max_answer_bytes);
    let server = Server::start(whole("200 OK", "", &body)).await;
    let answer = executor(private()).call(&post(&server.url())).await.expect("an answer");
    assert_eq!((answer.body.len(), answer.truncated), (body.len(), false));
}

#[tokio::test]
async fn endless_headers_end_the_call() {
    for again in ["x-more: abcdefgh\r\n", "abcdefgh"] {
        let server = Server::start(Answer::Endless("HTTP/1.1 200 OK\r\nx-first: ", again)).await;
        let outcome = executor(private()).call(&post(&server.url())).await;
        assert!(matches!(outcome, Err(CallError::Broken(_))), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_packed_body_is_not_unpacked() {
    let server = Server::start(whole("200 OK", "content-encoding: gzip\r\n", "not really packed")).await;
    let answer = executor(private()).call(&post(&server.url())).await.expect("an answer");
    assert_eq!(&answer.body[..], b"not really packed");
}

#[tokio::test]
async fn failures_are_told_apart_and_their_messages_keep_the_url_to_themselves() {
    // Bound and not listening: nobody else can have the port.
    let closed = TcpSocket::new_v4().expect("a socket");
    closed.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    let port = closed.local_addr().expect("an address").port();
    let plain = Server::start(whole("200 OK", "", "")).await;
    let cut = Server::start(Answer::Whole("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_owned())).await;
    let other = Server::start(Answer::Whole("220 mail.example ESMTP\r\n".to_owned())).await;
    let silent = executor_with(private(), Scripted::new([&[]]));
    let system = executor(private());
    for (executor, url, situation) in [
        (&system, format!("http://127.0.0.1:{port}/secret"), "Unreachable"),
        (&system, format!("https://{}/secret", plain.address), "NoTls"),
        (&system, format!("http://{}/secret", cut.address), "Broken"),
        (&system, format!("http://{}/secret", other.address), "Broken"),
        (&silent, "http://nowhere.example/secret".to_owned(), "Unresolvable"),
    ] {
        let error = executor.call(&post(&url)).await.expect_err("no answer");
        assert!(format!("{error:?}").starts_with(situation), "{url}: {error:?}");
        assert!(error.is_transient() && !format!("{error:?} {error}").contains("secret"), "{url}: {error:?}");
    }
}

#[tokio::test]
async fn more_calls_than_the_limit_wait_for_their_turn_and_then_give_up() {
    let server = Server::start(Answer::Silence).await;
    let limits = Limits { max_concurrent: 1, ..Limits::default() };
    let executor = HttpExecutor::new(private(), limits).expect("a client");
    let first = tokio::spawn({
        let (executor, call) = (executor.clone(), post(&server.url()));
        async move { executor.call(&call).await }
    });
    let deadline = Instant::now() + AMPLE;
    while server.requests().is_empty() {
        assert!(Instant::now() < deadline, "the first call never arrived");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let second = executor.call(&HttpCall { timeout: SHORT, ..post(&server.url()) }).await;
    assert_eq!(second, Err(CallError::Busy));
    assert_eq!(server.requests().len(), 1);
    first.abort();
    assert!(first.await.is_err_and(|ended| ended.is_cancelled()));
    let third = executor.call(&HttpCall { timeout: SHORT, ..post(&server.url()) }).await;
    assert_eq!(third, Err(CallError::TimedOut(SHORT)));
}

#[tokio::test]
async fn how_a_message_is_carried_is_not_the_callers_to_say() {
    let server = Server::start(whole("200 OK", "", "")).await;
    for name in CARRIAGE {
        let mut call = post(&server.url());
        call.headers.insert(&name, HeaderValue::from_static("x"));
        assert!(matches!(executor(private()).call(&call).await, Err(CallError::Unsendable(_))), "{name}");
    }
    for method in [Method::CONNECT, Method::TRACE] {
        let call = HttpCall { method, ..post(&server.url()) };
        assert!(matches!(executor(private()).call(&call).await, Err(CallError::Unsendable(_))));
    }
    assert_eq!(server.requests().len(), 0);
}
