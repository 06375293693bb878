//! What the members say of the sums over their states, and whose is another one.
//!
//! The leader writes into the log what its sum was after an entry, and each member compares its own after that entry.
//! Then each says its own to the others, so that all know who differs from whom.
//!
//! A member that has the state of another one says the same as that one, right or wrong: it is no witness. So each says
//! since when its state is known to be that of all: one that has begun with a state, its own or another's, has not
//! agreed before the sums of all voters are equal. Only a majority of voters that have agreed shows who is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::sum::{FORM, Sum};
use crate::store::Membership;

/// The sum over the whole state after an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SumAt {
    /// What the hashes are of: sums of another form are not compared.
    form: u8,
    /// The number of the entry.
    pub(crate) entry: u64,
    high: u64,
    low: u64,
}

impl SumAt {
    pub(crate) fn of(entry: u64, sum: Sum) -> Self {
        let [entry, high, low] = sum.as_of(entry);
        Self { form: FORM, entry, high, low }
    }

    /// Returns the sum; `None` when it is of another form.
    pub(crate) fn sum(&self) -> Option<Sum> {
        (self.form == FORM).then(|| Sum::of_halves((self.high, self.low)))
    }
}

/// What a member says of its sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SaidSum {
    /// The sum after the entry that was compared last; after the entry 0 where the member waits to compare.
    pub(crate) sum: SumAt,
    /// The number of the last entry after which all voters had the same sum, by what this member knows since it began
    /// with its state; 0 for none.
    pub(crate) agreed: u64,
}

impl SaidSum {
    /// Returns whether the member waits for an entry to compare at.
    pub(crate) fn waits(&self) -> bool {
        self.sum.entry == 0
    }
}

/// How long a member waits for the sums of others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// After so long it judges without those that it lacks.
    pub(crate) patience: Duration,
    /// What was said longer ago does not count.
    pub(crate) silence: Duration,
}

/// The sums of the members after the entry that was compared last.
#[derive(Debug, Default)]
pub(crate) struct Equality {
    /// That of this member, and when it was compared; `None` before that.
    own: Option<(Instant, SumAt)>,
    /// The last entry after which all voters had the same sum, since this member began with its state.
    agreed: u64,
    /// Whether this member waits to compare.
    waits: bool,
    /// Whether its sum was not said to the others yet.
    is_new: bool,
    others: BTreeMap<u64, (Instant, SaidSum)>,
    /// The members whose states are not those of most, or all of them: see [`unequal`](Self::unequal).
    unequal: BTreeSet<u64>,
}

impl Equality {
    /// Begins with a state, whose sum may be known. What this member had before is not compared any more.
    pub(crate) fn begin(&mut self, is_known: bool) {
        (self.own, self.agreed, self.waits, self.is_new) = (None, 0, is_known, is_known);
    }

    /// Compares the own sum after an entry, where that is known, with the one that the leader had. Returns whether it
    /// is the same; `None` where that cannot be said.
    pub(crate) fn compare(&mut self, own: Option<Sum>, said: &SumAt, now: Instant) -> Option<bool> {
        self.waits = false;
        let (own, of_leader) = (own?, said.sum()?);
        (self.own, self.is_new) = (Some((now, SumAt::of(said.entry, own))), true);
        Some(own == of_leader)
    }

    /// Takes note of that the documents of this member were counted.
    pub(crate) fn has_counted(&mut self) {
        (self.waits, self.is_new) = (true, true);
    }

    /// Returns what to say to the others: when it is new, and else where that `is_time`.
    pub(crate) fn due_word(&mut self, is_time: bool) -> Option<SaidSum> {
        let is_due = std::mem::take(&mut self.is_new) || is_time;
        let sum =
            if self.waits { Some(SumAt { form: FORM, ..SumAt::default() }) } else { self.own.map(|(_, own)| own) };
        sum.filter(|_| is_due).map(|sum| SaidSum { sum, agreed: self.agreed })
    }

    /// Returns the members that differ, as they were judged last: those whose states are not that of most, or all of
    /// the group where it is not certain whose state is right.
    pub(crate) fn unequal(&self) -> &BTreeSet<u64> {
        &self.unequal
    }

    /// Returns the entry after which the sums of this member and of others are known, at least of two.
    #[cfg(test)]
    pub(crate) fn known(&self) -> Option<u64> {
        let (_, own) = self.own?;
        let known = self.others.values().filter(|(_, said)| said.sum.entry == own.entry);
        (known.count() >= 2).then_some(own.entry)
    }

    /// Takes note of the sum of another member.
    pub(crate) fn hear(&mut self, from: u64, said: SaidSum, now: Instant) {
        self.others.insert(from, (now, said));
    }

