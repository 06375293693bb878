//! What callers hold at once of what a server has: bytes of request bodies, open calls, connections.
//!
//! A [`Budget`] has a size, and a rule for how much of it one holder may have, so that none takes what the others need.
//! What a holder has is a [`Share`], which is given back when it is dropped. Refusals are counted by budget and caller.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::request::Parts;
use metrics::{Gauge, counter, gauge};
use parking_lot::Mutex;

use super::error::{ApiError, Code};
use crate::job::Actor;

/// Whose share it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// The holder of the token of this name.
    Token(Actor),
    /// Everybody at this address, while it is not known who calls.
    Address(IpAddr),
    /// Another process of the installation.
    Process,
}

impl Holder {
    /// Returns the holder that calls from an address: a host of IPv6 has all addresses of its network of 64 bits.
    pub(super) fn at(address: IpAddr) -> Self {
        const NETWORK: u128 = u128::MAX << 64;
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() & NETWORK).into()),
            address => address,
        })
    }

    /// Returns the caller in metrics: addresses have no end, and share a word.
    fn label(&self) -> String {
        match self {
            Self::Token(name) => name.to_string(),
            Self::Address(_) => ADDRESS.to_owned(),
            Self::Process => "process".to_owned(),
        }
    }

    fn subject(&self) -> String {
        match self {
            Self::Token(name) => format!("the token `{name}`"),
            Self::Address(address) => format!("the address {address}"),
            Self::Process => "the process".to_owned(),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Holder {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or(Self::Process))
    }
}

/// The caller in metrics that is not known by name.
const ADDRESS: &str = "address";

/// How much of a budget one holder may have.
#[derive(Clone, Debug)]
pub(super) enum Sharing {
    /// These holders are all that there are. Each has its part of one half for itself alone; the other half is for
    /// all, in the order in which they come.
    Named(Vec<Actor>),
    /// Nobody knows how many holders there are: one has at most one part in so many.
    Parts(usize),
}

/// A budget. Clones are one.
#[derive(Clone, Debug)]
pub(super) struct Budget(Arc<Ledger>);

struct Ledger {
    name: &'static str,
    /// What there is so much of, such as "bytes of request bodies".
    what: &'static str,
    size: usize,
    taken: Mutex<Taken>,
    held: Gauge,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("name", &self.name).field("size", &self.size).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    /// What each holder has for itself alone, and what is for all.
    Named { own: usize, common: usize },
    /// The most that one holder has.
    Most(usize),
}

impl Rule {
    /// Shares so much among so many that are known.
    fn among(holders: usize, size: usize) -> Self {
        if holders > size {
            // There is not one for each.
            return Self::Most(size.div_ceil(2));
        }
        let own = (size / 2 / holders.max(1)).max(1);
        Self::Named { own, common: size - own * holders }
    }
}

struct Taken {
    rule: Rule,
    all: usize,
    /// What is taken of the part that is for all.
    common: usize,
    by_holder: HashMap<Holder, usize>,
}

/// Why there is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// All of the budget is taken, or what is left is kept for others.
    Full,
    /// The holder itself has as much as it may.
    Share,
}

impl Budget {
    /// Makes a budget of this name in metrics. `what` is what there is so much of, such as "bytes of request bodies".
    pub(super) fn new(name: &'static str, what: &'static str, size: usize, sharing: &Sharing) -> Self {
        // A rule over an increase sees the first refusal only of a series that is there before.
        let begin = |caller: String| count_refusal(name, caller, 0);
        let rule = match sharing {
            Sharing::Named(holders) => {
                holders.iter().for_each(|name| begin(name.to_string()));
                Rule::among(holders.len(), size)
            }
            Sharing::Parts(parts) => {
                begin(ADDRESS.to_owned());
                Rule::Most(size.div_ceil(*parts))
            }
        };
        let held = gauge!("leasehold_budget_held", "budget" => name);
        let taken = Mutex::new(Taken { rule, all: 0, common: 0, by_holder: HashMap::new() });
        Self(Arc::new(Ledger { name, what, size, taken, held }))
    }

    /// Shares the budget among these holders, whatever the former ones have of it.
    pub(super) fn share_among(&self, holders: &BTreeSet<Actor>) {
        let Ledger { name, size, taken, .. } = &*self.0;
        holders.iter().for_each(|holder| count_refusal(name, holder.to_string(), 0));
        let mut taken = taken.lock();
        taken.rule = Rule::among(holders.len(), *size);
        if let Rule::Named { own, .. } = taken.rule {
            taken.common = taken.by_holder.values().map(|amount| amount.saturating_sub(own)).sum();
        }
    }

