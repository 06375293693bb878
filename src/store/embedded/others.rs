//! What a member knows of the others: which data directory each has, and how far each has come.
//!
//! A member that has lost its directory has forgotten what it has promised, and must not vote as if it had not. So each
//! directory has a number, a member keeps those of the others that it has heard first, and takes nothing from another
//! directory until the group has agreed on that one.
//!
//! A founder whose directory was lost is started as the founders of the group were. So a group is founded only once all
//! its founders have said that their directories are new: until then they neither stand for election nor vote. Where
//! one of them is of a group already, or silent, none is founded: it may have the only copy of everything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use raft::eraftpb::{Message, MessageType};

use super::identity::Identities;
use super::seal::SealedGroup;
use super::versions;
use super::words::{Hello, Said, Word};
use crate::store::{Heard, Hindrance, Identity, Membership};

/// A member that said nothing for so many ticks is not counted on.
const SILENT_TICKS: u32 = 30;

/// The other members, as this one knows them.
#[derive(Debug)]
pub(super) struct Others {
    /// How long a member may be silent.
    silence: Duration,
    /// When this member began to listen to them.
    begun: Instant,
    /// The number of the directory of this member.
    directory: u64,
    /// Whether the group knows the directory, or knew it before directories had numbers.
    is_admitted: bool,
    /// Whether another one knows this member by another directory.
    pub(super) is_disowned: bool,
    /// The members that the group is founded with, where that is done with the directory as far as nobody has said
    /// otherwise.
    founders: Vec<u64>,
    /// Whether not all founders have said yet that their directories are new, see [`SealedGroup::awaits_founders`].
    awaits_founders: bool,
    identities: Identities,
    /// The numbers of the members, once this member knows them.
    seated: BTreeSet<u64>,
    /// The directories of the others, as they were heard first or agreed on.
    known: BTreeMap<u64, u64>,
    heard: BTreeMap<u64, (Instant, Hello)>,
    /// When the members were heard of last that send messages without the numbers of directories.
    plain: BTreeMap<u64, Instant>,
    /// Whether the seal lacks something of this.
    is_new: bool,
}

impl Others {
    /// Returns what the seal of a directory keeps of them.
    pub(super) fn of(group: &SealedGroup, tick: Duration) -> Self {
        Self {
            silence: tick * SILENT_TICKS,
            begun: Instant::now(),
            directory: group.directory,
            is_admitted: group.is_admitted,
            is_disowned: false,
            founders: group.founders.clone(),
            awaits_founders: group.awaits_founders,
            identities: Identities::of(group.identity),
            seated: BTreeSet::new(),
            known: group.known.clone(),
            heard: BTreeMap::new(),
            plain: BTreeMap::new(),
            is_new: false,
        }
    }

    /// Returns what the seal is to keep, where that has changed since it was asked for last.
    pub(super) fn sealed(&mut self, group: &SealedGroup) -> Option<SealedGroup> {
        let is_new = std::mem::take(&mut self.is_new) || self.identities.own() != group.identity;
        is_new.then(|| SealedGroup {
            is_admitted: self.is_admitted,
            founders: self.founders.clone(),
            known: self.known.clone(),
            identity: self.identities.own(),
            awaits_founders: self.awaits_founders,
            ..group.clone()
        })
    }

    /// Returns what to say to a member.
    pub(super) fn hello(&self, to: u64, last: u64, receives: bool) -> Hello {
        let yours = self.known.get(&to).copied().unwrap_or(0);
        Hello { knows: versions::OWN, directory: self.directory, yours, last, receives }
    }

    /// Returns the identity of the group, as far as this member knows it.
    pub(super) fn identity(&self) -> Option<Identity> {
        self.identities.own()
    }

    /// Returns the identity that goes before messages to a member, with `None` in it while the group has none; `None`
    /// for a member that is not known to read it.
    pub(super) fn identity_for(&self, to: u64) -> Option<Option<Identity>> {
        let knows = self.lately(to).is_some_and(|hello| hello.knows >= versions::IDENTITY);
        (knows || self.identities.is_stranger(to, self.silence)).then(|| self.identities.own())
    }

    /// Takes note of the identity that goes before a message of a member. Returns whether the message may be of the
    /// group of this member.
    pub(super) fn may_be_ours(&mut self, from: u64, identity: Option<Identity>) -> bool {
        !self.identities.is_foreign(from, identity)
    }

