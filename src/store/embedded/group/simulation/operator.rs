//! Who looks after a simulated group: adds members, removes them, and replaces those that have lost their directories.

use std::sync::Arc;

use rand::RngExt as _;

use super::node::Node;
use super::{FEWEST_VOTERS, HIGHEST, MOST_MEMBERS, Simulation};
use crate::store::MemberChange;

impl Simulation {
    /// Changes the members, as somebody does who looks after the group.
    pub(super) fn operate(&mut self) {
        let members = Arc::clone(&self.world.members);
        for number in self.back.clone() {
            let node = self.nodes.get(&number);
            if node.is_none_or(Node::went_back) {
                self.back.remove(&number);
                self.put_node(number, &[]);
                self.lost.insert(number);
            }
        }
        for (number, seat) in &members.seats {
            if !self.nodes.contains_key(number) {
                self.put_node(*number, &[]);
            }
            // It may also have begun again while it was being added.
            match seat.directory == self.nodes[number].directory() {
                true => self.lost.remove(number),
                false => seat.directory != 0 && self.lost.insert(*number),
            };
        }
        self.lost.retain(|number| members.seats.contains_key(number));
        if let Some(member) = self.lost.first().copied() {
            let change = MemberChange::Replace { member };
            return self.with_leader(|node, world| node.change(&change, world));
        }
        if self.world.is_calm || !self.back.is_empty() {
            return;
        }
        let number = self.world.random.random_range(1..=HIGHEST);
        let address = format!("http://{number}");
        let change = match (self.nodes.contains_key(&number), members.seats.contains_key(&number)) {
            (false, _) if members.seats.len() < MOST_MEMBERS => return self.put_node(number, &[]),
            (true, false) if members.seats.len() < MOST_MEMBERS && self.world.random.random_range(0..4) > 0 => {
                // It may be another directory that was heard of last, which is gone by now.
                let (directory, change) =
                    (self.nodes[&number].directory(), MemberChange::Add { member: number, address });
                return self.with_leader(|node, world| {
                    if node.hears(number) == Some(directory) {
                        node.change(&change, world);
                    }
                });
            }
            (true, false) => {
                // It was removed, or is not wanted any more.
                let is_known = |node: &Node| node.known_members().seats.contains_key(&number);
                if !self.is_changing() && !self.seated().any(is_known) {
                    self.count_replaced(number);
                    self.nodes.remove(&number);
                }
                return;
            }
            (_, true) if members.that_vote(true).count() > FEWEST_VOTERS => {
                MemberChange::Remove { member: number, is_gone: self.world.random.random() }
            }
            _ => return,
        };
        self.with_leader(|node, world| node.change(&change, world));
    }
}
