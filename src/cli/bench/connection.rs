//! One HTTP/1.1 connection that stays open, and the answers read from it.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

/// How often a call is repeated while the server answers that it is busy.
const MAX_TRIES: u32 = 100;
/// How long to wait before it is.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(20);

/// The address to connect to, and the token.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) authority: String,
    pub(super) authorization: Option<HeaderValue>,
}

/// A connection that stays open.
pub(super) struct Connection {
    address: Address,
    host: HeaderValue,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    /// Connects to the server.
    pub(super) async fn open(address: &Address) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot connect to {}: {error}", address.authority);
        let stream = TcpStream::connect(&address.authority).await.map_err(|error| failed(&error))?;
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        tokio::spawn(connection);
        let host = HeaderValue::from_str(&address.authority).map_err(|error| failed(&error))?;
        Ok(Self { address: address.clone(), host, sender })
    }

    /// Posts a body and returns the answer's body. While the server is busy the call is repeated.
    pub(super) async fn post(&mut self, path: &str, content_type: &'static str, body: Bytes) -> Result<Bytes, String> {
        for _ in 0..MAX_TRIES {
            let (status, answer) = self.send(Method::POST, path, content_type, body.clone()).await?;
            if status.is_success() {
                return Ok(answer);
            }
            if !matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
                return Err(format!("POST {path}: {status}: {}", String::from_utf8_lossy(&answer)));
            }
            tokio::time::sleep(PATIENCE).await;
        }
        Err(format!("POST {path}: the server asked for patience {MAX_TRIES} times"))
    }

    /// Reads a resource.
    pub(super) async fn get(&mut self, path: &str) -> Result<Bytes, String> {
        let (status, answer) = self.send(Method::GET, path, "application/json", Bytes::new()).await?;
        match status.is_success() {
            true => Ok(answer),
            false => Err(format!("GET {path}: {status}: {}", String::from_utf8_lossy(&answer))),
        }
    }

    /// Submits jobs, one per line. Fails when one is refused or known already.
    pub(super) async fn submit(&mut self, lines: Bytes) -> Result<(), String> {
        let answer = self.post("/v1/jobs/bulk", "application/x-ndjson", lines).await?;
        let refused = read::<Items>(&answer)?.items.iter().filter(|item| item.status != 201).count();
        match refused {
            0 => Ok(()),
            _ => Err(format!("{refused} jobs of a bulk were refused: {}", String::from_utf8_lossy(&answer))),
        }
    }

    /// Completes jobs that this worker claimed. Returns how many completions were accepted.
    pub(super) async fn complete(&mut self, worker: &str, jobs: &[ClaimedJob<'_>]) -> Result<u64, String> {
        let items: Vec<String> =
            jobs.iter().map(|job| format!("{{\"id\":\"{}\",\"fence\":{}}}", job.id, job.fence)).collect();
        let body = format!("{{\"worker_id\":\"{worker}\",\"items\":[{}]}}", items.join(","));
        let answer = self.post("/v1/completions", "application/json", Bytes::from(body)).await?;
        Ok(read::<Items>(&answer)?.items.iter().filter(|item| item.status == 200).count() as u64)
    }

    /// Counts the jobs of a queue that are in one of these states.
    pub(super) async fn count(&mut self, queue: &str, states: &[&str]) -> Result<u64, String> {
        #[derive(Deserialize)]
        struct Count {
            total: u64,
        }
        let states: String = states.iter().map(|state| format!("&state={state}")).collect();
        let answer = self.get(&format!("/v1/jobs/count?queue={queue}{states}")).await?;
        Ok(read::<Count>(&answer)?.total)
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        let failed = |error: &dyn std::fmt::Display| format!("{path}: {error}");
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.host.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(authorization) = &self.address.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let request = request.body(Full::new(body)).map_err(|error| failed(&error))?;
        self.sender.ready().await.map_err(|error| failed(&error))?;
        let answer = self.sender.send_request(request).await.map_err(|error| failed(&error))?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(|error| failed(&error))?.to_bytes();
        Ok((status, body))
    }
}

/// Returns the body of a claim, which is the same for every call of a worker.
pub(super) fn claim_body(worker: &str, queue: &str, max_jobs: u32, wait_ms: u32) -> Bytes {
    Bytes::from(format!(
        "{{\"worker_id\":\"{worker}\",\"queues\":[\"{queue}\"],\"max_jobs\":{max_jobs},\"wait_ms\":{wait_ms}}}"
    ))
}

/// The part of a claim's answer that is needed to complete the jobs.
#[derive(Deserialize)]
pub(super) struct Claimed<'a> {
    #[serde(borrow)]
    pub(super) jobs: Vec<ClaimedJob<'a>>,
}

/// A job of a claim's answer.
#[derive(Deserialize)]
pub(super) struct ClaimedJob<'a> {
    pub(super) id: &'a str,
    pub(super) fence: u64,
    pub(super) payload: Payload,
}

/// The job's number, where it has one.
#[derive(Deserialize)]
pub(super) struct Payload {
    #[serde(default)]
    pub(super) n: u32,
}

/// The part of a bulk call's answer that says whether each item succeeded.
#[derive(Deserialize)]
struct Items {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    status: u16,
}

/// Parses an answer.
pub(super) fn read<'a, T: Deserialize<'a>>(answer: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(answer).map_err(|error| format!("the answer cannot be read: {error}"))
}
