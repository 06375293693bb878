//! Who has how many of the places of a host.

use std::collections::HashMap;

/// One of those that share the places of a host: a schedule or a receiver of notifications, with its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Party {
    /// The owner; empty for all that have none.
    owner: String,
    name: String,
}

impl Party {
    pub(crate) fn new(owner: Option<&str>, name: &str) -> Self {
        Self { owner: owner.unwrap_or_default().to_owned(), name: name.to_owned() }
    }
}

/// The places that the parties of a host have.
#[derive(Default)]
pub(super) struct Shares {
    all: usize,
    owners: HashMap<String, usize>,
    parties: HashMap<Party, usize>,
}

impl Shares {
    /// Returns how many places are taken.
    pub(super) const fn all(&self) -> usize {
        self.all
    }

    /// Returns how many places the owner of a party has, and how many the party itself.
    pub(super) fn of(&self, party: &Party) -> (usize, usize) {
        let taken = |taken: Option<&usize>| taken.copied().unwrap_or_default();
        (taken(self.owners.get(&party.owner)), taken(self.parties.get(party)))
    }

    /// Returns whether a party may take a place of a host of which `left` are left: a party as many as it leaves to
    /// others, and the parties of one owner twice as many.
    pub(super) fn may_take(&self, party: &Party, left: usize) -> bool {
        let (of_owner, own) = self.of(party);
        left > 0 && own <= left && of_owner <= left.saturating_mul(2)
    }

    pub(super) fn take(&mut self, party: &Party) {
        self.all += 1;
        *self.owners.entry(party.owner.clone()).or_default() += 1;
        *self.parties.entry(party.clone()).or_default() += 1;
    }

    pub(super) fn give_back(&mut self, party: &Party) {
        self.all = self.all.saturating_sub(1);
        less(&mut self.owners, &party.owner);
        less(&mut self.parties, party);
    }
}

/// Counts one less, and forgets who has none.
fn less<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}
