//! Sends the output of a worker's attempts to its service: all of it in one call, every [`PERIOD`] and when an attempt
//! ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use super::pending::{Part, Pending};
use super::{AttemptSink, OutputSink};
use crate::job::WorkerId;
use crate::manager::OutputPiece;
use crate::store::{OutputOf, Stream};
use crate::worker::service::{ClaimedJob, JobService, PieceAnswer, ServiceError};

/// The time between two calls: what a worker that is killed may lose.
const PERIOD: Duration = Duration::from_secs(2);
/// The wait before output is sent again after a call that failed.
const BACKOFF: Duration = Duration::from_millis(500);
/// How long the end of an attempt waits for its last output to arrive.
const LAST_OUTPUT: Duration = Duration::from_secs(5);
/// The most pieces and bytes of one call.
const MAX_PIECES: usize = 1_000;
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Sends the output of attempts to the service that handed out their jobs.
pub struct ServiceOutput {
    shared: Arc<Shared>,
    _sending: AbortOnDropHandle<()>,
}

struct Shared {
    attempts: Mutex<HashMap<OutputOf, Arc<AttemptBuffer>>>,
    /// Told when an attempt has ended.
    is_urgent: Notify,
    /// Whether a whole call was refused before, as by a server that knows no output.
    has_been_refused: AtomicBool,
}

/// The output of an attempt that is still to be sent.
struct AttemptBuffer {
    of: OutputOf,
    shared: Arc<Shared>,
    streams: Mutex<Streams>,
    /// Whether all of the output has arrived, after the end.
    is_done: watch::Sender<bool>,
}

#[derive(Default)]
struct Streams {
    pending: [Pending; 2],
    is_over: bool,
    /// Whether the service takes no more of it: the lease is lost, or it keeps no output.
    is_refused: bool,
}

impl ServiceOutput {
    /// Starts to send what the attempts of a worker write.
    #[must_use]
    pub fn start(service: Arc<dyn JobService>, worker: WorkerId) -> Self {
        let shared = Arc::new(Shared {
            attempts: Mutex::default(),
            is_urgent: Notify::new(),
            has_been_refused: AtomicBool::new(false),
        });
        let sending = keep_sending(Arc::clone(&shared), service, worker);
        Self { shared, _sending: AbortOnDropHandle::new(tokio::spawn(sending)) }
    }
}

impl OutputSink for ServiceOutput {
    fn begin(&self, job: &ClaimedJob) -> Arc<dyn AttemptSink> {
        Arc::new(Handle(Arc::new(AttemptBuffer {
            of: OutputOf { job: job.id.clone(), fence: job.fence },
            shared: Arc::clone(&self.shared),
            streams: Mutex::default(),
            is_done: watch::Sender::new(false),
        })))
    }
}

/// What writes to an attempt's buffer, and enters it with the first byte: most attempts write none.
struct Handle(Arc<AttemptBuffer>);

#[async_trait]
impl AttemptSink for Handle {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        let Self(buffer) = self;
        let mut streams = buffer.streams.lock();
        if bytes.is_empty() || streams.is_refused || streams.is_over {
            return;
        }
        streams.pending[stream as usize].write(bytes);
        drop(streams);
        buffer.shared.attempts.lock().entry(buffer.of.clone()).or_insert_with(|| Arc::clone(buffer));
    }

    async fn end(&self) {
        let Self(buffer) = self;
        buffer.streams.lock().is_over = true;
        if !buffer.shared.attempts.lock().contains_key(&buffer.of) {
            return;
        }
        buffer.shared.is_urgent.notify_one();
        let mut is_done = buffer.is_done.subscribe();
        if tokio::time::timeout(LAST_OUTPUT, is_done.wait_for(|done| *done)).await.is_err() {
            buffer.shared.attempts.lock().remove(&buffer.of);
            tracing::warn!(job = %buffer.of.job, "the last output of a job did not arrive at its server in time");
        }
    }
}

async fn keep_sending(shared: Arc<Shared>, service: Arc<dyn JobService>, worker: WorkerId) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = shared.is_urgent.notified() => {}
        }
        if let Err(error) = shared.send_all(&*service, &worker).await {
            tracing::debug!(%error, "output is not taken; trying again");
            tokio::time::sleep(BACKOFF).await;
            // The ends that were waited for are still to be sent.
            shared.is_urgent.notify_one();
        }
    }
}

impl Shared {
    /// Sends what is pending now, in as many calls as it needs.
    async fn send_all(&self, service: &dyn JobService, worker: &WorkerId) -> Result<(), ServiceError> {
        let attempts: Vec<Arc<AttemptBuffer>> = self.attempts.lock().values().cloned().collect();
        let mut calls: Vec<Vec<(&AttemptBuffer, Stream, Part)>> = Vec::new();
        let mut bytes = 0;
        for attempt in &attempts {
            for (stream, part) in attempt.parts() {
                bytes += part.bytes.len();
                match calls.last_mut() {
                    Some(call) if call.len() < MAX_PIECES && bytes <= MAX_BYTES => call.push((attempt, stream, part)),
                    _ => {
                        bytes = part.bytes.len();
                        calls.push(vec![(attempt, stream, part)]);
                    }
                }
            }
        }
        let mut again = None;
        for call in calls {
            let piece = |(attempt, stream, part): &(&AttemptBuffer, Stream, Part)| OutputPiece {
                of: attempt.of.clone(),
                stream: *stream,
                offset: part.offset,
                bytes: part.bytes.clone(),
                is_end: part.is_end,
            };
            let pieces: Vec<OutputPiece> = call.iter().map(piece).collect();
            let answers = match service.put_output(worker, &pieces).await {
                Ok(answers) => answers,
                Err(ServiceError::Refused(why)) => {
                    if !self.has_been_refused.swap(true, Ordering::Relaxed) {
                        tracing::warn!(why, "the server takes no output of jobs");
                    }
                    vec![PieceAnswer::Refused; pieces.len()]
                }
                Err(error) => return Err(error),
            };
            for ((attempt, stream, part), answer) in call.into_iter().zip(answers) {
                match answer {
                    PieceAnswer::Kept => attempt.streams.lock().pending[stream as usize].arrived(&part),
                    PieceAnswer::Refused => attempt.streams.lock().refuse(),
                    PieceAnswer::Again(why) => again = Some(ServiceError::Unavailable(why)),
                }
            }
        }
        for attempt in &attempts {
            if attempt.is_settled() {
                self.attempts.lock().remove(&attempt.of);
                attempt.is_done.send_replace(true);
            }
        }
        again.map_or(Ok(()), Err)
    }
}

impl AttemptBuffer {
    fn parts(&self) -> Vec<(Stream, Part)> {
        let streams = self.streams.lock();
        let of = |stream: Stream| streams.pending[stream as usize].parts(streams.is_over);
        Stream::ALL.into_iter().flat_map(|stream| of(stream).into_iter().map(move |part| (stream, part))).collect()
    }

    /// Returns whether there is nothing left to send, nor will be.
    fn is_settled(&self) -> bool {
        let streams = self.streams.lock();
        streams.is_refused || (streams.is_over && streams.pending.iter().all(|pending| pending.parts(true).is_empty()))
    }
}

impl Streams {
    fn refuse(&mut self) {
        self.is_refused = true;
        self.pending = Default::default();
    }
}
