//! Whom a member takes for one of its own group, by the identity that goes before each message.
//!
//! A group that was founded again in the place of another one, and one whose only member left went on alone, have the
//! names, the members and perhaps the terms of the former one. Only their identities differ.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::store::Identity;

/// The most members of other groups, each with its identity, that are remembered as reported.
const MOST_REPORTED: usize = 64;

/// A conflict that was silent for so long is reported again.
const REPORTED_AGAIN_AFTER: Duration = Duration::from_secs(3_600);

/// The identity of the group, and of those others that have another one.
#[derive(Debug)]
pub(super) struct Identities {
    own: Option<Identity>,
    /// The identities that others of the group have said last, to be taken over where this member has none.
    said: BTreeMap<u64, Identity>,
    /// Members of other groups, with their identities if these have some, and when they were heard of last.
    foreign: BTreeMap<u64, (Instant, Option<Identity>)>,
    /// Each member of another group that was reported, by its number and its group's identity, and when it was heard
    /// last. A member of this group may have the same number, so that the two are heard in turn.
    reported: BTreeMap<(u64, Option<Identity>), Instant>,
}

impl Identities {
    pub(super) fn of(own: Option<Identity>) -> Self {
        Self { own, said: BTreeMap::new(), foreign: BTreeMap::new(), reported: BTreeMap::new() }
    }

    /// Returns the identity of the group, as far as this member knows it.
    pub(super) fn own(&self) -> Option<Identity> {
        self.own
    }

    /// Takes note of the identity that goes before a message of a member. Returns whether the message is one of another
    /// group.
    pub(super) fn is_foreign(&mut self, from: u64, said: Option<Identity>) -> bool {
        let Some(said) = said else { return false };
        match self.own {
            Some(own) if own != said => {
                self.refuse(from, Some(said));
                true
            }
            _ => false,
        }
    }

    /// Takes note of the identity that a member of the group says, if it says one.
    pub(super) fn hear(&mut self, from: u64, said: Option<Identity>) {
        match said {
            Some(said) => self.said.insert(from, said),
            None => self.said.remove(&from),
        };
    }

    /// Takes note of that a member was heard that is of the group.
    pub(super) fn admit(&mut self, from: u64) {
        self.foreign.remove(&from);
    }

    /// Takes note of that a member is of another group, which has this identity, or none.
    pub(super) fn refuse(&mut self, from: u64, identity: Option<Identity>) {
        self.foreign.insert(from, (Instant::now(), identity));
        if self.is_to_report(from, identity) {
            tracing::error!(
                member = from,
                identity = identity.map(|identity| identity.to_string()),
                own = self.own.map(|own| own.to_string()),
                "two clusters speak to each other, and take nothing from each other: one of them is to be stopped. \
                 Find out first which of the two has the jobs that are needed"
            );
        }
    }

    /// Takes note of that a member of another group was heard. Returns whether the log is to say so: once, and again
    /// when another identity is heard of a member of this number, or the same one after a long silence.
    fn is_to_report(&mut self, from: u64, identity: Option<Identity>) -> bool {
        let before = self.reported.insert((from, identity), Instant::now());
        if self.reported.len() > MOST_REPORTED
            && let Some(oldest) = self.reported.iter().min_by_key(|(_, at)| **at).map(|(of, _)| *of)
        {
            self.reported.remove(&oldest);
        }
        before.is_none_or(|at| at.elapsed() > REPORTED_AGAIN_AFTER)
    }

    /// Takes over the identity of the group, where this member has none. Returns whether it is new.
    ///
    /// It is what a leader says that speaks to this directory, and for the leader itself what was agreed on. It is not
    /// what the log says to others: the log of one that went on alone has the identity of the former group. One that a
    /// member has stays. Who goes on alone gets another, in its seal, before anything else: so whatever is interrupted,
    /// the former group does not take the member for one of its own.
    pub(super) fn adopt(&mut self, identity: Option<Identity>) -> bool {
        let is_new = self.own.is_none() && identity.is_some();
        self.own = self.own.or(identity);
        is_new
    }

