//! The places for connections. Once they are taken, further connections are served from a small reserve, for operators
//! and probes only; beyond the reserve they are refused. No single address takes them all, and those on which nobody
//! has shown a token yet take no more than half of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tracing::{info, warn};

use super::access::Guard;
use super::budget::{Holder, Share};
use super::remote::Remote;

/// What a client is told for whose connection or call there is no place.
pub(super) const NO_PLACE: &str = "the server has as many connections as it takes; try again soon";

/// The share of the reserve that one address can take: one part in so many.
const RESERVE_PARTS: usize = 2;

/// What a connection can be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The connection may make all calls.
    Regular,
    /// The connection may make one call of an operator or a probe.
    Reserved,
}

/// The number of places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// The most regular connections.
    pub(super) regular: usize,
    /// The most regular connections from one address.
    pub(super) per_address: usize,
    /// The most connections beyond the regular ones.
    pub(super) reserve: usize,
}

/// The places of a server.
#[derive(Debug)]
pub(super) struct Places {
    capacity: Capacity,
    guard: Arc<Guard>,
    taken: Mutex<Taken>,
    /// Whether the last connection did not get a regular place.
    is_crowded: AtomicBool,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// The places beyond all others that strangers have got who may have no more of the regular ones: at most as many
    /// as half of the reserve.
    of_strangers: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// One place, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    address: IpAddr,
    pub(super) standing: Standing,
    /// The other end of the connection.
    pub(super) remote: Arc<Remote>,
    /// Whether it is one of those that strangers have of the reserve.
    is_of_strangers: bool,
}

impl Places {
    pub(super) fn new(capacity: Capacity, guard: Arc<Guard>) -> Arc<Self> {
        Arc::new(Self { capacity, guard, taken: Mutex::default(), is_crowded: AtomicBool::new(false) })
    }

    /// Takes a place for a connection from `address`; `None` when there is none.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = address.to_canonical();
        let (standing, share, is_of_strangers) = {
            let mut taken = self.taken.lock();
            let of_address = taken.by_address.get(&address).copied().unwrap_or(0);
            let mut standing = self.capacity.standing(taken.all - taken.of_strangers, of_address);
            let share = if standing == Some(Standing::Regular) { self.strangers_share(address) } else { Ok(None) };
            let is_of_strangers = share.is_err();
            if is_of_strangers {
                let most = self.capacity.reserve.div_ceil(RESERVE_PARTS);
                standing = (taken.of_strangers < most).then_some(Standing::Reserved);
            }
            if standing.is_some() {
                taken.all += 1;
                taken.of_strangers += usize::from(is_of_strangers);
                taken.by_address.insert(address, of_address + 1);
            }
            (standing, share.ok().flatten(), is_of_strangers)
        };
        self.note(standing == Some(Standing::Regular));
        let remote = Arc::new(Remote::new(address, share));
        standing.map(|standing| Place { places: Arc::clone(self), address, standing, remote, is_of_strangers })
    }

    /// Takes a share of the connections of strangers, which this one is of until it shows a token; `None` where it need
    /// not, or a proxy has it that brings the calls of many.
    fn strangers_share(&self, address: IpAddr) -> Result<Option<Share>, ()> {
        let budget = self.guard.budgets.strange_connections.as_ref();
        let Some(budget) = budget.filter(|_| !self.guard.proxies.trusts(address)) else { return Ok(None) };
        budget.take(&Holder::at(address), 1).map(Some).map_err(|_| ())
    }

    /// Logs once that connections are refused, and once that they are not any more.
    fn note(&self, is_regular: bool) {
        if is_regular != self.is_crowded.swap(!is_regular, Ordering::Relaxed) {
            return;
        }
        let Capacity { regular, per_address, reserve } = self.capacity;
        if is_regular {
            info!("connections are accepted again");
        } else {
            warn!(
                limit = regular,
                limit_of_an_address = per_address,
                reserve,
                "too many connections: further ones are refused, but for operators and probes"
            );
        }
    }
}

