//! Messages between members, in a form of our own: the library's own decoder can be made to overflow the stack
//! (RUSTSEC-2024-0437).
//!
//! ```text
//! message = format:1 head entry*        the head in postcard, with the number of entries
//! entry   = head data                   the head in postcard, with the length of the data
//! ```
//!
//! An entry has the index behind the one before it, so that indices are not sent. Snapshots are not sent as messages.

use bytes::Bytes;
use raft::eraftpb::{Entry, Message, MessageType};
use serde::{Deserialize, Serialize};

use super::error::Corrupt;
use super::kept::{data_of, typed};
use super::stored;
use crate::store::MemberMessage;

/// The format of messages. A member drops those of a format that it does not know.
const FORMAT: u8 = 1;

/// The most entries that one message may have: more than the leader puts in one.
const MOST_ENTRIES: u32 = 1 << 20;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    kind: u8,
    term: u64,
    log_term: u64,
    index: u64,
    commit: u64,
    commit_term: u64,
    is_rejected: bool,
    hint: u64,
    request_snapshot: u64,
    priority: i64,
    context: Vec<u8>,
    entries: u32,
}

#[derive(Serialize, Deserialize)]
struct EntryHead {
    term: u64,
    length: u32,
}

/// The kinds of messages that members send, each at the place of its number.
const KINDS: [MessageType; 13] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
    MessageType::MsgTransferLeader,
    MessageType::MsgTimeoutNow,
    MessageType::MsgReadIndex,
    MessageType::MsgReadIndexResp,
    MessageType::MsgUnreachable,
];

/// Writes a message; `None` for one of a kind that is not sent.
pub(super) fn encode(message: &Message) -> Result<Option<MemberMessage>, Corrupt> {
    let Some(kind) = KINDS.iter().position(|kind| *kind == message.msg_type) else { return Ok(None) };
    let number = |count: usize| u32::try_from(count).map_err(|error| Corrupt(format!("a message: {error}")));
    let head = Head {
        kind: kind as u8,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        commit: message.commit,
        commit_term: message.commit_term,
        is_rejected: message.reject,
        hint: message.reject_hint,
        request_snapshot: message.request_snapshot,
        priority: message.priority,
        context: message.context.to_vec(),
        entries: number(message.entries.len())?,
    };
    let mut bytes = vec![FORMAT];
    stored::append(&head, &mut bytes)?;
    for entry in &message.entries {
        let data = data_of(entry);
        stored::append(&EntryHead { term: entry.term, length: number(data.len())? }, &mut bytes)?;
        bytes.extend_from_slice(&data);
    }
    Ok(Some(MemberMessage { from: message.from, to: message.to, bytes: bytes.into() }))
}

/// Returns whether a message has entries, which are most of the bytes between members.
pub(super) fn has_entries(message: &[u8]) -> bool {
    let Some((&FORMAT, mut rest)) = message.split_first() else { return false };
    stored::take::<Head>(&mut rest).is_ok_and(|head| head.entries > 0)
}

/// Reads a message.
///
/// # Errors
/// What is wrong with it.
pub(super) fn decode(message: &MemberMessage) -> Result<Message, String> {
    let bytes = &message.bytes;
    let mut rest = match bytes.split_first() {
        Some((&FORMAT, rest)) => rest,
        Some((other, _)) => return Err(format!("it has format {other}, this version reads {FORMAT}")),
        None => return Err("it is empty".to_owned()),
    };
    let head: Head = stored::take(&mut rest)?;
    let kind = KINDS.get(usize::from(head.kind)).ok_or_else(|| format!("it is of the unknown kind {}", head.kind))?;
    if head.entries > MOST_ENTRIES {
        return Err(format!("it has {} entries", head.entries));
    }
    let mut entries = Vec::new();
    for index in (head.index + 1..).take(head.entries as usize) {
        let EntryHead { term, length } = stored::take(&mut rest)?;
        let (data, left) = rest.split_at_checked(length as usize).ok_or("it is cut short")?;
        rest = left;
        let (entry_type, data) = typed(bytes.slice_ref(data));
        entries.push(Entry { entry_type, term, index, data, ..Entry::default() });
    }
    if !rest.is_empty() {
        return Err("something follows its last entry".to_owned());
    }
    Ok(Message {
        msg_type: *kind,
        from: message.from,
        to: message.to,
        term: head.term,
        log_term: head.log_term,
        index: head.index,
        commit: head.commit,
        commit_term: head.commit_term,
        reject: head.is_rejected,
        reject_hint: head.hint,
        request_snapshot: head.request_snapshot,
        priority: head.priority,
        context: Bytes::from(head.context),
        entries: entries.into(),
        ..Message::default()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::entry::has_members;
    use super::*;

    fn message(kind: usize, numbers: [u64; 4], entries: Vec<Vec<u8>>) -> Message {
        let [term, log_term, index, commit] = numbers;
        let entry =
            |(at, data): (u64, Vec<u8>)| Entry { term, index: index + at, data: data.into(), ..Entry::default() };
        // What looks like a change of the members is read as one.
        let entries = entries.into_iter().filter(|data| !has_members(data));
        let entries: Vec<Entry> = (1..).zip(entries).map(entry).collect();
        Message {
            msg_type: KINDS[kind],
            from: 1,
            to: 2,
            term,
            log_term,
            index,
            commit,
            commit_term: term,
            reject: commit % 2 == 1,
            reject_hint: index,
            context: Bytes::copy_from_slice(&term.to_le_bytes()),
            entries: entries.into(),
            ..Message::default()
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            kind in 0..KINDS.len(),
            numbers: [u32; 4],
            entries: Vec<Vec<u8>>,
        ) {
            let message = message(kind, numbers.map(u64::from), entries);
            let written = encode(&message).expect("writable").expect("it is sent");
            prop_assert_eq!(decode(&written), Ok(message));
        }

        #[test]
        fn whatever_comes_is_read_or_refused(
            bytes: Vec<u8>,
            cut: usize,
            kind in 0..KINDS.len(),
            entries: Vec<Vec<u8>>,
        ) {
            let read = |bytes: Bytes| decode(&MemberMessage { from: 1, to: 2, bytes });
            drop(read([vec![FORMAT], bytes].concat().into()));
            let written = encode(&message(kind, [7; 4], entries)).expect("writable").expect("it is sent").bytes;
            let cut = cut % written.len();
            prop_assert!(read(written.slice(..cut)).is_err());
            prop_assert!(read([&written[..], &[0]].concat().into()).is_err());
        }
    }

    #[test]
    fn a_snapshot_is_not_sent() {
        let message = Message { msg_type: MessageType::MsgSnapshot, ..Message::default() };
        assert!(matches!(encode(&message), Ok(None)));
    }
}