    /// Returns whether what a member says counts. Where no identity goes before it, the member has an earlier version,
    /// was not told yet, or is of a group that had none when this member's was made. Once the group has one, only its
    /// members are heard without it, and only from the directories by which they are known.
    pub(super) fn counts(&mut self, from: u64, identity: Option<Identity>, said: &Said) -> bool {
        let directory = match said {
            _ if identity.is_some() || self.identities.own().is_none() => return true,
            Said::Word(Word::Hello(_)) => return true,
            Said::Word(_) => Some(self.lately(from).map_or(0, |hello| hello.directory)),
            Said::Library(_, directories) => directories.map(|(theirs, _)| theirs),
        };
        let is_known = directory.is_none_or(|directory| self.known.get(&from) == Some(&directory));
        let counts = self.seated.contains(&from) && is_known;
        if !counts {
            self.identities.refuse(from, None);
        }
        counts
    }

    /// Takes note of what a member says. Returns whether it is to be answered, since it was not heard of lately.
    pub(super) fn hear(&mut self, from: u64, hello: Hello) -> bool {
        let is_first = self.lately(from).is_none_or(|before| before.directory != hello.directory);
        self.heard.insert(from, (Instant::now(), hello));
        if hello.yours == self.directory {
            self.is_new |= !self.is_admitted;
            (self.is_admitted, self.is_disowned) = (true, false);
        } else if hello.yours != 0 && !self.is_disowned && self.may_know(from) {
            tracing::error!(
                member = from,
                "the group knows this member by another data directory: this one was not part of it. If that one is \
                 lost, `leasehold cluster replace` lets this member begin again"
            );
            self.is_disowned = true;
            self.is_new |= !self.founders.is_empty();
            self.founders.clear();
        }
        self.know(from, hello.directory);
        is_first
    }

    /// Returns whether what another one knows may be what the group has agreed on since. One that was removed knows
    /// what was so then.
    fn may_know(&self, other: u64) -> bool {
        self.seated.is_empty() || self.seated.contains(&other)
    }

    /// Returns whether a message from a member is one of the directory that is known of it, and for this one, or one
    /// of a leader.
    pub(super) fn admits(&mut self, from: u64, directories: Option<(u64, u64)>, message: &Message) -> bool {
        match directories {
            // Only a version that knows of none sends it, and one whose directory the group knew before. Of one that is
            // known by its directory it may be from another one, unless it has an earlier version by now.
            None => {
                let is_of_old = self.begun.elapsed() > self.silence && self.lately(from).is_none();
                let is_admitted = is_of_old || !self.known.contains_key(&from);
                if is_admitted {
                    self.plain.insert(from, Instant::now());
                    self.found_with(from, message);
                }
                is_admitted
            }
            // Who leads was elected by members that know its directory, see `may_stand`. This one may have to hear from
            // it first that it was replaced. All else, as votes and what it says to have written, counts once the group
            // has agreed on the directory, as far as this member knows.
            Some((theirs, ours)) => {
                ours == self.directory && (self.know(from, theirs) || is_of_leader(message.msg_type))
            }
        }
    }

    /// Takes this directory for one that the group knows when the group is being founded by a member with an earlier
    /// version, which knows of no directories: it stands for election with an empty log. In a group that has a log
    /// already, this member may have had another directory, which has promised something.
    fn found_with(&mut self, from: u64, message: &Message) {
        let is_founding = is_candidacy(message.msg_type) && message.index == 0 && self.is_of_old(from);
        if is_founding && !self.founders.is_empty() && !self.is_admitted {
            (self.is_admitted, self.is_new) = (true, true);
        }
    }

    /// Takes note of that this member's log ends with the entry `last`. Returns whether the member takes part in
    /// elections: not before its group is founded, and what it knows of the other founders is sealed.
    pub(super) fn take_part(&mut self, own: u64, last: u64) -> bool {
        if self.awaits_founders && (last > 0 || self.awaited(own).next().is_none()) {
            (self.awaits_founders, self.is_new) = (false, true);
        }
        !self.awaits_founders && (last > 0 || !self.is_new)
    }

