//! Documents in answers: `_mget` and the hits of a search have the same shape.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::conditional::CurrentDocument;
use super::document::{Decoded, decode};
use super::fault::Cause;
use super::indices::Indices;
use super::nodes::{Nodes, Request};
use super::tombstone::{self, Tombstone};
use super::write_id::{KnownWrite, RecentWrites};
use crate::job::{Job, JobId};
use crate::store::{Place, StoreError, Version, Versioned};

/// A document in an answer of the server.
#[derive(Debug, Deserialize)]
pub(super) struct RawDocument<'a> {
    #[serde(rename = "_index", default)]
    pub(super) index: String,
    #[serde(rename = "_id")]
    pub(super) id: String,
    #[serde(rename = "_seq_no", default)]
    seq_no: Option<u64>,
    #[serde(rename = "_primary_term", default)]
    primary_term: Option<u64>,
    #[serde(rename = "_source", borrow, default)]
    source: Option<&'a RawValue>,
    /// The place of a hit in the order of its search.
    #[serde(borrow, default)]
    pub(super) sort: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// The type of the error for a document of an index that does not exist.
const NO_INDEX: &str = "\"index_not_found_exception\"";

#[derive(Deserialize)]
struct MgetReply<'a> {
    #[serde(borrow)]
    docs: Vec<RawDocument<'a>>,
}

/// The content of a document of jobs.
#[derive(Debug)]
pub(super) enum Stored<'a> {
    /// A job.
    Job(Box<Present<'a>>),
    /// A tombstone of a moved or removed job.
    Tombstone(Tombstone<'a>),
}

/// A job that was read, with its document.
#[derive(Debug)]
pub(super) struct Present<'a> {
    pub(super) document: CurrentDocument<'a>,
    pub(super) job: Job,
}

impl<'a> Stored<'a> {
    /// Returns the document of the job or tombstone.
    pub(super) fn document(&self) -> &CurrentDocument<'a> {
        match self {
            Self::Job(present) => &present.document,
            Self::Tombstone(tombstone) => &tombstone.document,
        }
    }
}

impl Present<'_> {
    pub(super) fn into_versioned(self) -> Versioned {
        Versioned { job: Arc::new(self.job), version: self.document.version }
    }
}

impl<'a> RawDocument<'a> {
    /// Returns the document's source; `None` when there is no such document.
    pub(super) fn source(&self) -> Result<Option<&'a RawValue>, StoreError> {
        match self.error {
            Some(error) => {
                let fault = serde_json::from_str::<Cause>(error.get()).ok().and_then(|cause| cause.fault());
                let unavailable = || StoreError::Unavailable(format!("`{}` cannot be read: {error}", self.id));
                Err(fault.map_or_else(unavailable, StoreError::from))
            }
            None => Ok(self.source),
        }
    }

    /// Returns whether there is no such document because its month has no index.
    pub(super) fn is_of_missing_month(&self, indices: &Indices) -> bool {
        indices.month_of(&self.index).is_some() && self.error.is_some_and(|error| error.get().contains(NO_INDEX))
    }

    /// Returns the document's version, for an index that is the only place of its kind.
    pub(super) fn version(&self) -> Result<Version, StoreError> {
        match (self.primary_term, self.seq_no) {
            (Some(primary_term), Some(seq_no)) => Ok(Version { place: Place::Main, primary_term, seq_no }),
            _ => Err(StoreError::Corrupt(format!("`{}` came without its version", self.id))),
        }
    }

    /// Returns the job or tombstone, with the version of the place it lies in; `None` when there is no such document.
    pub(super) fn stored(&self, indices: &Indices) -> Result<Option<Stored<'a>>, StoreError> {
        if self.is_of_missing_month(indices) {
            return Ok(None);
        }
        let Some(source) = self.source()? else { return Ok(None) };
        let version = Version { place: indices.place_of(&self.index)?, ..self.version()? };
        let unreadable = |error: serde_json::Error| StoreError::Unreadable {
            what: format!("job `{}`", self.id),
            why: error.to_string(),
        };
        if tombstone::is_tombstone(source) {
            return Ok(Some(Stored::Tombstone(tombstone::decode(source, version).map_err(unreadable)?)));
        }
        let Decoded { job, write_id, previous_write_id } = decode(source, &indices.encryption).map_err(unreadable)?;
        let document = CurrentDocument { version, source, write_id, previous_write_id };
        Ok(Some(Stored::Job(Box::new(Present { document, job }))))
    }

    /// Returns the job; `None` when there is no document or it is a tombstone.
    pub(super) fn job(&self, indices: &Indices) -> Result<Option<Present<'a>>, StoreError> {
        match self.stored(indices)? {
            Some(Stored::Job(present)) => Ok(Some(*present)),
            Some(Stored::Tombstone(_)) | None => Ok(None),
        }
    }
}

/// Remembers which writes made the documents read, for the `previous_write_id` of their next versions.
pub(super) fn remember<'a, 'b: 'a>(recent: &RecentWrites, found: impl Iterator<Item = &'a Present<'b>>) {
    recent.remember(found.filter_map(|found| {
        let write_id = found.document.write_id?;
        Some((&found.job.id, found.document.version, KnownWrite::of_job(write_id, &found.job)))
    }));
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
    nodes.body(&request, deadline).await
}

/// Reads documents of several indices by index and id, in real time. The answer is to be read with [`parse_mget`].
pub(super) async fn mget_of(
    nodes: &Nodes,
    documents: &[(String, &JobId)],
    deadline: Instant,
) -> Result<bytes::Bytes, StoreError> {
    #[derive(Serialize)]
    struct Address<'a> {
        _index: &'a str,
        _id: &'a str,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        docs: Vec<Address<'a>>,
    }
    let docs = documents.iter().map(|(index, id)| Address { _index: index, _id: id.as_str() }).collect();
    let body = serde_json::to_vec(&Body { docs }).map_err(|error| StoreError::Corrupt(error.to_string()))?;
    nodes.body(&Request::post("_mget?realtime=true".to_owned(), body), deadline).await
}

/// Parses the documents of an `_mget` answer, in the order requested.
pub(super) fn parse_mget(body: &[u8], expected: usize) -> Result<Vec<RawDocument<'_>>, StoreError> {
    let reply: MgetReply = serde_json::from_slice(body)
        .map_err(|error| StoreError::Unavailable(format!("not a multi-get's answer: {error}")))?;
    if reply.docs.len() != expected {
        let count = reply.docs.len();
        return Err(StoreError::Unavailable(format!("a multi-get of {expected} was answered with {count}")));
    }
    Ok(reply.docs)
}
