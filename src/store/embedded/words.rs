//! What members say to each other beside the messages of the library: who they are, and the pieces of a state that one
//! receives from another.
//!
//! ```text
//! message = 1 ...                          of the library, see `message`
//!         | 2 word piece?                  the word in postcard, with the piece that it brings
//!         | 3 from:8 to:8 message          of the library, with the numbers of both directories, little-endian
//!         | 4 identity:8 message           with the identity of the group, little-endian; 0 before it has one
//!         | 5 opening:8 from:8 to:8 message of the library, from a directory as it was opened then
//! ```
//!
//! A version that knows fewer words drops those that it does not know. An identity, and an opening, go to members only
//! that have said that they know it, see [`versions`](super::versions).

use std::num::NonZeroU64;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use xxhash_rust::xxh3::xxh3_128;

use super::audit::AuditFile;
use super::equality::compared::SaidSum;
use super::error::Corrupt;
use super::kept::Last;
use super::opened::Numbers;
use super::{message, stored};
use crate::store::Identity;

const WORD: u8 = 2;
const BETWEEN: u8 = 3;
const OF_GROUP: u8 = 4;
const OPENED: u8 = 5;

/// How many bytes stand before a message of the library that goes from one directory to another.
const BETWEEN_BYTES: usize = 17;

/// How many more stand there where it says the opening, too.
const OPENING_BYTES: usize = 8;

/// How many bytes the identity of the group takes before a message.
const OF_GROUP_BYTES: usize = 9;

/// The places of words among all that there are, with which they begin.
const PIECE: u64 = 3;
const OUTPUT: u64 = 7;
const OUTPUT_KEEP: u64 = 0;
const OUTPUT_ANSWER: u64 = 3;
const AUDIT: u64 = 8;
const AUDIT_PIECE: u64 = 2;

/// A word of one member to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Word {
    /// Said every second.
    Hello(Hello),
    /// The leader offers its state to a member that lacks entries which the log has no more.
    Offer(Offer),
    /// The member asks for the next piece.
    Ask(Ask),
    /// The piece that was asked for.
    Piece(Piece),
    /// The state that was asked for is not offered any more.
    Gone(u64),
    /// Said with each greeting.
    Opened(Opened),
    /// A directory went back in time, as it was opened last.
    WentBack(WentBack),
    /// The output of attempts, which is copied from one member to another.
    Output(OutputWord),
    /// The files of the audit, which are copied to all members.
    Audit(AuditWord),
    /// The sum over the state of a member after the entry that was compared last.
    Sum(SaidSum),
    /// A member whose state alone differs asks its leader to offer it one that has this entry.
    Lend(u64),
    /// The member does not stand for election for now. Said with each greeting while that is so, and to a leader that
    /// hands over the lead to it.
    Declines,
}

/// What is said of the files of the audit, each with a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AuditWord {
    /// The member has these, each of this length.
    Has { files: Vec<(AuditFile, u64)> },
    /// The member has so many bytes of each of them.
    Lacks { files: Vec<(AuditFile, u64)> },
    /// The bytes of one of them from this place on.
    Piece { file: AuditFile, offset: u64, bytes: ByteBuf },
}

/// What is said of the output of attempts. A cell is its key and its value as they are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum OutputWord {
    /// The member is to keep these cells, all of whose jobs are known once this entry of the log is applied.
    Keep { number: u64, of_jobs: u64, cells: Vec<(ByteBuf, ByteBuf)> },
    /// It has those that came with this number.
    Kept { number: u64 },
    /// The member is asked for all that it has of these attempts.
    Ask { number: u64, attempts: Vec<AttemptWord> },
    /// It has these cells of so many of the attempts of this question, from the first on; of none where it cannot read
    /// them.
    Answer { number: u64, count: usize, cells: Vec<(ByteBuf, ByteBuf)> },
}

/// An attempt of a job, and when the job was created, in milliseconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttemptWord {
    pub(super) job: String,
    pub(super) fence: u64,
    pub(super) created_ms: i64,
}

/// Who a member is, and how far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The version of the exchange that it knows.
    pub(super) knows: u32,
    /// The number of its data directory.
    pub(super) directory: u64,
    /// The number of the directory that it knows of the one it speaks to; 0 for none.
    pub(super) yours: u64,
    /// The number of the last entry of its log.
    pub(super) last: u64,
    /// Whether it takes no entries for now: it receives a state, or has more than it can write or apply.
    pub(super) receives: bool,
}

