//! The signed head of a call between processes, by which it is trusted before its body is read.
//!
//! ```text
//! leasehold-head: {sender} {its opening} {receiver} {its opening} {number} {length} {SHA-256 of the body} {signature}
//! ```
//!
//! The signature is HMAC-SHA256 over a word for this form, the method, the path and everything before it. The openings
//! are random numbers, which a process makes up when it starts: what was signed for a process that has ended since is
//! worth nothing to the next one. Each number of a sender's opening is taken once ([`super::window`]).

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderName, HeaderValue, Method};
use sha2::{Digest, Sha256};

use super::secret::{MAC_BYTES, PeerSecret};

/// The header with the signed head.
pub const HEAD: HeaderName = HeaderName::from_static("leasehold-head");

/// The header of a refusal with the receiver's opening, for which a head is to be signed.
pub const OPENING: HeaderName = HeaderName::from_static("leasehold-opening");

/// The header of the answer to messages by which a member proves that it has the secret.
pub const PROOF: HeaderName = HeaderName::from_static("leasehold-proof");

/// The word with which the text begins that such an answer signs: the head of the call follows.
const PROOF_FORM: &[u8] = b"leasehold-proof-1\n";

/// The word for this form, with which every signed text begins. That of a signed body begins with a UUID.
const FORM: &[u8] = b"leasehold-head-1";

/// The longest name of a process as it is; for a longer one its hash stands.
const MAX_NAME_BYTES: usize = 256;

/// The longest header, in bytes: no more is looked at.
const MAX_HEAD_BYTES: usize = 1024;

/// The random number of a process's opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opening(u128);

impl Opening {
    /// Returns an opening with a random number.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// Returns it as the value of a header.
    #[must_use]
    pub fn to_value(self) -> HeaderValue {
        HeaderValue::try_from(self.to_string()).expect("hexadecimal digits can stand in a header")
    }
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Opening {
    type Err = InvalidHead;
    fn from_str(text: &str) -> Result<Self, InvalidHead> {
        // One text for each number.
        let is_plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| is_plain).map(Self).ok_or(InvalidHead)
    }
}

/// What a head says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The name of the sender ([`name`]).
    pub sender: String,
    /// The opening of the sender.
    pub opening: Opening,
    /// The name of the process that the call is for.
    pub receiver: String,
    /// The opening of that process, as it has said it.
    pub receivers_opening: Opening,
    /// The number of the call, which no other call of the sender's opening to this receiver has.
    pub number: u64,
    /// The length of the body, in bytes.
    pub length: u64,
    /// The SHA-256 hash of the body.
    pub sha256: [u8; 32],
}

/// Why a header is not a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signed head cannot be read")]
pub struct InvalidHead;

/// Returns the name of a process in a head, by its address or by its cluster and number.
pub(super) fn name(of: &str) -> String {
    let is_plain = (1..=MAX_NAME_BYTES).contains(&of.len()) && of.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain { of.to_owned() } else { BASE64.encode(Sha256::digest(of)) }
}

impl Head {
    /// Returns the value of the header for a call with this method and path.
    pub(super) fn sign(&self, secret: &PeerSecret, method: &Method, path: &str) -> HeaderValue {
        let Self { sender, opening, receiver, receivers_opening, number, length, sha256 } = self;
        let hash = BASE64.encode(sha256);
        let said = format!("{sender} {opening} {receiver} {receivers_opening} {number} {length} {hash}");
        let mac = BASE64.encode(secret.mac(&signed(method, path, &said)));
        HeaderValue::try_from(format!("{said} {mac}")).expect("names, numbers and base64 can stand in a header")
    }

    /// Reads a head, whose signature is not looked at yet.
    ///
    /// # Errors
    /// [`InvalidHead`] when it has another form.
    pub(super) fn read(value: &HeaderValue) -> Result<(Self, Signature<'_>), InvalidHead> {
        let text = value.to_str().ok().filter(|text| text.len() <= MAX_HEAD_BYTES).ok_or(InvalidHead)?;
        let (said, mac) = text.rsplit_once(' ').ok_or(InvalidHead)?;
        let parts: Vec<&str> = said.split(' ').collect();
        let [sender, opening, receiver, receivers_opening, number, length, sha256] = parts[..] else {
            return Err(InvalidHead);
        };
        if sender.is_empty() || sender.len() > MAX_NAME_BYTES {
            return Err(InvalidHead);
        }
        let head = Self {
            sender: sender.to_owned(),
            opening: opening.parse()?,
            receiver: receiver.to_owned(),
            receivers_opening: receivers_opening.parse()?,
            number: number.parse().map_err(|_| InvalidHead)?,
            length: length.parse().map_err(|_| InvalidHead)?,
            sha256: bytes(sha256)?,
        };
        Ok((head, Signature { said, mac: bytes::<MAC_BYTES>(mac)? }))
    }
}