    /// Returns which of these members differ, of which this one has the number `own`. A member that differed once does
    /// so until it is known to be as the others.
    pub(crate) fn judge(&mut self, own: u64, members: &Membership, now: Instant, waits: Waits) -> &BTreeSet<u64> {
        let seats = &members.seats;
        self.unequal.retain(|member| seats.contains_key(member));
        self.others.retain(|member, _| seats.contains_key(member));
        let Some((at, compared)) = self.own.filter(|_| seats.contains_key(&own)) else { return &self.unequal };
        let others = self.others.iter().filter(|(number, (heard, said))| {
            **number != own && said.sum.entry == compared.entry && now.duration_since(*heard) <= waits.silence
        });
        let others = others.map(|(number, (_, said))| (*number, *said));
        let said = SaidSum { sum: compared, agreed: self.agreed };
        let known: BTreeMap<u64, SaidSum> = others.chain([(own, said)]).collect();
        if known.len() < seats.len() && now.duration_since(at) < waits.patience {
            return &self.unequal;
        }
        let are_equal = known.values().all(|said| said.sum == compared);
        if !are_equal {
            self.unequal = differing(&known, members);
        } else if known.len() > 1 && self.unequal.iter().all(|member| known.contains_key(member)) {
            self.unequal.clear();
        }
        if are_equal && seats.iter().all(|(number, seat)| !seat.votes || known.contains_key(number)) {
            self.agreed = compared.entry;
        }
        &self.unequal
    }
}

