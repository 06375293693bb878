//! The options that a store is opened with.

use std::time::Duration;

use super::state::FlushLimits;
use crate::store::QUERY_TIME;

/// The most searches and counts that read stored jobs at once. The others wait, so that a core is left for writes.
pub(super) const SCANS: u32 = 2;

/// The same for those that the index of finished jobs answers: they take milliseconds, and do not wait for the others.
pub(super) const INDEXED_SCANS: u32 = 2;

/// The most look-ups on disk and additions to the audit under way at once. The others wait.
pub(super) const LOOKUPS: u32 = 64;

/// The least bytes of documents at rest that are read in a second: some 5 GiB in a day.
pub const LEAST_SCRUB_BYTES: u64 = 64 << 10;

/// The most bytes of documents at rest that are read in a second.
pub const MOST_SCRUB_BYTES: u64 = 1 << 30;

/// How many bytes are read in a second where the documents are counted once.
const COUNT_BYTES: u64 = 32 << 20;

/// The options that a store is opened with.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// The size of the read cache, in bytes.
    pub cache_bytes: u64,
    /// The number of finished jobs in a block of their index. Some blocks of them are kept in memory.
    pub block_jobs: usize,
    /// After how many changes of documents the database is written, beside which the log of them is kept.
    pub flush_changes: u64,
    /// After how many bytes of the log the database is written.
    pub flush_bytes: u64,
    /// How long after a change the database is written at the latest.
    pub flush_after: Duration,
    /// The length in bytes from which on the log goes on in another file.
    pub segment_bytes: u64,
    /// How many bytes of the disk are kept for when it is full, so that the work on jobs that are there goes on.
    pub reserve_bytes: u64,
    /// How many bytes of memory the process may have before new jobs are refused; `None` for 70 % of what the machine
    /// has, or the process may have.
    pub memory_limit: Option<u64>,
    /// The longest time that a search, a count or statistics may wait for its turn, and the longest that it may then
    /// take.
    pub query_time: Duration,
    /// A write that has not come any further for so long hangs: then a leader gives the lead up.
    pub hangs_after: Duration,
    /// Whether a panic of a thread of the store ends the process, with exit status 1. Otherwise the store stops, and
    /// says so.
    pub panics_end_process: bool,
    /// How many bytes of documents at rest are read in a second, at most, to see that they can be read: from
    /// [`LEAST_SCRUB_BYTES`] to [`MOST_SCRUB_BYTES`].
    pub scrub_bytes_per_second: u64,
    /// The time from when all of them were read until that is done again.
    pub scrub_every: Duration,
    /// The group that the store is a member of; `None` for a store of its own.
    pub group: Option<GroupOptions>,
}

/// When and how fast documents at rest are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The time between the end of a scrub and the next one.
    pub(super) every: Duration,
    /// The most bytes in a second.
    pub(super) bytes_per_second: u64,
    /// The most bytes in a second where the documents are counted once: the database keeps a snapshot meanwhile.
    pub(super) count_bytes_per_second: u64,
}

/// A group of members that are one store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupOptions {
    /// The name of the group, which a data directory keeps: one of another group is refused.
    pub cluster: String,
    /// The number of this member, from 1 on.
    pub member: u64,
    /// The numbers of the members that the group is founded with, this one among them; once there is a group, those
    /// that this one says who it is.
    pub members: Vec<u64>,
    /// Whether a new data directory is to become part of a group that there is, and not to found one.
    pub joins: bool,
    /// Whether this member is to go on alone, since all others are gone for good.
    pub goes_on_alone: bool,
    /// How many bytes of the log are kept, beside what the database does not have yet, for members that lag behind.
    pub keeps_log_bytes: u64,
    /// The most bytes a second that are received of another member's state; `None` for no limit.
    pub receive_bytes_per_second: Option<u64>,
    /// The time between two looks at whether the leader is silent. A member stands for election after ten to twenty.
    pub tick: Duration,
    /// After how many ticks a leader notes in the log what the members have acknowledged and the sum over its state;
    /// `None` for 600.
    pub note_ticks: Option<u64>,
    /// How long all members must have known a version from which the group cannot go back before they agree on it.
    pub settles_in: Duration,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            block_jobs: 4_096,
            flush_changes: 250_000,
            flush_bytes: 64 << 20,
            flush_after: Duration::from_secs(600),
            segment_bytes: 16 << 20,
            reserve_bytes: 16 << 20,
            memory_limit: None,
            query_time: QUERY_TIME,
            hangs_after: Duration::from_secs(10),
            panics_end_process: false,
            scrub_bytes_per_second: 4 << 20,
            scrub_every: Duration::from_secs(24 * 60 * 60),
            group: None,
        }
    }
}

impl EmbeddedOptions {
    /// Returns when and how fast documents at rest are read.
    pub(super) fn scrub_pace(&self) -> Pace {
        let bytes_per_second = self.scrub_bytes_per_second.clamp(LEAST_SCRUB_BYTES, MOST_SCRUB_BYTES);
        Pace { every: self.scrub_every, bytes_per_second, count_bytes_per_second: COUNT_BYTES }
    }

    /// Returns when what has changed is written to the database.
    pub(super) fn flush_limits(&self) -> FlushLimits {
        let block_jobs = self.block_jobs.max(1);
        FlushLimits { block_jobs, changes: self.flush_changes, bytes: self.flush_bytes, after: self.flush_after }
    }
}
