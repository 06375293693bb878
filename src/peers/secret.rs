//! The secret that the processes of an installation share, and what it signs.

use std::str::FromStr;
use std::sync::Arc;

use hmac::Mac;
use http::HeaderMap;
use parking_lot::RwLock;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::executor::webhook::{InvalidSecret, InvalidSignature, Secret, signature};

/// The most secrets at a time: one, or two while it is changed.
const MOST: usize = 2;

/// The bytes of a signature of a head.
pub(super) const MAC_BYTES: usize = 32;

/// The secret that the processes of one installation share; while it is changed, the next one as well. The first signs,
/// and each of them verifies. Clones are one, so that what is read later is used everywhere. `Debug` never prints it.
#[derive(Clone, Debug)]
pub struct PeerSecret(Arc<RwLock<Arc<[Secret]>>>);

/// Why a text is not such a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPeerSecret {
    /// It is not written as a secret is.
    #[error(
        "must be 24 to 64 random bytes in base64, such as `openssl rand -base64 32` prints, or two of these, divided \
         by a comma or the end of a line"
    )]
    Form,
    /// It has stood in a sample.
    #[error(
        "has stood in a sample that everybody can read: make one of your own, such as `openssl rand -base64 32` prints"
    )]
    Sample,
}

/// The secret that has stood in `docker-compose.yml`.
const SAMPLE: &str = "bm90IGEgc2VjcmV0LCBidXQgYSBzYW1wbGUgb2Ygb25l";

impl FromStr for PeerSecret {
    type Err = InvalidPeerSecret;
    fn from_str(text: &str) -> Result<Self, InvalidPeerSecret> {
        secrets(text).map(|secrets| Self(Arc::new(RwLock::new(secrets))))
    }
}

fn secrets(text: &str) -> Result<Arc<[Secret]>, InvalidPeerSecret> {
    let texts = text.split([',', '\n']).map(str::trim).filter(|text| !text.is_empty());
    let read = |text: &str| match text {
        text if text.ends_with(SAMPLE) => Err(InvalidPeerSecret::Sample),
        text => text.parse().map_err(|_: InvalidSecret| InvalidPeerSecret::Form),
    };
    let secrets = texts.take(MOST + 1).map(read);
    let secrets = secrets.collect::<Result<Arc<[Secret]>, _>>()?;
    if (1..=MOST).contains(&secrets.len()) { Ok(secrets) } else { Err(InvalidPeerSecret::Form) }
}

impl PeerSecret {
    /// Takes over the secrets of a text from now on. Returns whether they are others than before.
    ///
    /// # Errors
    /// [`InvalidPeerSecret`] when the text is none; then those before stay.
    pub fn renew(&self, text: &str) -> Result<bool, InvalidPeerSecret> {
        let secrets = secrets(text)?;
        let is_new = *self.0.read() != secrets;
        *self.0.write() = secrets;
        Ok(is_new)
    }

    /// Returns how many secrets there are: two while the secret is changed.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.read().len()
    }

    /// Returns the headers that sign a call by its body and the time, as versions before signed heads do.
    #[must_use]
    pub fn sign(&self, body: &[u8], now: Timestamp) -> HeaderMap {
        let secrets = self.current();
        signature::headers(Uuid::now_v7(), now, body, &secrets[..1])
    }

    /// Verifies that a call with this body was signed with the same secret, at a time near `now`.
    ///
    /// # Errors
    /// [`InvalidSignature`] says why the call cannot be trusted.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), InvalidSignature> {
        signature::verify(&self.current(), headers, body, now)
    }

    /// Returns the signature of a message, which is given in parts.
    pub(super) fn mac(&self, parts: &[&[u8]]) -> [u8; MAC_BYTES] {
        self.current()[0].mac(parts).finalize().into_bytes().into()
    }

    /// Returns whether this is the signature of the message. The comparison takes the same time wherever the two
    /// differ.
    pub(super) fn is_mac(&self, mac: &[u8; MAC_BYTES], parts: &[&[u8]]) -> bool {
        self.current().iter().any(|secret| secret.mac(parts).verify_slice(mac).is_ok())
    }

    fn current(&self) -> Arc<[Secret]> {
        Arc::clone(&self.0.read())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TEXT: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

    fn other() -> String {
        TEXT.replace('M', "N")
    }

    #[test]
    fn a_secret_is_random_bytes_in_base64_and_never_printed() {
        let secret: PeerSecret = format!("{TEXT}\n").parse().expect("a secret");
        assert!(!format!("{secret:?}").contains("MDEy"));
        let three = [TEXT; 3].join("\n");
        for wrong in ["", "correct horse battery staple", "c2hvcnQ=", "MDEyMzQ1Njc4OTAxMjM0", ",", &three] {
            assert_eq!(wrong.parse::<PeerSecret>().err(), Some(InvalidPeerSecret::Form), "{wrong}");
        }
    }

    #[test]
    fn only_the_same_secret_signs_a_body_and_not_for_ever() {
        let (secret, now): (PeerSecret, _) = (TEXT.parse().expect("a secret"), Timestamp::from_millis(0));
        let other: PeerSecret = other().parse().expect("a secret");
        let headers = secret.sign(b"body", now);
        assert_eq!(secret.verify(&headers, b"body", now), Ok(()));
        assert_eq!(secret.verify(&headers, b"another", now), Err(InvalidSignature::Mismatch));
        assert_eq!(other.verify(&headers, b"body", now), Err(InvalidSignature::Mismatch));
        let later = now.plus(Duration::from_secs(3600));
        assert_eq!(secret.verify(&headers, b"body", later), Err(InvalidSignature::Time));
        assert_eq!(secret.verify(&HeaderMap::new(), b"body", now), Err(InvalidSignature::Header));
    }

    #[test]
    fn a_secret_is_changed_in_three_steps_and_all_understand_each_other_in_between() {
        let (old, new) = (TEXT, other());
        let steps = [old.to_owned(), format!("{old}\n{new}\n"), format!("{new},{old}"), new.clone()];
        let [one, other]: [PeerSecret; 2] = [(); 2].map(|()| old.parse().expect("a secret"));
        let agree = || {
            let now = Timestamp::from_millis(0);
            for (from, to) in [(&one, &other), (&other, &one)] {
                assert!(to.is_mac(&from.mac(&[b"a"]), &[b"a"]));
                assert_eq!(to.verify(&from.sign(b"a", now), b"a", now), Ok(()));
            }
        };
        for step in &steps[1..] {
            for of_one in [one.clone(), other.clone()] {
                assert_eq!(of_one.renew(step), Ok(true));
                agree();
                assert_eq!(of_one.renew(step), Ok(false));
            }
        }
        let former: PeerSecret = old.parse().expect("a secret");
        assert!(!one.is_mac(&former.mac(&[b"a"]), &[b"a"]), "the former one is worth nothing");
        assert_eq!(one.renew("nothing"), Err(InvalidPeerSecret::Form));
        assert_eq!(one.renew(SAMPLE), Err(InvalidPeerSecret::Sample));
        assert!(one.is_mac(&other.mac(&[b"a"]), &[b"a"]), "what cannot be read changes nothing");
    }
}
