//! One connection: it is served until its client leaves, is silent for too long, reads nothing for too long, or has to
//! go.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Request, StatusCode, Version};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::debug;

use super::app::Limits;
use super::places::{Place, Standing};

/// The longest head of a request, in bytes. A longer one is answered with 431, and the connection is closed.
const MAX_HEAD_BYTES: usize = 128 * 1024;
/// The most open calls of one HTTP/2 connection.
const MAX_STREAMS: u32 = 1024;
/// How many bytes a client may send on one HTTP/2 call before they are read.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// How often an HTTP/2 connection is pinged, and how long the answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How long a connection on a place of the reserve may be silent, at most.
const RESERVED_SILENCE: Duration = Duration::from_secs(5);
/// How long a client that has to go may take to read what was sent.
const LINGER: Duration = Duration::from_secs(1);

/// How connections are served.
#[derive(Clone)]
pub(super) struct Connections {
    pub(super) router: Router,
    pub(super) protocols: Builder<TokioExecutor>,
    /// How long a connection may be without a call, and the head of a request may take.
    pub(super) silent_within: Duration,
    /// How long a client may read nothing of an answer.
    pub(super) read_within: Duration,
    /// Cancelled when connections have to end once their calls have.
    pub(super) closing: CancellationToken,
}

/// Returns how both versions of HTTP are served.
pub(super) fn protocols(limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.head_within).max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(4 * STREAM_WINDOW)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX));
    builder
}

impl Connections {
    /// Serves one connection to its end.
    pub(super) async fn serve(self, stream: TcpStream, place: &Place) {
        // Answers are small and awaited: holding them back to fill a packet only delays them.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.read_within));
        let standing = place.standing;
        let silent_within = match standing {
            Standing::Regular => self.silent_within,
            Standing::Reserved => self.silent_within.min(RESERVED_SILENCE),
        };
        let (calls, leaving) = (Calls::default(), self.closing.child_token());
        let service = service_fn(|mut request: Request<Incoming>| {
            let (router, call, leaving) = (self.router.clone(), calls.begin(), leaving.clone());
            async move {
                let version = request.version();
                if standing == Standing::Reserved {
                    request.extensions_mut().insert(standing);
                }
                let mut response = router.oneshot(request).await?;
                if standing == Standing::Reserved || response.status() == StatusCode::UNAUTHORIZED {
                    leaving.cancel();
                    if version < Version::HTTP_2 {
                        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                }
                Ok::<_, Infallible>(response.map(|body| CallBody { body, _call: call }))
            }
        });
        let mut connection = pin!(self.protocols.serve_connection(TokioIo::new(Box::pin(stream)), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = leaving.cancelled() => None,
            () = calls.silence(silent_within) => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = calls.silence(silent_within + LINGER) => return debug!("a connection did not end by itself"),
                }
            }
        };
        if let Err(error) = ended {
            debug!(%error, "a connection broke");
        }
    }
}

/// The calls of a connection that are open.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Open>>);

struct Open {
    count: usize,
    /// When the last call ended, or the connection began.
    silent_since: Instant,
}

impl Default for Open {
    fn default() -> Self {
        Self { count: 0, silent_since: Instant::now() }
    }
}

impl Calls {
    fn begin(&self) -> OpenCall {
        self.0.lock().count += 1;
        OpenCall(self.clone())
    }

    /// Waits until there has been no call for this time. The time limit on a request's head is not enough: it begins
    /// once the connection is known to be HTTP/1.1, which a client can put off for ever, and there is none for HTTP/2.
    async fn silence(&self, within: Duration) {
        loop {
            let left = {
                let open = self.0.lock();
                if open.count == 0 { within.saturating_sub(open.silent_since.elapsed()) } else { within }
            };
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }
}

/// A call, which is open until this is dropped.
struct OpenCall(Calls);

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut open = self.0.0.lock();
        open.count -= 1;
        open.silent_since = Instant::now();
    }
}

/// The body of an answer, with which its call ends.
struct CallBody {
    body: Body,
    _call: OpenCall,
}

impl http_body::Body for CallBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
