//! What the database has, read into memory: the state as of the entry of the log that it says.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::block::{Block, Blocks, Column};
use super::disk::{Disk, FINISHED_PREFIX, MetaKey, SumKey, number};
use super::equality::sum::Sum;
use super::equality::summed::Summed;
use super::error::{Corrupt, Damage};
use super::live::Live;
use super::seal::Vote;
use super::state::{Finished, Published, Recent, Records, View};
use super::unflushed::Unflushed;
use super::{records, stored};
use crate::clock::Timestamp;
use crate::job::QueueName;
use crate::store::{Membership, Place, StoreError, Version};

impl Disk {
    /// Reads the state that the database has.
    ///
    /// # Errors
    /// What cannot be read.
    pub(super) fn recover(&self) -> Result<Published, RecoverError> {
        let primary_term = self.number(&MetaKey::PrimaryTerm)?.unwrap_or(0);
        let seq_no = self.number(&MetaKey::SeqNo)?.unwrap_or(0);
        let entry = self.number(&MetaKey::Entry)?.unwrap_or(0);
        let time = self.number(&MetaKey::Time)?.unwrap_or(0);
        let sealed = self.seal.lock().flushed;
        if seq_no < sealed {
            let what = format!("it ends with write {seq_no}, and write {sealed} was made");
            return Err(RecoverError::Damaged(vec![Damage::of(&self.path, what)]));
        }
        self.flushed.store(seq_no, Ordering::Release);
        let mut live = Live::default();
        for entry in self.live.iter() {
            let (key, value) = entry.into_inner()?;
            live.put(stored::decode(&stored::id_of(&key)?, &value)?);
        }
        let mut finished = Finished::default();
        for entry in self.meta.prefix(FINISHED_PREFIX) {
            let (key, value) = entry.into_inner()?;
            let broken = |why: String| Corrupt(format!("the count {:?}: {why}", key.escape_ascii().to_string()));
            let rest = &key[FINISHED_PREFIX.len()..];
            let (state, queue) = rest.split_first().ok_or_else(|| broken("its key is too short".to_owned()))?;
            let state = stored::state_of(*state).map_err(broken)?;
            let queue = std::str::from_utf8(queue).map_err(|error| broken(error.to_string()))?;
            let queue = QueueName::new(queue).map_err(|error| broken(error.to_string()))?;
            let count = number(&value).map_err(broken)?;
            finished.add((state, queue), i64::try_from(count).unwrap_or(i64::MAX));
        }
        let mut kept = Records::default();
        for entry in self.records.iter() {
            let (key, value) = entry.into_inner()?;
            let key = records::key_of(&key)?;
            let record = records::decode(&key, &value);
            kept.add(key, record);
        }
        let members = self.members()?;
        let members_sum = members.as_deref().map_or(Sum::default(), Sum::of_members);
        let last = Version { place: Place::Main, primary_term, seq_no };
        let time = Timestamp::from_millis(i64::try_from(time).unwrap_or(0));
        let rest = finished.sum + Sum::of_last(last, time) + members_sum;
        let summed = Arc::new(Summed::of(self.sum(entry)?, entry, rest));
        Ok(Published {
            live,
            recent: self.recover_recent()?,
            blocks: Arc::new(self.recover_blocks()?),
            finished,
            records: kept,
            last,
            entry,
            time,
            members,
            members_sum,
            summed,
            unflushed: Unflushed::default(),
            flushing: None,
            view: View { snapshot: self.snapshot(), stale: Arc::default(), moved: Sum::default() },
            due_from: Mutex::default(),
        })
    }

    /// Returns what this member has voted.
    ///
    /// # Errors
    /// A damage when the log has entries up to a later `term` than it can know of.
    pub(super) fn vote(&self, term: u64) -> Result<Vote, RecoverError> {
        let seal = self.seal.lock();
        match seal.lacks(term, self.directory.path()) {
            Some(damage) => Err(RecoverError::Damaged(vec![damage])),
            None => Ok(seal.vote),
        }
    }

    fn recover_recent(&self) -> Result<Recent, RecoverError> {
        let mut recent = Recent::default();
        for entry in self.recent.iter() {
            let (_, id) = entry.into_inner()?;
            let id = stored::id_of(&id)?;
            let read = self.done.get(id.as_str())?.map(|bytes| stored::decode(&id, &bytes));
            match read {
                Some(Ok(head)) => drop(recent.put(head)),
                // A read of this job fails; the other jobs are served.
                Some(Err(Corrupt(what))) => tracing::error!(what, "a finished job cannot be read"),
                None => tracing::error!(%id, "a job that has finished lately is not stored"),
            }
        }
        Ok(recent)
    }

    fn recover_blocks(&self) -> Result<Blocks, RecoverError> {
        let mut blocks = Blocks::default();
        for entry in self.blocks.prefix([Column::Head as u8]) {
            let (key, head) = entry.into_inner()?;
            let number = key.get(1..).and_then(|number| number.try_into().ok()).map(u32::from_be_bytes);
            let number = number.ok_or_else(|| Corrupt("the number of a block is cut short".to_owned()))?;
            blocks.put(Block::decode(number, &head)?);
        }
        Ok(blocks)
    }

    fn members(&self) -> Result<Option<Arc<Membership>>, RecoverError> {
        let Some(bytes) = self.meta.get(MetaKey::Members.bytes())? else { return Ok(None) };
        let members = serde_json::from_slice(&bytes).map_err(|error| Corrupt(format!("the members: {error}")))?;
        Ok(Some(Arc::new(members)))
    }

    /// Returns the sum over the documents as of the last entry that the database has, where it is known.
    fn sum(&self, entry: u64) -> Result<Option<Sum>, RecoverError> {
        if entry == 0 {
            return Ok(Some(Sum::default()));
        }
        let of = self.number(&MetaKey::Sum(SumKey::Entry))?;
        let (high, low) = (self.number(&MetaKey::Sum(SumKey::High))?, self.number(&MetaKey::Sum(SumKey::Low))?);
        // A version that does not know it leaves that of an earlier entry.
        let is_of_this = of == Some(entry);
        Ok(high.zip(low).filter(|_| is_of_this).map(Sum::of_halves))
    }

    fn number(&self, key: &MetaKey<'_>) -> Result<Option<u64>, RecoverError> {
        let key = key.bytes();
        let Some(bytes) = self.meta.get(&key)? else { return Ok(None) };
        let broken = |why: String| Corrupt(format!("the number {}: {why}", key.escape_ascii()));
        Ok(Some(number(&bytes).map_err(broken)?))
    }
}

/// Why what is on disk cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecoverError {
    #[error(transparent)]
    Database(#[from] fjall::Error),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the seal: {0}")]
    Seal(io::Error),
    #[error("{} files are damaged", .0.len())]
    Damaged(Vec<Damage>),
}
