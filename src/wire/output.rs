//! The output of attempts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Checks, Invalid, MAX_BULK_ITEMS};
use super::described::UserWorker;
use crate::job::{Fence, JobId, WorkerId};
use crate::manager::{self, OutputPiece};
use crate::store::{OutputOf, Stream};

/// The longest piece of output, in bytes.
pub const MAX_PIECE_BYTES: usize = 256 * 1024;
/// The greatest offset in a stream: 2 to the power of 50.
pub const MAX_OFFSET: u64 = 1 << 50;

/// A piece of the output of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutOutput {
    /// The worker that holds the lease.
    #[schema(value_type = UserWorker)]
    pub worker_id: String,
    /// The fence of the claim.
    pub fence: u64,
    /// The stream that the attempt wrote.
    pub stream: Stream,
    /// Where the piece begins, in bytes from the beginning of the stream.
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    pub offset: u64,
    /// The bytes as text. At most 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub text: Option<String>,
    /// The bytes in base 64, in the place of `text`. At most 256 KiB before encoding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub base64: Option<String>,
    /// Whether the stream ends with this piece. False by default.
    #[serde(default)]
    pub end: bool,
}

impl PutOutput {
    /// Checks every field, and returns the piece in the types of the domain.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub fn into_piece(self, id: JobId) -> Result<(WorkerId, OutputPiece), Invalid> {
        let mut checks = Checks::default();
        let worker = checks.worker(&self.worker_id);
        let bytes = checks.bytes(self.text, self.base64);
        checks.offset(self.offset);
        let of = OutputOf { job: id, fence: Fence::new(self.fence) };
        let (stream, offset, is_end) = (self.stream, self.offset, self.end);
        Ok((checks.finish(worker)?, OutputPiece { of, stream, offset, bytes, is_end }))
    }
}

/// Pieces of the output of a worker's attempts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutOutputs {
    /// The worker that holds the leases.
    #[schema(value_type = UserWorker)]
    pub worker_id: String,
    /// The pieces; at most 1,000.
    #[schema(max_items = 1000)]
    pub pieces: Vec<PieceOfOutput>,
}

/// One of many pieces of output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PieceOfOutput {
    /// The job's id.
    #[schema(value_type = JobId)]
    pub id: String,
    /// The fence of the claim.
    pub fence: u64,
    /// The stream that the attempt wrote.
    pub stream: Stream,
    /// Where the piece begins, in bytes from the beginning of the stream.
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    pub offset: u64,
    /// The bytes as text. At most 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub text: Option<String>,
    /// The bytes in base 64, in the place of `text`. At most 256 KiB before encoding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub base64: Option<String>,
    /// Whether the stream ends with this piece. False by default.
    #[serde(default)]
    pub end: bool,
}

impl PutOutputs {
    /// Checks the fields of the call itself, and returns the result of checking each piece.
    ///
    /// # Errors
    /// The worker's name or the number of pieces is wrong.
    pub fn into_pieces(self) -> Result<(WorkerId, Vec<Result<OutputPiece, Invalid>>), Invalid> {
        let mut checks = Checks::default();
        let worker = checks.worker(&self.worker_id);
        checks.count("pieces", self.pieces.len(), MAX_BULK_ITEMS);
        let worker = checks.finish(worker)?;
        Ok((worker, self.pieces.into_iter().map(PieceOfOutput::into_piece).collect()))
    }
}

impl PieceOfOutput {
    fn into_piece(self) -> Result<OutputPiece, Invalid> {
        let mut checks = Checks::default();
        let id = checks.name("id", &self.id);
        let bytes = checks.bytes(self.text, self.base64);
        checks.offset(self.offset);
        let of = OutputOf { job: checks.finish(id)?, fence: Fence::new(self.fence) };
        Ok(OutputPiece { of, stream: self.stream, offset: self.offset, bytes, is_end: self.end })
    }
}

