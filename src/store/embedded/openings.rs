//! Whether the others still have what they have acknowledged: the data directory of a member may be a copy of an
//! earlier time.
//!
//! A directory that went back in time has forgotten votes and entries on which others count. So each opening of a
//! directory has a random number, and the directory has the last ones. A member keeps the last openings of each other
//! one that it has heard, durably, before it takes anything from the directory as it was opened then, and refuses
//! openings that cannot have come after those: the copy is older. A copy that was made since has the same numbers, but
//! not all entries that were acknowledged: an opening says what its log had. The leader knows what each member has
//! acknowledged in its term, and writes that into the log from time to time, so that the next leader knows it as well.
//!
//! Only what cannot be otherwise counts: more openings may have passed than are kept. And only the word of its leader
//! keeps a member out for good. What no member that runs knows is not noticed. A member itself notices a directory that
//! was copied file by file, see [`opened`](super::opened), and one whose leader says that it has more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::kept::Last;
use super::opened::{Acknowledged, Known, Numbers, OpeningsFile};
use super::words::{Opened, WentBack};

/// The most members of former times whose openings are kept.
const MOST_FORMER: usize = 32;

/// The openings of this member's directory, and those of the others' as they were heard.
#[derive(Debug, Default)]
pub(super) struct Openings {
    directory: u64,
    file: OpeningsFile,
    /// The last entry that the log had when the directory was opened, and the term that the seal knew.
    had: (Last, u64),
    /// The openings that were refused last, and when.
    refused: BTreeMap<u64, (Instant, u64)>,
    /// The members of which an opening was heard that the log may not say.
    unnoted: BTreeSet<u64>,
    /// Whether the file lacks something of this.
    is_new: bool,
}

impl Openings {
    /// Returns those of a directory that was opened with this file, while its log had this last entry, and its seal
    /// knew this term.
    pub(super) fn of(directory: u64, file: OpeningsFile, last: Last, term: u64) -> Self {
        Self { directory, file, had: (last, term), ..Self::default() }
    }

    /// Returns what the file is to have, where that has changed since it was asked for last.
    pub(super) fn unwritten(&mut self) -> Option<OpeningsFile> {
        std::mem::take(&mut self.is_new).then(|| self.file.clone())
    }

    /// Returns what to say of the directory of this member; `None` where it has no openings.
    pub(super) fn own(&self) -> Option<Opened> {
        self.number()?;
        let (last, term) = self.had;
        Some(Opened { directory: self.directory, openings: self.file.own.clone(), last, term })
    }

    /// Returns the number of this opening; `None` where the directory has none.
    pub(super) fn number(&self) -> Option<u64> {
        self.file.own.number()
    }

    /// Returns whether this directory went back in time, as its leader has said or shown.
    pub(super) fn went_back(&self) -> bool {
        self.file.went_back
    }

