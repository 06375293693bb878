//! The last part of a stream, in bounded memory.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::task::AbortOnDropHandle;

use crate::store::Stream;
use crate::worker::Attempt;

/// The most bytes that are kept.
pub(super) const KEPT: usize = 64 * 1024;
/// The most bytes that are read at a time.
const CHUNK: usize = 16 * 1024;

/// The last [`KEPT`] bytes of a stream.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    total: u64,
}

impl Tail {
    /// Adds bytes. Up to twice [`KEPT`] bytes are held, so that old bytes are seldom moved.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.total += chunk.len() as u64;
        self.bytes.extend_from_slice(&chunk[chunk.len().saturating_sub(KEPT)..]);
        if self.bytes.len() > 2 * KEPT {
            self.bytes.drain(..self.bytes.len() - KEPT);
        }
    }

    /// Returns the total number of bytes that were pushed.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// Returns the kept bytes as text. A character that was cut is left out; bytes that are not UTF-8 are replaced.
    pub(super) fn into_text(self) -> String {
        let mut start = self.bytes.len().saturating_sub(KEPT);
        let cut = self.total > self.bytes.len() as u64 || start > 0;
        // A character has at most three bytes after its first.
        for _ in 0..3 {
            let inside_a_character = self.bytes.get(start).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
            if cut && inside_a_character {
                start += 1;
            }
        }
        String::from_utf8_lossy(&self.bytes[start..]).into_owned()
    }
}

/// Reads a stream to its end in the background, so that its writer never waits.
pub(super) struct Capture {
    tail: Arc<Mutex<Tail>>,
    reader: AbortOnDropHandle<()>,
}

impl Capture {
    /// Starts to read a stream, and passes what is read on as output of the attempt.
    pub(super) fn start(
        stream: Option<impl AsyncRead + Unpin + Send + 'static>,
        (attempt, name): (&Attempt, Stream),
    ) -> Self {
        let tail = Arc::new(Mutex::new(Tail::default()));
        let (attempt, kept) = (attempt.clone(), tail.clone());
        let reader = read(stream, move |chunk| {
            kept.lock().push(chunk);
            attempt.write_output(name, chunk);
        });
        Self { tail, reader: AbortOnDropHandle::new(tokio::spawn(reader)) }
    }

    /// Returns the bytes that were read, after a wait of `patience` at most for the rest.
    pub(super) async fn finish(mut self, patience: Duration) -> Tail {
        if tokio::time::timeout(patience, &mut self.reader).await.is_err() {
            self.reader.abort();
        }
        std::mem::take(&mut *self.tail.lock())
    }
}

async fn read(stream: Option<impl AsyncRead + Unpin>, mut take: impl FnMut(&[u8])) {
    let Some(mut stream) = stream else { return };
    let mut chunk = vec![0; CHUNK];
    // A stream that fails has nothing more to give, like one that has ended.
    while let Ok(read @ 1..) = stream.read(&mut chunk).await {
        take(&chunk[..read]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail_of(chunks: impl IntoIterator<Item = Vec<u8>>) -> Tail {
        let mut tail = Tail::default();
        for chunk in chunks {
            tail.push(&chunk);
        }
        tail
    }

    #[test]
    fn a_short_output_is_kept_whole() {
        let tail = tail_of([b"caf".to_vec(), "\u{e9}\n".as_bytes().to_vec()]);
        assert_eq!((tail.total(), tail.into_text().as_str()), (6, "caf\u{e9}\n"));
    }

    #[test]
    fn of_a_long_output_the_last_part_is_kept_in_bounded_memory() {
        let mut tail = Tail::default();
        for number in 0..100_000 {
            tail.push(format!("{number:09}\n").as_bytes());
            assert!(tail.bytes.len() <= 2 * KEPT, "{} bytes held", tail.bytes.len());
        }
        assert_eq!(tail.total(), 1_000_000);
        let text = tail.into_text();
        assert_eq!(text.len(), KEPT);
        assert!(text.ends_with("000099998\n000099999\n"));
    }

    #[test]
    fn one_chunk_larger_than_what_is_kept_is_cut() {
        let mut chunk = vec![b'a'; KEPT];
        chunk.extend(vec![b'b'; KEPT]);
        let tail = tail_of([chunk]);
        assert_eq!(tail.total(), 2 * KEPT as u64);
        assert_eq!(tail.into_text(), "b".repeat(KEPT));
    }

    #[test]
    fn the_cut_leaves_no_half_character() {
        let text = format!("{}a", "\u{20ac}".repeat(KEPT));
        let kept = tail_of([text.into_bytes()]).into_text();
        assert!(!kept.contains('\u{fffd}'));
        assert!(kept.len() <= KEPT && kept.len() > KEPT - 3, "{} bytes", kept.len());
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        assert_eq!(tail_of([vec![b'a', 0xff, b'b']]).into_text(), "a\u{fffd}b");
    }
}