impl From<&OutputPiece> for PieceOfOutput {
    fn from(piece: &OutputPiece) -> Self {
        let (text, base64) = text_or_base64(&piece.bytes);
        Self {
            id: piece.of.job.as_str().to_owned(),
            fence: piece.of.fence.get(),
            stream: piece.stream,
            offset: piece.offset,
            text,
            base64,
            end: piece.is_end,
        }
    }
}

/// The output of an attempt, as far as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttemptOutput {
    /// The job's id.
    #[schema(value_type = JobId)]
    pub id: String,
    /// The number of the attempt; 0 when the job has not been started.
    pub attempt: u32,
    /// The fence of the claim that began the attempt; 0 when the job has not been started.
    pub fence: u64,
    /// Whether the attempt is still running.
    pub running: bool,
    /// The streams, `stdout` first.
    pub streams: Vec<OutputStream>,
}

/// A stream of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputStream {
    /// Which stream it is.
    pub stream: Stream,
    /// How many bytes of the stream are known to have been written.
    pub bytes: u64,
    /// Whether the stream is known to have ended there. When the attempt is over and this is false, the last seconds
    /// of the stream may be lost.
    pub ended: bool,
    /// The parts that are kept, in order. Between two of them, bytes are left out.
    pub parts: Vec<OutputPart>,
}

/// A part of a stream.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputPart {
    /// Where the part begins, in bytes from the beginning of the stream.
    pub offset: u64,
    /// The bytes, if they are UTF-8.
    #[schema(nullable = false)]
    pub text: Option<String>,
    /// The bytes in base 64, if they are not UTF-8.
    #[schema(nullable = false)]
    pub base64: Option<String>,
}

impl OutputPart {
    /// Returns the bytes of the part; none where the server's answer has none that can be read.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match (&self.text, &self.base64) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(base64)) => STANDARD.decode(base64).unwrap_or_default(),
            (None, None) => Vec::new(),
        }
    }
}

impl AttemptOutput {
    /// Returns the answer for the output of a job's attempt.
    #[must_use]
    pub fn of(id: &JobId, output: manager::AttemptOutput) -> Self {
        let part = |(offset, bytes): (u64, Vec<u8>)| {
            let (text, base64) = text_or_base64(&bytes);
            OutputPart { offset, text, base64 }
        };
        let stream = |of: manager::StreamOutput| OutputStream {
            stream: of.stream,
            bytes: of.length,
            ended: of.is_ended,
            parts: of.parts.into_iter().map(part).collect(),
        };
        Self {
            id: id.as_str().to_owned(),
            attempt: output.attempt,
            fence: output.fence.get(),
            running: output.is_running,
            streams: output.streams.into_iter().map(stream).collect(),
        }
    }
}

/// Returns bytes as text if they are UTF-8, else in base 64.
fn text_or_base64(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(bytes))),
    }
}

impl Checks {
    /// Returns the bytes of a piece, which are there once.
    fn bytes(&mut self, text: Option<String>, base64: Option<String>) -> Vec<u8> {
        let (field, bytes) = match (text, base64) {
            (Some(text), None) => ("text", text.into_bytes()),
            (None, Some(base64)) => match STANDARD.decode(base64) {
                Ok(bytes) => ("base64", bytes),
                Err(error) => {
                    self.fault("base64", format!("is not base 64: {error}"));
                    ("base64", Vec::new())
                }
            },
            (Some(_), Some(_)) => {
                self.fault("base64", "must not stand beside `text`");
                ("text", Vec::new())
            }
            (None, None) => ("text", Vec::new()),
        };
        if bytes.len() > MAX_PIECE_BYTES {
            self.fault(field, format!("must have at most {MAX_PIECE_BYTES} bytes"));
        }
        bytes
    }

    fn offset(&mut self, offset: u64) {
        if offset > MAX_OFFSET {
            self.fault("offset", format!("must be at most {MAX_OFFSET}"));
        }
    }
}
