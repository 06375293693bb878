//! The output of attempts: an index of its own, `{prefix}output`, a document for each cell.
//!
//! A document's id follows from the cell's place, and its external version is the cell's rank, so that the server
//! itself refuses a late or repeated write. Documents are read by id and never searched, so the index refreshes seldom,
//! and it syncs every few seconds: what a crash of the cluster loses of it is lost. The index is made with the first
//! cell.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::bulk::{Action, ItemOutcome, Lines, Target, chunks};
use super::context::Context;
use super::definition::set_replicas;
use super::documents::{mget, parse_mget};
use super::nodes::Request;
use crate::clock::Timestamp;
use crate::job::{Fence, JobId};
use crate::store::StoreError;
use crate::store::output::{CellKey, OutputCell, OutputOf, OutputStore, SLOTS, Stream};

/// The index definition (JSON) of the output.
const DEFINITION: &str = include_str!("../../../mappings/output.json");
/// The most documents in one request.
const MAX_ITEMS: usize = 1_000;
/// Of a job with more claims than this, only the output of the last ones is looked for when it is removed.
const MAX_FENCES: u64 = 1_000;

/// A cell as a document.
#[derive(Serialize, Deserialize)]
pub(super) struct CellDocument {
    offset: u64,
    end: bool,
    bytes: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gaps: Vec<[u64; 2]>,
    /// When the job was created, in milliseconds since the epoch; earlier versions left it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created_ms: Option<i64>,
}

impl CellDocument {
    pub(super) fn of(cell: &OutputCell, created_at: Option<Timestamp>) -> Self {
        let gaps = cell.gaps.iter().map(|gap| [gap.start, gap.end]).collect();
        let (bytes, created_ms) = (STANDARD.encode(&cell.bytes), created_at.map(Timestamp::as_millis));
        Self { offset: cell.offset, end: cell.is_end, bytes, gaps, created_ms }
    }

    /// Returns the cell, unless it is of a job that was created at another time.
    fn cell(&self, created_at: Timestamp) -> Result<Option<OutputCell>, String> {
        let bytes = STANDARD.decode(&self.bytes).map_err(|error| error.to_string())?;
        let gaps = self.gaps.iter().map(|[from, to]| *from..*to).collect();
        let cell = OutputCell { gaps, ..OutputCell::whole(self.offset, bytes, self.end) };
        let is_of_job = self.created_ms.is_none_or(|of| of == created_at.as_millis());
        if cell.is_valid() { Ok(is_of_job.then_some(cell)) } else { Err("it does not lie within one cell".to_owned()) }
    }
}

/// Returns the definition of the index.
pub(super) fn definition(replicas: Option<u32>) -> Result<Value, StoreError> {
    let definition = serde_json::from_str(DEFINITION);
    let mut definition: Value = definition.map_err(|error| StoreError::Corrupt(error.to_string()))?;
    set_replicas(&mut definition["settings"]["index"], replicas);
    Ok(definition)
}

/// The output of the jobs of a store.
pub(super) struct Outputs {
    context: Arc<Context>,
    index: String,
    replicas: Option<u32>,
    timeout: Duration,
    /// Set once the index is known to be there.
    is_made: OnceCell<()>,
}

impl Outputs {
    pub(super) fn new(context: Arc<Context>, prefix: &str, replicas: Option<u32>, timeout: Duration) -> Self {
        Self { context, index: format!("{prefix}output"), replicas, timeout, is_made: OnceCell::new() }
    }

    /// Makes the index unless it is there.
    async fn make(&self, deadline: Instant) -> Result<(), StoreError> {
        let make = async || {
            let request = Request::put(self.index.clone(), Some(&definition(self.replicas)?));
            self.context.nodes.make(&request, deadline).await.map(drop)
        };
        self.is_made.get_or_try_init(make).await.map(drop)
    }

    /// Sends the lines of a bulk, of which those that meet a later version or nothing have done what they should.
    async fn send(&self, lines: Lines, deadline: Instant) -> Result<(), StoreError> {
        for sent in self.context.send(&self.index, lines, deadline).await {
            match sent.outcome {
                ItemOutcome::Done(_) | ItemOutcome::Conflict => {}
                ItemOutcome::Invalid(why) => return Err(StoreError::Corrupt(why)),
                ItemOutcome::NotDone(why) | ItemOutcome::Denied(why) | ItemOutcome::Unsure(why) => {
                    return Err(StoreError::Unavailable(format!("the output of jobs: {why}")));
                }
                ItemOutcome::OutOfOrder(fault) | ItemOutcome::Withheld(fault) => return Err(fault.into()),
            }
        }
        Ok(())
    }

