//! How far the clocks of the members of a group are apart, by round trips.
//!
//! What is compared are the wall clocks of the machines, also where a process does not follow its own: so a clock that
//! was set is known to be off before anybody goes by it, and where all are set to the right time one after the other,
//! it is not the first one that is wrong for good. A process may go by a wrong time all the same, since it began with
//! it: [`MemberClocks::is_far_off`] says so.
//!
//! A member that answers another one says what time it is. The one that has asked knows that the other's clock was read
//! between its question and the answer, and so how far the two are apart to within the round trip. Nothing follows from
//! what is not certain: a clock counts as off only where it is further from the others than clocks may differ, wherever
//! in the round trips they were read.
//!
//! Of the round trips to a member the one counts that says the most: a short one is kept for as long as those after it
//! do not contradict it. Where they do, one of the two clocks was set, and the latest one counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::compared::Reading;
use super::{AwakeTime, Clock, FAR_AHEAD, Offset, Timestamp, in_words, signed_millis};

/// How far the clocks of two members may differ.
pub const MEMBERS_DIFFER: Duration = Duration::from_secs(2);

/// How long a round trip is good for.
const GOOD_FOR: Duration = Duration::from_secs(60);

/// How far the clocks of two members may differ that are both not far off ([`FAR_AHEAD`]).
const NOT_FAR: Duration = Duration::from_secs(30);

/// How long a round trip is good for to say that a clock is far off: until clocks may have drifted apart by
/// [`NOT_FAR`]. So a member that is away says it as well.
const GOOD_FOR_FAR: Duration = Duration::from_secs(4 * 3_600);

/// The clock of a member, and what it knows of the clocks of the others.
pub struct MemberClocks {
    clock: Arc<dyn Clock>,
    monotonic: Arc<dyn Fn() -> Instant + Send + Sync>,
    /// The clocks of the others as they were read last, by the numbers of the members.
    others: Mutex<BTreeMap<u64, Reading>>,
}

/// How far another clock is ahead of this member's, in milliseconds; less than 0 when it is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// At least so far.
    pub least: i64,
    /// At most so far.
    pub most: i64,
}

/// What one member knows of the clocks of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClocksSeen {
    /// How far the clock of each member is ahead of this one's, by their numbers; this one's own is among them.
    pub ahead: BTreeMap<u64, Ahead>,
    /// The members whose clocks are certainly off from those of most members.
    pub off: BTreeMap<u64, OffClock>,
    /// The members whose clocks are certainly too far from this one's, while most members say neither that those are
    /// off nor that this one is.
    pub apart: BTreeMap<u64, i64>,
}

/// A clock that is off from those of most members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffClock {
    /// How far it is ahead of the middle of theirs, in milliseconds; less than 0 when it is behind.
    pub ahead_ms: i64,
    /// The members whose clocks agree with each other against it, by their numbers.
    pub against: Vec<u64>,
}

impl Ahead {
    const SAME: Self = Self { least: 0, most: 0 };

    /// Returns the middle of what is possible.
    #[must_use]
    pub const fn middle(self) -> i64 {
        self.least.midpoint(self.most)
    }

    /// Returns how far the middle may be off in either direction.
    #[must_use]
    pub const fn uncertain(self) -> u64 {
        self.most.abs_diff(self.least).div_ceil(2)
    }

    /// Returns whether the two clocks are further apart than `differ`, whatever of the possible is so.
    fn is_certainly_apart(self, other: Self, differ: Duration) -> bool {
        let differ = signed_millis(differ);
        self.least.saturating_sub(other.most) > differ || other.least.saturating_sub(self.most) > differ
    }

    const fn contradicts(self, other: Self) -> bool {
        self.least > other.most || other.least > self.most
    }

    const fn width(self) -> i64 {
        self.most.saturating_sub(self.least)
    }
}

