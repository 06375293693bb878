//! Whom a process takes calls of: it looks at the signed head of a call before its body is read.

use std::collections::HashMap;

use http::{HeaderMap, HeaderValue, Method};
use parking_lot::Mutex;

use super::head::{HEAD, Head, Opening, prove};
use super::secret::PeerSecret;
use super::window::Window;

/// The most openings of senders that are remembered. Each start of a sender makes some.
const MOST_OPENINGS: usize = 256;

/// The place where a process looks at the calls of others that have the same secret.
pub struct Gate {
    /// The name of this process, if it has one: heads for another one are refused.
    own: Option<String>,
    secret: PeerSecret,
    seen: Mutex<Seen>,
}

/// What has come for the present opening of this process.
struct Seen {
    opening: Opening,
    senders: HashMap<(String, Opening), Window>,
}

/// Why a call is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It has no signed head.
    #[error("it has no signed head")]
    NoHead,
    /// Its head cannot be read.
    #[error("its signed head cannot be read")]
    Form,
    /// It was signed for another opening: this process was started since, or the sender has not asked for it yet.
    #[error("its head is not signed for the opening of this process, which the answer has in `leasehold-opening`")]
    Opening,
    /// It was signed with another secret, or is another call.
    #[error("its signature does not fit")]
    Signature,
    /// It has come before, or is too far behind to know that.
    #[error("it has come before, or much later than those after it")]
    Repeated,
    /// It was signed for the process of this name.
    #[error("it is for {0}")]
    Receiver(String),
}

impl Gate {
    /// Makes one for a process of this name.
    #[must_use]
    pub fn new(secret: PeerSecret, own: Option<&str>) -> Self {
        let seen = Seen { opening: Opening::random(), senders: HashMap::new() };
        Self { own: own.map(super::head::name), secret, seen: Mutex::new(seen) }
    }

    /// Returns the secret with which calls are signed.
    #[must_use]
    pub fn secret(&self) -> &PeerSecret {
        &self.secret
    }

    /// Returns the opening of this process, for the answer to a call that is refused. It is no secret.
    #[must_use]
    pub fn opening(&self) -> HeaderValue {
        self.seen.lock().opening.to_value()
    }

    /// Returns what proves to the sender of a call with this head, which was taken, that this process has the secret.
    #[must_use]
    pub fn proof(&self, head: &HeaderValue) -> HeaderValue {
        prove(&self.secret, head)
    }

    /// Looks at the head of a call with this method and path, and takes it, once.
    ///
    /// # Errors
    /// [`Refused`] says why the call cannot be trusted. Nothing is remembered of it then.
    pub fn take(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<Head, Refused> {
        let mut values = headers.get_all(HEAD).iter();
        let value = values.next().ok_or(Refused::NoHead)?;
        if values.next().is_some() {
            return Err(Refused::Form);
        }
        let (head, signature) = Head::read(value).map_err(|_| Refused::Form)?;
        // Before the signature: that is dearer, and what was signed for another opening is for nobody here.
        if head.receivers_opening != self.seen.lock().opening {
            return Err(Refused::Opening);
        }
        if !signature.fits(&self.secret, method, path) {
            return Err(Refused::Signature);
        }
        if self.own.as_ref().is_some_and(|own| *own != head.receiver) {
            return Err(Refused::Receiver(head.receiver));
        }
        self.seen.lock().take(&head)?;
        Ok(head)
    }
}

impl Seen {
    fn take(&mut self, head: &Head) -> Result<(), Refused> {
        if head.receivers_opening != self.opening {
            return Err(Refused::Opening);
        }
        let key = (head.sender.clone(), head.opening);
        if !self.senders.contains_key(&key) && self.senders.len() >= MOST_OPENINGS {
            // To forget some of what has come would let it come again. After another opening none of it can, and those
            // who send sign for that one.
            *self = Self { opening: Opening::random(), senders: HashMap::new() };
            return Err(Refused::Opening);
        }
        if self.senders.entry(key).or_default().take(head.number) { Ok(()) } else { Err(Refused::Repeated) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::head::name;

    const PATH: &str = "/cluster/calls";

    fn secret() -> PeerSecret {
        "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=".parse().expect("a secret")
    }

    fn gate() -> Gate {
        Gate::new(secret(), Some("jobs/2"))
    }

    /// A head for this gate.
    fn head(gate: &Gate, number: u64) -> Head {
        Head {
            sender: name("jobs/1"),
            opening: "00000000000000000000000000000001".parse().expect("an opening"),
            receiver: name("jobs/2"),
            receivers_opening: gate.opening().to_str().expect("text").parse().expect("an opening"),
            number,
            length: 0,
            sha256: [0; 32],
        }
    }

    fn headers(head: &Head) -> HeaderMap {
        HeaderMap::from_iter([(HEAD, head.sign(&secret(), &Method::POST, PATH))])
    }

    fn take(gate: &Gate, headers: &HeaderMap) -> Result<Head, Refused> {
        gate.take(&Method::POST, PATH, headers)
    }

    #[test]
    fn a_call_is_taken_once_and_never_by_another_process() {
        let gate = gate();
        let call = headers(&head(&gate, 7));
        assert_eq!(take(&gate, &call), Ok(head(&gate, 7)));
        assert_eq!(take(&gate, &call), Err(Refused::Repeated));
        let started_again = Gate::new(secret(), Some("jobs/2"));
        assert_eq!(take(&started_again, &call), Err(Refused::Opening));
        let to_another = Head { receiver: name("jobs/3"), ..head(&gate, 8) };
        assert_eq!(take(&gate, &headers(&to_another)), Err(Refused::Receiver("jobs/3".to_owned())));
    }

    #[test]
    fn what_is_not_signed_leaves_no_trace() {
        let gate = gate();
        assert_eq!(take(&gate, &HeaderMap::new()), Err(Refused::NoHead));
        let odd = HeaderMap::from_iter([(HEAD, HeaderValue::from_static("a b c"))]);
        assert_eq!(take(&gate, &odd), Err(Refused::Form));
        let mut two = headers(&head(&gate, 1));
        two.append(HEAD, head(&gate, 2).sign(&secret(), &Method::POST, PATH));
        assert_eq!(take(&gate, &two), Err(Refused::Form));
        for other in ["/cluster/messages", "/cluster/calls?"] {
            assert_eq!(gate.take(&Method::POST, other, &headers(&head(&gate, 1))), Err(Refused::Signature));
        }
        assert_eq!(gate.take(&Method::PUT, PATH, &headers(&head(&gate, 1))), Err(Refused::Signature));
        assert!(gate.seen.lock().senders.is_empty());
    }

    #[test]
    fn senders_that_start_again_and_again_are_remembered_up_to_a_number_and_nothing_comes_twice() {
        let gate = gate();
        let first = headers(&head(&gate, 1));
        assert!(take(&gate, &first).is_ok());
        for _ in 1..MOST_OPENINGS {
            assert!(take(&gate, &headers(&Head { opening: Opening::random(), ..head(&gate, 1) })).is_ok());
        }
        assert_eq!(take(&gate, &first), Err(Refused::Repeated));
        let one_more = Head { opening: Opening::random(), ..head(&gate, 1) };
        assert_eq!(take(&gate, &headers(&one_more)), Err(Refused::Opening));
        assert_eq!(take(&gate, &first), Err(Refused::Opening), "it does not come again");
        let signed_again = Head { receivers_opening: head(&gate, 1).receivers_opening, ..one_more };
        assert!(take(&gate, &headers(&signed_again)).is_ok());
        assert_eq!(gate.seen.lock().senders.len(), 1);
    }
}
