//! The members of a group, and where each is reached.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::store::{Heard, Member, Membership, PROVED_ANSWERS, SIGNED_HEADS};

/// A cluster: a group of processes that are one store, as its members know it from their settings.
#[derive(Clone, Debug)]
pub struct ClusterMap {
    /// The name of the cluster, of at most [`super::MAX_CLUSTER_BYTES`].
    pub cluster: Arc<str>,
    /// The number of this member.
    pub member: u64,
    /// The URL of each member that the settings name by its number, this one's too, without a slash at the end.
    pub addresses: BTreeMap<u64, Arc<str>>,
    /// Where members were reached last.
    pub reached: Reached,
}

/// Where members were reached last, and when. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Reached(Arc<Mutex<BTreeMap<u64, At>>>);

/// Where a member was reached, and when.
#[derive(Clone, Debug)]
struct At {
    address: Arc<str>,
    since: Instant,
    /// Whether it has proved there that it has the secret.
    is_proved: bool,
}

/// For how long a member that was reached somewhere is taken to be there. Messages go to it at least once a second.
const STAYS: Duration = Duration::from_secs(10);

impl Reached {
    /// Takes note of where a member was reached, and whether it has proved there that it has the secret.
    pub(super) fn is_at(&self, member: u64, address: &Arc<str>, is_proved: bool) {
        self.0.lock().insert(member, At { address: Arc::clone(address), since: Instant::now(), is_proved });
    }

    /// Takes note of that something else than a member answers at this address.
    pub(super) fn is_not_at(&self, member: u64, address: &str) {
        self.0.lock().retain(|other, at| *other != member || *at.address != *address);
    }

    fn address(&self, member: u64) -> Option<Arc<str>> {
        self.0.lock().get(&member).map(|at| Arc::clone(&at.address))
    }

    /// Returns where a member has proved of late that it has the secret.
    fn proved_lately(&self, member: u64) -> Option<Arc<str>> {
        let reached = self.0.lock();
        let at = reached.get(&member).filter(|at| at.is_proved && at.since.elapsed() <= STAYS);
        at.map(|at| Arc::clone(&at.address))
    }
}

/// A member that was not heard of for so long may have been started again, with another version of the program.
const SILENT: Duration = Duration::from_secs(3);

/// Returns whether a member may have a version of the program that reads no signed heads.
#[must_use]
pub fn may_be_earlier(member: &dyn Member, other: u64) -> bool {
    version_of(member, other) < SIGNED_HEADS
}

/// Returns whether a member proves with its answers to messages that it has the secret.
pub(super) fn proves_answers(member: &dyn Member, other: u64) -> bool {
    version_of(member, other) >= PROVED_ANSWERS
}

/// Returns the version that a member has said to know, or else the one that all members have agreed on.
fn version_of(member: &dyn Member, other: u64) -> u32 {
    let agreed = member.members().borrow().version;
    member.heard().get(&other).map_or(agreed, |heard| heard.knows)
}

/// The longest body of a call by which a member says who it is, in bytes, with what else it says to one that it has not
/// heard.
const GREETING_BYTES: usize = 64 * 1024;

/// Returns how long a body with messages may be that is signed as earlier versions do, which know no heads: of any
/// length while the members have not agreed on more, or while one of them says that it knows less, since it has gone
/// back. One that is silent may have gone back, and can say so. Otherwise 0: no such call counts.
#[must_use]
pub fn earlier_bytes(member: &dyn Member) -> usize {
    earlier_bytes_of(member.number(), &member.members().borrow(), &member.heard())
}

fn earlier_bytes_of(own: u64, members: &Membership, heard: &BTreeMap<u64, Heard>) -> usize {
    if members.version < SIGNED_HEADS {
        return usize::MAX;
    }
    let others = members.seats.keys().filter(|other| **other != own);
    let bytes = others.map(|other| match heard.get(other).filter(|heard| heard.ago < SILENT) {
        Some(Heard { knows, .. }) if *knows >= SIGNED_HEADS => 0,
        Some(_) => usize::MAX,
        None => GREETING_BYTES,
    });
    bytes.max().unwrap_or(0)
}

/// Returns whether the members have not agreed yet that all of them read signed heads.
#[must_use]
pub fn is_agreed_on_less(member: &dyn Member) -> bool {
    member.members().borrow().version < SIGNED_HEADS
}

impl ClusterMap {
    /// Returns the name of a member in signed heads.
    #[must_use]
    pub fn name(&self, member: u64) -> String {
        format!("{}/{member}", self.cluster)
    }

