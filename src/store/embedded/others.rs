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
use super::kept::Last;
use super::opened::{Acknowledged, OpeningsFile};
use super::openings::Openings;
use super::seal::SealedGroup;
use super::versions::{self, Settling};
use super::words::{Directories, Hello, Opened, Said, WentBack, Word};
use crate::store::{Hindrance, Identity, Membership};

mod declined;
mod founding;
mod way;

use way::{is_for_leader, is_of_leader};

pub(super) use way::Way;

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
    pub(super) directory: u64,
    /// Whether the group knows the directory, or knew it before directories had numbers.
    is_admitted: bool,
    /// The members that know this one by another directory, as each said last.
    disowned_by: BTreeSet<u64>,
    /// The members that the group is founded with, where that is done with the directory as far as nobody has said
    /// otherwise.
    founders: Vec<u64>,
    /// Whether not all founders have said yet that their directories are new, see [`SealedGroup::awaits_founders`].
    awaits_founders: bool,
    identities: Identities,
    pub(super) openings: Openings,
    /// The numbers of the members, once this member knows them, and the version of the group.
    seated: BTreeSet<u64>,
    version: u32,
    settling: Settling,
    /// The directories of the others, as they were heard first or agreed on. Also of those that are no members any
    /// more: after a restart, the members may be those of earlier for a while.
    known: BTreeMap<u64, u64>,
    heard: BTreeMap<u64, (Instant, Hello)>,
    /// When the members were heard of last that send messages without the numbers of directories.
    plain: BTreeMap<u64, Instant>,
    /// When members said last that they do not stand for election.
    declined: BTreeMap<u64, Instant>,
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
            disowned_by: BTreeSet::new(),
            founders: group.founders.clone(),
            awaits_founders: group.awaits_founders,
            identities: Identities::of(group.identity),
            openings: Openings::default(),
            seated: BTreeSet::new(),
            version: 0,
            settling: Settling::default(),
            known: group.known.clone(),
            heard: BTreeMap::new(),
            plain: BTreeMap::new(),
            declined: BTreeMap::new(),
            is_new: false,
        }
    }

    /// Takes over how the directory was opened, as in [`Openings::of`].
    pub(super) fn opened_with(mut self, file: OpeningsFile, last: Last, term: u64) -> Self {
        self.openings = Openings::of(self.directory, file, last, term);
        self
    }

    /// Lets a version from which the group cannot go back be agreed on once all have known it for so long.
    pub(super) fn settles_in(mut self, needed: Duration) -> Self {
        self.settling = Settling::of(needed);
        self
    }

    /// Returns whether the seal lacks something of what is known.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns what the seal is to keep, where that has changed since it was asked for last.
    pub(super) fn sealed(&mut self, group: &SealedGroup) -> Option<SealedGroup> {
        let is_new = std::mem::take(&mut self.is_new);
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
        let known = self.known.get(&to).filter(|_| self.may_know(to));
        let yours = known.copied().unwrap_or(0);
        Hello { knows: versions::OWN, directory: self.directory, yours, last, receives }
    }

    /// Returns the identity of the group, as far as this member knows it.
    pub(super) fn identity(&self) -> Option<Identity> {
        self.identities.own()
    }

    /// Returns the identity that goes before messages to a member, with `None` in it while the group has none; `None`
    /// for a member that is not known to read it. One of the group that was not heard yet may not be able to say so: it
    /// may have been down when this one was added, and learns of it, and where it is, from what this one sends.
    pub(super) fn identity_for(&self, to: u64) -> Option<Option<Identity>> {
        let is_known =
            self.reads(to, versions::IDENTITY) || self.identities.is_stranger(to, self.silence) == Some(true);
        is_known.then(|| self.identities.own())
    }

    /// Returns whether a member understands what came with this version.
    pub(super) fn reads(&self, member: u64, version: u32) -> bool {
        match self.lately(member) {
            Some(hello) => hello.knows >= version,
            None => self.version >= version && self.seated.contains(&member),
        }
    }

    /// Takes note of the identity that goes before a message of a member. Returns whether the message may be of the
    /// group of this member.
    pub(super) fn may_be_ours(&mut self, from: u64, identity: Option<Identity>) -> bool {
        !self.identities.is_foreign(from, identity)
    }

    /// Takes over the identity of the group, as its leader says it to this directory, or has agreed on it itself.
    pub(super) fn adopt(&mut self, identity: Option<Identity>) {
        self.is_new |= self.identities.adopt(identity);
    }

    /// Returns whether what a member says counts. Where no identity goes before it, the member has an earlier version,
    /// was not told yet, or is of a group that had none when this member's was made. Once the group has one, only its
    /// members are heard without it, and only from the directories by which they are known.
    pub(super) fn counts(&mut self, from: u64, identity: Option<Identity>, said: &Said) -> bool {
        let directory = match said {
            _ if identity.is_some() || self.identities.own().is_none() => return true,
            // One that joins says both before it knows its group.
            Said::Word(Word::Hello(_) | Word::Opened(_)) => return true,
            Said::Word(_) => self.lately(from).map(|hello| hello.directory),
            // Without the numbers of directories only a version sends it that knows no identities of groups.
            Said::Library(_, directories) => directories.map(|directories| directories.from),
        };
        if !self.seated.contains(&from) {
            self.identities.refuse(from, None);
            return false;
        }
        directory.is_some() && self.known.get(&from) == directory.as_ref()
    }

    /// Takes note of what a member says. Returns whether it is to be answered, since it was not heard of lately.
    pub(super) fn hear(&mut self, from: u64, identity: Option<Identity>, hello: Hello) -> bool {
        let is_first = self.lately(from).is_none_or(|before| before.directory != hello.directory);
        self.heard.insert(from, (Instant::now(), hello));
        if hello.yours == self.directory {
            self.is_new |= !self.is_admitted;
            self.is_admitted = true;
            self.disowned_by.clear();
        } else if hello.yours == 0 {
            // It may have learned only now that the group has forgotten the other directory.
            self.disowned_by.remove(&from);
        } else if self.may_know(from) {
            self.disown(from);
        }
        let is_known = self.know(from, hello.directory);
        if is_known && hello.knows < versions::OPENINGS {
            self.openings.forget(from);
        }
        self.identities.hear(from, identity.filter(|_| is_known));
        if identity.is_some() {
            self.identities.admit(from);
        }
        is_first
    }

    /// Returns how the directory of this member was opened, where a member understands that.
    pub(super) fn opened(&self, to: u64) -> Option<Opened> {
        self.openings.own().filter(|_| self.reads(to, versions::OPENINGS))
    }

    /// Takes note of how the directory of a member was opened; `acknowledged` is as in [`Openings::hear`].
    ///
    /// # Errors
    /// What to say to a member whose directory went back in time.
    pub(super) fn hear_opened(
        &mut self,
        from: u64,
        opened: &Opened,
        acknowledged: Option<(Last, u64)>,
    ) -> Result<(), WentBack> {
        if !self.know(from, opened.directory) {
            return Ok(());
        }
        let heard = self.openings.hear(from, opened, acknowledged);
        if !self.seated.is_empty() && !self.seated.contains(&from) {
            self.openings.keep_former(&self.seated);
        }
        heard
    }

    /// Takes note of that a directory went back in time, as the leader of this member says.
    pub(super) fn hear_went_back(&mut self, from: u64, said: &WentBack) {
        if self.openings.is_own(said) {
            self.go_back(from);
        }
    }

    /// Takes note of that this directory went back in time, as its leader knows. From then on it takes part in nothing.
    fn go_back(&mut self, leader: u64) {
        if self.openings.go_back() {
            tracing::error!(
                leader,
                "the data directory of this member went back in time: others count on what it has acknowledged and \
                 does not have. It takes part in nothing from now on; see `leasehold cluster --help`"
            );
        }
    }

    /// Takes note of what the log says that the members have acknowledged.
    pub(super) fn note(&mut self, noted: &BTreeMap<u64, Acknowledged>) {
        // This member does not know itself by its number.
        for (number, said) in noted.iter().filter(|(number, said)| self.known.get(number) == Some(&said.directory)) {
            self.openings.note(*number, said);
        }
    }

    /// Returns what the log is to say that the members have acknowledged, each of them the entry that `acknowledged`
    /// returns, where all of them understand that; this one has the number `own`.
    pub(super) fn to_note(&self, own: u64, acknowledged: impl Fn(u64) -> Option<Last>) -> BTreeMap<u64, Acknowledged> {
        match self.version < versions::OPENINGS {
            true => BTreeMap::new(),
            false => self.openings.to_note(own, &self.seated, acknowledged),
        }
    }

    /// Returns whether what this one knows about another, or that one about this, may be what the group has agreed on
    /// since. Of one that was removed it is what was so then.
    fn may_know(&self, other: u64) -> bool {
        self.seated.is_empty() || self.seated.contains(&other)
    }

    /// Returns whether a message from a member is one of the directory that is known of it, and for this one, or one
    /// of a leader.
    fn admits(&mut self, from: u64, directories: Option<Directories>, message: &Message) -> bool {
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
            // has agreed on the directory, as far as this member knows, and it did not go back in time.
            Some(Directories { from: theirs, to, opening }) => {
                let is_admitted = self.know(from, theirs) && self.openings.admits(from, opening);
                to == self.directory && (is_admitted || is_of_leader(message.msg_type))
            }
        }
    }

    /// Returns whether a message is admitted, and takes over the identity that goes before it if its leader sends it.
    /// `last` is the number of the last entry of the log.
    pub(super) fn takes(
        &mut self,
        from: u64,
        identity: Option<Identity>,
        directories: Option<Directories>,
        (message, last): (&Message, u64),
    ) -> bool {
        let is_admitted = self.admits(from, directories, message);
        let is_heartbeat = directories.is_some() && message.msg_type == MessageType::MsgHeartbeat;
        if is_admitted && is_heartbeat && message.commit > last {
            // A leader says no more to be committed than this directory has acknowledged.
            self.go_back(from);
        }
        if self.openings.went_back() {
            return false;
        }
        if is_admitted && is_of_leader(message.msg_type) {
            self.adopt(identity);
        }
        is_admitted
    }

    /// Returns from whom this member, of the number `own`, takes nothing, or for whom it waits.
    pub(super) fn hindrances(&self, own: u64) -> BTreeMap<u64, Hindrance> {
        let knows_another = |hello: &Hello| ![0, self.directory].contains(&hello.yours);
        let founded = self.that_are_there().filter(|_| self.is_disowned() || self.awaits_founders);
        let founded = founded.filter(|other| self.lately(*other).is_some_and(knows_another));
        let silent = self.founders.iter().filter(|founder| self.awaits_founders && **founder != own);
        let silent = silent.filter(|founder| self.lately(**founder).is_none() && !self.is_of_old(**founder));
        let strangers = self.identities.strangers(self.silence);
        let strangers = strangers.map(|(member, identity)| (member, Hindrance::OtherGroup(identity)));
        let founded = founded.map(|member| (member, Hindrance::Founded));
        let back = self.openings.that_went_back(self.silence).map(|member| (member, Hindrance::WentBack));
        silent.map(|member| (*member, Hindrance::Silent)).chain(founded).chain(back).chain(strangers).collect()
    }

    /// Returns whether a member was heard of lately, and is of another group.
    pub(super) fn is_stranger(&self, member: u64) -> bool {
        self.identities.is_stranger(member, self.silence).is_some()
    }

    /// Returns whether the directory of a member went back in time, as it was heard lately.
    pub(super) fn has_gone_back(&self, member: u64) -> bool {
        self.openings.that_went_back(self.silence).any(|back| back == member)
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
        let seated: BTreeSet<u64> = members.seats.keys().copied().collect();
        // A member that was removed and is added again may have another directory since it was heard.
        self.heard.retain(|number, _| seated.contains(number) || !self.seated.contains(number));
        self.openings.keep_former(&seated);
        self.seated = seated;
        self.version = members.version;
        let before = self.known.clone();
        for (number, seat) in members.seats.iter().filter(|(number, seat)| seat.directory != 0 && **number != own) {
            self.known.insert(*number, seat.directory);
        }
        self.is_new |= self.known != before;
        if let Some(seat) = members.seats.get(&own).filter(|seat| seat.directory == self.directory) {
            self.is_new |= !self.is_admitted && seat.directory != 0;
            self.is_admitted |= seat.directory != 0;
            if seat.directory != 0 {
                self.disowned_by.clear();
            }
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
        let opening = self.openings.number().filter(|_| self.reads(to, versions::OPENINGS));
        let between = |directory| Way::Between(Directories { from: self.directory, to: directory, opening });
        match (self.lately(to), self.known.get(&to)) {
            (Some(hello), Some(known)) if hello.directory == *known || is_for_leader(kind) => between(hello.directory),
            // It has another directory.
            (Some(_), _) => Way::None,
            (None, Some(known)) if !self.is_of_old(to) => between(*known),
            (None, _) if self.is_admitted => Way::Plain,
            (None, _) => Way::None,
        }
    }

    /// Returns the version and the identity that the group of these members is to have, where all of them know it and
    /// it has not; `own` is the member that leads in `term`, and `fresh` an identity for a group without one.
    pub(super) fn may_agree_on(
        &mut self,
        members: &Membership,
        (own, term): (u64, u64),
        fresh: Identity,
    ) -> Option<(u32, Option<Identity>)> {
        let others = || members.seats.keys().copied().filter(|number| *number != own);
        let heard = others().map(|number| self.lately(number).map_or(0, |hello| hello.knows));
        let version = self.settling.agreeable(heard.fold(versions::OWN, u32::min), (members.version, term));
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

    /// Returns the members that keep copies of what the log does not have, and were heard of lately.
    pub(super) fn that_keep_copies(&self) -> BTreeSet<u64> {
        let seated = self.seated.iter().copied();
        seated.filter(|other| self.lately(*other).is_some_and(|hello| hello.knows >= versions::COPIES)).collect()
    }

    /// Returns the other members of which a directory is known, and its number.
    pub(super) fn seated_directories(&self) -> impl Iterator<Item = (u64, u64)> {
        self.known
            .iter()
            .map(|(member, directory)| (*member, *directory))
            .filter(|(member, _)| self.seated.contains(member))
    }

    /// Returns the members that were heard of lately.
    pub(super) fn that_are_there(&self) -> impl Iterator<Item = u64> {
        self.heard.keys().copied().filter(|other| self.lately(*other).is_some())
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
}

#[cfg(test)]
mod tests;
