//! What a watchdog makes of what it sees: a pure function of it, and of what it saw before.

use std::mem;
use std::time::Duration;

use super::super::agreed::Following;
use super::super::unanswered::Oldest;
use super::super::unflushed::UnderWay;
use super::super::unwritten::ToWrite;
use crate::store::Hang;

/// What is written or flushed in one call is given a second for so many bytes, which a slow disk writes. What a flush
/// writes beside the documents is not counted.
const WRITTEN_A_SECOND: u64 = 1 << 20;

/// The times of a watchdog. All of them are awake time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// A write that has not come any further for so long hangs.
    pub(super) hangs_after: Duration,
    /// After so much more the process should be started again.
    pub(super) lasts_after: Duration,
    /// A write of its own is made when none was accepted for so long.
    pub(super) tries_after: Duration,
}

impl Times {
    /// Returns the times for writes that hang after so long.
    pub(super) fn of(hangs_after: Duration) -> Self {
        let lasts_after = hangs_after.saturating_mul(6);
        Self { hangs_after, lasts_after, tries_after: hangs_after / 2 }
    }
}

/// What is seen of a store at one look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// The oldest write without an answer.
    pub(super) oldest: Option<Oldest>,
    /// How many ticks the thread of the member has counted; `None` while it need not count any.
    pub(super) ticks: Option<u64>,
    /// The number of the last entry that was applied; `None` while none is to be.
    pub(super) applied: Option<u64>,
    /// What the thread that writes entries of others to the log has to write.
    pub(super) to_write: Option<ToWrite>,
    /// How the voters follow, while the oldest write waits until they have acknowledged it.
    pub(super) following: Option<Following>,
    /// The flush that others wait for.
    pub(super) flush: Option<UnderWay>,
    /// The entry that the writer has begun to write to the log.
    pub(super) append: Option<UnderWay>,
}

/// A number that moves on while all is well.
#[derive(Default)]
struct Moving {
    last: Option<u64>,
    still: Duration,
}

impl Moving {
    /// Returns for how long the number has stood still, `passed` after the last look.
    fn look(&mut self, now: Option<u64>, passed: Duration) -> Duration {
        self.still = if now.is_some() && now == self.last { self.still + passed } else { Duration::ZERO };
        self.last = now;
        self.still
    }

    /// Returns whether what is written has been under way for no longer than a slow disk takes for its bytes.
    fn has_time(&mut self, written: Option<UnderWay>, passed: Duration) -> bool {
        let waited = self.look(written.map(|written| written.entry), passed);
        written.is_some_and(|written| waited < Duration::from_secs(written.bytes / WRITTEN_A_SECOND))
    }
}

/// What a watchdog remembers between two looks.
pub(super) struct Rules {
    times: Times,
    ticks: Moving,
    applied: Moving,
    written: Moving,
    flush: Moving,
    append: Moving,
    acknowledged: Option<u64>,
    /// For how long the oldest write has waited while too few voters could acknowledge it.
    lacks_majority: Duration,
    /// Whether the look before this one found a hang.
    suspects: bool,
}

impl Rules {
    pub(super) fn new(times: Times) -> Self {
        Self {
            times,
            ticks: Moving::default(),
            applied: Moving::default(),
            written: Moving::default(),
            flush: Moving::default(),
            append: Moving::default(),
            acknowledged: None,
            lacks_majority: Duration::ZERO,
            suspects: false,
        }
    }

    /// Returns whether what the oldest write waits for goes on, or is nothing that another leader would have: the
    /// voters acknowledge entries before it, too few of them can, or as much is written as takes so long. It is asked
    /// before [`judge`](Self::judge).
    pub(super) fn goes_on(&mut self, seen: &Seen, passed: Duration) -> bool {
        let acknowledged = seen.following.map(|following| following.acknowledged);
        let before = mem::replace(&mut self.acknowledged, acknowledged);
        let is_acknowledged = before.is_some() && acknowledged.is_some() && before != acknowledged;
        let is_lacking = seen.following.is_some_and(|following| !following.are_most);
        self.lacks_majority = if is_lacking { self.lacks_majority + passed } else { Duration::ZERO };
        let is_flushed = self.flush.has_time(seen.flush, passed);
        let is_appended = self.append.has_time(seen.append, passed);
        is_acknowledged || is_lacking || is_flushed || is_appended
    }

    /// Returns whether the oldest write has waited for so long, and too few voters could acknowledge it, as would be a
    /// hang otherwise.
    pub(super) fn lacks_majority(&self) -> bool {
        self.lacks_majority >= self.times.hangs_after
    }

    /// Returns the hang that is there, so much awake time after the last look. It takes two looks: a process that goes
    /// on after a pause may be looked at before it has done anything.
    pub(super) fn judge(&mut self, seen: &Seen, passed: Duration) -> Option<Hang> {
        let writes = seen.oldest.map_or(Duration::ZERO, |oldest| oldest.still);
        let (ticks, applied) = (self.ticks.look(seen.ticks, passed), self.applied.look(seen.applied, passed));
        let written = self.written.look(seen.to_write.map(|to_write| to_write.written), passed);
        let bytes = seen.to_write.map_or(0, |to_write| to_write.bytes as u64);
        let written = written.saturating_sub(Duration::from_secs(bytes / WRITTEN_A_SECOND));
        let all = [
            (writes, "the oldest write has not come any further"),
            (ticks, "the thread that hears the other members has done nothing"),
            (applied, "nothing of what the members agreed on was applied"),
            (written, "nothing of what waits for the log was written"),
        ];
        let (still, what) = all.into_iter().max_by_key(|(still, _)| *still)?;
        let Times { hangs_after, lasts_after, .. } = self.times;
        let hangs = still >= hangs_after;
        let is_second = mem::replace(&mut self.suspects, hangs);
        (hangs && is_second).then(|| Hang {
            why: format!("{what} for {} s", still.as_secs()),
            is_lasting: still >= hangs_after + lasts_after,
        })
    }
}
