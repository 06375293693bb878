//! The secret that the processes of an installation share, and what it signs.

use std::str::FromStr;

use http::HeaderMap;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::executor::webhook::{InvalidSecret, InvalidSignature, Secret, signature};

/// The secret that the managers of one store share. `Debug` never prints it.
#[derive(Clone, Debug)]
pub struct PeerSecret(Secret);

/// Why a text is not such a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 24 to 64 random bytes in base64, such as `openssl rand -base64 32` prints")]
pub struct InvalidPeerSecret;

impl FromStr for PeerSecret {
    type Err = InvalidPeerSecret;
    fn from_str(text: &str) -> Result<Self, InvalidPeerSecret> {
        text.trim().parse().map(Self).map_err(|_: InvalidSecret| InvalidPeerSecret)
    }
}

impl PeerSecret {
    /// Returns the headers that sign a call with this body.
    #[must_use]
    pub fn sign(&self, body: &[u8], now: Timestamp) -> HeaderMap {
        signature::headers(Uuid::now_v7(), now, body, std::slice::from_ref(&self.0))
    }

    /// Verifies that a call with this body was signed with the same secret, at a time near `now`.
    ///
    /// # Errors
    /// [`InvalidSignature`] says why the call cannot be trusted.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), InvalidSignature> {
        signature::verify(std::slice::from_ref(&self.0), headers, body, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TEXT: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

    #[test]
    fn a_secret_is_random_bytes_in_base64_and_never_printed() {
        let secret: PeerSecret = format!("{TEXT}\n").parse().expect("a secret");
        assert!(!format!("{secret:?}").contains("MDEy"));
        for wrong in ["", "correct horse battery staple", "c2hvcnQ=", "MDEyMzQ1Njc4OTAxMjM0"] {
            assert_eq!(wrong.parse::<PeerSecret>().err(), Some(InvalidPeerSecret), "{wrong}");
        }
    }

    #[test]
    fn only_the_same_secret_signs_a_body_and_not_for_ever() {
        let (secret, now): (PeerSecret, _) = (TEXT.parse().expect("a secret"), Timestamp::from_millis(0));
        let other: PeerSecret = TEXT.replace('M', "N").parse().expect("a secret");
        let headers = secret.sign(b"body", now);
        assert_eq!(secret.verify(&headers, b"body", now), Ok(()));
        assert_eq!(secret.verify(&headers, b"another", now), Err(InvalidSignature::Mismatch));
        assert_eq!(other.verify(&headers, b"body", now), Err(InvalidSignature::Mismatch));
        let later = now.plus(Duration::from_secs(3600));
        assert_eq!(secret.verify(&headers, b"body", later), Err(InvalidSignature::Time));
        assert_eq!(secret.verify(&HeaderMap::new(), b"body", now), Err(InvalidSignature::Header));
    }
}
