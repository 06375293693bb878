//! Signatures as Standard Webhooks has them: HMAC-SHA256 over `{id}.{timestamp}.{body}`
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use uuid::Uuid;

use crate::clock::Timestamp;

/// The header with the message's id, which is the same in every try to deliver it.
pub const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
/// The header with the time of this try's signature, in seconds since the Unix epoch.
pub const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
/// The header with the signatures, each `v1,` and base64, separated by spaces.
pub const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// The largest difference, in either direction, between a message's time and the verifier's time.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

const SECRET_PREFIX: &str = "whsec_";
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// The length of a new secret in bytes, which is that of the hash.
const NEW_SECRET_BYTES: usize = 32;
const SIGNATURE_PREFIX: &str = "v1,";
/// The most signatures of one message that are checked.
const MAX_SIGNATURES: usize = 16;

/// Why a text is not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    /// The text is neither base64 nor `whsec_` and base64.
    #[error("is not `whsec_` followed by base64")]
    Form,
    /// The secret is too short to be safe, or longer than the standard allows.
    #[error("must have 24 to 64 bytes")]
    Length,
}

/// A secret that a receiver shares with the server, to verify messages. `Debug` never prints it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Makes a random secret.
    #[must_use]
    pub fn generate() -> Self {
        let bytes: [u8; NEW_SECRET_BYTES] = rand::random();
        Self(bytes.to_vec())
    }

    /// Returns the secret as the receiver gets it: `whsec_` and base64.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{SECRET_PREFIX}{}", BASE64.encode(&self.0))
    }

    /// Returns the HMAC-SHA256 of a message, which is given in parts.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        for part in parts {
            mac.update(part);
        }
        mac
    }

    fn mac_of_message(&self, id: &[u8], seconds: i64, body: &[u8]) -> Hmac<Sha256> {
        self.mac(&[id, b".", seconds.to_string().as_bytes(), b".", body])
    }

    fn sign(&self, id: &str, seconds: i64, body: &[u8]) -> String {
        let signature = self.mac_of_message(id.as_bytes(), seconds, body).finalize().into_bytes();
        format!("{SIGNATURE_PREFIX}{}", BASE64.encode(signature))
    }
}

impl FromStr for Secret {
    type Err = InvalidSecret;
    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        let encoded = text.strip_prefix(SECRET_PREFIX).unwrap_or(text);
        let bytes = BASE64.decode(encoded).map_err(|_| InvalidSecret::Form)?;
        if SECRET_BYTES.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(InvalidSecret::Length) }
    }
}

impl TryFrom<String> for Secret {
    type Error = InvalidSecret;
    fn try_from(text: String) -> Result<Self, InvalidSecret> {
        text.parse()
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> Self {
        secret.reveal()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Returns the headers of one try to deliver a message. Without a secret they have an id and a time, and no signature.
#[must_use]
pub fn headers(id: Uuid, now: Timestamp, body: &[u8], secrets: &[Secret]) -> HeaderMap {
    let (id, seconds) = (id.to_string(), now.as_millis().div_euclid(1000));
    let signatures: Vec<String> = secrets.iter().map(|secret| secret.sign(&id, seconds, body)).collect();
    let value = |text: &str| HeaderValue::from_str(text).expect("a UUID or base64 can stand in a header");
    let mut headers = HeaderMap::from_iter([(WEBHOOK_ID, value(&id)), (WEBHOOK_TIMESTAMP, seconds.into())]);
    if !signatures.is_empty() {
        headers.insert(WEBHOOK_SIGNATURE, value(&signatures.join(" ")));
    }
    headers
}

/// Why a message cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSignature {
    /// A header is missing or unreadable.
    #[error("a header is missing or unreadable")]
    Header,
    /// The message was signed too long ago or in the future: it may be a replay.
    #[error("signed too long ago, or in the future")]
    Time,
    /// No signature is valid for the body.
    #[error("no signature fits")]
    Mismatch,
}

/// Verifies, for a receiver, that one of `secrets` signed this body at a time near `now`.
///
/// # Errors
/// [`InvalidSignature`] says why the message cannot be trusted.
pub fn verify(secrets: &[Secret], headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), InvalidSignature> {
    let header = |name: HeaderName| headers.get(name).ok_or(InvalidSignature::Header);
    let text = |name: HeaderName| header(name)?.to_str().map_err(|_| InvalidSignature::Header);
    let id = header(WEBHOOK_ID)?.as_bytes();
    let seconds: i64 = text(WEBHOOK_TIMESTAMP)?.parse().map_err(|_| InvalidSignature::Header)?;
    let signed_at = Timestamp::from_millis(seconds.saturating_mul(1000));
    if now.since(signed_at) > TOLERANCE || signed_at.since(now) > TOLERANCE {
        return Err(InvalidSignature::Time);
    }
    let signatures = text(WEBHOOK_SIGNATURE)?.split(' ').take(MAX_SIGNATURES);
    let mut decoded = signatures.filter_map(|one| BASE64.decode(one.strip_prefix(SIGNATURE_PREFIX)?).ok());
    // The body is gone through once for each secret, however many signatures there are.
    let macs: Vec<_> = secrets.iter().map(|secret| secret.mac_of_message(id, seconds, body)).collect();
    // The comparison takes the same time wherever the two differ.
    let fits = |signature: &Vec<u8>| macs.iter().any(|mac| mac.clone().verify_slice(signature).is_ok());
    if decoded.any(|signature| fits(&signature)) { Ok(()) } else { Err(InvalidSignature::Mismatch) }
}