/// How the data directory of a member was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Opened {
    /// The number of the directory.
    pub(super) directory: u64,
    /// Its openings, of which the last one is this.
    pub(super) openings: Numbers,
    /// The last entry that its log had then.
    pub(super) last: Last,
    /// The term that its seal knew then.
    pub(super) term: u64,
}

/// A directory that went back in time, and the number of its opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WentBack {
    pub(super) directory: u64,
    pub(super) opening: u64,
}

/// The data directories between which a message of the library goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Directories {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The number of the opening of the one that it comes from, where it says that.
    pub(super) opening: Option<u64>,
}

/// A state that a member is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    /// The term of the leader.
    pub(super) term: u64,
    /// The number of the offer, which no other one has.
    pub(super) number: u64,
    /// The last entry that the state has.
    pub(super) last: Last,
}

/// A question for a piece of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) offer: u64,
    pub(super) at: Cursor,
}

/// A place in a state: a keyspace, and the key behind which the piece begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cursor {
    pub(super) keyspace: u8,
    pub(super) after: Option<Vec<u8>>,
}

/// A piece of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) offer: u64,
    pub(super) at: Cursor,
    /// Whether nothing of the keyspace follows.
    pub(super) is_last: bool,
    /// The XXH3 checksum of its items.
    pub(super) checksum: u128,
    /// Its items, one after the other, each a key and a value in postcard.
    #[serde(skip)]
    pub(super) items: Bytes,
}

/// What a message is.
#[derive(Debug)]
pub(super) enum Said {
    /// One of the library, and the directories that it goes from and to, if it says them.
    Library(Bytes, Option<Directories>),
    Word(Word),
}

/// Writes a word.
pub(super) fn encode(word: &Word) -> Result<Bytes, Corrupt> {
    let mut bytes = vec![WORD];
    if let Word::Piece(piece) = word {
        bytes.reserve(piece.items.len() + 256);
    }
    stored::append(word, &mut bytes)?;
    if let Word::Piece(piece) = word {
        bytes.extend_from_slice(&piece.items);
    }
    Ok(bytes.into())
}

/// Puts the numbers of the directories before a message of the library.
pub(super) fn between(directories: Directories, message: &[u8]) -> Bytes {
    let Directories { from, to, opening } = directories;
    let (from, to) = (from.to_le_bytes(), to.to_le_bytes());
    match opening {
        Some(opening) => [&[OPENED][..], &opening.to_le_bytes(), &from, &to, message].concat().into(),
        None => [&[BETWEEN][..], &from, &to, message].concat().into(),
    }
}

/// Returns whether a message has entries, a piece of a state, or output.
pub(super) fn is_bulk(message: &[u8]) -> bool {
    let message = match message.first() {
        Some(&OF_GROUP) => message.get(OF_GROUP_BYTES..).unwrap_or_default(),
        _ => message,
    };
    match message.first() {
        Some(&WORD) => is_bulk_word(&message[1..]),
        Some(&BETWEEN) => message.get(BETWEEN_BYTES..).is_some_and(message::has_entries),
        Some(&OPENED) => message.get(BETWEEN_BYTES + OPENING_BYTES..).is_some_and(message::has_entries),
        _ => message::has_entries(message),
    }
}

/// Returns whether a word is bulk, by what it begins with: it may have a MiB behind that.
fn is_bulk_word(word: &[u8]) -> bool {
    let mut rest = word;
    let mut number = || stored::take::<u64>(&mut rest).ok();
    match number() {
        Some(PIECE) => true,
        Some(OUTPUT) => match number() {
            // Two numbers, and how many cells follow.
            Some(OUTPUT_KEEP | OUTPUT_ANSWER) => number().and(number()).and(number()).is_some_and(|cells| cells > 0),
            _ => false,
        },
        Some(AUDIT) => number() == Some(AUDIT_PIECE),
        _ => false,
    }
}

/// Puts the identity of the group before a message.
pub(super) fn of_group(identity: Option<Identity>, message: &[u8]) -> Bytes {
    let identity = identity.map_or(0, |identity| identity.0.get());
    [&[OF_GROUP][..], &identity.to_le_bytes(), message].concat().into()
}

