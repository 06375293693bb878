//! How the output of an attempt is read, and followed while it is written.

use std::time::Duration;

use tokio::time::Instant;

use crate::job::{EventName, Fence, HistoryEntry, Job, JobId, State};
use crate::manager::Manager;
use crate::manager::read::WAIT_POLL;
use crate::manager::request::ManagerError;
use crate::store::{CellKey, OutputCell, OutputOf, Stream};

/// The attempt of a job whose output is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptChoice {
    /// The latest attempt; none of a job that has not been started, with fence and number 0.
    Latest,
    /// The attempt with this number; of several, since attempts that were released do not count, the latest.
    Number(u32),
    /// The attempt of this claim.
    Fence(Fence),
}

/// From where on the streams are wanted, in bytes from their beginnings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputFrom {
    /// The place in standard output.
    pub stdout: u64,
    /// The place in standard error.
    pub stderr: u64,
}

impl OutputFrom {
    /// Returns the place in a stream.
    #[must_use]
    pub const fn of(self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }
}

/// The output of one attempt, as far as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptOutput {
    /// The fence of the claim that began the attempt.
    pub fence: Fence,
    /// The number of the attempt.
    pub attempt: u32,
    /// Whether the attempt is still running.
    pub is_running: bool,
    /// The streams, standard output first.
    pub streams: [StreamOutput; 2],
}

/// One stream of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamOutput {
    /// Which stream it is.
    pub stream: Stream,
    /// The parts that are kept, each with the place where it begins. Between two of them, bytes are left out.
    pub parts: Vec<(u64, Vec<u8>)>,
    /// How many bytes of the stream are known to have been written.
    pub length: u64,
    /// Whether the stream is known to have ended there.
    pub is_ended: bool,
}

impl Manager {
    /// Returns the output of an attempt from these places on. When there is nothing there yet, it waits until there is
    /// or the attempt is over, for `wait` at most.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`] when there is no such job, [`ManagerError::Invalid`] when it has no such attempt;
    /// otherwise the store's error.
    pub async fn output(
        &self,
        id: &JobId,
        choice: AttemptChoice,
        from: OutputFrom,
        wait: Duration,
    ) -> Result<AttemptOutput, ManagerError> {
        let deadline = Instant::now() + wait;
        let poll = if self.shared.store.is_exclusive() { wait } else { WAIT_POLL };
        let (output, end) = (self.shared.outputs.followers.watch(id), self.shared.end_watchers.watch(id));
        let mut chosen = choice;
        // Bounded by the deadline: each turn waits for news or for the poll.
        loop {
            // Listening before reading, so that news between the two is not missed.
            let (mut written, mut ended) = (Box::pin(output.news()), Box::pin(end.news()));
            written.as_mut().enable();
            ended.as_mut().enable();
            let found = self.read_output(id, chosen, from).await?;
            let now = Instant::now();
            let is_new = |stream: &StreamOutput| stream.length > from.of(stream.stream);
            if !found.is_running || found.streams.iter().any(is_new) || now >= deadline {
                return Ok(found);
            }
            // The attempt that was the latest when the call came.
            chosen = AttemptChoice::Fence(found.fence);
            tokio::select! {
                () = written => {}
                () = ended => {}
                () = tokio::time::sleep_until(deadline.min(now + poll)) => {}
                () = self.shared.stopping.cancelled() => return Ok(found),
            }
        }
    }