/// Returns the value of [`PROOF`] in the answer to a call with this head, which no other call has.
pub(super) fn prove(secret: &PeerSecret, head: &HeaderValue) -> HeaderValue {
    let mac = BASE64.encode(secret.mac(&[PROOF_FORM, head.as_bytes()]));
    HeaderValue::try_from(mac).expect("base64 can stand in a header")
}

/// Returns whether this is such a value for the head of a call.
pub(super) fn is_proof(secret: &PeerSecret, head: &HeaderValue, proof: &HeaderValue) -> bool {
    let mac = proof.to_str().ok().and_then(|mac| bytes::<MAC_BYTES>(mac).ok());
    mac.is_some_and(|mac| secret.is_mac(&mac, &[PROOF_FORM, head.as_bytes()]))
}

/// The signature of a head, and what it signs.
pub(super) struct Signature<'a> {
    said: &'a str,
    mac: [u8; MAC_BYTES],
}

impl Signature<'_> {
    /// Returns whether the head of a call with this method and path was signed with this secret.
    pub(super) fn fits(&self, secret: &PeerSecret, method: &Method, path: &str) -> bool {
        secret.is_mac(&self.mac, &signed(method, path, self.said))
    }
}

/// Returns the signed text in parts. No part but the last has a line feed in it.
fn signed<'a>(method: &'a Method, path: &'a str, said: &'a str) -> [&'a [u8]; 7] {
    [FORM, b"\n", method.as_str().as_bytes(), b"\n", path.as_bytes(), b"\n", said.as_bytes()]
}

fn bytes<const N: usize>(text: &str) -> Result<[u8; N], InvalidHead> {
    BASE64.decode(text).ok().and_then(|bytes| bytes.try_into().ok()).ok_or(InvalidHead)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret() -> PeerSecret {
        "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=".parse().expect("a secret")
    }

    fn head() -> Head {
        Head {
            sender: name("jobs/1"),
            opening: Opening(7),
            receiver: name("http://10.0.0.8:7400/a path"),
            receivers_opening: Opening(u128::MAX),
            number: u64::MAX,
            length: 4,
            sha256: Sha256::digest("body").into(),
        }
    }

    #[test]
    fn what_is_signed_is_read_and_nothing_of_it_can_be_another() {
        let value = head().sign(&secret(), &Method::POST, "/cluster/calls");
        let (read, signature) = Head::read(&value).expect("a head");
        assert_eq!(read, head());
        assert!(signature.fits(&secret(), &Method::POST, "/cluster/calls"));
        assert!(!signature.fits(&secret(), &Method::PUT, "/cluster/calls"));
        assert!(!signature.fits(&secret(), &Method::POST, "/cluster/messages"));
        let text = value.to_str().expect("text");
        // Each byte is signed, or is part of the signature.
        for place in 0..text.len() {
            let mut other = text.as_bytes().to_vec();
            other[place] = if other[place] == b'1' { b'2' } else { b'1' };
            let other = HeaderValue::from_bytes(&other).expect("a value");
            let fits = Head::read(&other)
                .is_ok_and(|(_, signature)| signature.fits(&secret(), &Method::POST, "/cluster/calls"));
            assert!(!fits, "{place} of {text}");
        }
    }

    #[test]
    fn a_name_is_short_and_has_no_space() {
        assert_eq!(name("http://10.0.0.8:7400"), "http://10.0.0.8:7400");
        for odd in ["", "a b", "ü", &"x".repeat(MAX_NAME_BYTES + 1)] {
            assert_eq!(name(odd).len(), 44, "{odd}");
        }
        assert_ne!(name("a b"), name("a c"));
    }

    proptest! {
        #[test]
        fn whatever_a_header_has_in_it_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..1200)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                prop_assert!(Head::read(&value).is_err());
            }
        }

        #[test]
        fn what_looks_like_a_head_is_read_or_refused(
            text in "[ -~]{0,40}( [0-9a-f]{30,34}| [0-9]{0,30}| [A-Za-z+/=]{44}| -?x?){0,9}"
        ) {
            let value = HeaderValue::from_str(&text).expect("a value");
            if let Ok((_, signature)) = Head::read(&value) {
                prop_assert!(!signature.fits(&secret(), &Method::POST, "/"));
            }
        }
    }
}
