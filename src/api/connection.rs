//! One connection: it is served until its client leaves, is silent for too long, reads nothing for too long, or has to
//! go.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use futures::TryFutureExt;
use http::header::CONNECTION;
use http::{HeaderValue, Request, StatusCode, Version};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tower::Service;
use tracing::debug;

use super::access::Guard;
use super::app::Limits;
use super::body::UNREAD_BYTES;
use super::browsers;
use super::charge::StrangersCall;
use super::places::{Place, Standing};

/// The longest head of a request, in bytes. A longer one is answered with 431, and the connection is closed.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The bytes with which an HTTP/2 connection begins.
const HTTP2_PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The pause before a connection is looked at again that has brought only a part of the preface.
const PREFACE_PAUSE: Duration = Duration::from_millis(100);
/// The most open calls of one HTTP/2 connection.
const MAX_STREAMS: u32 = 1024;
/// How many bytes a client may send on one HTTP/2 call before they are read: as many as it is charged for.
const STREAM_WINDOW: u32 = UNREAD_BYTES as u32;
/// How often an HTTP/2 connection is pinged, and how long the answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How long a connection on a place of the reserve may be silent, at most.
const RESERVED_SILENCE: Duration = Duration::from_secs(5);
/// How long a client that has to go may take to read what was sent.
const LINGER: Duration = Duration::from_secs(1);

/// How connections are served.
pub(super) struct Connections {
    pub(super) router: Router,
    pub(super) guard: Arc<Guard>,
    pub(super) protocols: Protocols,
    /// How long a connection may be without a call, and the head of a request may take.
    pub(super) silent_within: Duration,
    /// How long a client may read nothing of an answer.
    pub(super) read_within: Duration,
    /// Cancelled when connections have to end once their calls have.
    pub(super) closing: CancellationToken,
}

/// How both versions of HTTP are served.
pub(super) struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

impl Protocols {
    pub(super) fn new(limits: &Limits) -> Self {
        let (mut http1, mut http2) = (http1::Builder::new(), http2::Builder::new(TokioExecutor::new()));
        http1.timer(TokioTimer::new()).header_read_timeout(limits.head_within).max_buf_size(MAX_HEAD_BYTES);
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(4 * STREAM_WINDOW)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX));
        Self { http1, http2 }
    }
}

impl Connections {
    /// Serves one connection to its end.
    pub(super) async fn serve(&self, stream: TcpStream, place: &Place) {
        // Answers are small and awaited: holding them back to fill a packet only delays them.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let standing = place.standing;
        let silent_within = match standing {
            Standing::Regular => self.silent_within,
            Standing::Reserved => self.silent_within.min(RESERVED_SILENCE),
        };
        let (calls, leaving) = (Calls::default(), self.closing.child_token());
        let is_http2 = tokio::select! {
            is_http2 = begins_http2(&stream) => is_http2,
            () = leaving.cancelled() => return,
            () = calls.silence(silent_within) => return,
        };
        let is_http2 = match is_http2 {
            Ok(is_http2) => is_http2,
            Err(error) => return debug!(%error, "a connection broke"),
        };
        let service = service_fn(|mut request: Request<Incoming>| {
            let (call, leaving, version) = (calls.begin(), leaving.clone(), request.version());
            let way = self.guard.way(Some(place.remote.address()), request.headers());
            request.extensions_mut().insert(Arc::clone(&place.remote));
            if standing == Standing::Reserved {
                request.extensions_mut().insert(standing);
            }
            // An async block would keep room for the request for as long as the call waits.
            self.router.clone().call(request).map_ok(move |mut response| {
                if standing == Standing::Reserved || response.status() == StatusCode::UNAUTHORIZED {
                    leaving.cancel();
                    if version < Version::HTTP_2 {
                        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                }
                browsers::add_to(response.headers_mut(), way);
                let strangers = response.extensions_mut().remove::<StrangersCall>();
                response.map(|body| CallBody { body, _call: call, _strangers: strangers })
            })
        });
        let io = TokioIo::new(limited(stream, self.read_within));
        if is_http2 {
            // In a box, so that the many connections of HTTP/1.1 do not keep room for it.
            let mut connection = Box::pin(self.protocols.http2.serve_connection(io, service));
            drive(connection.as_mut(), &calls, &leaving, silent_within).await;
        } else {
            let connection = pin!(self.protocols.http1.serve_connection(io, service));
            drive(connection, &calls, &leaving, silent_within).await;
        }
    }
}

/// Waits for the first bytes of a connection, and returns whether they are HTTP/2's. They are not read: hyper takes
/// twice the memory for a connection whose first request it reads in parts.
async fn begins_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; HTTP2_PREFACE.len()];
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == 0 || !HTTP2_PREFACE.starts_with(&first[..seen]) {
            return Ok(false);
        }
        if seen == HTTP2_PREFACE.len() {
            return Ok(true);
        }
        sleep(PREFACE_PAUSE).await;
    }
}

/// Returns a stream that breaks when its client reads nothing for this time.
fn limited(stream: TcpStream, read_within: Duration) -> Pin<Box<TimeoutStream<TcpStream>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(read_within));
    Box::pin(stream)
}

/// Serves a connection until it ends by itself or has to go: then it may end its calls.
async fn drive<C: GracefulConnection<Error = hyper::Error>>(
    mut connection: Pin<&mut C>,
    calls: &Calls,
    leaving: &CancellationToken,
    silent_within: Duration,
) {
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
    _strangers: Option<StrangersCall>,
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_version_is_known_however_the_first_bytes_come() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let parts = [("P", "OST /", false), ("PRI * HTTP/2.0\r\n", "\r\nSM\r\n\r\n", true), ("PRI", "NT /", false)];
        for (first, rest, is_http2) in parts {
            let mut client = TcpStream::connect(address).await.expect("connected");
            let (server, _) = listener.accept().await.expect("accepted");
            client.write_all(first.as_bytes()).await.expect("sent");
            server.readable().await.expect("the first part");
            let mut begins = pin!(begins_http2(&server));
            assert!(poll!(begins.as_mut()).is_pending(), "{first:?} says nothing yet");
            client.write_all(rest.as_bytes()).await.expect("sent");
            assert_eq!(begins.await.expect("the version"), is_http2, "{first}{rest}");
        }
    }
}
