//! What the members say of the sums over their states, and whose is another one.
//!
//! The leader writes into the log what its sum was after an entry, and each member compares its own after that entry.
//! Then each says its own to the others, so that all know who differs from whom.
//!
//! A member that has the state of another one says the same as that one, right or wrong: it is no witness. So each says
//! since when its state is known to be that of all: one that has begun with a state, its own or another's, has not
//! agreed before the sums of all voters are equal. Only a majority of voters that have agreed shows who is wrong. Where
//! there is none, all whose sums are known differ, and it is not certain which of them are right.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::sum::{FORM, Sum};
use crate::store::{Membership, Unequal};

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

/// For so long the leader says its sum for a member that waits to compare, where nothing else is written.
const MOST_WAITING: Duration = Duration::from_secs(600);

/// How long a member rests after the first rebuild that failed, and at most.
const FIRST_REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(3_600);

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
    /// Since when each of the others has waited to compare.
    waiting: BTreeMap<u64, Instant>,
    unequal: Unequal,
    /// Whether the sums of all members were known when they were judged last.
    is_full: bool,
    /// What shows that this member alone differs, where it does.
    alone: Option<Alone>,
    /// The entry for which it was last decided whether it is rebuilt, and whether it is.
    decided: Option<(u64, bool)>,
    /// Until when no rebuild is tried after some that have failed, and how long the last such rest was.
    rest: Option<(Instant, Duration)>,
}

/// What shows that a member alone differs from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alone {
    /// The entry after which the states were compared.
    pub(crate) entry: u64,
    /// The sums of all members.
    pub(crate) sums: BTreeMap<u64, Sum>,
}

impl Equality {
    /// Begins with a state, whose sum may be known. What this member had before is not compared any more.
    pub(crate) fn begin(&mut self, is_known: bool) {
        (self.own, self.agreed, self.waits, self.is_new) = (None, 0, is_known, is_known);
        (self.alone, self.decided) = (None, None);
    }