    /// Returns the founders that keep this member, of the number `own`, from founding the group with them.
    fn awaited(&self, own: u64) -> impl Iterator<Item = (u64, Hindrance)> {
        let others = self.founders.iter().filter(move |founder| **founder != own);
        others.filter_map(|founder| {
            let hindrance = match self.lately(*founder) {
                // One with an earlier version was heard to found the group, see `found_with`.
                None if self.is_admitted && self.is_of_old(*founder) => return None,
                None => Hindrance::Silent,
                Some(hello) if hello.last > 0 || ![0, self.directory].contains(&hello.yours) => Hindrance::Founded,
                // It was said before this directory was there, and may be late.
                Some(hello) if hello.yours == 0 => Hindrance::Silent,
                Some(_) => return None,
            };
            Some((*founder, hindrance))
        })
    }

    /// Returns from whom this member, of the number `own`, takes nothing, or for whom it waits.
    pub(super) fn hindrances(&self, own: u64) -> BTreeMap<u64, Hindrance> {
        let strangers = self.identities.strangers(self.silence);
        let strangers = strangers.map(|(member, identity)| (member, Hindrance::OtherGroup(identity)));
        self.awaited(own).filter(|_| self.awaits_founders).chain(strangers).collect()
    }

    /// Takes note of the directory of a member, unless another one is known. Returns whether it is the known one.
    fn know(&mut self, member: u64, directory: u64) -> bool {
        let known = self.known.entry(member).or_insert_with(|| {
            self.is_new = true;
            directory
        });
        *known == directory
    }

    /// Takes over the directories that the group has agreed on.
    pub(super) fn agree(&mut self, own: u64, members: &Membership) {
        if members.seats.is_empty() {
            return;
        }
        self.is_new |= self.identities.agree(members.identity);
        self.seated = members.seats.keys().copied().collect();
        let before = self.known.clone();
        self.known.retain(|number, _| members.seats.contains_key(number));
        for (number, seat) in members.seats.iter().filter(|(number, seat)| seat.directory != 0 && **number != own) {
            self.known.insert(*number, seat.directory);
        }
        self.is_new |= self.known != before;
        if let Some(seat) = members.seats.get(&own).filter(|seat| seat.directory == self.directory) {
            self.is_new |= !self.is_admitted && seat.directory != 0;
            self.is_admitted |= seat.directory != 0;
            self.is_disowned &= seat.directory == 0;
        }
    }

    /// Returns whether this member, of the number `own`, may stand for election as one of these members: its seat is
    /// for its own directory.
    ///
    /// A member whose directory was lost is sent the log from its beginning. Until it has the entry that replaces the
    /// lost directory, it finds itself among members of long ago, of which those that were lost since may be most.
    pub(super) fn may_stand(&self, own: u64, members: &Membership) -> bool {
        members.seats.get(&own).is_none_or(|seat| match seat.directory {
            0 => !self.founders.is_empty(),
            directory => directory == self.directory,
        })
    }

    /// Returns how messages of the library go to a member: with the numbers of both directories, without them, or not
    /// at all.
    pub(super) fn way(&self, to: u64, kind: MessageType) -> Way {
        match (self.lately(to), self.known.get(&to)) {
            (Some(hello), Some(known)) if hello.directory == *known || is_for_leader(kind) => {
                Way::Between((self.directory, hello.directory))
            }
            // It has another directory.
            (Some(_), _) => Way::None,
            (None, Some(known)) if !self.is_of_old(to) => Way::Between((self.directory, *known)),
            (None, _) if self.is_admitted => Way::Plain,
            (None, _) => Way::None,
        }
    }

    /// Returns the version and the identity that the group of these members is to have, where all of them know it and
    /// it has not; `own` is the member that leads, and `fresh` an identity for a group without one.
    pub(super) fn to_agree_on(
        &self,
        members: &Membership,
        own: u64,
        fresh: Identity,
    ) -> Option<(u32, Option<Identity>)> {
        let others = || members.seats.keys().copied().filter(|number| *number != own);
        let heard = others().map(|number| self.lately(number).map_or(0, |hello| hello.knows));
        let version = heard.fold(versions::OWN, u32::min);
        let is_new = version > members.version || members.identity.is_none();
        if !is_new || version < versions::IDENTITY {
            return None;
        }
        let Some(identity) = self.identities.to_agree_on(others(), fresh) else {
            tracing::error!("the members of this cluster say that it has more than one identity");
            return None;
        };
        Some((version.max(members.version), Some(identity)))
    }

