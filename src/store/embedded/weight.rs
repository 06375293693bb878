//! How many bytes a write adds to the entry of its batch.
//!
//! A batch is closed by the bytes of its entry, and these are known only once it is encoded. To encode every item twice
//! would cost the one writer a tenth of its time. So whoever hands a write over counts, in its own thread, what the
//! write adds at most: its document as it is written whole, which serde counts without writing it, with its bodies and
//! what stands before them. The item that the entry has in the end is that document, or what has changed of it, which
//! is no more. Few writes of that size fill a batch before it has as many writes as it may have, and for them nothing
//! else is done.
//!
//! Of a large write that is too rough: a heartbeat takes some 40 bytes, and its job may have a hundred thousand. So the
//! item of a write that may be large is measured once it is decided, by encoding it, which costs little beside writing
//! it to the disk. A document that a batch writes twice is in the entry once, as its last write has left it, and is
//! counted twice. So the entry never has more bytes than were counted.

use serde::Serialize;

use super::entry;
use super::machine::{Command, Effects};
use super::stored::{self, BorrowedJob, More};
use super::{records, schedules};
use crate::job::{Job, JobId, ScheduleId};
use crate::store::{RecordKey, Write};

/// A batch takes no further write beyond this many bytes of its entry, also not of the same request: an entry has to
/// reach the other members in one message.
pub(super) const BATCH_BYTES: usize = 8 << 20;

/// The most bytes that stand before the items of an entry: two numbers.
pub(super) const ENTRY_BYTES: usize = 20;

/// The most bytes that an item has beside its document, its key and its bodies: what it is, numbers (also those of a
/// lease that was prolonged), and the bodies that it drops, of which there are two at most.
const ITEM_BYTES: usize = 96;

/// The most bytes that stand before a body.
const BODY_BYTES: usize = 32;

/// A write that may add more bytes than this is measured: fewer do not fill a batch before it has all the writes that
/// it may have.
pub(super) const MEASURED_FROM: usize = 2 << 10;

/// A command, with the most bytes by which it makes the entry of its batch longer.
pub(super) struct Weighed {
    pub(super) command: Command,
    pub(super) most: usize,
}

impl Weighed {
    pub(super) fn of(command: Command) -> Self {
        let most = ITEM_BYTES
            + match &command {
                Command::Job(write) => of_job(write),
                Command::Record(write) => records::key(write.key()).len() + write.body().map_or(0, |body| body.bytes()),
                // What is no JSON cannot be written either, and refuses its batch.
                Command::Schedule(write) => {
                    let schedule = write.schedule().and_then(|schedule| schedules::text(schedule).ok());
                    write.id().as_str().len() + schedule.map_or(0, |text| text.len())
                }
            };
        Self { command, most }
    }
}

fn of_job(write: &Write) -> usize {
    let job: &Job = write.job();
    let bodies: usize = write.bodies().iter().map(|body| BODY_BYTES + body.json.bytes()).sum();
    let more = More::of(job).map_or(0, |more| length(&more));
    job.id.as_str().len() + length(&BorrowedJob(job)) + more + bodies
}

/// Returns how many bytes something takes. What cannot be written takes none, and refuses its batch.
fn length(value: &impl Serialize) -> usize {
    stored::length(value).unwrap_or_default()
}

/// The document that a command writes.
pub(super) enum Key {
    Job(JobId),
    Record(RecordKey),
    Schedule(ScheduleId),
}

impl Key {
    pub(super) fn of(command: &Command) -> Self {
        match command {
            Command::Job(write) => Self::Job(write.job().id.clone()),
            Command::Record(write) => Self::Record(write.key().clone()),
            Command::Schedule(write) => Self::Schedule(write.id().clone()),
        }
    }
}

/// Returns how many bytes a document takes in an entry with these effects, with the bodies that a job refers to, at
/// most; none when it is as it was, or cannot be written, which refuses its batch. What is left in `scratch` is of no
/// use to anyone.
pub(super) fn measured(effects: &Effects, key: &Key, scratch: &mut Vec<u8>) -> usize {
    scratch.clear();
    let last = effects.last.seq_no;
    let mut bodies = 0;
    let put = match key {
        Key::Job(id) => effects.heads.get(id).filter(|change| change.is_one()).map(|change| {
            let job = change.after.iter().flat_map(|after| after.job.stored_bodies());
            let written = job.filter_map(|body| effects.bodies.get(&body.id)?.as_ref());
            bodies = written.map(|body| BODY_BYTES + body.bytes()).sum();
            entry::put_job(id, change, last, scratch)
        }),
        Key::Record(key) => {
            let change = effects.records.get(key).filter(|change| change.is_one());
            change.map(|change| entry::put_record(key, change, last, scratch))
        }
        Key::Schedule(id) => {
            let change = effects.schedules.get(id).filter(|change| change.is_one());
            change.map(|change| entry::put_schedule(id, change, last, scratch))
        }
    };
    match put {
        Some(Ok(())) => ITEM_BYTES + scratch.len() + bodies,
        Some(Err(_)) | None => 0,
    }
}

#[cfg(test)]
mod tests;
