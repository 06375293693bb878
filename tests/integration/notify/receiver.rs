//! A webhook receiver on a real socket: it writes down what it is sent and answers as it is told to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use leasehold::clock::{Clock as _, SystemClock, Timestamp};
use leasehold::executor::webhook::{CloudEvent, Secret, verify};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::servers;

/// How long to wait for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// One request that came.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) answered: StatusCode,
}

impl Delivered {
    /// The event, once its signature is found to be right.
    pub(crate) fn verified(&self, secret: &Secret, now: Timestamp) -> CloudEvent {
        verify(std::slice::from_ref(secret), &self.headers, &self.body, now).expect("the signature is right");
        self.event()
    }

    /// The event.
    pub(crate) fn event(&self) -> CloudEvent {
        assert_eq!(self.headers["content-type"], "application/cloudevents+json");
        serde_json::from_slice(&self.body).expect("a cloud event")
    }
}

#[derive(Default)]
struct Book {
    came: Vec<Delivered>,
    /// What to answer, the next one last; 200 when nothing is said.
    answers: Vec<StatusCode>,
    /// What to answer to all.
    always: Option<StatusCode>,
    /// What to answer when nothing is said, instead of 200.
    otherwise: Option<StatusCode>,
    /// The headers of every answer.
    headers: HeaderMap,
    /// Whether to answer with the body and the headers that came.
    repeats: bool,
}

/// A receiver at a fixed address, listening or not.
pub(crate) struct Receiver {
    address: SocketAddr,
    book: Arc<Mutex<Book>>,
    listening: Option<JoinHandle<()>>,
}

impl Receiver {
    /// A receiver that does not listen yet.
    pub(crate) fn silent() -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], servers::ports::free()));
        Self { address, book: Arc::default(), listening: None }
    }

    /// A receiver that listens.
    pub(crate) async fn listening() -> Self {
        let mut receiver = Self::silent();
        receiver.listen().await;
        receiver
    }

    /// Begins to listen.
    pub(crate) async fn listen(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("the port is still free");
        let router = Router::new().fallback(receive).with_state(Arc::clone(&self.book));
        self.listening = Some(tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the receiver serves");
        }));
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Answers the next requests with these, in order.
    pub(crate) fn answer_next(&self, answers: impl IntoIterator<Item = StatusCode>) {
        let mut book = self.book.lock();
        book.answers.extend(answers);
        book.answers.reverse();
    }

    /// Answers every request with this.
    pub(crate) fn answer_always(&self, answer: StatusCode) {
        self.book.lock().always = Some(answer);
    }

    /// Answers with this once nothing else is said.
    pub(crate) fn answer_then(&self, answer: StatusCode) {
        self.book.lock().otherwise = Some(answer);
    }

    /// Answers no longer the same to every request.
    pub(crate) fn answer_as_told(&self) {
        self.book.lock().always = None;
    }

    /// Answers with this header as well.
    pub(crate) fn answer_with(&self, name: HeaderName, value: &'static str) {
        self.book.lock().headers.insert(name, HeaderValue::from_static(value));
    }

    /// Answers with the body and the headers that came, as text.
    pub(crate) fn repeat_what_comes(&self) {
        self.book.lock().repeats = true;
    }

    /// Everything that came.
    pub(crate) fn came(&self) -> Vec<Delivered> {
        self.book.lock().came.clone()
    }

    /// What was taken: answered with 2xx.
    pub(crate) fn taken(&self) -> Vec<Delivered> {
        self.came().into_iter().filter(|delivered| delivered.answered.is_success()).collect()
    }

    /// The jobs and schedules whose events were taken, with the events' types, each once, in order.
    pub(crate) fn told(&self) -> Vec<(String, String)> {
        let mut told: Vec<(String, String)> =
            self.taken().iter().map(Delivered::event).map(|event| (event.subject, event.event_type)).collect();
        told.sort();
        told.dedup();
        told
    }

    /// Waits until `enough`, and lets `meanwhile` happen again and again.
    pub(crate) async fn until(&self, enough: impl Fn(&Self) -> bool, mut meanwhile: impl FnMut()) {
        let deadline = Instant::now() + PATIENCE;
        while !enough(self) {
            assert!(Instant::now() < deadline, "not enough came: {:?}", self.told());
            meanwhile();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(listening) = &self.listening {
            listening.abort();
        }
    }
}

async fn receive(
    State(book): State<Arc<Mutex<Book>>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, HeaderMap, String) {
    let mut book = book.lock();
    let answered = book.always.or_else(|| book.answers.pop()).or(book.otherwise).unwrap_or(StatusCode::OK);
    let said = if book.repeats { format!("{} {headers:?}", String::from_utf8_lossy(&body)) } else { String::new() };
    book.came.push(Delivered { headers, body, answered });
    (answered, book.headers.clone(), said)
}

/// The machine's time, by which a server process signs.
pub(crate) fn machine_time() -> Timestamp {
    SystemClock::default().now()
}