impl MemberClocks {
    /// Creates the clock of a member that has heard of no other one.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::timed_by(clock, Arc::new(Instant::now))
    }

    /// Creates such a clock with the given monotonic clock, for tests.
    #[must_use]
    pub fn timed_by(clock: Arc<dyn Clock>, monotonic: Arc<dyn Fn() -> Instant + Send + Sync>) -> Self {
        Self { clock, monotonic, others: Mutex::default() }
    }

    /// Returns this moment, which is noted before another member is asked.
    #[must_use]
    pub fn moment(&self) -> Instant {
        (self.monotonic)()
    }

    /// Takes note of the time by the clock of another member, which was read since `asked` and until now.
    pub fn note(&self, member: u64, asked: Instant, time: Timestamp) {
        let now = self.read();
        let new = Reading::between(time, asked, now.after());
        let mut others = self.others.lock();
        let before = others.get(&member).filter(|before| is_good(before, &now, GOOD_FOR));
        let says_more = before.is_none_or(|before| {
            let (before, new) = (ahead(before, &now), ahead(&new, &now));
            new.contradicts(before) || new.width() <= before.width()
        });
        if says_more {
            others.insert(member, new);
        }
    }

    /// Returns what the member of this number knows of the clocks of these.
    #[must_use]
    pub fn seen(&self, own: u64, members: impl Iterator<Item = u64>) -> ClocksSeen {
        let (known, count) = self.known(own, members, GOOD_FOR);
        ClocksSeen::of(known, own, count)
    }

    /// Takes note of what is known of this machine's wall clock: a wrong one is not followed. Nor is one that is apart
    /// from all that are known of, too few to say which is wrong, where the time without it is near to all of them.
    pub fn judge_own(&self, own: u64, seen: &ClocksSeen) {
        let by = self.clock.now().as_millis().saturating_sub(self.clock.wall().as_millis());
        let time = Ahead { least: by, most: by };
        let is_apart = |one: Ahead, other| one.is_certainly_apart(other, MEMBERS_DIFFER);
        let mut others = seen.ahead.iter().filter(|(member, _)| **member != own).map(|(_, other)| *other).peekable();
        let leaves_all =
            others.peek().is_some() && others.all(|other| is_apart(other, Ahead::SAME) && !is_apart(other, time));
        self.clock.distrust(leaves_all || seen.off.contains_key(&own));
    }

    /// Returns whether `now`, the time by which the member of this number goes, is certainly more than [`FAR_AHEAD`]
    /// from the clocks of most of these members, which agree with each other.
    #[must_use]
    pub fn is_far_off(&self, now: Timestamp, own: u64, members: impl Iterator<Item = u64>) -> bool {
        let by = now.as_millis().saturating_sub(self.clock.wall().as_millis());
        let (mut known, count) = self.known(own, members, GOOD_FOR_FAR);
        known.insert(own, Ahead { least: by, most: by });
        let off = against(own, &known, count / 2 + 1, NOT_FAR);
        off.is_some_and(|off| off.ahead_ms.unsigned_abs() > super::millis(FAR_AHEAD))
    }

    /// Returns how far the clocks of these members are ahead, as far as round trips say so that are no older than that,
    /// and how many members there are.
    fn known(&self, own: u64, members: impl Iterator<Item = u64>, good_for: Duration) -> (BTreeMap<u64, Ahead>, usize) {
        let (now, others) = (self.read(), self.others.lock());
        let mut count = 0;
        let known = members.inspect(|_| count += 1).filter_map(|member| match others.get(&member) {
            _ if member == own => Some((member, Ahead::SAME)),
            Some(other) if is_good(other, &now, good_for) => Some((member, ahead(other, &now))),
            Some(_) | None => None,
        });
        (known.collect(), count)
    }

    fn read(&self) -> Reading {
        let after = (self.monotonic)();
        Reading::between(self.clock.wall(), after, (self.monotonic)())
    }
}

fn is_good(other: &Reading, now: &Reading, good_for: Duration) -> bool {
    now.after().saturating_duration_since(other.after()) <= good_for
}

/// Returns how far the other clock is ahead of this one.
fn ahead(other: &Reading, now: &Reading) -> Ahead {
    let (least, most) = now.ahead_of(other);
    Ahead { least: most.saturating_neg(), most: least.saturating_neg() }
}

impl ClocksSeen {
    /// Judges the clocks that are known of `members`, one of which is this member's own.
    fn of(ahead: BTreeMap<u64, Ahead>, own: u64, members: usize) -> Self {
        let off: BTreeMap<u64, OffClock> = ahead
            .keys()
            .filter_map(|member| Some((*member, against(*member, &ahead, members / 2 + 1, MEMBERS_DIFFER)?)))
            .collect();
        let apart = match ahead.get(&own) {
            Some(of_own) if !off.contains_key(&own) => {
                let far = ahead.iter().filter(|(_, other)| other.is_certainly_apart(*of_own, MEMBERS_DIFFER));
                far.filter(|(member, _)| !off.contains_key(member))
                    .map(|(member, far)| (*member, far.middle()))
                    .collect()
            }
            _ => BTreeMap::new(),
        };
        Self { ahead, off, apart }
    }

