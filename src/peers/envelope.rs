//! What one member of a group sends another: messages of the store, in a compact binary form.
//!
//! ```text
//! version: 1 byte | cluster: length 1 byte, UTF-8 | from: 8 | to: 8 | messages: each length 4, bytes
//! ```
//!
//! Numbers are little-endian. The messages follow each other until the end of the body.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::store::MemberMessage;

/// The version of the form, its first byte.
const VERSION: u8 = 1;

/// The longest name of a cluster, in bytes.
pub const MAX_CLUSTER_BYTES: usize = 64;

/// The bytes before a message: its length.
const LENGTH_BYTES: usize = 4;

/// Messages of one member to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The name of the cluster that both belong to.
    pub cluster: String,
    /// The number of the member that sends them.
    pub from: u64,
    /// The number of the member that they are for.
    pub to: u64,
    /// The messages, in the order in which they are to be taken.
    pub messages: Vec<Bytes>,
}

/// Why a body is not an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEnvelope {
    /// A later version of the program wrote it.
    #[error("the messages have the form {0}, which this version does not read: it reads form {VERSION}")]
    Version(u8),
    /// It ends too early, or its name is not a text.
    #[error("the messages cannot be read")]
    Form,
}

impl Envelope {
    /// Returns the body of the call that brings it. The name has at most [`MAX_CLUSTER_BYTES`], and a message less
    /// than 4 GiB.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let messages: usize = self.messages.iter().map(|message| LENGTH_BYTES + message.len()).sum();
        let mut body = BytesMut::with_capacity(18 + self.cluster.len() + messages);
        body.put_u8(VERSION);
        body.put_u8(u8::try_from(self.cluster.len()).expect("the name of a cluster is short"));
        body.put_slice(self.cluster.as_bytes());
        body.put_u64_le(self.from);
        body.put_u64_le(self.to);
        for message in &self.messages {
            body.put_u32_le(u32::try_from(message.len()).expect("a message has less than 4 GiB"));
            body.put_slice(message);
        }
        body.freeze()
    }

    /// Reads a body, whose messages share its memory.
    ///
    /// # Errors
    /// [`InvalidEnvelope`] when it has another form.
    pub fn decode(mut body: Bytes) -> Result<Self, InvalidEnvelope> {
        let form = |_| InvalidEnvelope::Form;
        match body.try_get_u8().map_err(form)? {
            VERSION => {}
            version => return Err(InvalidEnvelope::Version(version)),
        }
        let length = body.try_get_u8().map_err(form)?;
        let cluster = take(&mut body, usize::from(length))?;
        let cluster = std::str::from_utf8(&cluster).map_err(|_| InvalidEnvelope::Form)?.to_owned();
        let (from, to) = (body.try_get_u64_le().map_err(form)?, body.try_get_u64_le().map_err(form)?);
        let mut messages = Vec::new();
        while body.has_remaining() {
            let length = body.try_get_u32_le().map_err(form)?;
            messages.push(take(&mut body, length as usize)?);
        }
        Ok(Self { cluster, from, to, messages })
    }

    /// Returns the messages, as a member takes them.
    pub fn into_messages(self) -> impl Iterator<Item = MemberMessage> {
        let Self { from, to, messages, .. } = self;
        messages.into_iter().map(move |bytes| MemberMessage { from, to, bytes })
    }
}

fn take(body: &mut Bytes, length: usize) -> Result<Bytes, InvalidEnvelope> {
    if body.len() < length { Err(InvalidEnvelope::Form) } else { Ok(body.split_to(length)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(messages: &[&'static [u8]]) -> Envelope {
        let messages = messages.iter().map(|message| Bytes::from_static(message)).collect();
        Envelope { cluster: "büro".to_owned(), from: 1, to: u64::MAX, messages }
    }

    #[test]
    fn what_is_sent_is_what_comes() {
        for messages in [vec![], vec![&b""[..]], vec![b"one"], vec![b"one", b"", b"three"]] {
            let sent = envelope(&messages);
            assert_eq!(Envelope::decode(sent.encode()), Ok(sent));
        }
        let messages: Vec<MemberMessage> = envelope(&[b"a", b"b"]).into_messages().collect();
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[1], MemberMessage { from: 1, to: u64::MAX, bytes: Bytes::from_static(b"b") });
    }

    #[test]
    fn a_body_that_was_cut_off_is_refused_wherever_that_was() {
        let whole = envelope(&[b"one", b"two"]).encode();
        let ends = [whole.len(), whole.len() - 7, whole.len() - 14];
        for end in (0..whole.len()).filter(|end| !ends.contains(end)) {
            assert_eq!(Envelope::decode(whole.slice(..end)), Err(InvalidEnvelope::Form), "{end} bytes");
        }
    }

    #[test]
    fn a_later_form_is_named_and_not_guessed() {
        let mut body = envelope(&[]).encode().to_vec();
        body[0] = 2;
        let error = Envelope::decode(body.into()).expect_err("another form");
        assert!(error.to_string().contains("form 2"), "{error}");
        let mut body = envelope(&[]).encode().to_vec();
        body[3] = 0xff;
        assert_eq!(Envelope::decode(body.into()), Err(InvalidEnvelope::Form), "the name is no text");
    }
}
