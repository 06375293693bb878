//! A piece of output, as a worker sends it.

use crate::store::{OutputOf, Stream};

/// A piece of the output of an attempt.
#[derive(Clone, Debug)]
pub struct OutputPiece {
    /// The attempt that wrote the piece.
    pub of: OutputOf,
    /// The stream that the piece is a part of.
    pub stream: Stream,
    /// Where the piece begins, in bytes from the stream's beginning.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether the stream ends with this piece.
    pub is_end: bool,
}

impl OutputPiece {
    /// Returns where the piece ends, in bytes from the stream's beginning.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}