    /// Returns whether a majority of so many members, this one among them, certainly have the same time as this one.
    #[must_use]
    pub fn is_right(&self, members: usize) -> bool {
        let differ = signed_millis(MEMBERS_DIFFER);
        let near = self.ahead.values().filter(|ahead| ahead.least >= -differ && ahead.most <= differ);
        near.count() > members / 2
    }

    /// Says what is wrong with the clocks of the members, as the one of this number sees it; `None` where nothing is
    /// certainly wrong.
    #[must_use]
    pub fn trouble(&self, own: u64) -> Option<String> {
        let by = |ms: &i64| in_words(Duration::from_millis(ms.unsigned_abs()));
        let way = |ms: &i64| if *ms > 0 { "ahead of" } else { "behind" };
        let off = self.off.iter().map(|(member, OffClock { ahead_ms, .. })| {
            let (by, way) = (by(ahead_ms), way(ahead_ms));
            format!("the clock of member {member} is {by} {way} those of most members")
        });
        let apart = self.apart.iter().map(|(member, ahead)| {
            let (by, way) = (by(ahead), way(ahead));
            format!(
                "the clock of member {member} is {by} {way} that of member {own}, and no majority says which of them \
                 is wrong"
            )
        });
        let all: Vec<String> = off.chain(apart).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// Returns those whose clocks are certainly further than `differ` from that of a member, and agree with each other
/// within that, if they are so many as are needed.
fn against(member: u64, ahead: &BTreeMap<u64, Ahead>, needed: usize, differ: Duration) -> Option<OffClock> {
    let own = *ahead.get(&member)?;
    let far: Vec<(u64, Ahead)> = ahead
        .iter()
        .filter(|(_, other)| other.is_certainly_apart(own, differ))
        .map(|(number, other)| (*number, *other))
        .collect();
    // Those that agree lie, with all that is uncertain, in a window that begins with one of them.
    let agreeing = |first: &(u64, Ahead)| {
        let end = first.1.least.saturating_add(signed_millis(differ));
        far.iter().filter(|(_, other)| other.least >= first.1.least && other.most <= end).collect::<Vec<_>>()
    };
    let most = far.iter().map(agreeing).max_by_key(Vec::len).filter(|most| most.len() >= needed)?;
    let least = most.iter().map(|(_, other)| other.least).min()?;
    let theirs = Ahead { least, most: most.iter().map(|(_, other)| other.most).max()? };
    let ahead_ms = own.middle().saturating_sub(theirs.middle());
    Some(OffClock { ahead_ms, against: most.iter().map(|(number, _)| *number).collect() })
}

/// The clock of a member, which says what is wrong with the clocks of its group.
pub struct MemberClock {
    clock: Arc<dyn Clock>,
    trouble: Box<dyn Fn() -> Option<String> + Send + Sync>,
    is_far_off: Box<dyn Fn(Timestamp) -> bool + Send + Sync>,
}

impl MemberClock {
    /// Creates one that shows what `clock` shows, and asks the others what is wrong and whether what it shows is far
    /// off ([`MemberClocks::is_far_off`]).
    #[must_use]
    pub fn new(
        clock: Arc<dyn Clock>,
        trouble: impl Fn() -> Option<String> + Send + Sync + 'static,
        is_far_off: impl Fn(Timestamp) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { clock, trouble: Box::new(trouble), is_far_off: Box::new(is_far_off) }
    }
}

impl Clock for MemberClock {
    fn goes_by(&self) -> Option<&dyn Clock> {
        Some(&*self.clock)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn offset(&self) -> Option<Offset> {
        (self.is_far_off)(self.now()).then_some(Offset::FAR).or_else(|| self.clock.offset())
    }

    fn awake(&self) -> AwakeTime {
        self.clock.awake()
    }

    fn disagreement(&self) -> Option<String> {
        (self.trouble)()
    }
}

#[cfg(test)]
mod tests;
