//! How a process calls another one that has the same secret: each call has a signed head for the receiver's opening,
//! which is asked for first.
//!
//! A receiver with an earlier version of the program reads no heads: a call to it is signed by its body and the time.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::head::{HEAD, Head, OPENING, Opening, PROOF, is_proof, name};
use super::secret::PeerSecret;
use super::window::WIDTH;
use crate::clock::Clock;
use crate::executor::HttpAnswer;

/// The most receivers that are remembered. Members are few; managers come and go.
const MOST_RECEIVERS: usize = 1024;

/// How often one call is sent at the most: to ask for the receiver's opening, for that, and once more for a later one.
const TRIES: usize = 3;

/// The most calls that one signer has under way.
const MOST_UNDER_WAY: usize = WIDTH as usize / 2;

/// The head of a call that only asks for the receiver's opening. It is there so that the call is taken for none of an
/// earlier version, some of which are not signed.
const QUESTION: &str = "?";

/// A call of another process.
pub struct PeerCall<'a> {
    /// Where the receiver is reached.
    pub address: &'a str,
    /// The name of the receiver.
    pub receiver: &'a str,
    /// The path of the call, below the address. The method is POST.
    pub path: &'a str,
    /// The body of the call.
    pub body: &'a Bytes,
    /// Whether the receiver may have a version of the program that reads no signed heads.
    pub may_be_earlier: bool,
}

/// The answer to such a call.
pub trait PeerAnswer {
    /// Returns the HTTP status of the answer.
    fn status(&self) -> StatusCode;
    /// Returns the headers of the answer.
    fn headers(&self) -> &HeaderMap;
}

impl PeerAnswer for HttpAnswer {
    fn status(&self) -> StatusCode {
        self.status
    }
    fn headers(&self) -> &HeaderMap {
        &self.headers
    }
}

impl PeerAnswer for reqwest::Response {
    fn status(&self) -> StatusCode {
        self.status()
    }
    fn headers(&self) -> &HeaderMap {
        self.headers()
    }
}

/// Signs the calls of a process. What calls much at once has one of its own ([`Signer::another`]), so that its calls
/// push those of others out of no window.
pub struct Signer {
    secret: PeerSecret,
    clock: Arc<dyn Clock>,
    sender: String,
    opening: Opening,
    numbers: Mutex<Numbers>,
    /// The openings of the receivers by their addresses.
    openings: Arc<Mutex<HashMap<String, Opening>>>,
    /// So many calls are under way at a time that none leaves the window of its receiver meanwhile.
    under_way: Semaphore,
}

/// The numbers of the latest calls to each receiver, by its address.
#[derive(Default)]
struct Numbers {
    latest: HashMap<String, u64>,
    /// No number up to this one is used for a receiver that is not remembered: its calls may have had it.
    floor: u64,
}

impl Signer {
    /// Makes one for the process of this name. Calls to earlier versions are signed at the time of the clock.
    #[must_use]
    pub fn new(secret: PeerSecret, sender: &str, clock: Arc<dyn Clock>) -> Self {
        Self {
            secret,
            clock,
            sender: name(sender),
            opening: Opening::random(),
            numbers: Mutex::default(),
            openings: Arc::default(),
            under_way: Semaphore::new(MOST_UNDER_WAY),
        }
    }

    /// Makes another one for the same process, whose calls have numbers of their own.
    #[must_use]
    pub fn another(&self) -> Self {
        Self {
            secret: self.secret.clone(),
            clock: Arc::clone(&self.clock),
            sender: self.sender.clone(),
            opening: Opening::random(),
            numbers: Mutex::default(),
            openings: Arc::clone(&self.openings),
            under_way: Semaphore::new(MOST_UNDER_WAY),
        }
    }

    /// Makes a call: `send` sends a body with headers, and is called again when the receiver says that it has another
    /// opening, since it has done nothing then.
    ///
    /// # Errors
    /// The error of `send`.
    pub async fn call<A: PeerAnswer, E, F: Future<Output = Result<A, E>>>(
        &self,
        call: &PeerCall<'_>,
        send: impl Fn(HeaderMap, Bytes) -> F,
    ) -> Result<A, E> {
        self.call_and_prove(call, send).await.map(|(answer, _)| answer)
    }