    /// Returns whether anybody has this budget or a share of it but the caller.
    pub(super) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Takes so much for a holder. A refusal is counted.
    ///
    /// # Errors
    /// There is not as much left, or the holder has as much as it may.
    pub(super) fn take(&self, holder: &Holder, amount: usize) -> Result<Share, ApiError> {
        let mut share = Share { budget: self.clone(), holder: holder.clone(), amount: 0 };
        share.cover(amount)?;
        Ok(share)
    }

    fn grow(&self, holder: &Holder, more: usize) -> Result<(), Refusal> {
        let Ledger { size, taken, held, .. } = &*self.0;
        let mut taken = taken.lock();
        let of_holder = taken.by_holder.get(holder).copied().unwrap_or(0);
        let (of_holder, before) = (of_holder.saturating_add(more), of_holder);
        if taken.all.saturating_add(more) > *size {
            return Err(Refusal::Full);
        }
        match taken.rule {
            Rule::Most(most) if of_holder > most => return Err(Refusal::Share),
            Rule::Most(_) => {}
            Rule::Named { own, common } => {
                let beyond = before.saturating_sub(own);
                let of_all = taken.common + of_holder.saturating_sub(own) - beyond;
                if of_all > common {
                    return Err(if 2 * beyond >= taken.common { Refusal::Share } else { Refusal::Full });
                }
                taken.common = of_all;
            }
        }
        taken.all += more;
        match taken.by_holder.get_mut(holder) {
            Some(amount) => *amount = of_holder,
            None => {
                taken.by_holder.insert(holder.clone(), of_holder);
            }
        }
        held.increment(more as f64);
        Ok(())
    }

    fn shrink(&self, holder: &Holder, less: usize) {
        let Ledger { taken, held, .. } = &*self.0;
        let mut taken = taken.lock();
        taken.all -= less;
        let Entry::Occupied(mut entry) = taken.by_holder.entry(holder.clone()) else { return };
        let before = *entry.get();
        *entry.get_mut() -= less;
        if *entry.get() == 0 {
            entry.remove();
        }
        if let Rule::Named { own, .. } = taken.rule {
            taken.common -= before.saturating_sub(own) - (before - less).saturating_sub(own);
        }
        held.decrement(less as f64);
    }

    /// Counts and describes a refusal.
    fn refuse(&self, holder: &Holder, refusal: Refusal) -> ApiError {
        let Ledger { name, what, .. } = &*self.0;
        count_refusal(name, holder.label(), 1);
        match refusal {
            Refusal::Full => ApiError::new(Code::Overloaded, format!("the server holds as many {what} as it can")),
            Refusal::Share => {
                let detail = format!("{} holds as many {what} as it may at once", holder.subject());
                ApiError::new(Code::ShareTaken, detail)
            }
        }
    }
}

/// The most names of callers that the metrics of a process have; the others are [`OTHERS`] together.
const MOST_NAMES: usize = 64;
const OTHERS: &str = "other";

/// The names of callers in metrics, the first that came.
#[derive(Debug, Default)]
struct Names(BTreeSet<String>);

impl Names {
    /// Returns a name as it stands in metrics.
    fn shown(&mut self, name: String) -> String {
        if self.0.len() < MOST_NAMES || self.0.contains(&name) {
            self.0.insert(name.clone());
            return name;
        }
        OTHERS.to_owned()
    }
}

static NAMES: Mutex<Names> = Mutex::new(Names(BTreeSet::new()));

fn count_refusal(budget: &'static str, caller: String, times: u64) {
    let caller = if caller == ADDRESS { caller } else { NAMES.lock().shown(caller) };
    counter!("leasehold_budget_refused_total", "budget" => budget, "caller" => caller).increment(times);
}

/// What a holder has of a budget, which is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    holder: Holder,
    amount: usize,
}

impl Share {
    /// Makes the share at least so large. A refusal leaves it as it was, and is counted.
    pub(super) fn cover(&mut self, amount: usize) -> Result<(), ApiError> {
        if amount > self.amount {
            let grown = self.budget.grow(&self.holder, amount - self.amount);
            grown.map_err(|refusal| self.budget.refuse(&self.holder, refusal))?;
            self.amount = amount;
        }
        Ok(())
    }

    /// Makes the share at most so large.
    pub(super) fn keep(&mut self, amount: usize) {
        if amount < self.amount {
            self.budget.shrink(&self.holder, self.amount - amount);
            self.amount = amount;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.keep(0);
    }
}

/// At whose expense, and how fast, the body of a request is read. It is among the request's extensions.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) budget: Budget,
    pub(super) holder: Holder,
    /// The time in which the body has to bring another part.
    pub(super) within: Duration,
}

