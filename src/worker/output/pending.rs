//! The part of a stream that is still to be sent, in bounded memory: of much, its beginning and its end.

use crate::store::output::{CELL_BYTES, HEAD_CELLS, TAIL_CELLS};

/// How many bytes of a stream's beginning are kept, however slowly they are sent.
const HEAD_BYTES: u64 = HEAD_CELLS * CELL_BYTES;
/// How many bytes of a stream's end are kept. More would be dropped by whoever receives them.
const TAIL_BYTES: usize = (TAIL_CELLS * CELL_BYTES) as usize;
/// How many more bytes are held, so that old ones are seldom moved.
const SLACK: usize = 64 * 1024;

/// What of a stream is still to be sent.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// How many bytes were written.
    total: u64,
    /// The bytes of the beginning, the last of which is the last one of the beginning that was written.
    head: Vec<u8>,
    /// The bytes after the beginning, up to the last one that was written.
    tail: Vec<u8>,
    /// Whether the end was sent.
    has_end: bool,
}

/// A part of a stream to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) is_end: bool,
}

impl Pending {
    /// Adds bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let room = usize::try_from(HEAD_BYTES.saturating_sub(self.total)).unwrap_or(usize::MAX).min(bytes.len());
        let (head, tail) = bytes.split_at(room);
        self.head.extend_from_slice(head);
        self.tail.extend_from_slice(&tail[tail.len().saturating_sub(TAIL_BYTES)..]);
        if self.tail.len() > TAIL_BYTES + SLACK {
            self.tail.drain(..self.tail.len() - TAIL_BYTES);
        }
        self.total += bytes.len() as u64;
    }

    /// Returns the parts to send next, in order, where the stream has ended if `is_over`. A stream without a byte has
    /// none.
    pub(super) fn parts(&self, is_over: bool) -> Vec<Part> {
        let head = (self.head_begins(), &self.head[..]);
        let kept = self.tail.len().min(TAIL_BYTES);
        let tail = (self.total - kept as u64, &self.tail[self.tail.len() - kept..]);
        let part = |(offset, bytes): (u64, &[u8])| Part { offset, bytes: bytes.to_vec(), is_end: false };
        let mut parts: Vec<Part> = [head, tail].into_iter().filter(|(_, bytes)| !bytes.is_empty()).map(part).collect();
        if is_over && self.total > 0 && !self.has_end {
            match parts.last_mut() {
                Some(last) => last.is_end = true,
                None => parts.push(Part { offset: self.total, bytes: Vec::new(), is_end: true }),
            }
        }
        parts
    }

    /// Drops a part that has arrived.
    pub(super) fn arrived(&mut self, part: &Part) {
        self.has_end |= part.is_end;
        if part.offset < HEAD_BYTES {
            let begins = self.head_begins();
            drain_to(&mut self.head, begins, part);
        } else {
            let begins = self.total - self.tail.len() as u64;
            drain_to(&mut self.tail, begins, part);
        }
    }

    fn head_begins(&self) -> u64 {
        self.total.min(HEAD_BYTES) - self.head.len() as u64
    }
}

/// Removes what of `bytes`, which begin at a place of the stream, lies before the end of a part.
fn drain_to(bytes: &mut Vec<u8>, begins: u64, part: &Part) {
    let end = part.offset + part.bytes.len() as u64;
    let count = usize::try_from(end.saturating_sub(begins)).unwrap_or(usize::MAX).min(bytes.len());
    bytes.drain(..count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_stream_is_sent_as_it_comes_and_ends_with_its_last_part() {
        let mut pending = Pending::default();
        pending.write(b"abc");
        let first = pending.parts(false);
        assert_eq!(first, [Part { offset: 0, bytes: b"abc".to_vec(), is_end: false }]);
        pending.write(b"de");
        pending.arrived(&first[0]);
        let rest = pending.parts(true);
        assert_eq!(rest, [Part { offset: 3, bytes: b"de".to_vec(), is_end: true }]);
        pending.arrived(&rest[0]);
        assert_eq!(pending.parts(true), []);
    }

    #[test]
    fn the_end_comes_alone_when_all_has_arrived_before() {
        let mut pending = Pending::default();
        assert_eq!(pending.parts(true), [], "a silent stream");
        pending.write(b"abc");
        let parts = pending.parts(false);
        pending.arrived(&parts[0]);
        assert_eq!(pending.parts(true), [Part { offset: 3, bytes: Vec::new(), is_end: true }]);
    }

    #[test]
    fn of_a_stream_that_is_faster_than_it_is_sent_the_beginning_and_the_end_are_held() {
        let mut pending = Pending::default();
        let stream: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        for chunk in stream.chunks(10_007) {
            pending.write(chunk);
            assert!(pending.head.len() + pending.tail.len() <= HEAD_BYTES as usize + TAIL_BYTES + SLACK + 10_007);
        }
        let parts = pending.parts(true);
        let [head, tail] = &parts[..] else { panic!("{} parts", parts.len()) };
        assert_eq!((head.offset, &head.bytes[..]), (0, &stream[..HEAD_BYTES as usize]));
        assert_eq!(
            (tail.offset as usize, &tail.bytes[..]),
            (stream.len() - TAIL_BYTES, &stream[stream.len() - TAIL_BYTES..])
        );
        parts.iter().for_each(|part| pending.arrived(part));
        assert_eq!((pending.parts(true), pending.head.len(), pending.tail.len()), (Vec::new(), 0, 0));
    }
}
