//! Documents in answers: `_mget` and the hits of a search have the same shape.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::document::{Decoded, decode};
use super::nodes::{CallError, Nodes, Reply, Request};
use crate::store::{StoreError, Version, Versioned};

/// A document as it stands in an answer.
#[derive(Debug, Deserialize)]
pub(super) struct RawDocument<'a> {
    #[serde(rename = "_id")]
    pub(super) id: String,
    #[serde(rename = "_seq_no", default)]
    seq_no: Option<u64>,
    #[serde(rename = "_primary_term", default)]
    primary_term: Option<u64>,
    #[serde(rename = "_source", borrow, default)]
    source: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct MgetReply<'a> {
    #[serde(borrow)]
    docs: Vec<RawDocument<'a>>,
}

/// A document that is there.
#[derive(Debug)]
pub(super) struct Present<'a> {
    pub(super) version: Version,
    pub(super) source: &'a RawValue,
    pub(super) decoded: Decoded,
}

impl Present<'_> {
    pub(super) fn into_versioned(self) -> Versioned {
        Versioned { job: Arc::new(self.decoded.job), version: self.version }
    }
}

impl<'a> RawDocument<'a> {
    /// What it holds; none when there is no such document.
    pub(super) fn source(&self) -> Result<Option<&'a RawValue>, StoreError> {
        match self.error {
            Some(error) => Err(StoreError::Unavailable(format!("`{}` cannot be read: {error}", self.id))),
            None => Ok(self.source),
        }
    }

    /// The version it came under.
    pub(super) fn version(&self) -> Result<Version, StoreError> {
        match (self.primary_term, self.seq_no) {
            (Some(primary_term), Some(seq_no)) => Ok(Version { primary_term, seq_no }),
            _ => Err(StoreError::Corrupt(format!("`{}` came without its version", self.id))),
        }
    }

    /// The job in it; none when there is no such document.
    pub(super) fn job(&self) -> Result<Option<Present<'a>>, StoreError> {
        let Some(source) = self.source()? else { return Ok(None) };
        let version = self.version()?;
        let decoded = decode(source).map_err(|error| StoreError::Corrupt(format!("job `{}`: {error}", self.id)))?;
        Ok(Some(Present { version, source, decoded }))
    }
}

/// Reads documents by id, in real time. The answer is to be read with [`parse_mget`].
pub(super) async fn mget(
    nodes: &Nodes,
    index: &str,
    ids: &[impl Serialize],
    deadline: Instant,
) -> Result<bytes::Bytes, StoreError> {
    #[derive(Serialize)]
    struct Body<'a, I> {
        ids: &'a [I],
    }
    let body = serde_json::to_vec(&Body { ids }).map_err(|error| StoreError::Corrupt(error.to_string()))?;
    // No `filter_path`: it would have the server write the documents anew, and payloads come back as they were given.
    let request = Request::post(format!("{index}/_mget?realtime=true"), body);
    answered(nodes.call(&request, deadline).await)
}

/// The documents of an `_mget`'s answer, in the order asked.
pub(super) fn parse_mget(body: &[u8], expected: usize) -> Result<Vec<RawDocument<'_>>, StoreError> {
    let reply: MgetReply = serde_json::from_slice(body)
        .map_err(|error| StoreError::Unavailable(format!("not a multi-get's answer: {error}")))?;
    if reply.docs.len() != expected {
        let count = reply.docs.len();
        return Err(StoreError::Unavailable(format!("a multi-get of {expected} was answered with {count}")));
    }
    Ok(reply.docs)
}

/// The body of a good answer.
pub(super) fn answered(reply: Result<Reply, CallError>) -> Result<bytes::Bytes, StoreError> {
    reply.map_err(|error| error.message).and_then(Reply::success).map_err(StoreError::Unavailable)
}