/// Takes the identity from before a message; `None` where it has none.
///
/// # Errors
/// What is wrong with it.
pub(super) fn take_identity(bytes: &Bytes) -> Result<(Option<Identity>, Bytes), String> {
    let Some((&OF_GROUP, mut rest)) = bytes.split_first() else { return Ok((None, bytes.clone())) };
    let identity = NonZeroU64::new(number(&mut rest)?).map(Identity);
    Ok((identity, bytes.slice_ref(rest)))
}

fn number(rest: &mut &[u8]) -> Result<u64, String> {
    let (number, left) = rest.split_first_chunk::<8>().ok_or("it is cut short")?;
    *rest = left;
    Ok(u64::from_le_bytes(*number))
}

/// Reads a message behind the identity, as far as it is not the library's.
///
/// # Errors
/// What is wrong with it.
pub(super) fn decode(bytes: &Bytes) -> Result<Said, String> {
    match bytes.first() {
        Some(&WORD) => {
            let mut rest = &bytes[1..];
            let word = match stored::take(&mut rest)? {
                Word::Piece(piece) => {
                    let items = bytes.slice_ref(rest);
                    if xxh3_128(&items) != piece.checksum {
                        return Err("it is not as it was sent".to_owned());
                    }
                    return Ok(Said::Word(Word::Piece(Piece { items, ..piece })));
                }
                word => word,
            };
            if rest.is_empty() { Ok(Said::Word(word)) } else { Err("something follows it".to_owned()) }
        }
        Some(&form @ (BETWEEN | OPENED)) => {
            let mut left = &bytes[1..];
            let opening = if form == OPENED { Some(number(&mut left)?) } else { None };
            let (from, to) = (number(&mut left)?, number(&mut left)?);
            Ok(Said::Library(bytes.slice_ref(left), Some(Directories { from, to, opening })))
        }
        _ => Ok(Said::Library(bytes.clone(), None)),
    }
}

impl Piece {
    /// Returns a piece with these items.
    pub(super) fn of(offer: u64, at: Cursor, items: Vec<u8>, is_last: bool) -> Self {
        Self { offer, at, is_last, checksum: xxh3_128(&items), items: items.into() }
    }

