//! What goes wrong in a simulated group.

use std::collections::BTreeSet;

use rand::RngExt as _;

use super::Simulation;
use super::disk::Disk;
use super::node::Node;
use crate::store::Membership;

impl Simulation {
    /// Lets something go wrong.
    pub(super) fn go_wrong(&mut self, number: u64) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let world = &mut self.world;
        match world.random.random_range(0..18) {
            0 | 1 => self.cut(),
            2 => {
                node.wakes = world.now + world.random.random_range(50..500);
                world.counts.stalls += 1;
            }
            16.. => {
                node.writes = world.now + world.random.random_range(100..3_000);
                world.counts.slow_disks += 1;
            }
            3 => node.pace = world.random.random_range(0..=4),
            7..9 => node.copy = Some(node.disk.copy()),
            4 => node.disk.files().is_full = true,
            5 => node.disk.files().fails = Some((world.random.random_range(0..10), world.random.random())),
            6 => {
                // The power goes out everywhere.
                self.nodes.values_mut().for_each(|node| node.crash(&mut self.world));
            }
            9..14 if self.may_be_lost(number) => self.put_back(number),
            14..16 if self.may_be_lost(number) => self.lose(number),
            _ => {}
        }
    }

    /// Cuts the network between some members and the others for a while.
    pub(super) fn cut(&mut self) {
        let world = &mut self.world;
        let all: Vec<u64> = self.nodes.keys().copied().collect();
        let apart: BTreeSet<u64> = all.iter().copied().filter(|_| world.random.random()).collect();
        let (there, back) = [(true, true), (true, false), (false, true)][world.random.random_range(0..3)];
        for one in &apart {
            for other in all.iter().filter(|other| !apart.contains(other)) {
                world.cuts.extend(there.then_some((*one, *other)));
                world.cuts.extend(back.then_some((*other, *one)));
            }
        }
        world.cut_until = world.now + world.random.random_range(50..800);
        world.counts.partitions += 1;
    }

    /// Lets all members that vote lose their directories but one, a founder that has something of the log and knows the
    /// directories of the others. The founders are started as such again. Returns the directory of that one, if there
    /// is one, and it is not all of the group.
    pub(super) fn lose_all_but_one(&mut self) -> Option<u64> {
        let voters: Vec<u64> = self.world.members.that_vote(true).collect();
        // It may be about to know that it is the only one.
        if voters.len() == 1 || self.is_changing() {
            return None;
        }
        let knows = |of: &Node, other: u64| {
            // A founder that was removed may be gone.
            let directory = self.nodes.get(&other).map(Node::directory);
            let known = of.disk.files().group.known.get(&other).copied();
            other == of.number || known.is_some() && (directory.is_none() || known == directory)
        };
        let is_fit = |number: &&u64| {
            let node = &self.nodes[*number];
            let all = voters.iter().chain(&self.founders);
            self.founders.contains(number)
                && node.disk.files().last() > 0
                && all.clone().all(|other| knows(node, *other))
        };
        let left = voters.iter().find(is_fit).copied()?;
        self.nodes.retain(|number, _| *number == left);
        let founders = self.founders.clone();
        for number in voters.iter().chain(&founders).filter(|number| **number != left) {
            self.put_node(*number, if founders.contains(number) { &founders } else { &[] });
        }
        Some(self.nodes[&left].directory())
    }

    /// Returns whether the group goes on when this member loses its directory.
    fn may_be_lost(&self, number: u64) -> bool {
        let members = &self.world.members;
        let Some(seat) = members.seats.get(&number) else { return false };
        let directory = self.nodes[&number].directory();
        let is_there = |voter: &u64, of: &Membership| {
            let Some(node) = self.nodes.get(voter) else { return false };
            // The directory of a founder has its number.
            let agreed = of.seats.get(voter).map(|seat| seat.directory).filter(|agreed| *agreed != 0);
            // Until the group is founded as far as it knows, it waits for all founders to be new.
            let is_founded = !node.disk.files().group.awaits_founders;
            let is_known = node.directory() == agreed.unwrap_or(*voter);
            *voter != number && !self.back.contains(voter) && is_known && is_founded
        };
        // Whatever members those that are left begin with.
        let goes_on = |of: &Membership| {
            let there = of.that_vote(true).filter(|voter| is_there(voter, of)).count();
            // The leader may not have heard yet that a member has lost its directory to which it gives a vote.
            let given = of.that_vote(false).filter(|voter| !is_there(voter, of)).count();
            of.seats.is_empty() || there * 2 > of.that_vote(true).count() + given
        };
        !self.lost.contains(&number)
            && !self.back.contains(&number)
            && [0, directory].contains(&seat.directory)
            && (seat.directory != 0 || self.is_known_to(number, |_| true))
            && goes_on(members)
            && self.seated().map(Node::known_members).all(|of| goes_on(&of))
            && !self.is_changing()
    }

    /// Returns whether those of the others know the directory of this member. Until then one of them may take the next
    /// directory for the first one, where the group has not agreed on it, as on none of founders.
    fn is_known_to(&self, number: u64, those: impl Fn(&Node) -> bool) -> bool {
        let directory = self.nodes[&number].directory();
        let knows = |of: &Node| of.disk.files().group.known.get(&number) == Some(&directory);
        self.nodes.values().all(|node| node.number == number || !those(node) || knows(node))
    }

    /// Lets a member lose its directory, and begin with an empty one, as one that joins or as a founder again, which
    /// other founders refuse only when they know the former directory.
    fn lose(&mut self, number: u64) {
        self.world.counts.directories_lost += 1;
        self.count_replaced(number);
        let founders = self.founders.clone();
        let is_founder = founders.contains(&number)
            && self.is_known_to(number, |node| node.is_founder())
            && self.world.random.random();
        self.put_node(number, if is_founder { &founders } else { &[] });
        self.lost.insert(number);
    }

    /// Puts an earlier copy in the place of the directory of a member, where all others can tell: they know that it was
    /// opened since, also those that were removed and may not know that. With a copy of a time when it was the only
    /// voter, a member elects itself before anybody can tell it.
    fn put_back(&mut self, number: u64) {
        let node = &self.nodes[&number];
        let Some(copy) = &node.copy else { return };
        let opened = |disk: &Disk| {
            let files = disk.files();
            (files.group.directory, files.openings.own.number())
        };
        let (before, now) = (opened(copy), opened(&node.disk));
        let knows = |node: &Node| {
            let known = node.disk.files().openings.others.get(&number).cloned();
            known.is_some_and(|known| known.openings.number() == now.1)
        };
        let may_vote =
            |node: &Node| self.world.members.seats.contains_key(&node.number) || !node.known_members().seats.is_empty();
        let is_known = self.nodes.values().all(|node| node.number == number || !may_vote(node) || knows(node));
        let was_alone = copy.files().known_members().that_vote(true).eq([number]);
        if before.0 == now.0 && before.1 != now.1 && is_known && !was_alone {
            self.world.counts.went_back += 1;
            self.nodes.entry(number).and_modify(Node::put_back);
            self.back.insert(number);
        }
    }
}