impl Account {
    /// Takes so many bytes.
    pub(super) fn take(&self, bytes: usize) -> Result<Share, ApiError> {
        self.budget.take(&self.holder, bytes)
    }
}

/// Where the account of a call is put for who has its body before it is known whose call it is. Clones are one place.
#[derive(Clone, Debug, Default)]
pub(super) struct AccountPlace(Arc<OnceLock<Account>>);

impl AccountPlace {
    pub(super) fn put(&self, account: &Account) {
        self.0.get_or_init(|| account.clone());
    }

    pub(super) fn get(&self) -> Option<&Account> {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn budget(size: usize, sharing: &Sharing) -> Budget {
        Budget::new("test", "things", size, sharing)
    }

    fn named(names: &[&'static str]) -> (Sharing, Vec<Holder>) {
        let names: Vec<Actor> = names.iter().map(|name| Actor::system(name)).collect();
        (Sharing::Named(names.clone()), names.into_iter().map(Holder::Token).collect())
    }

    fn code(refused: Result<Share, ApiError>) -> Code {
        refused.expect_err("refused").code()
    }

    #[test]
    fn whatever_others_take_each_of_those_that_are_known_has_its_own_part() {
        let (sharing, holders) = named(&["a", "b", "c", "d"]);
        let budget = budget(800, &sharing);
        let greedy = budget.take(&holders[0], 500).expect("its own part and all that is common");
        assert_eq!(code(budget.take(&holders[0], 1)), Code::ShareTaken);
        let others: Vec<Share> = holders[1..].iter().map(|holder| budget.take(holder, 100).expect("its own")).collect();
        assert_eq!(code(budget.take(&holders[1], 1)), Code::Overloaded);
        drop(greedy);
        let mut more = budget.take(&holders[1], 400).expect("what is common is free");
        assert_eq!(code(budget.take(&holders[2], 1)), Code::Overloaded);
        more.keep(300);
        assert!(budget.take(&holders[2], 100).is_ok());
        drop((others, more));
        let taken = budget.0.taken.lock();
        assert!(taken.by_holder.is_empty(), "who holds nothing is forgotten");
        assert_eq!((taken.all, taken.common), (0, 0));
    }

    #[test]
    fn a_lone_token_has_all_and_an_address_its_part() {
        let (sharing, holders) = named(&["a"]);
        let of_one = budget(800, &sharing);
        assert!(of_one.take(&holders[0], 800).is_ok());
        assert_eq!(code(of_one.take(&holders[0], 801)), Code::Overloaded);

        let of_addresses = budget(800, &Sharing::Parts(4));
        let at = |last| Holder::at(Ipv4Addr::new(192, 0, 2, last).into());
        let mut first = of_addresses.take(&at(1), 200).expect("its part");
        assert_eq!(first.cover(201).expect_err("refused").code(), Code::ShareTaken);
        let others: Vec<Share> = (2..5).map(|last| of_addresses.take(&at(last), 200).expect("its part")).collect();
        assert_eq!(code(of_addresses.take(&at(5), 1)), Code::Overloaded);
        drop((first, others));
        assert!(of_addresses.take(&at(5), 1).is_ok());
    }

    #[test]
    fn what_is_shared_among_others_goes_by_what_each_has_then() {
        let (sharing, holders) = named(&["a", "b"]);
        let budget = budget(800, &sharing);
        let mut of_first = budget.take(&holders[0], 300).expect("its own part and some that is common");
        let names = ["b", "c", "d", "e"].map(Actor::system);
        budget.share_among(&names.iter().cloned().collect());
        let parts: Vec<Share> = names[..3]
            .iter()
            .map(|name| budget.take(&Holder::Token(name.clone()), 100).expect("its own part"))
            .collect();
        assert_eq!(budget.0.taken.lock().common, 200, "what a former holder has beyond such a part is of all");
        of_first.keep(0);
        drop(parts);
        let taken = budget.0.taken.lock();
        assert_eq!((taken.all, taken.common), (0, 0));
    }

    #[test]
    fn a_host_has_one_share_for_all_its_addresses() {
        let at = |text: &str| Holder::at(text.parse().expect("an address"));
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
    }

    #[test]
    fn metrics_have_the_first_64_names_and_all_others_have_one_together() {
        let mut names = Names::default();
        for number in 0..MOST_NAMES {
            let name = format!("token-{number}");
            assert_eq!(names.shown(name.clone()), name);
        }
        assert_eq!(names.shown("one-more".to_owned()), "other");
        assert_eq!(names.shown("token-0".to_owned()), "token-0");
    }
}