    /// Returns its items.
    pub(super) fn pairs(&self) -> impl Iterator<Item = Result<(&[u8], &[u8]), String>> {
        let mut rest = &*self.items;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let taken = postcard::take_from_bytes::<(&[u8], &[u8])>(rest).map_err(|error| error.to_string());
            Some(taken.map(|(pair, left)| {
                rest = left;
                pair
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::audit::Writer;
    use super::super::equality::compared::SumAt;
    use super::super::equality::sum::Sum;
    use super::super::versions;
    use super::*;

    fn cursor() -> Cursor {
        Cursor { keyspace: 3, after: Some(b"key".to_vec()) }
    }

    fn piece() -> Piece {
        let mut items = Vec::new();
        for pair in [(&b"a"[..], &b"1"[..]), (b"b", b"")] {
            stored::append(&pair, &mut items).expect("writable");
        }
        Piece::of(7, cursor(), items, true)
    }

    #[test]
    fn what_is_said_is_heard() {
        let offer = Offer { term: 3, number: 7, last: Last { number: 9, term: 2 } };
        let hello = Hello { knows: versions::OWN, directory: 5, yours: 6, last: 4, receives: true };
        let ask = Ask { offer: 7, at: cursor() };
        let openings = Numbers { count: 9, last: vec![1, u64::MAX] };
        let opened = Opened { directory: 5, openings, last: Last { number: 4, term: 2 }, term: 2 };
        let went_back = WentBack { directory: 5, opening: 1 };
        let (opened, went_back) = (Word::Opened(opened), Word::WentBack(went_back));
        let cells = vec![(ByteBuf::from(*b"key"), ByteBuf::from(*b"value"))];
        let outputs = [
            OutputWord::Keep { number: 3, of_jobs: 8, cells: cells.clone() },
            OutputWord::Kept { number: 3 },
            OutputWord::Ask { number: 4, attempts: vec![AttemptWord { job: "a".to_owned(), fence: 7, created_ms: 9 }] },
            OutputWord::Answer { number: 4, count: 1, cells },
        ];
        let words = [Word::Hello(hello), Word::Offer(offer), Word::Ask(ask), Word::Piece(piece()), Word::Gone(7)];
        let file = AuditFile { month: "2030-01".to_owned(), writer: Writer(7) };
        let audits = [
            AuditWord::Has { files: vec![(file.clone(), 9)] },
            AuditWord::Lacks { files: vec![(file.clone(), 0)] },
            AuditWord::Piece { file, offset: 3, bytes: ByteBuf::from(*b"bytes") },
        ];
        let beside = outputs.map(Word::Output).into_iter().chain(audits.map(Word::Audit));
        let sum = Word::Sum(SaidSum { sum: SumAt::of(9, Sum(1 << 127 | 7)), agreed: 7 });
        for word in words.into_iter().chain([opened, went_back, sum, Word::Lend(400), Word::Declines]).chain(beside) {
            let said = encode(&word).expect("writable");
            assert!(matches!(decode(&said), Ok(Said::Word(heard)) if heard == word), "{word:?}");
            assert_eq!(is_bulk(&said), has_bulk(&word), "{word:?}");
            assert_eq!(is_bulk(&of_group(None, &said)), has_bulk(&word), "{word:?}");
            for cut in 1..said.len() {
                assert!(!matches!(decode(&said.slice(..cut)), Ok(Said::Word(heard)) if heard == word), "{word:?}");
            }
        }
        let pairs: Vec<_> = piece().pairs().map(|pair| pair.map(|(key, value)| (key.len(), value.len()))).collect();
        assert_eq!(pairs, [Ok((1, 1)), Ok((1, 0))]);
    }

    fn has_bulk(word: &Word) -> bool {
        match word {
            Word::Output(OutputWord::Keep { cells, .. } | OutputWord::Answer { cells, .. }) => !cells.is_empty(),
            word => matches!(word, Word::Piece(_) | Word::Audit(AuditWord::Piece { .. })),
        }
    }

    #[test]
    fn what_is_bulk_is_known_without_what_it_brings() {
        let cells = vec![(ByteBuf::from(*b"key"), ByteBuf::from(vec![1; 8_192])); 64];
        let none = encode(&Word::Output(OutputWord::Keep { number: 300, of_jobs: 400, cells: Vec::new() }));
        assert!(!is_bulk(&none.expect("writable")), "no cell is in it");
        for (word, start) in [
            (Word::Output(OutputWord::Keep { number: 300, of_jobs: 400, cells: cells.clone() }), 8),
            (Word::Output(OutputWord::Answer { number: 300, count: 300, cells }), 8),
            (Word::Piece(piece()), 2),
        ] {
            assert!(is_bulk(&encode(&word).expect("writable")[..start]), "more of it was read");
        }
    }

    #[test]
    fn a_piece_that_was_changed_on_the_way_is_refused() {
        let said = encode(&Word::Piece(piece())).expect("writable");
        for place in said.len() - 5..said.len() {
            let mut changed = said.to_vec();
            changed[place] ^= 1;
            assert!(decode(&changed.into()).is_err(), "at {place}");
        }
    }

    #[test]
    fn a_message_of_the_library_is_handed_on_as_it_is() {
        let message = Bytes::from_static(b"\x01message");
        assert!(matches!(decode(&message), Ok(Said::Library(heard, None)) if heard == message));
        for opening in [None, Some(3)] {
            let directories = Directories { from: 1, to: 2, opening };
            let said = between(directories, &message);
            assert!(matches!(decode(&said), Ok(Said::Library(heard, Some(found)))
                if heard == message && found == directories));
            assert!(decode(&said.slice(..9)).is_err());
        }
    }

    #[test]
    fn the_identity_is_taken_from_before_any_message() {
        let message = Bytes::from_static(b"\x01message");
        for identity in [None, NonZeroU64::new(7).map(Identity)] {
            let said = of_group(identity, &message);
            assert_eq!(take_identity(&said), Ok((identity, message.clone())));
            assert!(take_identity(&said.slice(..8)).is_err());
        }
        assert_eq!(take_identity(&message), Ok((None, message)));
    }
}