    /// Compares the own sum after an entry, where that is known, with the one that the leader had. Returns whether it
    /// is the same; `None` where that cannot be said.
    pub(crate) fn compare(&mut self, own: Option<Sum>, said: &SumAt, now: Instant) -> Option<bool> {
        let own = own?;
        self.waits = false;
        let of_leader = said.sum()?;
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

    /// Returns the members that differ, as they were judged last.
    pub(crate) fn unequal(&self) -> &Unequal {
        &self.unequal
    }

    /// Returns whether a member alone differs from all others, each of which was heard.
    pub(crate) fn is_alone(&self, member: u64) -> bool {
        let Unequal { members, is_certain } = &self.unequal;
        self.is_full && *is_certain && members.len() == 1 && members.contains(&member)
    }

    /// Returns whether this member is to be rebuilt: it alone differs and `follows` another one, and it `may`, which is
    /// asked once for each entry after which the states were compared.
    pub(crate) fn wants_state(&mut self, follows: bool, may: impl FnOnce(u64) -> bool) -> bool {
        let entry = self.alone.as_ref().filter(|_| follows).map(|alone| alone.entry);
        self.decided = match (entry, self.decided) {
            (Some(entry), Some((of, is_to))) if of == entry => Some((entry, is_to)),
            (Some(entry), _) => Some((entry, may(entry))),
            (None, _) => None,
        };
        self.wanted().is_some()
    }

    /// Takes note of that a rebuild has failed: the next one waits twice as long as it did, up to an hour.
    pub(crate) fn rest(&mut self, now: Instant) {
        let rest = self.rest.map_or(FIRST_REST, |(_, last)| (2 * last).min(LONGEST_REST));
        self.rest = Some((now + rest, rest));
    }

    /// Returns whether no rebuild is tried for now.
    pub(crate) fn rests(&self, now: Instant) -> bool {
        self.rest.is_some_and(|(until, _)| now < until)
    }

    /// Returns why this member is to be rebuilt, where it is.
    pub(crate) fn wanted(&self) -> Option<&Alone> {
        self.alone.as_ref().filter(|_| self.decided.is_some_and(|(_, is_to)| is_to))
    }

    /// Returns the number of the entry after which the sums of this member and of at least two others are known.
    #[cfg(test)]
    pub(crate) fn last_compared(&self) -> Option<u64> {
        let (_, own) = self.own?;
        let known = self.others.values().filter(|(_, said)| said.sum.entry == own.entry);
        (known.count() >= 2).then_some(own.entry)
    }

    /// Takes note of the sum of another member. Returns whether the leader is to say its own for that one, which waits
    /// to compare: not for one that has waited for so long that it applies nothing.
    pub(crate) fn hear(&mut self, from: u64, said: SaidSum, now: Instant) -> bool {
        self.others.insert(from, (now, said));
        if !said.waits() {
            self.waiting.remove(&from);
            return false;
        }
        now.duration_since(*self.waiting.entry(from).or_insert(now)) <= MOST_WAITING
    }

    /// Returns which of these members differ, of which this one has the number `own`. A member that differed once does
    /// so until it is known to be as the others.
    pub(crate) fn judge(&mut self, own: u64, members: &Membership, now: Instant, waits: Waits) -> &Unequal {
        let seats = &members.seats;
        self.unequal.members.retain(|member| seats.contains_key(member));
        self.others.retain(|member, _| seats.contains_key(member));
        self.waiting.retain(|member, _| seats.contains_key(member));
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
        self.is_full = known.len() == seats.len();
        if !are_equal {
            let now = differing(&known, members);
            let before = std::mem::replace(&mut self.unequal, now);
            let unheard: Vec<u64> = before.members.into_iter().filter(|member| !known.contains_key(member)).collect();
            self.unequal.is_certain &= unheard.is_empty() || before.is_certain;
            self.unequal.members.extend(unheard);
        } else if known.len() > 1 && self.unequal.members.iter().all(|member| known.contains_key(member)) {
            self.unequal = Unequal::default();
        }
        let votes = seats.get(&own).is_some_and(|seat| seat.votes);
        self.alone = (!are_equal && votes && self.is_alone(own)).then(|| {
            let sums = known.iter().map(|(number, said)| (*number, said.sum.sum().unwrap_or_default()));
            Alone { entry: compared.entry, sums: sums.collect() }
        });
        if are_equal && seats.iter().all(|(number, seat)| !seat.votes || known.contains_key(number)) {
            self.agreed = compared.entry;
        }
        &self.unequal
    }
}

/// Returns who differs among those whose sums are known: those whose sum is not that of a majority of voters which had
/// all agreed before, and all of them where there is no such majority.
fn differing(known: &BTreeMap<u64, SaidSum>, Membership { seats, .. }: &Membership) -> Unequal {
    let voters = seats.values().filter(|seat| seat.votes).count();
    let votes = |number: &u64| seats.get(number).is_some_and(|seat| seat.votes);
    let witnesses = |sum: &SumAt| {
        known.iter().filter(|(number, said)| said.sum == *sum && said.agreed > 0 && votes(number)).count()
    };
    let most = known.values().find(|said| 2 * witnesses(&said.sum) > voters);
    let differ = known.iter().filter(|(_, said)| most.is_none_or(|most| said.sum != most.sum));
    Unequal { members: differ.map(|(number, _)| *number).collect(), is_certain: most.is_some() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const NOBODY: &[u64] = &[];
    const WAITS: Waits = Waits { patience: Duration::from_secs(3), silence: Duration::from_secs(30) };

    fn said(entry: u64, sum: u128, agreed: u64) -> SaidSum {
        SaidSum { sum: SumAt::of(entry, Sum(sum)), agreed }
    }

    /// What the member 3 of a group of so many finds in the end, where it has agreed, has the sum 7 after the entry 10,
    /// and these have others, with the entry of their last agreement; and whether that is certain.
    fn found(members: u64, others: &[(u64, u64, u128, u64)]) -> (Vec<u64>, bool) {
        let (mut equality, now) = (Equality { agreed: 5, ..Equality::default() }, Instant::now());
        equality.compare(Some(Sum(7)), &SumAt::of(10, Sum(7)), now);
        for (number, entry, sum, agreed) in others {
            equality.hear(*number, said(*entry, *sum, *agreed), now);
        }
        let members = Membership::founded(&(1..=members).collect::<Vec<_>>());
        let Unequal { members, is_certain } = equality.judge(3, &members, now + WAITS.patience, WAITS).clone();
        (members.into_iter().collect(), is_certain)
    }

    fn certain(members: &[u64]) -> (Vec<u64>, bool) {
        (members.to_vec(), true)
    }

    fn uncertain(members: &[u64]) -> (Vec<u64>, bool) {
        (members.to_vec(), false)
    }

    #[test]
    fn a_majority_of_voters_that_had_agreed_shows_who_differs() {
        assert_eq!(found(3, &[]).0, NOBODY);
        assert_eq!(found(3, &[(1, 10, 7, 5), (2, 10, 7, 5)]).0, NOBODY);
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 10, 8, 5)]), certain(&[3]));
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 10, 7, 5)]), certain(&[1]));
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 10, 9, 5)]), uncertain(&[1, 2, 3]), "no two are the same");
        assert_eq!(found(5, &[(1, 10, 8, 5), (2, 10, 8, 5), (4, 10, 8, 5)]), certain(&[3]), "one is not heard");
        assert_eq!(found(5, &[(1, 10, 8, 5), (2, 10, 8, 5), (4, 10, 8, 5), (5, 10, 7, 5)]), certain(&[3, 5]));
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 10, 8, 5), (4, 10, 9, 5)]), certain(&[3]), "that is no member");
    }

    /// Whether the member 3 of a group of so many, which does not lead, finds that it alone differs, as in [`found`].
    fn is_alone(members: &Membership, others: &[(u64, u64, u128, u64)]) -> bool {
        let (mut equality, now) = (Equality { agreed: 5, ..Equality::default() }, Instant::now());
        equality.compare(Some(Sum(7)), &SumAt::of(10, Sum(8)), now);
        for (number, entry, sum, agreed) in others {
            equality.hear(*number, said(*entry, *sum, *agreed), now);
        }
        equality.judge(3, members, now + WAITS.patience, WAITS);
        assert!(!equality.wants_state(false, |_| true), "it leads, or follows nobody");
        assert!(!equality.wants_state(true, |_| false), "it was rebuilt lately");
        assert_eq!(equality.wanted(), None);
        let mut again = Equality { decided: None, ..equality };
        let wants = again.wants_state(true, |_| true);
        assert_eq!(again.wanted().map(|alone| alone.entry), wants.then_some(10));
        again.begin(true);
        assert!(!again.wants_state(true, |_| true), "it has begun with another state");
        wants
    }

    #[test]
    fn after_a_rebuild_that_failed_the_next_ones_wait_longer_each_time() {
        let (mut equality, mut now) = (Equality::default(), Instant::now());
        assert!(!equality.rests(now));
        for rest in [60, 120, 240, 480, 960, 1_920, 3_600, 3_600] {
            equality.rest(now);
            now += Duration::from_secs(rest);
            assert!(equality.rests(now - Duration::from_secs(1)) && !equality.rests(now), "{rest} s");
        }
    }

    #[test]
    fn a_member_is_rebuilt_where_it_alone_differs_from_all_others_and_nowhere_else() {
        let (three, five) = (Membership::founded(&[1, 2, 3]), Membership::founded(&[1, 2, 3, 4, 5]));
        assert!(is_alone(&three, &[(1, 10, 8, 5), (2, 10, 8, 5)]));
        assert!(is_alone(&five, &[(1, 10, 8, 5), (2, 10, 8, 5), (4, 10, 8, 5), (5, 10, 8, 5)]));
        assert!(!is_alone(&three, &[(1, 10, 7, 5), (2, 10, 7, 5)]), "it does not differ");
        assert!(!is_alone(&three, &[(1, 10, 7, 5), (2, 10, 8, 5)]), "another one differs");
        assert!(!is_alone(&three, &[(1, 10, 8, 5), (2, 10, 9, 5)]), "no two are the same");
        assert!(!is_alone(&three, &[(1, 10, 8, 5)]), "one was not heard");
        assert!(!is_alone(&three, &[(1, 10, 8, 5), (2, 9, 8, 5)]), "one was not compared");
        assert!(!is_alone(&three, &[(1, 10, 8, 5), (2, 10, 8, 0)]), "one has received its state");
        let one_lacks = [(1, 10, 8, 5), (2, 10, 8, 5), (4, 10, 8, 5)];
        assert!(!is_alone(&five, &one_lacks), "one of five was not heard");
        assert!(!is_alone(&five, &[(1, 10, 8, 5), (2, 10, 8, 5), (4, 10, 8, 5), (5, 10, 7, 5)]), "two differ");
        let mut learns = three;
        learns.seats.get_mut(&3).expect("a seat").votes = false;
        assert!(!is_alone(&learns, &[(1, 10, 8, 5), (2, 10, 8, 5)]), "it does not vote");
    }

    #[test]
    fn a_leader_takes_a_member_to_differ_alone_only_where_it_has_heard_all() {
        let (mut equality, now) = (Equality { agreed: 5, ..Equality::default() }, Instant::now());
        let members = Membership::founded(&[1, 2, 3, 4, 5]);
        equality.compare(Some(Sum(7)), &SumAt::of(10, Sum(7)), now);
        assert!([(1, 7), (2, 8), (4, 7)].into_iter().all(|(of, sum)| !equality.hear(of, said(10, sum, 5), now)));
        equality.judge(3, &members, now + WAITS.patience, WAITS);
        assert!(!equality.is_alone(2) && equality.unequal().members == BTreeSet::from([2]));
        equality.hear(5, said(10, 7, 5), now);
        equality.judge(3, &members, now, WAITS);
        assert!(equality.is_alone(2) && !equality.is_alone(1));
    }

    #[test]
    fn without_such_a_majority_those_that_were_heard_are_named_and_no_others() {
        assert_eq!(found(3, &[(1, 10, 8, 5)]), uncertain(&[1, 3]), "one is not heard");
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 9, 8, 5)]), uncertain(&[1, 3]), "one was not compared");
    }

    #[test]
    fn a_member_that_has_the_state_of_another_one_is_no_witness() {
        assert_eq!(found(3, &[(1, 10, 8, 5), (2, 10, 8, 0)]), uncertain(&[1, 2, 3]), "2 has received the state of 1");
        assert_eq!(found(3, &[(1, 10, 8, 0), (2, 10, 8, 0)]), uncertain(&[1, 2, 3]), "these were never compared");
        assert_eq!(found(5, &[(1, 10, 8, 5), (2, 10, 8, 5), (4, 10, 8, 5), (5, 10, 8, 0)]), certain(&[3]));
    }

    #[test]
    fn what_is_not_certain_ends_once_all_that_had_different_sums_are_equal() {
        let (mut equality, now) = (Equality { agreed: 5, ..Equality::default() }, Instant::now());
        let members = Membership::founded(&[1, 2, 3]);
        let later = now + WAITS.patience;
        let mut compared = |entry: u64, own: u128, others: &[(u64, u128)]| {
            equality.compare(Some(Sum(own)), &SumAt::of(entry, Sum(own)), now);
            for (other, sum) in others {
                equality.hear(*other, said(entry, *sum, 5), now);
            }
            let Unequal { members, is_certain } = equality.judge(3, &members, later, WAITS).clone();
            (members.into_iter().collect::<Vec<_>>(), is_certain)
        };
        assert_eq!(compared(10, 7, &[(1, 8)]), uncertain(&[1, 3]), "2 is away");
        assert_eq!(compared(20, 9, &[(2, 10)]), uncertain(&[1, 2, 3]), "1 is away, and had another one");
        assert_eq!(compared(30, 9, &[(2, 9)]), uncertain(&[1, 2, 3]));
        assert_eq!(compared(40, 9, &[(1, 9), (2, 9)]).0, NOBODY);
        assert_eq!(compared(50, 7, &[(1, 8)]), uncertain(&[1, 3]));
        assert_eq!(compared(60, 7, &[(1, 7)]).0, NOBODY, "2 is away, and had no other one");
    }

    #[test]
    fn one_that_does_not_vote_is_named_and_is_no_witness() {
        let (mut equality, now) = (Equality { agreed: 5, ..Equality::default() }, Instant::now());
        equality.compare(Some(Sum(7)), &SumAt::of(10, Sum(7)), now);
        assert!([1, 2].into_iter().all(|other| !equality.hear(other, said(10, 8, 5), now)));
        let mut members = Membership::founded(&[1, 2, 3]);
        members.seats.get_mut(&2).expect("a seat").votes = false;
        members.seats.get_mut(&1).expect("a seat").votes = false;
        let unequal = equality.judge(3, &members, now, WAITS);
        assert_eq!((&unequal.members, unequal.is_certain), (&BTreeSet::from([1, 2]), true));
    }

    #[test]
    fn nobody_is_named_before_all_were_heard_or_are_away() {
        let (mut equality, now) = (Equality { agreed: 5, ..Equality::default() }, Instant::now());
        let members = Membership::founded(&[1, 2, 3]);
        equality.compare(Some(Sum(7)), &SumAt::of(10, Sum(8)), now);
        equality.hear(1, said(10, 8, 5), now);
        assert!(equality.judge(3, &members, now, WAITS).members.is_empty());
        equality.hear(2, said(10, 7, 5), now);
        assert_eq!(equality.judge(3, &members, now, WAITS).members, BTreeSet::from([1]));
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
            named.members.iter().copied().collect::<Vec<_>>()
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
        equality.has_counted();
        assert_eq!(equality.compare(None, &said, now), None);
        assert!(equality.due_word(true).is_some_and(|said| said.waits()), "it has compared nothing");
        assert_eq!(equality.compare(Some(Sum(5)), &said, now), Some(false));
        assert_eq!(equality.compare(Some(Sum(1 << 70 | 5)), &said, now), Some(true));
    }

    #[test]
    fn a_member_that_waits_for_ever_has_the_leader_write_for_a_while() {
        let (mut equality, now) = (Equality::default(), Instant::now());
        let waits = SaidSum::default();
        assert!(equality.hear(1, waits, now) && equality.hear(1, waits, now + MOST_WAITING));
        let later = now + MOST_WAITING + Duration::from_secs(1);
        assert!(!equality.hear(1, waits, later));
        assert!(!equality.hear(1, said(10, 7, 5), later));
        assert!(equality.hear(1, waits, later), "it has begun again");
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
