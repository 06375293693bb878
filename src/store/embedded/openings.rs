//! Whether the others still have what they have acknowledged: the data directory of a member may be a copy of an
//! earlier time.
//!
//! A directory that went back in time has forgotten votes and entries on which others count. So each opening of a
//! directory has a random number, and its seal has the last ones. A member keeps the last opening of each other one
//! that it has heard, durably, before it takes anything from the directory as it was opened then, and refuses a list
//! that lacks it: the copy is older. A copy that was made since that opening has its number, but not all entries that
//! were acknowledged: an opening says what its log had. The leader knows what each member has acknowledged in its term,
//! and writes it into the log from time to time, so that the next leader knows it as well.
//!
//! What no member that runs knows is not noticed. A member itself notices a directory that was copied file by file, see
//! [`Place`](super::seal::Place), and one whose leader says that it has more.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::kept::Last;
use super::seal::{Acknowledged, KnownOpenings};
use super::words::{Opened, WentBack};

/// How many openings a seal keeps: so often may a directory be opened before another member hears of it again.
const KEPT: usize = 64;

/// Adds an opening to those of a directory.
pub(super) fn add(openings: &mut Vec<u64>, number: u64) {
    openings.push(number);
    keep_last(openings);
}

fn keep_last(openings: &mut Vec<u64>) {
    openings.drain(..openings.len().saturating_sub(KEPT));
}

/// The openings of the directory of this member, and what it knows of those of the others.
#[derive(Debug)]
pub(super) struct Openings {
    own: Opened,
    /// Also of those that are no members any more: after a restart, the members may be those of earlier for a while.
    known: BTreeMap<u64, KnownOpenings>,
    /// The openings that were refused last, and when.
    refused: BTreeMap<u64, (Instant, u64)>,
    /// Whether this member has heard of an opening that may not be in the log.
    is_unnoted: bool,
}

impl Openings {
    pub(super) fn of(directory: u64, openings: &[u64], known: &BTreeMap<u64, KnownOpenings>) -> Self {
        Self {
            own: Opened { directory, openings: openings.to_vec(), ..Opened::default() },
            known: known.clone(),
            refused: BTreeMap::new(),
            is_unnoted: false,
        }
    }

    /// Takes note of what the log had when the directory was opened, and the term that its seal knew.
    pub(super) fn opened_with(&mut self, last: u64, term: u64) {
        (self.own.last, self.own.term) = (last, term);
    }

    /// Returns what to say of the directory of this member.
    pub(super) fn own(&self) -> &Opened {
        &self.own
    }

    /// Returns the number of this opening; `None` where the directory has none.
    pub(super) fn number(&self) -> Option<u64> {
        self.own.openings.last().copied()
    }

    /// Returns what the seal keeps.
    pub(super) fn sealed(&self) -> &BTreeMap<u64, KnownOpenings> {
        &self.known
    }

    /// Returns whether a message may come from the directory of a member as it was opened last. A version that knows
    /// of no openings says none.
    pub(super) fn admits(&self, from: u64, opening: Option<u64>) -> bool {
        self.known.get(&from).and_then(KnownOpenings::last) == opening
    }

    /// Takes note of an opening of the directory by which a member is known. Returns whether it is new. `acknowledged`
    /// is what that member has acknowledged in the term of this one, if this one leads.
    ///
    /// # Errors
    /// What to say to a member whose directory went back in time.
    pub(super) fn hear(&mut self, from: u64, opened: &Opened, acknowledged: Option<Last>) -> Result<bool, WentBack> {
        let Some(number) = opened.openings.last().copied() else { return Ok(false) };
        let directory = opened.directory;
        let before = self.known.get(&from).filter(|known| known.directory == directory);
        if let Some(known) = before.filter(|known| known.openings.contains(&number)) {
            // What was said of an earlier one may come late.
            if known.last() == Some(number) {
                self.refused.remove(&from);
            }
            return Ok(false);
        }
        // One that the leader knew as the last counts where this member has missed those before it.
        if let Some(known) = before.filter(|known| known.noted != number) {
            let had = (opened.term, opened.last);
            // In a later term, entries that were acknowledged may have been replaced.
            let forgot = |had_to: Last| opened.term <= had_to.term && had < (had_to.term, had_to.number);
            let lacks = |last| !opened.openings.contains(&last);
            let is_older = known.last().is_some_and(lacks) || opened.last < known.acknowledged;
            if is_older || acknowledged.is_some_and(forgot) {
                self.refuse(from, number);
                return Err(WentBack { directory, opening: number });
            }
        }
        let (noted, acknowledged) = before.map_or((0, 0), |known| (known.noted, known.acknowledged));
        let mut openings = opened.openings.clone();
        keep_last(&mut openings);
        self.known.insert(from, KnownOpenings { directory, openings, noted, acknowledged });
        self.refused.remove(&from);
        self.is_unnoted = true;
        Ok(true)
    }

