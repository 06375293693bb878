//! Whom a member takes for one of its own group, by the identity that goes before each message.
//!
//! A group that was founded again in the place of another one, and one whose only member left went on alone, have the
//! names, the members and perhaps the terms of the former one. Only their identities differ.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::store::Identity;

/// The identity of the group, and of those others that have another one.
#[derive(Debug)]
pub(super) struct Identities {
    own: Option<Identity>,
    /// The identities that others of the group have said, to be agreed on where this member has none.
    said: BTreeMap<u64, Identity>,
    /// Members of other groups, with their identities if these have some, and when they were heard of last.
    foreign: BTreeMap<u64, (Instant, Option<Identity>)>,
}

impl Identities {
    pub(super) fn of(own: Option<Identity>) -> Self {
        Self { own, said: BTreeMap::new(), foreign: BTreeMap::new() }
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
            _ => {
                self.foreign.remove(&from);
                self.said.insert(from, said);
                false
            }
        }
    }

    /// Takes note of that a member is of another group, which has this identity, or none.
    pub(super) fn refuse(&mut self, from: u64, identity: Option<Identity>) {
        let before = self.foreign.insert(from, (Instant::now(), identity));
        if before.is_none_or(|(_, before)| before != identity) {
            tracing::error!(
                member = from,
                identity = identity.map(|identity| identity.to_string()),
                own = self.own.map(|own| own.to_string()),
                "a member of another cluster speaks to this one: nothing is taken from it. If it is to be a member of \
                 this one, start it with an empty data directory and `--join`; else stop it"
            );
        }
    }

    /// Takes over the identity that the group has agreed on. Returns whether it is new.
    pub(super) fn agree(&mut self, agreed: Option<Identity>) -> bool {
        let is_new = agreed.is_some() && self.own != agreed;
        self.own = agreed.or(self.own);
        is_new
    }

    /// Returns the identity that the group is to have, as the one that leads it and has heard of all its members
    /// proposes it: `fresh` where none of them has one; `None` where they do not say the same.
    pub(super) fn to_agree_on(&self, members: impl Iterator<Item = u64>, fresh: Identity) -> Option<Identity> {
        let mut said = members.filter_map(|member| self.said.get(&member).copied()).chain(self.own);
        let first = said.next().unwrap_or(fresh);
        said.all(|other| other == first).then_some(first)
    }

    /// Returns whether a member was heard of lately, and is of another group.
    pub(super) fn is_stranger(&self, member: u64, silence: Duration) -> bool {
        self.foreign.get(&member).is_some_and(|(at, _)| at.elapsed() <= silence)
    }

    /// Returns the members of other groups that were heard of lately.
    pub(super) fn strangers(&self, silence: Duration) -> impl Iterator<Item = (u64, Option<Identity>)> {
        let lately = self.foreign.iter().filter(move |(_, (at, _))| at.elapsed() <= silence);
        lately.map(|(member, (_, identity))| (*member, *identity))
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
        assert!(one.is_stranger(2, LONG) && !one.is_stranger(3, LONG));
        assert!(!one.is_foreign(2, identity(7)) && !one.is_stranger(2, LONG));
    }

    #[test]
    fn what_is_agreed_on_stays_where_a_member_does_not_say_it() {
        let mut one = Identities::of(None);
        assert!(!one.is_foreign(2, identity(8)), "it has none yet");
        assert!(one.agree(identity(7)) && !one.agree(identity(7)) && !one.agree(None));
        assert_eq!(one.own(), identity(7));
        assert!(one.agree(identity(9)));
    }

    #[test]
    fn a_group_that_forgot_its_identity_takes_the_one_that_a_member_still_has() {
        let fresh = Identity(NonZeroU64::MAX);
        let mut one = Identities::of(None);
        assert_eq!(one.to_agree_on([2, 3].into_iter(), fresh), Some(fresh));
        one.is_foreign(3, identity(7));
        assert_eq!(one.to_agree_on([2, 3].into_iter(), fresh), identity(7));
        assert_eq!(one.to_agree_on([2].into_iter(), fresh), Some(fresh), "it is no member");
        one.is_foreign(2, identity(8));
        assert_eq!(one.to_agree_on([2, 3].into_iter(), fresh), None);
    }
}