    /// Reads the documents with these ids, as far as there are any.
    async fn documents(&self, ids: &[String], deadline: Instant) -> Result<HashMap<String, CellDocument>, StoreError> {
        let mut found = HashMap::new();
        for ids in ids.chunks(MAX_ITEMS) {
            let reply = mget(&self.context.nodes, &self.index, ids, deadline).await?;
            for document in parse_mget(&reply, ids.len())? {
                // Before the first cell there is no index.
                let Some(source) = document.source().or_else(without_index)? else { continue };
                let stored = serde_json::from_str(source.get());
                found.insert(document.id.clone(), stored.map_err(|error| unreadable(&document.id, error.to_string()))?);
            }
        }
        Ok(found)
    }
}

fn unreadable(id: &str, why: String) -> StoreError {
    StoreError::Unreadable { what: format!("the output `{id}`"), why }
}

/// Takes an index that is not there for one that is empty.
fn without_index<T>(error: StoreError) -> Result<Option<T>, StoreError> {
    match error {
        StoreError::OutOfOrder(_) => Ok(None),
        error => Err(error),
    }
}

#[async_trait]
impl OutputStore for Outputs {
    async fn write(&self, cells: Vec<(CellKey, OutputCell)>) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.timeout;
        self.make(deadline).await?;
        for cells in chunks(&cells, MAX_ITEMS, |(_, cell)| cell.bytes.len() * 4 / 3 + 200) {
            let mut lines = Lines::default();
            for (key, cell) in cells {
                let id = id_of(key);
                let target = Target::any(&id).ranked(cell.rank()).in_index(&self.index);
                lines.add(&Action::Index(target), Some(&CellDocument::of(cell, Some(key.created_at))))?;
            }
            self.send(lines, deadline).await?;
        }
        Ok(())
    }

    async fn read(&self, keys: &[CellKey]) -> Result<Vec<Option<OutputCell>>, StoreError> {
        let ids: Vec<String> = keys.iter().map(id_of).collect();
        let found = self.documents(&ids, Instant::now() + self.timeout).await?;
        let read = |(key, id): (&CellKey, String)| match found.get(&id) {
            Some(document) => document.cell(key.created_at).map_err(|why| unreadable(&id, why)),
            None => Ok(None),
        };
        keys.iter().zip(ids).map(read).collect()
    }

    /// A stream that has any output has its first cell, so that only these are read to learn which ones there are.
    async fn remove(&self, attempts: &[(JobId, RangeInclusive<Fence>)]) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.timeout;
        let firsts: Vec<String> = attempts.iter().flat_map(first_cells).collect();
        let found: Vec<String> = self.documents(&firsts, deadline).await?.into_keys().collect();
        for firsts in found.chunks(MAX_ITEMS / SLOTS as usize) {
            let mut lines = Lines::default();
            for first in firsts {
                let stream = first.trim_end_matches(|letter: char| letter.is_ascii_digit());
                for slot in 0..SLOTS {
                    lines.delete(Target::any(&format!("{stream}{slot}")).in_index(&self.index))?;
                }
            }
            self.send(lines, deadline).await?;
        }
        Ok(())
    }
}

/// Returns the ids of the first cells of a job's attempts with these fences.
fn first_cells((job, fences): &(JobId, RangeInclusive<Fence>)) -> impl Iterator<Item = String> {
    let (first, last) = (fences.start().get(), fences.end().get());
    (first.max(last.saturating_sub(MAX_FENCES))..=last).flat_map(move |fence| {
        let of = OutputOf { job: job.clone(), fence: Fence::new(fence) };
        Stream::ALL.map(|stream| document_id(&of, stream, 0))
    })
}

/// Returns the id of the document of a cell in this slot, which ends with that.
fn document_id(of: &OutputOf, stream: Stream, slot: u64) -> String {
    format!("{}/{}/{}/{slot}", of.job, of.fence.get(), stream.as_str())
}

fn id_of(key: &CellKey) -> String {
    document_id(&key.of, key.stream, key.slot)
}