    /// Makes a call as [`call`](Self::call) does. Returns with the answer whether that proves that the receiver has the
    /// secret, which only some calls do.
    pub(super) async fn call_and_prove<A: PeerAnswer, E, F: Future<Output = Result<A, E>>>(
        &self,
        call: &PeerCall<'_>,
        send: impl Fn(HeaderMap, Bytes) -> F,
    ) -> Result<(A, bool), E> {
        let _place = self.under_way.acquire().await;
        let mut last = None;
        for _ in 0..TRIES {
            let opening = self.openings.lock().get(call.address).copied();
            let (headers, body) = match opening {
                Some(opening) => (self.head(call, opening), call.body.clone()),
                None if call.may_be_earlier => (self.secret.sign(call.body, self.clock.now()), call.body.clone()),
                // A body that is refused may break the connection before the refusal has come.
                None => (HeaderMap::from_iter([(HEAD, HeaderValue::from_static(QUESTION))]), Bytes::new()),
            };
            let head = headers.get(HEAD).cloned();
            // An error says nothing of the receiver's opening: where it was started again, its refusal names the next.
            let answer = send(headers, body).await?;
            if answer.status() != StatusCode::UNAUTHORIZED {
                let proof = head.zip(answer.headers().get(PROOF));
                let is_proved = proof.is_some_and(|(head, proof)| is_proof(&self.secret, &head, proof));
                return Ok((answer, is_proved));
            }
            let told = answer.headers().get(OPENING).and_then(|value| value.to_str().ok()?.parse().ok());
            match told {
                Some(told) => self.learn(call.address, told),
                None if call.may_be_earlier => drop(self.openings.lock().remove(call.address)),
                // Something else answers at the address.
                None => {}
            }
            // A receiver that has gone back to an earlier version is called as such.
            let is_over = told.is_none() && (opening.is_none() || !call.may_be_earlier);
            last = Some(answer);
            if is_over {
                break;
            }
        }
        Ok((last.expect("a call is sent once at least"), false))
    }

    fn learn(&self, address: &str, opening: Opening) {
        let mut openings = self.openings.lock();
        if openings.len() >= MOST_RECEIVERS {
            openings.clear();
        }
        openings.insert(address.to_owned(), opening);
    }

    fn head(&self, call: &PeerCall<'_>, opening: Opening) -> HeaderMap {
        let head = Head {
            sender: self.sender.clone(),
            opening: self.opening,
            receiver: name(call.receiver),
            receivers_opening: opening,
            number: self.numbers.lock().next(call.address),
            length: call.body.len() as u64,
            sha256: Sha256::digest(call.body).into(),
        };
        HeaderMap::from_iter([(HEAD, head.sign(&self.secret, &Method::POST, call.path))])
    }
}