    /// Returns where a member is reached: where it was last, or else as the members have agreed on, or as the settings
    /// say.
    #[must_use]
    pub fn address(&self, member: u64, members: &Membership) -> Option<Arc<str>> {
        let reached = self.reached.address(member);
        let reached = reached.filter(|reached| self.addresses_of(member, members).any(|address| *address == **reached));
        reached.or_else(|| self.addresses_of(member, members).next().map(Arc::from))
    }

    /// Returns where another member is, for what nobody else may read, as the token of a client: where it has proved of
    /// late that it has the secret; `None` where it has not yet. What the members have agreed on, as far as this one
    /// knows, and what the settings say may be addresses that others have by now. A member that says to have a version
    /// that proves nothing is taken to be at its [`address`](Self::address), as is one that was not heard of in a group
    /// that may have versions which do not say so.
    #[must_use]
    pub fn proved_address(&self, other: u64, member: &dyn Member) -> Option<Arc<str>> {
        let members = Arc::clone(&member.members().borrow());
        let may_be_earlier = match member.heard().get(&other) {
            Some(heard) => heard.knows < PROVED_ANSWERS,
            None => members.version < SIGNED_HEADS,
        };
        if may_be_earlier {
            return self.address(other, &members);
        }
        let reached = self.reached.proved_lately(other);
        reached.filter(|reached| self.addresses_of(other, &members).any(|address| *address == **reached))
    }

    /// Returns where a member may be reached, the most likely first: all members may have got other addresses than they
    /// have agreed on, and cannot agree on these before they reach each other.
    pub(super) fn addresses_of<'a>(&'a self, member: u64, members: &'a Membership) -> impl Iterator<Item = &'a str> {
        let agreed = members.seats.get(&member).and_then(|seat| seat.address.as_deref());
        let set = self.addresses.get(&member).map(AsRef::as_ref).filter(|set| agreed != Some(*set));
        agreed.into_iter().chain(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_members_have_agreed_on_goes_before_the_settings() {
        let addresses = BTreeMap::from([(1, Arc::from("http://a")), (2, Arc::from("http://b"))]);
        let map = ClusterMap { cluster: Arc::from("test"), member: 2, addresses, reached: Reached::default() };
        let mut members = Membership::founded(&[1, 2]);
        assert!(map.addresses_of(1, &members).eq(["http://a"]));
        for (agreed, all) in [("http://a", &["http://a"][..]), ("http://c", &["http://c", "http://a"])] {
            members.seats.get_mut(&1).expect("a member").address = Some(agreed.to_owned());
            assert!(map.addresses_of(1, &members).eq(all.iter().copied()), "{agreed}");
            assert_eq!(map.address(1, &members).as_deref(), Some(agreed));
        }
        for (reached, address) in [("http://a", "http://a"), ("http://elsewhere", "http://c")] {
            map.reached.is_at(1, &Arc::from(reached), false);
            assert_eq!(map.address(1, &members).as_deref(), Some(address));
        }
        assert_eq!(map.address(3, &members), None);
    }

    fn heard_of(ago: Duration, knows: u32) -> Heard {
        Heard { ago, knows, last: 0, declines: false }
    }

    #[test]
    fn calls_of_earlier_versions_count_while_a_member_may_have_one() {
        let agreed = |version: u32| Membership { version, ..Membership::founded(&[1, 2, 3]) };
        let (now, before) = (Duration::ZERO, SILENT);
        let heard = |of: &[(u64, Duration, u32)]| -> BTreeMap<u64, Heard> {
            of.iter().map(|(number, ago, knows)| (*number, heard_of(*ago, *knows))).collect()
        };
        let all = heard(&[(2, now, SIGNED_HEADS), (3, now, SIGNED_HEADS + 1)]);
        assert_eq!(earlier_bytes_of(1, &agreed(SIGNED_HEADS - 1), &all), usize::MAX);
        assert_eq!(earlier_bytes_of(1, &agreed(SIGNED_HEADS), &all), 0);
        let stranger = heard(&[(2, now, SIGNED_HEADS), (3, now, SIGNED_HEADS), (9, now, SIGNED_HEADS - 1)]);
        assert_eq!(earlier_bytes_of(1, &agreed(SIGNED_HEADS), &stranger), 0, "it is no member");
        for silent in [heard(&[(2, now, SIGNED_HEADS)]), heard(&[(2, now, SIGNED_HEADS), (3, before, SIGNED_HEADS)])] {
            assert_eq!(earlier_bytes_of(1, &agreed(SIGNED_HEADS), &silent), GREETING_BYTES);
        }
        let gone_back = heard(&[(2, before, SIGNED_HEADS), (3, now, SIGNED_HEADS - 1)]);
        assert_eq!(earlier_bytes_of(1, &agreed(SIGNED_HEADS), &gone_back), usize::MAX);
    }
}