    fn refuse(&mut self, from: u64, number: u64) {
        let before = self.refused.insert(from, (Instant::now(), number));
        if before.is_none_or(|(_, before)| before != number) {
            tracing::error!(
                member = from,
                "the data directory of the member went back in time: it lacks what the member has acknowledged, and \
                 nothing is taken from it. Empty it, start the member again, and run `leasehold cluster replace`"
            );
        }
    }

    /// Takes note of that another member says that a directory went back in time. Returns whether it is this one, as it
    /// was opened last.
    pub(super) fn is_own(&self, said: &WentBack) -> bool {
        said.directory == self.own.directory && Some(said.opening) == self.number()
    }

    /// Forgets the openings of a member whose version says none. Returns whether there were any.
    pub(super) fn forget(&mut self, member: u64) -> bool {
        self.known.remove(&member).is_some()
    }

    /// Returns what the log is to say of the others, each of which has acknowledged the entries up to the one that
    /// `acknowledged` returns for it.
    pub(super) fn to_note(&self, acknowledged: impl Fn(u64) -> Option<u64>) -> BTreeMap<u64, Acknowledged> {
        let note = |(number, known): (&u64, &KnownOpenings)| {
            let (directory, opening) = (known.directory, known.last()?);
            Some((*number, Acknowledged { directory, opening, entry: acknowledged(*number)? }))
        };
        self.known.iter().filter_map(note).collect()
    }

    /// Returns whether something was heard since the log was written last that it does not say.
    pub(super) fn take_unnoted(&mut self) -> bool {
        std::mem::take(&mut self.is_unnoted)
    }

    /// Takes note of what the log says of the directory by which a member is known. Returns whether it is new.
    pub(super) fn note(&mut self, member: u64, said: &Acknowledged) -> bool {
        let Acknowledged { directory, opening, entry } = *said;
        let before = self.known.get(&member).filter(|known| known.directory == directory).cloned();
        let mut next = before.clone().unwrap_or_else(|| KnownOpenings {
            directory,
            openings: vec![opening],
            noted: 0,
            acknowledged: 0,
        });
        (next.noted, next.acknowledged) = (opening, next.acknowledged.max(entry));
        let is_new = before.as_ref() != Some(&next);
        self.known.insert(member, next);
        is_new
    }

