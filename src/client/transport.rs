//! A call over HTTP: how it is sent, when and where it is repeated, and how its answer is read.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt as _};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use reqwest::{Body, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::addresses::{Address, Addresses};
use super::error::ClientError;
use crate::job::strict;
use crate::outgoing;
use crate::wire::{CLUSTER, Problem};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take, beyond the time that the call itself waits for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an idle connection is kept: less than the server keeps it, so that none is used just as the server closes
/// it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// The most repetitions of a call, at all servers each.
const MAX_RETRIES: usize = 4;
/// The waits between tries: the shortest and the longest.
const RETRY_WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A client of one server, or of several servers of one installation. Cheap to clone: clones share their connections,
/// and which server they call first.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    addresses: Addresses,
    authorization: Option<HeaderValue>,
    /// The identity of the cluster that answered first, which every later call is for.
    cluster: Arc<OnceLock<HeaderValue>>,
    max_retries: usize,
    answer_timeout: Duration,
}

/// Whether a request that the server may have heard can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The request can be repeated: the second time changes nothing.
    Safe,
    /// The request is repeated only when the server did not hear it.
    Unsafe,
    /// The request is repeated only when no connection was made: its body can be sent but once.
    Unsent,
}

impl Repeat {
    /// Returns whether the request can be repeated after this error.
    fn is_right_after(self, error: &ClientError) -> bool {
        match self {
            Self::Safe => error.is_passing(),
            Self::Unsafe => error.is_unheard(),
            Self::Unsent => matches!(error, ClientError::Connect(_)),
        }
    }
}

/// A call that can be sent any number of times.
pub(super) struct Call {
    method: Method,
    /// The parts of the path below the server's URL.
    segments: Vec<String>,
    /// The query's parameters.
    parameters: Vec<(String, String)>,
    headers: HeaderMap,
    body: Option<Bytes>,
    /// The body of repetitions, when it differs from the first.
    body_again: Option<Bytes>,
    /// How long the server is asked to wait.
    wait: Duration,
    timeout: Duration,
    repeat: Repeat,
}

/// An answer whose body is read as it comes. When that fails, the next call begins at the next server.
#[derive(Debug)]
pub(super) struct OpenAnswer {
    response: Response,
    address: Address,
    addresses: Addresses,
}

impl Client {
    /// Creates a client of the server at `base_url`, such as `http://127.0.0.1:7400`.
    ///
    /// # Errors
    /// [`ClientError::Usage`] when the address is not an HTTP address or the token cannot stand in a header.
    pub fn new(base_url: &str, token: Option<&str>) -> Result<Self, ClientError> {
        Self::with_servers(&[base_url], token)
    }