impl Numbers {
    fn next(&mut self, address: &str) -> u64 {
        if let Some(latest) = self.latest.get_mut(address) {
            *latest += 1;
            return *latest;
        }
        if self.latest.len() >= MOST_RECEIVERS {
            self.floor = self.latest.values().copied().fold(self.floor, u64::max);
            self.latest.clear();
        }
        self.latest.insert(address.to_owned(), self.floor + 1);
        self.floor + 1
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::clock::SystemClock;
    use crate::peers::gate::Gate;

    const PATH: &str = "/cluster/calls";

    struct Said(StatusCode, HeaderMap);

    impl PeerAnswer for Said {
        fn status(&self) -> StatusCode {
            self.0
        }
        fn headers(&self) -> &HeaderMap {
            &self.1
        }
    }

    /// A receiver, which may be started again with another version, and what has come to it.
    struct Receiver {
        secret: PeerSecret,
        gate: RefCell<Option<Gate>>,
        came: RefCell<Vec<&'static str>>,
    }

    impl Receiver {
        fn new() -> Self {
            let secret: PeerSecret = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=".parse().expect("a secret");
            let gate = RefCell::new(Some(Gate::new(secret.clone(), Some("jobs/2"))));
            Self { secret, gate, came: RefCell::default() }
        }

        fn start_again(&self, reads_heads: bool) {
            self.gate.replace(reads_heads.then(|| Gate::new(self.secret.clone(), Some("jobs/2"))));
        }

        fn answer(&self, headers: &HeaderMap, body: &Bytes) -> Said {
            let gate = self.gate.borrow();
            let (what, is_taken) = match &*gate {
                Some(gate) if headers.get(HEAD).is_some_and(|head| head == QUESTION) => {
                    ("a question", gate.take(&Method::POST, PATH, headers).is_ok())
                }
                Some(gate) => ("a head", gate.take(&Method::POST, PATH, headers).is_ok()),
                None => ("a body", self.secret.verify(headers, body, SystemClock::default().now()).is_ok()),
            };
            self.came.borrow_mut().push(what);
            let opening = gate.as_ref().filter(|_| !is_taken).map(Gate::opening);
            let status = if is_taken { StatusCode::NO_CONTENT } else { StatusCode::UNAUTHORIZED };
            Said(status, opening.map(|opening| (OPENING, opening)).into_iter().collect())
        }

        async fn is_called(&self, signer: &Signer, may_be_earlier: bool) -> (u16, Vec<&'static str>) {
            let body = Bytes::from_static(b"body");
            let call = PeerCall { address: "http://a", receiver: "jobs/2", path: PATH, body: &body, may_be_earlier };
            let answer = signer.call(&call, async |headers, body| Ok::<_, ()>(self.answer(&headers, &body))).await;
            (answer.expect("an answer").0.as_u16(), self.came.take())
        }
    }

    fn signer(receiver: &Receiver) -> Signer {
        Signer::new(receiver.secret.clone(), "jobs/1", Arc::new(SystemClock::default()))
    }

    #[tokio::test]
    async fn an_opening_is_asked_for_once_and_again_when_the_receiver_was_started_again() {
        let receiver = Receiver::new();
        let signer = signer(&receiver);
        assert_eq!(receiver.is_called(&signer, false).await, (204, vec!["a question", "a head"]));
        assert_eq!(receiver.is_called(&signer, false).await, (204, vec!["a head"]));
        receiver.start_again(true);
        assert_eq!(receiver.is_called(&signer, false).await, (204, vec!["a head", "a head"]));
        let another = signer.another();
        assert_eq!(receiver.is_called(&another, false).await, (204, vec!["a head"]), "its numbers are others");
    }

    #[tokio::test]
    async fn a_receiver_that_has_gone_back_is_called_as_such_only_where_that_is_known() {
        let receiver = Receiver::new();
        let signer = signer(&receiver);
        assert_eq!(receiver.is_called(&signer, true).await, (204, vec!["a head", "a head"]), "it says so itself");
        receiver.start_again(false);
        assert_eq!(receiver.is_called(&signer, false).await, (401, vec!["a body"]), "no body is signed for anybody");
        assert_eq!(receiver.is_called(&signer, false).await, (401, vec!["a body"]));
        assert_eq!(receiver.is_called(&signer, true).await, (204, vec!["a body", "a body"]), "no head is read there");
        assert_eq!(receiver.is_called(&signer, true).await, (204, vec!["a body"]));
        receiver.start_again(true);
        assert_eq!(receiver.is_called(&signer, true).await, (204, vec!["a head", "a head"]));
    }

    #[tokio::test]
    async fn an_opening_is_forgotten_only_when_the_receiver_names_another() {
        let receiver = Receiver::new();
        let signer = signer(&receiver);
        assert_eq!(receiver.is_called(&signer, false).await, (204, vec!["a question", "a head"]));
        for may_be_earlier in [false, true] {
            let body = Bytes::from_static(b"body");
            let call = PeerCall { address: "http://a", receiver: "jobs/2", path: PATH, body: &body, may_be_earlier };
            let broken = signer.call(&call, async |_, _| Err::<Said, _>("the connection is broken")).await;
            assert_eq!(broken.err(), Some("the connection is broken"));
            assert_eq!(receiver.is_called(&signer, may_be_earlier).await, (204, vec!["a head"]));
        }
        let body = Bytes::from_static(b"body");
        let call = PeerCall { address: "http://a", receiver: "jobs/2", path: PATH, body: &body, may_be_earlier: false };
        let stranger = async |_, _| Ok::<_, ()>(Said(StatusCode::UNAUTHORIZED, HeaderMap::new()));
        assert_eq!(signer.call(&call, stranger).await.map(|said| said.0), Ok(StatusCode::UNAUTHORIZED));
        assert_eq!(receiver.is_called(&signer, false).await, (204, vec!["a head"]));
    }

    #[tokio::test]
    async fn another_secret_is_refused_after_a_few_tries() {
        let receiver = Receiver::new();
        let other = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=".parse().expect("a secret");
        let signer = Signer::new(other, "jobs/1", Arc::new(SystemClock::default()));
        let (status, came) = receiver.is_called(&signer, false).await;
        assert_eq!((status, came.len()), (401, TRIES));
    }

    #[test]
    fn no_number_is_used_twice_for_a_receiver_though_many_come_and_go() {
        let mut numbers = Numbers::default();
        assert_eq!([numbers.next("a"), numbers.next("a"), numbers.next("b")], [1, 2, 1]);
        for other in 0..MOST_RECEIVERS {
            numbers.next(&other.to_string());
        }
        assert!(numbers.next("a") > 2 && numbers.next("b") > 1);
        assert!(numbers.latest.len() <= MOST_RECEIVERS);
    }
}