/// Returns who differs among those whose sums are known: those whose sum is not that of a majority of voters which had
/// all agreed before, and all members where there is no such majority.
fn differing(known: &BTreeMap<u64, SaidSum>, Membership { seats, .. }: &Membership) -> BTreeSet<u64> {
    let voters = seats.values().filter(|seat| seat.votes).count();
    let votes = |number: &u64| seats.get(number).is_some_and(|seat| seat.votes);
    let witnesses = |sum: &SumAt| {
        known.iter().filter(|(number, said)| said.sum == *sum && said.agreed > 0 && votes(number)).count()
    };
    match known.values().find(|said| 2 * witnesses(&said.sum) > voters) {
        Some(most) => known.iter().filter(|(_, said)| said.sum != most.sum).map(|(number, _)| *number).collect(),
        None => seats.keys().copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: [u64; 0] = [];
    const WAITS: Waits = Waits { patience: Duration::from_secs(3), silence: Duration::from_secs(30) };

    fn said(entry: u64, sum: u128, agreed: u64) -> SaidSum {
        SaidSum { sum: SumAt::of(entry, Sum(sum)), agreed }
    }

    /// What the member 3 of a group of so many finds in the end, where it has agreed, has the sum 7 after the entry 10,
    /// and these have others, with the entry of their last agreement.
    fn found(members: u64, others: &[(u64, u64, u128, u64)]) -> Vec<u64> {
        let (mut equality, now) = (Equality { agreed: 5, ..Equality::default() }, Instant::now());
        equality.compare(Some(Sum(7)), &SumAt::of(10, Sum(7)), now);
        for (number, entry, sum, agreed) in others {
            equality.hear(*number, said(*entry, *sum, *agreed), now);
        }
        let members = Membership::founded(&(1..=members).collect::<Vec<_>>());
        equality.judge(3, &members, now + WAITS.patience, WAITS).iter().copied().collect()
    }

    #[test]
    fn a_majority_of_voters_that_had_agreed_shows_who_differs() {
        assert_eq!(found(3, &[]), NOBODY);
        assert_eq!(found(3, &[(1, 10, 7, 5), (2, 10, 7, 5)]), NOBODY);
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 10, 8, 5)]), [3]);
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 10, 7, 5)]), [1]);
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 10, 9, 5)]), [1, 2, 3], "no two are the same");
        assert_eq!(found(3, &[(1, 10, 8, 5)]), [1, 2, 3], "one is not heard");
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 9, 8, 5)]), [1, 2, 3], "one was not compared");
        assert_eq!(found(5, &[(1, 10, 8, 5), (2, 10, 8, 5), (4, 10, 8, 5)]), [3], "one is not heard");
        assert_eq!(found(5, &[(1, 10, 8, 5), (2, 10, 8, 5), (4, 10, 8, 5), (5, 10, 7, 5)]), [3, 5]);
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 10, 8, 5), (4, 10, 9, 5)]), [3], "that is no member");
    }

    #[test]
    fn a_member_that_has_the_state_of_another_one_is_no_witness() {
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 10, 8, 0)]), [1, 2, 3], "2 has received the state of 1");
        assert_eq!(found(3, &[(1, 10, 8, 0), (2, 10, 8, 0)]), [1, 2, 3], "these were opened and never compared");
        assert_eq!(found(5, &[(1, 10, 8, 5), (2, 10, 8, 5), (4, 10, 8, 5), (5, 10, 8, 0)]), [3]);
    }

    #[test]
    fn one_that_does_not_vote_is_named_and_is_no_witness() {
        let (mut equality, now) = (Equality { agreed: 5, ..Equality::default() }, Instant::now());
        equality.compare(Some(Sum(7)), &SumAt::of(10, Sum(7)), now);
        [1, 2].into_iter().for_each(|other| equality.hear(other, said(10, 8, 5), now));
        let mut members = Membership::founded(&[1, 2, 3]);
        members.seats.get_mut(&2).expect("a seat").votes = false;
        members.seats.get_mut(&1).expect("a seat").votes = false;
        assert_eq!(*equality.judge(3, &members, now, WAITS), BTreeSet::from([1, 2]));
    }

    #[test]
    fn nobody_is_named_before_all_were_heard_or_are_away() {
        let (mut equality, now) = (Equality { agreed: 5, ..Equality::default() }, Instant::now());
        let members = Membership::founded(&[1, 2, 3]);
        equality.compare(Some(Sum(7)), &SumAt::of(10, Sum(8)), now);
        equality.hear(1, said(10, 8, 5), now);
        assert!(equality.judge(3, &members, now, WAITS).is_empty());
        equality.hear(2, said(10, 7, 5), now);
        assert_eq!(*equality.judge(3, &members, now, WAITS), BTreeSet::from([1]));
    }

    #[test]
    fn a_member_that_differed_does_so_until_it_is_known_to_be_as_the_others() {
        let (mut equality, now) = (Equality { agreed: 5, ..Equality::default() }, Instant::now());
        let members = Membership::founded(&[1, 2, 3]);
        equality.compare(Some(Sum(7)), &SumAt::of(10, Sum(7)), now);
        equality.hear(1, said(10, 7, 5), now);
        equality.hear(2, said(10, 8, 5), now);
        let later = now + WAITS.patience;
        let named = |equality: &mut Equality| {
            let named = equality.judge(3, &members, later, WAITS);
            named.iter().copied().collect::<Vec<_>>()
        };
        assert_eq!(named(&mut equality), [2]);
        equality.compare(Some(Sum(9)), &SumAt::of(20, Sum(9)), now);
        assert_eq!(named(&mut equality), [2], "nothing was heard of it since");
        equality.hear(1, said(20, 9, 5), now);
        assert_eq!(named(&mut equality), [2]);
        equality.hear(2, said(20, 9, 5), now);
        assert_eq!(named(&mut equality), NOBODY);
    }

    #[test]
    fn a_member_has_agreed_once_all_voters_were_equal_and_not_with_another_state() {
        let (mut equality, now) = (Equality::default(), Instant::now());
        let members = Membership::founded(&[1, 2, 3]);
        equality.begin(true);
        assert!(equality.due_word(false).is_some_and(|said| said.waits()));
        equality.compare(Some(Sum(7)), &SumAt::of(10, Sum(7)), now);
        equality.hear(1, said(10, 7, 0), now);
        equality.judge(3, &members, now + WAITS.patience, WAITS);
        assert_eq!(equality.due_word(true), Some(said(10, 7, 0)), "one is not heard");
        equality.hear(2, said(10, 7, 0), now);
        equality.judge(3, &members, now, WAITS);
        assert_eq!(equality.due_word(true), Some(said(10, 7, 10)));
        equality.begin(false);
        assert_eq!(equality.due_word(true), None);
        equality.compare(Some(Sum(8)), &SumAt::of(20, Sum(8)), now);
        assert_eq!(equality.due_word(false), Some(said(20, 8, 0)));
    }

    #[test]
    fn only_sums_of_one_form_are_compared_and_only_where_they_are_known() {
        let (mut equality, said, now) = (Equality::default(), SumAt::of(10, Sum(1 << 70 | 5)), Instant::now());
        assert_eq!(equality.compare(Some(Sum(5)), &SumAt { form: FORM + 1, ..said }, now), None);
        assert_eq!(equality.compare(None, &said, now), None);
        assert_eq!(equality.due_word(true), None);
        assert_eq!(equality.compare(Some(Sum(5)), &said, now), Some(false));
        assert_eq!(equality.compare(Some(Sum(1 << 70 | 5)), &said, now), Some(true));
    }

    #[test]
    fn what_is_new_is_said_at_once_and_the_same_again_from_time_to_time() {
        let (mut equality, now) = (Equality::default(), Instant::now());
        assert_eq!(equality.due_word(true), None);
        equality.compare(Some(Sum(5)), &SumAt::of(10, Sum(5)), now);
        let word = Some(said(10, 5, 0));
        assert_eq!([false, false, true].map(|is_time| equality.due_word(is_time)), [word, None, word]);
        equality.has_counted();
        assert!(equality.due_word(false).is_some_and(|said| said.waits()));
        equality.compare(Some(Sum(6)), &SumAt::of(11, Sum(5)), now);
        assert_eq!(equality.due_word(false), Some(said(11, 6, 0)));
    }
}