    /// Creates a client of several servers, at most 32, which must be of one installation: the same jobs and the same
    /// tokens. A call begins at the server that answered last, at first the one that is named first. When that cannot
    /// be reached, breaks the connection or says that it cannot serve (502, 503, 504), the call is repeated at the next
    /// one at once, if it may be repeated at all.
    ///
    /// # Errors
    /// [`ClientError::Usage`] when there is no address or one is not an HTTP address, or the token cannot stand in a
    /// header.
    pub fn with_servers<S: AsRef<str>>(base_urls: &[S], token: Option<&str>) -> Result<Self, ClientError> {
        let addresses = Addresses::parse(base_urls)?;
        let authorization = token.map(authorization).transpose()?;
        // To read the certificates of all authorities takes long beside a short call.
        let http = outgoing::client().tls_built_in_root_certs(addresses.has_tls());
        let http = outgoing::by_proxy(http)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self {
            http,
            addresses,
            authorization,
            cluster: Arc::default(),
            max_retries: MAX_RETRIES,
            answer_timeout: ANSWER_TIMEOUT,
        })
    }

    /// Returns the same client with calls repeated at most `max_retries` times, after waits. Of several servers, each
    /// is tried as often.
    #[must_use]
    pub fn with_max_retries(mut self, max_retries: usize) -> Self {
        self.max_retries = max_retries;
        self
    }

    /// Returns the same client with this limit for how long an answer may take, beyond the time that the call itself
    /// waits for.
    pub(crate) fn with_answer_timeout(mut self, limit: Duration) -> Self {
        self.answer_timeout = limit;
        self
    }

    /// Creates a call to the path of these segments, each of which may hold any character.
    pub(super) fn call(&self, method: Method, segments: &[&str], repeat: Repeat) -> Call {
        Call {
            method,
            segments: segments.iter().copied().map(str::to_owned).collect(),
            parameters: Vec::new(),
            headers: HeaderMap::new(),
            body: None,
            body_again: None,
            wait: Duration::ZERO,
            timeout: self.answer_timeout,
            repeat,
        }
    }

    /// Reads the resource at a path.
    pub(super) async fn get<T: DeserializeOwned>(&self, segments: &[&str]) -> Result<T, ClientError> {
        self.send(self.call(Method::GET, segments, Repeat::Safe)).await
    }

    /// Posts a JSON body to a path.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        segments: &[&str],
        repeat: Repeat,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send(self.call(Method::POST, segments, repeat).json(body)?).await
    }

    /// Posts a body to a path as it is, for a caller that builds bodies and reads answers itself.
    pub(crate) async fn post_bytes(
        &self,
        segments: &[&str],
        content_type: &'static str,
        body: Bytes,
    ) -> Result<Bytes, ClientError> {
        self.send_raw(self.call(Method::POST, segments, Repeat::Unsafe).body(body, content_type)).await
    }

    /// Sends the call, repeats it where that is right, and reads the JSON answer.
    pub(super) async fn send<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let answer = self.send_raw(call).await?;
        strict::from_slice(&answer).map_err(|error| decode_error(StatusCode::OK, &error))
    }

    /// Sends and repeats the call like [`Self::send`], and returns an answer that is not JSON.
    pub(super) async fn send_raw(&self, call: Call) -> Result<Bytes, ClientError> {
        let (shortest, longest) = RETRY_WAITS;
        let waits = ExponentialBuilder::default()
            .with_min_delay(shortest)
            .with_max_delay(longest)
            .with_jitter()
            .with_max_times(self.max_retries);
        let mut rounds = 0;
        let round = || {
            rounds += 1;
            let (call, is_first_round) = (&call, rounds == 1);
            self.at_each_server(call, move |address, is_first_server| {
                let again = call.body_again.as_ref().filter(|_| !(is_first_round && is_first_server));
                self.attempt(call, address, again.or(call.body.as_ref()))
            })
        };
        round
            .retry(waits)
            .when(|error| call.repeat.is_right_after(error))
            .adjust(|error, wait| {
                wait.map(|wait| error.retry_after().map_or(wait, |least| least.clamp(wait, longest.max(wait))))
            })
            .await
    }

    /// Sends the call once to each server and returns the answer when its head has arrived. Its body has no time limit.
    pub(super) async fn open(&self, call: &Call) -> Result<OpenAnswer, ClientError> {
        self.at_each_server(call, |address, _| self.open_at(call, address, None)).await
    }

    /// Sends the call with a stream as its body to the first server that a connection can be made to, and returns the
    /// answer when its head has arrived. The rest of the body is sent meanwhile.
    pub(super) async fn open_with(
        &self,
        call: &Call,
        lines: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<OpenAnswer, ClientError> {
        // No server that cannot be connected to takes anything out of the stream.
        let lines = Arc::new(Mutex::new(lines.map(Ok::<_, Infallible>).boxed()));
        let attempt = |address, _| {
            let lines = Arc::clone(&lines);
            let body = Body::wrap_stream(stream::poll_fn(move |context| lines.lock().poll_next_unpin(context)));
            self.open_at(call, address, Some(body))
        };
        self.at_each_server(call, attempt).await
    }

    /// Makes an attempt at one server after the other, until one answers or the call may not be repeated. The attempt
    /// is told whether it is at the first one.
    async fn at_each_server<T, F: Future<Output = Result<T, ClientError>>>(
        &self,
        call: &Call,
        attempt: impl Fn(Address, bool) -> F,
    ) -> Result<T, ClientError> {
        let mut failures = Vec::new();
        for address in self.addresses.in_turn() {
            let begun = self.addresses.begin(address, call.wait);
            let error = match attempt(address, failures.is_empty()).await {
                Err(error) if error.is_of_server() => error,
                answer => {
                    begun.answered();
                    return answer;
                }
            };
            begun.failed();
            let may_go_on = call.repeat.is_right_after(&error);
            failures.push((address, error));
            if !may_go_on {
                break;
            }
        }
        Err(self.addresses.error(failures))
    }

    async fn open_at(&self, call: &Call, address: Address, body: Option<Body>) -> Result<OpenAnswer, ClientError> {
        let request = self.request(call, address);
        let request = match body {
            Some(body) => request.body(body),
            None => request,
        };
        let head = tokio::time::timeout(call.timeout, request.send()).await;
        let answer = head.map_err(|_| ClientError::Timeout("the answer did not begin".to_owned()))?;
        let answer = answer.map_err(|error| self.addresses.unanswered(error))?;
        self.meet(answer.headers());
        if answer.status().is_success() {
            return Ok(OpenAnswer { response: answer, address, addresses: self.addresses.clone() });
        }
        let (status, retry_after) = (answer.status(), retry_after(answer.headers()));
        let body = tokio::time::timeout(call.timeout, answer.bytes()).await;
        let body = body.map_err(|_| ClientError::Timeout("the answer did not end".to_owned()))?;
        let body = body.map_err(|error| self.addresses.unanswered(error))?;
        Err(refusal(status, retry_after, &body))
    }

    /// The most repetitions of a call.
    pub(super) const fn max_retries(&self) -> usize {
        self.max_retries
    }

    fn request(&self, call: &Call, address: Address) -> RequestBuilder {
        let request = self.http.request(call.method.clone(), call.url(self.addresses.url(address)));
        let request = request.headers(call.headers.clone());
        let request = match self.cluster.get() {
            Some(cluster) => request.header(CLUSTER, cluster.clone()),
            None => request,
        };
        match &self.authorization {
            Some(authorization) => request.header(http::header::AUTHORIZATION, authorization.clone()),
            None => request,
        }
    }

    /// Keeps which cluster has answered, if it is the first one.
    fn meet(&self, headers: &HeaderMap) {
        if let Some(cluster) = headers.get(CLUSTER) {
            self.cluster.get_or_init(|| cluster.clone());
        }
    }

    async fn attempt(&self, call: &Call, address: Address, body: Option<&Bytes>) -> Result<Bytes, ClientError> {
        let mut request = self.request(call, address).timeout(call.timeout);
        if let Some(body) = body {
            request = request.body(body.clone());
        }
        let answer = request.send().await.map_err(|error| self.addresses.unanswered(error))?;
        self.meet(answer.headers());
        let (status, retry_after) = (answer.status(), retry_after(answer.headers()));
        let body = answer.bytes().await.map_err(|error| self.addresses.unanswered(error))?;
        if status.is_success() { Ok(body) } else { Err(refusal(status, retry_after, &body)) }
    }
}