    async fn read_output(
        &self,
        id: &JobId,
        choice: AttemptChoice,
        from: OutputFrom,
    ) -> Result<AttemptOutput, ManagerError> {
        let found = self.shared.store.get(std::slice::from_ref(id)).await?.pop().flatten();
        let job = found.ok_or_else(|| ManagerError::NotFound(id.clone()))?.job;
        let (fence, attempt) = find_attempt(&job, choice)?;
        let is_running = job.fence == fence && matches!(job.state, State::Running(_));
        let keys: Vec<CellKey> = CellKey::all(&OutputOf { job: id.clone(), fence }, job.created_at).collect();
        let cells = self.shared.outputs.store.read(&keys).await?;
        let streams = Stream::ALL.map(|stream| {
            let of_stream = keys.iter().zip(&cells).filter(|(key, _)| key.stream == stream);
            stream_of(stream, of_stream.filter_map(|(_, cell)| cell.clone()).collect(), from.of(stream))
        });
        Ok(AttemptOutput { fence, attempt, is_running, streams })
    }
}

/// Returns the fence and the number of the chosen attempt.
fn find_attempt(job: &Job, choice: AttemptChoice) -> Result<(Fence, u32), ManagerError> {
    let is_claim = |entry: &&HistoryEntry| entry.event == EventName::Claimed;
    let claims = || job.history.entries().iter().filter(is_claim).rev();
    let of = |entry: &HistoryEntry| (entry.fence, entry.attempt.get());
    let none = |field, message| ManagerError::Invalid { field, message };
    match choice {
        AttemptChoice::Latest => Ok(claims().next().map_or_else(Default::default, of)),
        AttemptChoice::Number(number) => claims()
            .find(|entry| entry.attempt.get() == number)
            .map(of)
            .ok_or_else(|| none("n", format!("the job's history has no attempt {number}"))),
        AttemptChoice::Fence(fence) if fence > job.fence || fence.get() == 0 => {
            Err(none("fence", format!("the job's fence is {}", job.fence.get())))
        }
        // A long history does not have every claim any more.
        AttemptChoice::Fence(fence) => {
            let attempt = claims().find(|entry| entry.fence <= fence).map_or(0, |entry| entry.attempt.get());
            Ok((fence, attempt))
        }
    }
}

/// Puts the cells of a stream together.
fn stream_of(stream: Stream, mut cells: Vec<OutputCell>, from: u64) -> StreamOutput {
    cells.sort_unstable_by_key(|cell| cell.offset);
    let length = cells.iter().map(OutputCell::end).max().unwrap_or(0);
    let is_ended = cells.iter().any(|cell| cell.is_end && cell.end() == length);
    let mut parts: Vec<(u64, Vec<u8>)> = Vec::new();
    for (offset, bytes) in cells.iter().flat_map(OutputCell::pieces) {
        let start = offset.max(from);
        let skipped = usize::try_from(start - offset).unwrap_or(usize::MAX).min(bytes.len());
        let bytes = &bytes[skipped..];
        match parts.last_mut() {
            _ if bytes.is_empty() => {}
            Some((begins, part)) if *begins + part.len() as u64 == start => part.extend_from_slice(bytes),
            _ => parts.push((start, bytes.to_vec())),
        }
    }
    StreamOutput { stream, parts, length, is_ended }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(offset: u64, bytes: &str, is_end: bool) -> OutputCell {
        OutputCell::whole(offset, bytes.into(), is_end)
    }

    #[test]
    fn cells_that_meet_are_one_part_and_what_is_left_out_shows() {
        let cells = vec![cell(20, "late", true), cell(0, "abc", false), cell(3, "def", false)];
        let read = stream_of(Stream::Stdout, cells, 0);
        assert_eq!(read.parts, [(0, b"abcdef".to_vec()), (20, b"late".to_vec())]);
        assert_eq!((read.length, read.is_ended), (24, true));
    }

    #[test]
    fn only_what_comes_after_a_place_is_returned() {
        let cells = vec![cell(0, "abc", false), cell(3, "def", false)];
        assert_eq!(stream_of(Stream::Stdout, cells.clone(), 4).parts, [(4, b"ef".to_vec())]);
        let read = stream_of(Stream::Stdout, cells, 6);
        assert_eq!((read.parts, read.length, read.is_ended), (Vec::new(), 6, false));
    }
}