    /// Returns what a member said last, if that was lately.
    pub(super) fn lately(&self, member: u64) -> Option<&Hello> {
        self.heard.get(&member).filter(|(at, _)| at.elapsed() <= self.silence).map(|(_, hello)| hello)
    }

    /// Returns whether a member has a version that says no words: it was heard of lately, and they were not.
    pub(super) fn is_of_old(&self, member: u64) -> bool {
        let is_heard = self.plain.get(&member).is_some_and(|at| at.elapsed() <= self.silence);
        is_heard && self.lately(member).is_none()
    }

    /// Returns the directory by which a member is known.
    pub(super) fn directory_of(&self, member: u64) -> Option<u64> {
        self.known.get(&member).copied()
    }

    /// Returns what is known of the members that were heard of.
    pub(super) fn heard(&self) -> BTreeMap<u64, Heard> {
        let heard = self.heard.iter();
        heard
            .map(|(number, (at, said))| (*number, Heard { ago: at.elapsed(), knows: said.knows, last: said.last }))
            .collect()
    }
}

/// Returns whether a member that stands for election sends messages of this kind.
fn is_candidacy(kind: MessageType) -> bool {
    matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote)
}

/// Returns whether only a leader sends messages of this kind.
fn is_of_leader(kind: MessageType) -> bool {
    matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat)
}

/// Returns whether messages of this kind answer those that only a leader sends.
fn is_for_leader(kind: MessageType) -> bool {
    matches!(kind, MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse)
}