    /// Takes note of that this directory went back in time. Returns whether that is new.
    pub(super) fn go_back(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.file.went_back, true);
        self.is_new |= is_new;
        is_new
    }

    /// Returns whether a message may come from the directory of a member as it was opened last. A version that knows
    /// of no openings says none.
    pub(super) fn admits(&self, from: u64, opening: Option<u64>) -> bool {
        self.file.others.get(&from).and_then(|known| known.openings.number()) == opening
    }

    /// Takes note of an opening of the directory by which a member is known. `acknowledged` is the last entry that the
    /// member has acknowledged to this one, and the term in which this one leads, if it does.
    ///
    /// # Errors
    /// What to say to a member whose directory went back in time.
    pub(super) fn hear(
        &mut self,
        from: u64,
        opened: &Opened,
        acknowledged: Option<(Last, u64)>,
    ) -> Result<(), WentBack> {
        let Some(number) = opened.openings.number() else { return Ok(()) };
        let directory = opened.directory;
        let before = self.file.others.get(&from).filter(|known| known.directory == directory);
        if let Some(known) = before.filter(|known| known.openings.last.contains(&number)) {
            // What was said of an earlier one may come late.
            if known.openings.number() == Some(number) {
                self.refused.remove(&from);
            }
            return Ok(());
        }
        // Of an entry that is long ago only the number may be known.
        let lacks = |entry: Last| match entry.term {
            0 => opened.last.number < entry.number,
            term => (opened.last.term, opened.last.number) < (term, entry.number),
        };
        // In a later term, entries may have been replaced that were acknowledged and not committed.
        let forgot = |(entry, term)| opened.term < term || opened.term == term && lacks(entry);
        let went_back = before.is_some_and(|known| {
            let is_older = opened.openings.lack(&known.openings);
            is_older || known.acknowledged.is_some_and(lacks) || acknowledged.is_some_and(forgot)
        });
        if went_back {
            self.refuse(from, number);
            return Err(WentBack { directory, opening: number });
        }
        let acknowledged = before.and_then(|known| known.acknowledged);
        let mut openings = opened.openings.clone();
        openings.keep_last();
        self.file.others.insert(from, Known { directory, openings, acknowledged });
        self.refused.remove(&from);
        self.unnoted.insert(from);
        self.is_new = true;
        Ok(())
    }

    fn refuse(&mut self, from: u64, number: u64) {
        let before = self.refused.insert(from, (Instant::now(), number));
        if before.is_none_or(|(_, before)| before != number) {
            tracing::error!(
                member = from,
                "the data directory of this member went back in time: it lacks what the member has acknowledged, and \
                 nothing is taken from it; see `leasehold cluster --help`"
            );
        }
    }

    /// Returns whether a directory of which a member says that it went back in time is this one, as it was opened last.
    pub(super) fn is_own(&self, said: &WentBack) -> bool {
        said.directory == self.directory && Some(said.opening) == self.number()
    }

    /// Forgets the openings of a member whose version says none.
    pub(super) fn forget(&mut self, member: u64) {
        self.is_new |= self.file.others.remove(&member).is_some();
    }

    /// Forgets what is known of members of former times, beyond a number of them: those of the smallest numbers, since
    /// members that come later most often have larger ones. What is known of one that was removed a while ago is kept:
    /// after a restart, the members may be those of earlier for a while, and its directory may come back as a copy.
    pub(super) fn keep_former(&mut self, members: &BTreeSet<u64>) {
        let former = self.file.others.keys().copied().filter(|number| !members.contains(number));
        let former: Vec<u64> = former.collect();
        for number in &former[..former.len().saturating_sub(MOST_FORMER)] {
            self.forget(*number);
            self.refused.remove(number);
            self.unnoted.remove(number);
        }
    }

    /// Returns what the log is to say of these members, of which this one has the number `own`: each has acknowledged
    /// the entry that `acknowledged` returns for it. Of one that has acknowledged nothing in this term, as it is away,
    /// the log says what is known: who joins meanwhile has to know it as well.
    pub(super) fn to_note(
        &self,
        own: u64,
        members: &BTreeSet<u64>,
        acknowledged: impl Fn(u64) -> Option<Last>,
    ) -> BTreeMap<u64, Acknowledged> {
        let others = self.file.others.iter().filter(|(number, _)| members.contains(number));
        let others = others.map(|(number, known)| (*number, known.directory, &known.openings, known.acknowledged));
        let note = |(number, directory, openings, known): (u64, u64, &Numbers, Option<Last>)| {
            let (opening, count) = (openings.number()?, openings.count);
            let entry = acknowledged(number).or(known).unwrap_or_default();
            Some((number, Acknowledged { directory, opening, count, entry }))
        };
        others.chain([(own, self.directory, &self.file.own, None)]).filter_map(note).collect()
    }

    /// Returns whether an entry with this says an opening that was heard since.
    pub(super) fn has_unnoted(&self, all: &BTreeMap<u64, Acknowledged>) -> bool {
        self.unnoted.iter().any(|member| all.contains_key(member))
    }

    /// Takes note of that an entry was written with this.
    pub(super) fn has_noted(&mut self, all: &BTreeMap<u64, Acknowledged>) {
        self.unnoted.retain(|member| !all.contains_key(member));
    }

    /// Takes note of what the log says of the directory by which a member is known.
    pub(super) fn note(&mut self, member: u64, said: &Acknowledged) {
        let Acknowledged { directory, opening, count, entry } = *said;
        let before = self.file.others.get(&member).filter(|known| known.directory == directory).cloned();
        let none = || Known { directory, openings: Numbers::default(), acknowledged: None };
        let mut next = before.clone().unwrap_or_else(none);
        // An entry may be of long ago.
        if count > next.openings.count {
            next.openings.go_on(count, opening);
        }
        let is_further = |known: Last| (known.term, known.number) < (entry.term, entry.number);
        if next.acknowledged.is_none_or(is_further) {
            next.acknowledged = Some(entry);
        }
        self.is_new |= before.as_ref() != Some(&next);
        self.file.others.insert(member, next);
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

    fn last(number: u64, term: u64) -> Last {
        Last { number, term }
    }

    fn opened(openings: &[u64], last: Last, term: u64) -> Opened {
        let openings = Numbers { count: openings.len() as u64, last: openings.to_vec() };
        Opened { directory: 20, openings, last, term }
    }

    fn acknowledgement(opening: u64, count: u64, entry: Last) -> Acknowledged {
        Acknowledged { directory: 20, opening, count, entry }
    }

    /// One that has heard the opening 1 of another, whose log had ten entries of the term 3 then.
    fn one() -> Openings {
        let mut one = Openings::default();
        one.hear(2, &opened(&[1], last(10, 3), 3), None).expect("it is the first");
        assert!(one.unwritten().is_some());
        one.hear(2, &opened(&[1], last(10, 3), 3), None).expect("it is the same");
        assert!(one.unwritten().is_none());
        one
    }

    #[test]
    fn a_message_counts_from_the_directory_as_it_was_opened_last() {
        let mut one = one();
        assert!(one.admits(2, Some(1)) && !one.admits(2, Some(2)) && !one.admits(2, None));
        assert!(one.admits(3, None) && !one.admits(3, Some(1)), "it says how it was opened first");
        one.hear(2, &opened(&[1, 2], last(10, 3), 3), None).expect("it came after");
        assert!(one.admits(2, Some(2)) && !one.admits(2, Some(1)));
        one.forget(2);
        assert!(one.admits(2, None) && one.unwritten().is_some());
    }

    #[test]
    fn a_directory_is_refused_that_was_not_opened_as_it_was_last() {
        let mut one = one();
        one.hear(2, &opened(&[1, 2], last(10, 3), 3), None).expect("it came after");
        let refused = one.hear(2, &opened(&[1, 3], last(90, 9), 9), None);
        assert_eq!(refused, Err(WentBack { directory: 20, opening: 3 }));
        assert!(one.admits(2, Some(2)) && !one.admits(2, Some(3)));
        assert_eq!(one.that_went_back(LONG).collect::<Vec<_>>(), [2]);
        one.hear(2, &opened(&[1, 2], last(10, 3), 3), None).expect("it is the one that is known");
        assert_eq!(one.that_went_back(LONG).count(), 0);
        let other = Opened { directory: 21, ..opened(&[4], Last::default(), 0) };
        one.hear(2, &other, None).expect("the group has agreed on another directory");
    }

    #[test]
    fn a_directory_is_refused_that_lacks_what_it_has_acknowledged_to_its_leader() {
        for (had, term, acknowledged, is_refused) in [
            (last(10, 3), 3, None, false),
            (last(10, 3), 3, Some((last(10, 3), 3)), false),
            (last(11, 3), 3, Some((last(10, 3), 3)), false),
            (last(9, 3), 3, Some((last(10, 3), 3)), true),
            (last(90, 2), 3, Some((last(10, 3), 3)), true),
            (last(10, 3), 2, Some((last(10, 2), 3)), true),
            // Another one has led since, and may have replaced what was acknowledged.
            (last(9, 3), 4, Some((last(10, 3), 3)), false),
        ] {
            let heard = one().hear(2, &opened(&[1, 2], had, term), acknowledged);
            assert_eq!(heard.is_err(), is_refused, "{had:?} in {term} of {acknowledged:?}");
        }
        let first = Openings::default().hear(2, &opened(&[1, 2], last(9, 3), 3), Some((last(10, 3), 3)));
        assert_eq!(first, Ok(()), "it said nothing before");
    }

    #[test]
    fn a_directory_is_refused_that_lacks_what_it_has_acknowledged_as_the_log_says() {
        for (had, is_refused) in [(last(11, 3), true), (last(12, 3), false), (last(90, 2), true), (last(12, 4), false)]
        {
            let mut one = one();
            one.note(2, &acknowledgement(1, 1, last(12, 3)));
            one.note(2, &acknowledgement(1, 1, last(11, 3)));
            assert_eq!(one.hear(2, &opened(&[1, 2], had, 9), None).is_err(), is_refused, "{had:?}");
        }
    }

    #[test]
    fn nobody_is_refused_whose_last_known_opening_may_have_been_long_ago() {
        let mut one = one();
        let later = Numbers { count: 200, last: (137..=200).collect() };
        one.hear(2, &Opened { openings: later, ..opened(&[], last(10, 3), 3) }, None).expect("it may be");
        assert!(one.admits(2, Some(200)));
    }

    #[test]
    fn a_later_opening_is_known_by_the_log_and_no_earlier_one_comes_back() {
        let mut one = one();
        one.note(2, &acknowledgement(3, 3, last(12, 3)));
        assert!(one.admits(2, Some(3)) && !one.admits(2, Some(1)));
        one.note(2, &acknowledgement(1, 1, last(11, 3)));
        let late = opened(&[1], last(10, 3), 3);
        assert_eq!(one.hear(2, &late, Some((last(30, 3), 3))), Ok(()), "it comes late");
        assert!(one.admits(2, Some(3)) && one.that_went_back(LONG).count() == 0);
        assert!(one.hear(2, &opened(&[1, 4], last(12, 3), 3), None).is_err(), "the log knows a later one");
    }

    #[test]
    fn the_openings_of_members_of_former_times_are_kept_up_to_a_number_and_those_of_members_always() {
        let mut one = one();
        for number in 3..100 {
            one.hear(number, &opened(&[1], last(10, 3), 3), None).expect("it is the first");
            one.keep_former(&BTreeSet::from([1, 2]));
            assert!(one.admits(number, Some(1)), "it was removed a moment ago");
            assert!(one.file.others.len() <= 1 + MOST_FORMER && one.unnoted.len() <= 1 + MOST_FORMER);
        }
        assert!(one.unwritten().is_some_and(|file| file.others.len() == 1 + MOST_FORMER));
        assert!(one.admits(2, Some(1)) && one.admits(3, None));
    }

    #[test]
    fn the_log_is_to_say_what_was_heard_and_acknowledged_and_what_this_one_has() {
        let mut own = OpeningsFile::default();
        own.open(70);
        let mut one = Openings::of(10, own, Last::default(), 0);
        one.hear(2, &opened(&[1], last(10, 3), 3), None).expect("it is the first");
        let no_member = one.to_note(1, &BTreeSet::from([1]), |_| Some(last(6, 3)));
        let of_own = Acknowledged { directory: 10, opening: 70, count: 1, entry: last(6, 3) };
        assert_eq!(no_member, BTreeMap::from([(1, of_own)]));
        assert!(!one.has_unnoted(&no_member));
        let members = BTreeSet::from([1, 2, 3]);
        let away = one.to_note(1, &members, |_| None);
        assert_eq!(away[&2], acknowledgement(1, 1, Last::default()));
        let all = one.to_note(1, &members, |member| Some(last(member + 5, 3)));
        assert_eq!(all, BTreeMap::from([(1, of_own), (2, acknowledgement(1, 1, last(7, 3)))]));
        assert!(one.has_unnoted(&all));
        one.has_noted(&all);
        assert!(!one.has_unnoted(&all));
    }
}