impl OpenAnswer {
    /// Returns the next part of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        match self.response.chunk().await {
            Ok(part) => Ok(part),
            Err(error) => Err(self.broke_off(self.addresses.unanswered(error))),
        }
    }

    /// Returns the error of the call when its answer did not go on as it should, and lets the next call begin at the
    /// next server.
    pub(super) fn broke_off(&self, error: ClientError) -> ClientError {
        self.addresses.failed(self.address);
        self.addresses.error(vec![(self.address, error)])
    }

    /// Returns the answer's HTTP status.
    pub(super) fn status(&self) -> StatusCode {
        self.response.status()
    }
}

impl Call {
    /// Adds a query parameter.
    pub(super) fn query(mut self, name: &str, value: &str) -> Self {
        self.parameters.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the URL of the call at the server with this one.
    fn url(&self, base: &Url) -> Url {
        let mut url = base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(&self.segments);
        }
        if !self.parameters.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.parameters);
        }
        url
    }

    /// Adds a query parameter for each value: repeated ones, so that a value may hold a comma.
    pub(super) fn each<T: ToString>(self, name: &str, values: impl IntoIterator<Item = T>) -> Self {
        values.into_iter().fold(self, |call, value| call.query(name, &value.to_string()))
    }

    /// Adds a header.
    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Adds a JSON body.
    pub(super) fn json(self, value: &impl Serialize) -> Result<Self, ClientError> {
        Ok(self.body(to_json(value)?, "application/json"))
    }

    /// Sets another JSON body for repetitions.
    pub(super) fn json_again(mut self, value: &impl Serialize) -> Result<Self, ClientError> {
        self.body_again = Some(to_json(value)?.into());
        Ok(self)
    }

    /// Adds a body of any type.
    pub(super) fn body(mut self, body: impl Into<Bytes>, content_type: &'static str) -> Self {
        self.body = Some(body.into());
        self.header(CONTENT_TYPE, HeaderValue::from_static(content_type))
    }

    /// Extends the time that the server has to answer.
    pub(super) fn waiting(mut self, wait: Duration) -> Self {
        self.wait += wait;
        self.timeout += wait;
        self
    }
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(value).map_err(|error| ClientError::Usage(error.to_string()))
}

fn authorization(token: &str) -> Result<HeaderValue, ClientError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| ClientError::Usage("the token has characters that cannot stand in a header".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

fn refusal(status: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> ClientError {
    match strict::from_slice::<Problem>(body) {
        Ok(problem) => ClientError::Problem { problem: Box::new(problem), retry_after },
        Err(error) => decode_error(status, &error),
    }
}

fn decode_error(status: StatusCode, error: &serde_json::Error) -> ClientError {
    ClientError::Decode { status: status.as_u16(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::client::JobQuery;

    /// Answers a call of a client with this JSON, and returns what the client says to it.
    async fn told(answer: &'static str) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let _read = stream.read(&mut [0; 4096]).await.expect("a request");
            let length = answer.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{answer}");
            stream.write_all(answer.as_bytes()).await.expect("an open connection");
        });
        let client = Client::new(&url, None).expect("a client");
        let error = client.jobs(&JobQuery::default()).await.expect_err("no list of jobs");
        server.await.expect("it answered");
        error.to_string()
    }

    #[tokio::test]
    async fn what_is_no_answer_of_the_api_is_named_without_the_names_of_types() {
        for answer in ["[]", "\"hello\"", "{\"items\": [7]}"] {
            let said = told(answer).await;
            assert!(said.contains("expected an object") && !said.contains("struct"), "{answer}: {said}");
        }
    }
}