/// How messages of the library go to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    Between((u64, u64)),
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOTE: MessageType = MessageType::MsgRequestVote;

    fn message(msg_type: MessageType, index: u64) -> Message {
        Message { msg_type, index, ..Message::default() }
    }

    fn vote() -> Message {
        message(VOTE, 3)
    }

    fn others(directory: u64, is_admitted: bool) -> Others {
        let group =
            SealedGroup { cluster: "test".to_owned(), member: 1, directory, is_admitted, ..SealedGroup::default() };
        Others::of(&group, Duration::from_secs(1))
    }

    fn hello(directory: u64, yours: u64) -> Hello {
        Hello { knows: versions::OWN, directory, yours, last: 0, receives: false }
    }

    #[test]
    fn members_that_were_never_heard_of_are_taken_by_the_first_directory() {
        let mut one = others(10, false);
        assert_eq!(one.way(2, VOTE), Way::None, "a new directory speaks to nobody who may know another one");
        assert!(one.hear(2, hello(20, 0)) && !one.hear(2, hello(20, 0)));
        assert_eq!(one.way(2, VOTE), Way::Between((10, 20)));
        assert!(
            one.admits(2, Some((20, 10)), &vote())
                && !one.admits(2, Some((21, 10)), &vote())
                && !one.admits(2, Some((20, 11)), &vote())
        );
        let group = one.sealed(&SealedGroup::default()).expect("it knows more");
        assert_eq!(group.known, BTreeMap::from([(2, 20)]));
        assert!(!group.is_admitted && one.sealed(&group).is_none());
    }

    #[test]
    fn one_with_another_directory_is_taken_once_the_group_has_agreed_on_it() {
        let mut one = others(10, true);
        one.hear(2, hello(20, 10));
        assert!(one.hear(2, hello(21, 0)), "it is answered, so that it learns that it is not known");
        assert_eq!((one.way(2, VOTE), one.admits(2, Some((21, 10)), &vote())), (Way::None, false));
        let of_leader = [MessageType::MsgAppend, MessageType::MsgHeartbeat];
        assert!(of_leader.iter().all(|kind| one.admits(2, Some((21, 10)), &message(*kind, 3))), "it may lead by now");
        assert_eq!(one.way(2, MessageType::MsgAppendResponse), Way::Between((10, 21)));
        let mut two = others(21, false);
        two.hear(1, one.hello(2, 0, false));
        assert!(two.is_disowned && !two.is_admitted);
        let mut agreed = Membership::founded(&[1, 2]);
        agreed.seats.get_mut(&2).expect("a member").directory = 21;
        one.agree(1, &agreed);
        assert_eq!((one.way(2, VOTE), one.admits(2, Some((21, 10)), &vote())), (Way::Between((10, 21)), true));
        two.hear(1, one.hello(2, 0, false));
        assert!(!two.is_disowned && two.is_admitted);
    }

    #[test]
    fn one_that_was_removed_disowns_nobody() {
        let mut one = others(10, true);
        let mut agreed = Membership::founded(&[1, 2]);
        agreed.seats.get_mut(&1).expect("a member").directory = 10;
        one.agree(1, &agreed);
        one.hear(3, hello(30, 9));
        assert!(!one.is_disowned);
        one.hear(2, hello(20, 9));
        assert!(one.is_disowned);
    }

    #[test]
    fn one_that_is_known_by_its_directory_is_not_heard_without_it() {
        let mut one = others(10, true);
        assert!(one.admits(2, None, &vote()), "it may have a version that knows of none");
        one.hear(2, hello(20, 10));
        assert!(!one.admits(2, None, &vote()) && one.admits(2, Some((20, 10)), &vote()));
        let group = one.sealed(&SealedGroup { directory: 10, ..SealedGroup::default() }).expect("it knows more");
        let mut again = Others::of(&group, Duration::from_secs(1));
        assert_eq!(again.way(2, VOTE), Way::Between((10, 20)), "it has not heard of it again");
        assert!(!again.admits(2, None, &vote()) && again.admits(2, Some((20, 10)), &vote()));
        let mut silent = Others::of(&group, Duration::ZERO);
        assert!(silent.admits(2, None, &vote()), "it may have gone back to a version that knows of none");
    }

    #[test]
    fn a_founder_speaks_to_members_with_an_earlier_version_that_found_the_group_with_it() {
        let founder = || {
            let group = SealedGroup { directory: 10, founders: vec![1, 2, 3], ..SealedGroup::default() };
            Others::of(&group, Duration::from_secs(1))
        };
        let mut one = founder();
        assert!(one.admits(2, None, &vote()) && one.admits(2, None, &message(MessageType::MsgAppend, 0)));
        assert_eq!(one.way(2, VOTE), Way::None, "the group has a log, and may have known another directory");
        assert!(one.admits(2, None, &message(MessageType::MsgRequestPreVote, 0)));
        assert_eq!((one.way(2, VOTE), one.way(3, VOTE)), (Way::Plain, Way::Plain));
        assert!(one.sealed(&SealedGroup::default()).expect("it is admitted").is_admitted);
        let mut again = founder();
        again.hear(3, hello(30, 9));
        assert!(again.is_disowned && again.admits(2, None, &message(VOTE, 0)));
        assert_eq!(again.way(2, VOTE), Way::None, "another member knows it by another directory");
        let mut known = founder();
        known.hear(2, hello(20, 0));
        assert!(!known.admits(2, None, &message(VOTE, 0)) && !known.is_admitted, "it has no earlier version");
        let mut joining = others(10, false);
        assert!(joining.admits(2, None, &message(VOTE, 0)));
        assert_eq!(joining.way(2, VOTE), Way::None, "it founds nothing");
    }

    #[test]
    fn one_stands_for_election_only_where_its_seat_is_for_its_directory() {
        let group = SealedGroup { directory: 10, founders: vec![1, 2, 3], ..SealedGroup::default() };
        let (founded, mut members) = (Membership::founded(&[1, 2, 3]), Membership::founded(&[1, 2]));
        let mut founder = Others::of(&group, Duration::from_secs(1));
        assert!(founder.may_stand(1, &founded) && !others(10, true).may_stand(1, &founded));
        for (directory, stands) in [(9, false), (10, true)] {
            members.seats.get_mut(&1).expect("a member").directory = directory;
            assert_eq!(founder.may_stand(1, &members), stands);
            assert_eq!(others(10, false).may_stand(1, &members), stands);
        }
        founder.hear(2, hello(20, 9));
        assert!(!founder.may_stand(1, &founded), "it has lost the directory that the group was founded with");
        let sealed = founder.sealed(&group).expect("it knows more");
        assert_eq!(sealed.founders, [0; 0]);
        founder.hear(2, hello(20, 10));
        assert!(!founder.may_stand(1, &founded) && founder.may_stand(1, &members));
    }

    #[test]
    fn one_that_left_is_forgotten() {
        let mut one = others(10, true);
        one.hear(2, hello(20, 10));
        one.agree(1, &Membership::founded(&[1, 3]));
        assert_eq!(one.directory_of(2), None);
        one.hear(2, hello(22, 0));
        assert_eq!(one.directory_of(2), Some(22));
        one.agree(1, &Membership::default());
        assert_eq!(one.directory_of(2), Some(22), "one that joins knows no members yet");
    }
}
