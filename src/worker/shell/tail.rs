//! The last part of a stream, in bounded memory.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The most bytes that are kept.
pub(super) const KEPT: usize = 64 * 1024;
/// The most bytes that are read at a time.
const CHUNK: usize = 16 * 1024;
/// The most bytes that a pipe holds, unless root makes it larger.
const PIPE: usize = 1 << 20;

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

/// Reads a stream to its end in the background, so that its writer waits only while what takes the bytes is behind.
pub(super) struct Capture {
    tail: Arc<Mutex<Tail>>,
    reader: AbortOnDropHandle<()>,
    is_over: CancellationToken,
}

impl Capture {
    /// Starts to read a stream, and also passes on what is read. Before each part is read, `ready` is waited for.
    pub(super) fn start(
        stream: Option<impl AsyncRead + Unpin + Send + 'static>,
        ready: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
        mut pass_on: impl FnMut(&[u8]) + Send + 'static,
    ) -> Self {
        let tail = Arc::new(Mutex::new(Tail::default()));
        let (kept, is_over) = (tail.clone(), CancellationToken::new());
        let take = move |chunk: &[u8]| {
            kept.lock().push(chunk);
            pass_on(chunk);
        };
        let reader = AbortOnDropHandle::new(tokio::spawn(read(stream, ready, is_over.clone(), take)));
        Self { tail, reader, is_over }
    }

    /// Returns the bytes that were read, after a wait of `patience` at most for the end of the stream.
    pub(super) async fn finish(mut self, patience: Duration) -> Tail {
        if tokio::time::timeout(patience, &mut self.reader).await.is_err() {
            self.is_over.cancel();
            // It waits for nothing any more; a panic in it was reported where it happened.
            let _ended = self.reader.await;
        }
        std::mem::take(&mut *self.tail.lock())
    }
}

/// Reads a stream to its end, or until it `is_over` and as far as can be read without a wait.
async fn read(
    stream: Option<impl AsyncRead + Unpin>,
    ready: impl Fn() -> BoxFuture<'static, ()>,
    is_over: CancellationToken,
    mut take: impl FnMut(&[u8]),
) {
    let Some(mut stream) = stream else { return };
    let mut chunk = vec![0; CHUNK];
    let to_the_end = async {
        loop {
            ready().await;
            // A stream that fails has nothing more to give, like one that has ended.
            let Ok(read @ 1..) = stream.read(&mut chunk).await else { return };
            take(&chunk[..read]);
        }
    };
    tokio::select! {
        () = to_the_end => return,
        () = is_over.cancelled() => {}
    }
    // Where this process stood still, what the command wrote is still in the pipe. Bounded, since a process that has
    // escaped may write without end.
    for _ in 0..PIPE / CHUNK {
        let read = tokio::task::coop::unconstrained(stream.read(&mut chunk)).now_or_never();
        let Some(Ok(read @ 1..)) = read else { return };
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

    #[tokio::test]
    async fn what_was_written_in_time_is_read_however_late_and_no_end_is_waited_for() {
        for _ in 0..50 {
            let (mut writer, stream) = tokio::io::duplex(PIPE);
            let capture = Capture::start(Some(stream), || std::future::ready(()).boxed(), |_| {});
            tokio::io::AsyncWriteExt::write_all(&mut writer, b"said").await.expect("there is room");
            // The reader comes to read only after the wait for it is over.
            capture.is_over.cancel();
            assert_eq!(capture.finish(Duration::from_secs(600)).await.into_text(), "said");
            drop(writer);
        }
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