    /// Returns the identity that the group is to have, as the one that leads it and has heard of all its members
    /// proposes it: `fresh` where none of them has one; `None` where they do not say the same.
    pub(super) fn to_agree_on(&self, members: impl Iterator<Item = u64>, fresh: Identity) -> Option<Identity> {
        let mut said = members.filter_map(|member| self.said.get(&member).copied()).chain(self.own);
        let first = said.next().unwrap_or(fresh);
        said.all(|other| other == first).then_some(first)
    }

    /// Returns whether a member was heard of lately, and is of another group; `Some(true)` where that has an identity.
    pub(super) fn is_stranger(&self, member: u64, silence: Duration) -> Option<bool> {
        let (at, identity) = self.foreign.get(&member)?;
        (at.elapsed() <= silence).then_some(identity.is_some())
    }

    /// Returns the members of other groups that were heard of lately, also where a member of this group has the same
    /// number.
    pub(super) fn strangers(&self, silence: Duration) -> impl Iterator<Item = (u64, Option<Identity>)> {
        let lately = self.reported.iter().filter(move |(_, at)| at.elapsed() <= silence);
        lately.map(|(of, _)| *of)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn identity(number: u64) -> Option<Identity> {
        NonZeroU64::new(number).map(Identity)
    }

    #[test]
    fn one_that_says_another_identity_is_of_another_group_until_it_says_ours() {
        let mut one = Identities::of(identity(7));
        assert!(!one.is_foreign(2, None) && !one.is_foreign(2, identity(7)));
        assert!(one.is_foreign(2, identity(8)));
        assert_eq!(one.strangers(LONG).collect::<Vec<_>>(), [(2, identity(8))]);
        assert_eq!((one.is_stranger(2, LONG), one.is_stranger(3, LONG)), (Some(true), None));
        assert!(!one.is_foreign(2, identity(7)));
        one.admit(2);
        assert_eq!(one.is_stranger(2, LONG), None);
        one.refuse(3, None);
        assert_eq!(one.is_stranger(3, LONG), Some(false));
    }

    #[test]
    fn a_conflict_is_reported_once_for_each_identity_and_stays_known_while_it_lasts() {
        let mut one = Identities::of(identity(7));
        let mut reported = Vec::new();
        for said in [8, 8, 9, 8, 9] {
            reported.push(one.is_to_report(2, identity(said)));
            assert!(one.is_foreign(2, identity(said)));
            // A member of this group has the same number, and speaks as well.
            one.admit(2);
            assert!(one.strangers(LONG).any(|of| of == (2, identity(said))), "the health goes on to say it");
        }
        assert_eq!(reported, [true, false, true, false, false]);
        for number in 0..2 * MOST_REPORTED as u64 {
            one.refuse(number, identity(8));
        }
        assert_eq!(one.reported.len(), MOST_REPORTED);
    }

    #[test]
    fn an_identity_that_a_member_has_stays() {
        let mut one = Identities::of(None);
        assert!(!one.is_foreign(2, identity(8)), "it has none yet");
        assert!(!one.adopt(None) && one.adopt(identity(7)) && !one.adopt(identity(8)));
        assert_eq!(one.own(), identity(7));
    }

    #[test]
    fn a_group_that_forgot_its_identity_takes_the_one_that_a_member_still_has() {
        let fresh = Identity(NonZeroU64::MAX);
        let mut one = Identities::of(None);
        assert_eq!(one.to_agree_on([2, 3].into_iter(), fresh), Some(fresh));
        one.hear(3, identity(7));
        assert_eq!(one.to_agree_on([2, 3].into_iter(), fresh), identity(7));
        assert_eq!(one.to_agree_on([2].into_iter(), fresh), Some(fresh), "it is no member");
        one.hear(2, identity(8));
        assert_eq!(one.to_agree_on([2, 3].into_iter(), fresh), None);
        one.hear(2, None);
        assert_eq!(one.to_agree_on([2, 3].into_iter(), fresh), identity(7));
    }
}
