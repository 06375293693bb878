//! One HTTP/1.1 connection that stays open, and what is read of its answers.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

/// How often a refusal that asks for patience is met with it.
const MAX_TRIES: u32 = 100;
/// How long the server is left alone then.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(20);

/// Where connections go to, and with which token.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) authority: String,
    pub(super) authorization: Option<HeaderValue>,
}

/// A connection.
pub(super) struct Connection {
    address: Address,
    host: HeaderValue,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    /// Connects.
    pub(super) async fn open(address: &Address) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot connect to {}: {error}", address.authority);
        let stream = TcpStream::connect(&address.authority).await.map_err(|error| failed(&error))?;
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        tokio::spawn(connection);
        let host = HeaderValue::from_str(&address.authority).map_err(|error| failed(&error))?;
        Ok(Self { address: address.clone(), host, sender })
    }

    /// Sends a body and gives the answer's, once it is a good one: while the server asks for patience, the same is
    /// sent again.
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

    /// Reads.
    pub(super) async fn get(&mut self, path: &str) -> Result<Bytes, String> {
        let (status, answer) = self.send(Method::GET, path, "application/json", Bytes::new()).await?;
        match status.is_success() {
            true => Ok(answer),
            false => Err(format!("GET {path}: {status}: {}", String::from_utf8_lossy(&answer))),
        }
    }

    /// Submits jobs, one a line, of which none may be refused or known already.
    pub(super) async fn submit(&mut self, lines: Bytes) -> Result<(), String> {
        let answer = self.post("/v1/jobs/bulk", "application/x-ndjson", lines).await?;
        let refused = read::<Items>(&answer)?.items.iter().filter(|item| item.status != 201).count();
        match refused {
            0 => Ok(()),
            _ => Err(format!("{refused} jobs of a bulk were refused: {}", String::from_utf8_lossy(&answer))),
        }
    }

    /// Completes jobs that this worker claimed. Gives how many completions were accepted.
    pub(super) async fn complete(&mut self, worker: &str, jobs: &[ClaimedJob<'_>]) -> Result<u64, String> {
        let items: Vec<String> =
            jobs.iter().map(|job| format!("{{\"id\":\"{}\",\"fence\":{}}}", job.id, job.fence)).collect();
        let body = format!("{{\"worker_id\":\"{worker}\",\"items\":[{}]}}", items.join(","));
        let answer = self.post("/v1/completions", "application/json", Bytes::from(body)).await?;
        Ok(read::<Items>(&answer)?.items.iter().filter(|item| item.status == 200).count() as u64)
    }

    /// How many jobs of a queue are in one of these states.
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

/// The body of a claim, which is the same for every call of a worker.
pub(super) fn claim_body(worker: &str, queue: &str, max_jobs: u32, wait_ms: u32) -> Bytes {
    Bytes::from(format!(
        "{{\"worker_id\":\"{worker}\",\"queues\":[\"{queue}\"],\"max_jobs\":{max_jobs},\"wait_ms\":{wait_ms}}}"
    ))
}

/// Of the answer to a claim: enough to complete the jobs.
#[derive(Deserialize)]
pub(super) struct Claimed<'a> {
    #[serde(borrow)]
    pub(super) jobs: Vec<ClaimedJob<'a>>,
}

/// One job of it.
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

/// Of the answer to a bulk call: whether each went well.
#[derive(Deserialize)]
struct Items {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    status: u16,
}

/// Reads an answer.
pub(super) fn read<'a, T: Deserialize<'a>>(answer: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(answer).map_err(|error| format!("the answer cannot be read: {error}"))
}