impl Capacity {
    /// Returns the standing of one more connection while so many are open, in all and from its address.
    fn standing(self, all: usize, of_address: usize) -> Option<Standing> {
        let Self { regular, per_address, reserve } = self;
        if all < regular && of_address < per_address {
            Some(Standing::Regular)
        } else if all < regular + reserve && of_address < per_address + reserve.div_ceil(RESERVE_PARTS) {
            Some(Standing::Reserved)
        } else {
            None
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.remote.known();
        let mut taken = self.places.taken.lock();
        taken.all -= 1;
        taken.of_strangers -= usize::from(self.is_of_strangers);
        if let Entry::Occupied(mut of_address) = taken.by_address.entry(self.address) {
            *of_address.get_mut() -= 1;
            if *of_address.get() == 0 {
                of_address.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::access::{Access, Role, Token, token_hash};
    use crate::api::app::Limits;
    use crate::job::Actor;

    fn places(capacity: Capacity) -> Arc<Places> {
        Places::new(capacity, Limits::default().guard(Access::default(), ([127, 0, 0, 1], 7400).into(), None))
    }

    /// Those of a server that has tokens.
    fn guarded(capacity: Capacity) -> Arc<Places> {
        let token = Token {
            name: Actor::system("a"),
            roles: [Role::Read].into(),
            sha256: token_hash("a"),
            may_edit_others: false,
        };
        let limits = Limits { connections: capacity.regular, ..Limits::default() };
        let access = Access::new(vec![token]).expect("tokens");
        Places::new(capacity, limits.guard(access, ([127, 0, 0, 1], 7400).into(), None))
    }

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn take(places: &Arc<Places>, address: IpAddr, count: usize) -> (Vec<Place>, Vec<Option<Standing>>) {
        let taken: Vec<Option<Place>> = (0..count).map(|_| places.take(address)).collect();
        let standings = taken.iter().map(|place| place.as_ref().map(|place| place.standing)).collect();
        (taken.into_iter().flatten().collect(), standings)
    }

    #[test]
    fn an_address_takes_neither_all_places_nor_the_whole_reserve() {
        let places = places(Capacity { regular: 4, per_address: 3, reserve: 2 });
        let (here, standings) = take(&places, HERE, 5);
        let (regular, reserved) = (Some(Standing::Regular), Some(Standing::Reserved));
        assert_eq!(standings, [regular, regular, regular, reserved, None]);
        // The reserve counts from the number of all connections, so this one leaves it as large as it was.
        let (there, standings) = take(&places, THERE, 3);
        assert_eq!(standings, [reserved, reserved, None]);
        drop((here, there));
        assert_eq!(take(&places, THERE, 1).1, [regular]);
        assert!(places.taken.lock().by_address.is_empty(), "an address without connections is forgotten");
    }

    #[test]
    fn those_who_have_shown_no_token_take_half_of_the_places_at_most() {
        let places = guarded(Capacity { regular: 8, per_address: 8, reserve: 1 });
        let (regular, reserved) = (Some(Standing::Regular), Some(Standing::Reserved));
        let (mut here, standings) = take(&places, HERE, 4);
        assert_eq!(standings, [regular, regular, reserved, None], "an address has half of that half");
        let (there, standings) = take(&places, THERE, 3);
        assert_eq!(standings, [regular, regular, None], "and another one the other half");
        here[0].remote.known();
        assert_eq!(take(&places, HERE, 1).1, [regular], "a place is free among those of strangers");
        here.remove(2);
        assert_eq!(take(&places, THERE, 1).1, [reserved], "and one of the reserve");
        drop((here, there));
        assert_eq!(places.taken.lock().of_strangers, 0);
    }

    #[test]
    fn an_address_is_the_same_in_both_notations() {
        let places = places(Capacity { regular: 4, per_address: 1, reserve: 0 });
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().expect("an address");
        let _place = places.take(HERE).expect("a place");
        assert!(places.take(mapped).is_none());
    }
}
