//! Calls from one process of an installation to another, both of which hold the same secret.
//!
//! A manager tells another of the jobs that were written here and are handed out there ([`Hints`]), and asks it which
//! workers call it ([`AskWorkers`]). The members of a group, which are one store, send each other the messages of that
//! store ([`Envelope`]).
//!
//! Every call has a head that is signed by the secret of the installation, which never travels ([`Head`]). The receiver
//! looks at it before it reads anything of the body ([`Gate`]), takes each call once, and needs no clock for that. With
//! processes whose version reads no heads, calls are signed by their bodies and the time, as webhooks are.
//!
//! The answers of a process say what time it is there ([`CLOCK`]), so that members know how far their clocks are apart.
//!
//! In reading order: [`Hints`] (a call), [`PeerSecret`], [`Head`], [`Signer`] (how a call is signed and made), [`Gate`]
//! (how it is looked at), [`PeerClient`] (the calls of managers), [`Teller`] (the background task that makes them),
//! [`ClusterMap`] (the members of a group), [`Envelope`]
//! (what they send each other), [`Carrier`] (the background tasks that send it) and [`Deputies`] (calls that a member
//! makes for the leader).

mod calls;
mod carrier;
mod client;
mod envelope;
mod gate;
mod head;
mod members;
mod secret;
mod signer;
mod teller;
mod window;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::job::WorkerId;
use crate::manager::{Hint, MAX_HINTED_BYTES, Recall};

pub use calls::{CALLS_PATH, Deputies, InvalidCall, MAX_CALL_BYTES, Passed, PassedCall};
pub use carrier::Carrier;
pub use client::PeerClient;
pub use envelope::{Envelope, InvalidEnvelope, MAX_CLUSTER_BYTES};
pub use gate::{Gate, Refused};
pub use head::{HEAD, Head, InvalidHead, OPENING, Opening, PROOF};
pub use members::{ClusterMap, Reached, earlier_bytes, is_agreed_on_less, may_be_earlier};
pub use secret::{InvalidPeerSecret, PeerSecret};
pub use signer::{PeerAnswer, PeerCall, Signer};
pub use teller::Teller;

/// The path, below a manager's address, of the call with hints.
pub const HINTS_PATH: &str = "/cluster/hints";

/// The path, below a manager's address, of the call that asks for its workers.
pub const WORKERS_PATH: &str = "/cluster/workers";

/// The path, below a member's address, of the call with messages of another member.
pub const MESSAGES_PATH: &str = "/cluster/messages";

/// The path, below the leader's address, of the call that says that a client of another member has taken its answer.
pub const DELIVERIES_PATH: &str = "/cluster/deliveries";

/// The header of an answer to a call of another process, in milliseconds since the epoch: the time by the clock of the
/// one that answers. Earlier versions of the program do not say it.
pub const CLOCK: HeaderName = HeaderName::from_static("leasehold-clock");

/// Returns the value of [`CLOCK`] for a time.
#[must_use]
pub fn clock_value(now: Timestamp) -> HeaderValue {
    HeaderValue::from(now.as_millis())
}

/// Returns the time that an answer says.
fn clock_of(headers: &HeaderMap) -> Option<Timestamp> {
    headers.get(CLOCK)?.to_str().ok()?.parse().ok().map(Timestamp::from_millis)
}

/// The longest body of a call with messages, in bytes. What this version sends is much shorter: some messages, or one
/// with an entry of at most 16 MiB. Earlier ones wrote longer entries and send them, and so does this one where such an
/// entry was not agreed on before: without that its log could not go on.
pub const MAX_MESSAGES_BYTES: usize = 128 * 1024 * 1024;

/// The longest body of a call with hints, in bytes: more than what a manager sends, also with a large last document.
pub const MAX_HINTS_BYTES: usize = 2 * MAX_HINTED_BYTES;

/// The body of the call that tells a manager of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hints {
    /// The jobs that have become available.
    pub available: Vec<Hint>,
    /// The attempts that have to end early, whose workers may wait for the word there. An earlier version of the
    /// program does not know the field, so it is there only when it says something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recalls: Vec<Recall>,
}

/// The body of the call that asks a manager which workers call it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskWorkers {
    /// The only worker that is asked for, if it is one.
    pub id: Option<WorkerId>,
}

fn to_json(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body).expect("names and numbers become JSON").into()
}