    /// Returns the members whose directories went back in time, as they were opened lately.
    pub(super) fn that_went_back(&self, silence: Duration) -> impl Iterator<Item = u64> {
        self.refused.iter().filter(move |(_, (at, _))| at.elapsed() <= silence).map(|(member, _)| *member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn opened(openings: &[u64], last: u64, term: u64) -> Opened {
        Opened { directory: 20, openings: openings.to_vec(), last, term }
    }

    fn nobody() -> Openings {
        Openings::of(10, &[], &BTreeMap::new())
    }

    /// One that has heard the opening 1 of another, whose log had ten entries of the term 3 then.
    fn one() -> Openings {
        let mut one = nobody();
        assert_eq!(one.hear(2, &opened(&[1], 10, 3), None), Ok(true));
        assert_eq!(one.hear(2, &opened(&[1], 10, 3), None), Ok(false));
        one
    }

    #[test]
    fn a_message_counts_from_the_directory_as_it_was_opened_last() {
        let mut one = one();
        assert!(one.admits(2, Some(1)) && !one.admits(2, Some(2)) && !one.admits(2, None));
        assert!(one.admits(3, None) && !one.admits(3, Some(1)), "it says how it was opened first");
        assert_eq!(one.hear(2, &opened(&[1, 2], 10, 3), None), Ok(true));
        assert!(one.admits(2, Some(2)) && !one.admits(2, Some(1)));
        assert!(one.forget(2) && !one.forget(2) && one.admits(2, None));
    }

    #[test]
    fn a_directory_is_refused_that_was_not_opened_as_it_was_last() {
        let mut one = one();
        assert_eq!(one.hear(2, &opened(&[1, 2], 10, 3), None), Ok(true));
        assert_eq!(one.hear(2, &opened(&[1, 3], 90, 9), None), Err(WentBack { directory: 20, opening: 3 }));
        assert!(one.admits(2, Some(2)) && !one.admits(2, Some(3)));
        assert_eq!(one.that_went_back(LONG).collect::<Vec<_>>(), [2]);
        assert_eq!(one.hear(2, &opened(&[1, 2], 10, 3), None), Ok(false));
        assert_eq!(one.that_went_back(LONG).count(), 0, "what was said late says nothing of the directory");
        let other = Opened { directory: 21, ..opened(&[4], 0, 0) };
        assert_eq!(one.hear(2, &other, None), Ok(true), "the group has agreed on another directory");
    }

    #[test]
    fn a_directory_is_refused_that_lacks_what_it_has_acknowledged_to_its_leader() {
        let acknowledged = |number, term| Some(Last { number, term });
        for (had, acknowledged, is_refused) in [
            ((10, 3), None, false),
            ((10, 3), acknowledged(10, 3), false),
            ((11, 3), acknowledged(10, 3), false),
            ((9, 3), acknowledged(10, 3), true),
            ((90, 2), acknowledged(10, 3), true),
            // Another one has led since, and may have replaced what was acknowledged.
            ((9, 4), acknowledged(10, 3), false),
        ] {
            let heard = one().hear(2, &opened(&[1, 2], had.0, had.1), acknowledged);
            assert_eq!(heard.is_err(), is_refused, "{had:?} of {acknowledged:?}");
        }
        assert_eq!(nobody().hear(2, &opened(&[1, 2], 9, 3), acknowledged(10, 3)), Ok(true), "it said nothing before");
    }

    #[test]
    fn a_directory_is_refused_that_lacks_what_it_has_acknowledged_as_the_log_says() {
        for (last, is_refused) in [(11, true), (12, false)] {
            let mut one = one();
            assert!(one.note(2, &Acknowledged { directory: 20, opening: 1, entry: 12 }));
            assert!(!one.note(2, &Acknowledged { directory: 20, opening: 1, entry: 11 }), "it says no more");
            assert_eq!(one.hear(2, &opened(&[1, 2], last, 9), None).is_err(), is_refused);
        }
    }

    #[test]
    fn what_the_log_says_of_an_opening_goes_before_what_was_heard() {
        let mut one = one();
        let later: Vec<u64> = (100..100 + KEPT as u64).collect();
        let number = *later.last().expect("some");
        assert!(one.hear(2, &opened(&later, 10, 3), None).is_err(), "it was opened too often since");
        assert!(one.note(2, &Acknowledged { directory: 20, opening: number, entry: 5 }));
        assert!(one.admits(2, Some(1)), "the entry may be of long ago");
        assert_eq!(one.hear(2, &opened(&later, 10, 3), None), Ok(true));
        assert!(one.admits(2, Some(number)));
    }

    #[test]
    fn what_is_heard_late_brings_no_earlier_opening_back() {
        let mut one = one();
        let late = opened(&[1, 2], 10, 3);
        assert_eq!(one.hear(2, &late, None), Ok(true));
        assert_eq!(one.hear(2, &opened(&[1, 2, 3], 20, 3), None), Ok(true));
        one.note(2, &Acknowledged { directory: 20, opening: 2, entry: 15 });
        assert_eq!(one.hear(2, &late, Some(Last { number: 30, term: 3 })), Ok(false));
        assert!(one.admits(2, Some(3)) && one.that_went_back(LONG).count() == 0);
    }

    #[test]
    fn the_log_is_to_say_what_was_heard_and_acknowledged() {
        let mut one = one();
        assert!(one.take_unnoted() && !one.take_unnoted());
        assert_eq!(one.to_note(|_| None), BTreeMap::new());
        let said = Acknowledged { directory: 20, opening: 1, entry: 7 };
        assert_eq!(one.to_note(|member| Some(member + 5)), BTreeMap::from([(2, said)]));
    }

    #[test]
    fn a_seal_keeps_the_last_openings() {
        let mut openings = Vec::new();
        (1..=KEPT as u64 + 2).for_each(|number| add(&mut openings, number));
        assert_eq!((openings.len(), openings[0], openings[KEPT - 1]), (KEPT, 3, KEPT as u64 + 2));
    }
}
