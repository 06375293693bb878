//! The candidates of a queue whose jobs do not go in the order of dispatch: by owner, where the owners take turns, and
//! by their places ([`super::order`]).
//!
//! The lane of a fair queue keeps its due candidates in the order of dispatch as any other, and beside that, for each
//! priority, a line for each owner. As long as all due jobs fit into the lane, that is all. Once they do not, a search
//! in the order of dispatch would find nothing but the jobs of who has the most of them; so the owners are counted and
//! searched for one by one, each for its share of the lane. Then the lane has for each owner an end, after which jobs
//! of that owner may be missing, in place of one for the whole lane.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::kinds::ByKind;
use super::level::Level;
use super::order::{DEFAULT_WEIGHT, Group, Order};
use super::room::Walk;
use crate::clock::Timestamp;
use crate::job::{Job, Owner};
use crate::query::{Sort, SortKey};
use crate::store::Versioned;

/// The weights of the owners of a queue.
pub(in crate::manager) type Weights = BTreeMap<Owner, u32>;

/// The fewest candidates of an owner that a lane has room for. It bounds the number of owners that a lane has jobs of.
const LEAST_SHARE: usize = 4;

/// The divisor of an owner's share below which it is searched for again.
const LOW_WATER_PART: usize = 4;

/// The most owners that one look searches for.
const SEARCHES: usize = 64;

/// How long a search for an owner's jobs goes on after its last hit before it begins with the first again.
const RESTART: Duration = Duration::from_secs(2);

/// Who is next in a queue, as its settings say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::manager) struct Rule {
    pub(in crate::manager) order: Order,
    pub(in crate::manager) weights: Arc<Weights>,
}

/// The owner of all jobs where the owners take no turns.
static NOBODY: Group = None;

/// The due candidates of a lane by priority and owner.
#[derive(Default)]
pub(super) struct Turns {
    order: Order,
    weights: Arc<Weights>,
    levels: BTreeMap<Reverse<i8>, Level>,
    /// Whether claims name kinds, so that each owner's candidates are known by kind.
    has_kinds: bool,
    /// How many candidates each owner has that has any.
    counts: HashMap<Group, usize>,
    /// What is known of each owner; `None` while the lane as a whole has an end, or none.
    known: Option<Known>,
    /// Whether owners have to be searched for, and whether that need not wait.
    is_low: bool,
    may_go_on: bool,
}

/// How far the jobs of each owner are known.
#[derive(Default)]
struct Known {
    ends: HashMap<Group, End>,
    /// Whether all jobs of the other owners are known.
    has_all_others: bool,
    /// The room of an owner in the lane.
    share: usize,
    /// The room of the lane.
    capacity: usize,
    /// The number of the latest look.
    look: u64,
}

/// How far the jobs of one owner are known.
#[derive(Clone, Debug)]
struct End {
    /// The key after which due jobs of the owner may be missing; `None` when none is.
    after: Option<SortKey>,
    /// When the owner's first jobs were last searched for.
    from_first_at: Timestamp,
    /// The look that last searched for the owner.
    look: u64,
}

/// A search for the due jobs of one owner.
#[derive(Clone, Debug)]
pub(in crate::manager) struct OwnerSearch {
    pub(in crate::manager) owner: Group,
    /// The key after which the search begins.
    pub(in crate::manager) after: Option<SortKey>,
    pub(in crate::manager) limit: usize,
    from_first_at: Timestamp,
}

impl Known {
    /// The most owners that the lane has candidates of.
    fn most_owners(&self) -> usize {
        (self.capacity / LEAST_SHARE).max(1)
    }

    /// Leaves an owner to a later look that has no candidates left, but jobs, while the lane has no room for others.
    fn leave_out(&mut self, owner: &Group, count: usize, owners: usize) {
        let is_cut_off = self.ends.get(owner).is_some_and(|end| end.after.is_some());
        if is_cut_off && count == 0 && owners >= self.most_owners() {
            self.ends.remove(owner);
            self.has_all_others = false;
        }
    }

    fn is_short(&self, owner: &Group, count: usize) -> bool {
        let is_cut_off = self.ends.get(owner).is_some_and(|end| end.after.is_some());
        is_cut_off && count < (self.share / LOW_WATER_PART).max(1)
    }
}

impl Turns {
    /// Returns the turns of a queue with this rule, if it has one.
    pub(super) fn by(rule: Option<&Rule>) -> Option<Box<Self>> {
        let Rule { order, weights } = rule?.clone();
        Some(Box::new(Self { order, weights, ..Self::default() }))
    }

    pub(super) fn order(&self) -> Order {
        self.order
    }

    /// Returns whether the owners take turns.
    pub(super) fn is_fair(&self) -> bool {
        self.order.turns.is_some()
    }

    /// Returns whose turn is taken by a job.
    fn owner_of<'j>(&self, job: &'j Job) -> &'j Group {
        if self.is_fair() { &job.spec.owner } else { &NOBODY }
    }

    pub(super) fn set_weights(&mut self, weights: Arc<Weights>) {
        self.weights = weights;
    }

    fn weight(weights: &Weights, owner: &Group) -> u32 {
        owner.as_ref().and_then(|owner| weights.get(owner)).copied().unwrap_or(DEFAULT_WEIGHT)
    }

    /// Returns the key of the next candidate.
    pub(super) fn next(&self) -> Option<&SortKey> {
        let first = self.levels.values().find_map(|level| level.turns.first_key_value());
        first.map(|(turn, _)| &turn.first.key)
    }

    /// Returns the key of the next of the candidates `due` that suits the claim. `index` is the place of the queue in
    /// the claim.
    pub(super) fn next_suiting<'l>(
        &'l self,
        due: &BTreeMap<SortKey, Versioned>,
        index: usize,
        walk: &mut Walk<'_>,
    ) -> Option<&'l SortKey> {
        for level in self.levels.values() {
            for owner in level.turns.values() {
                let Some(line) = level.lines.get(owner) else { continue };
                let mut passed = walk.passed_of(index, owner);
                while let Some(place) = line.next_after(walk.kinds(), passed.as_ref()) {
                    if due.get(&place.key).is_some_and(|candidate| walk.suits(&candidate.job)) {
                        return Some(&place.key);
                    }
                    walk.pass(index, owner, place);
                    if !walk.step() {
                        return None;
                    }
                    passed = Some(place.clone());
                }
            }
        }
        None
    }

    /// Lets each owner's candidates be known by kind. `due` are all of them.
    pub(super) fn index_kinds(&mut self, due: &BTreeMap<SortKey, Versioned>) {
        self.has_kinds = true;
        for candidate in due.values() {
            let (job, place) = (&candidate.job, self.order.place_of(&candidate.job));
            let line = self.levels.get_mut(&Reverse(job.spec.priority.get()));
            let owner = if self.order.turns.is_some() { &job.spec.owner } else { &NOBODY };
            if let Some(line) = line.and_then(|level| level.lines.get_mut(owner)) {
                line.kinds.insert(&job.spec.kind, place);
            }
        }
    }

    /// Keeps the candidates by kind no more.
    pub(super) fn forget_kinds(&mut self) {
        self.has_kinds = false;
        let lines = self.levels.values_mut().flat_map(|level| level.lines.values_mut());
        lines.for_each(|line| line.kinds = ByKind::default());
    }

    /// Adds a candidate.
    pub(super) fn insert(&mut self, job: &Job, key: &SortKey) {
        let (order, owner, has_kinds) = (self.order, self.owner_of(job), self.has_kinds);
        let level = self.levels.entry(Reverse(job.spec.priority.get())).or_default();
        let is_new = level.change(order, owner, |line, times| {
            if line.places.is_empty() {
                line.start = times.begin(owner);
            }
            if order.shortest_first {
                line.keys.insert(key.clone());
            }
            if has_kinds {
                line.kinds.insert(&job.spec.kind, order.place_of(job));
            }
            line.places.insert(order.place_of(job))
        });
        if is_new {
            *self.counts.entry(owner.clone()).or_default() += 1;
        }
    }

    /// Takes a candidate out. If it `is_handed_out`, its owner has had a turn.
    pub(super) fn remove(&mut self, job: &Job, key: &SortKey, is_handed_out: bool) {
        let (order, owner) = (self.order, self.owner_of(job));
        let weight = Self::weight(&self.weights, owner);
        let Some(level) = self.levels.get_mut(&Reverse(job.spec.priority.get())) else { return };
        let is_removed = level.change(order, owner, |line, times| {
            if is_handed_out {
                line.start = times.hand_out(line.start, order.cost(job.spec.expected_runtime), weight);
            }
            line.keys.remove(key);
            line.kinds.remove(&job.spec.kind, &order.place_of(job));
            line.places.remove(&order.place_of(job))
        });
        if !is_removed {
            return;
        }
        let left = self.counts.get(owner).map_or(0, |count| count - 1);
        if left == 0 {
            self.counts.remove(owner);
        } else {
            self.counts.insert(owner.clone(), left);
        }
        if let Some(known) = &mut self.known {
            known.leave_out(owner, left, self.counts.len());
        }
        if let Some(known) = &self.known
            && (known.is_short(owner, left) || self.has_room_for_others(known))
        {
            (self.is_low, self.may_go_on) = (true, true);
        }
    }

    /// Records that a job is handed out which was no candidate.
    pub(super) fn hand_out(&mut self, job: &Job) {
        let (order, owner) = (self.order, self.owner_of(job));
        let weight = Self::weight(&self.weights, owner);
        let level = self.levels.entry(Reverse(job.spec.priority.get())).or_default();
        level.change(order, owner, |line, times| {
            if line.places.is_empty() {
                line.start = times.begin(owner);
            }
            line.start = times.hand_out(line.start, order.cost(job.spec.expected_runtime), weight);
            true
        });
    }

    /// Drops all candidates, and what is known of the owners.
    pub(super) fn forget(&mut self) {
        for level in self.levels.values_mut() {
            level.forget();
        }
        self.counts.clear();
        self.unknown();
    }

    /// Forgets what is known of the owners, and not the candidates.
    pub(super) fn unknown(&mut self) {
        self.known = None;
        (self.is_low, self.may_go_on) = (false, false);
    }

    /// Returns whether a due job with this key is admitted, since none of its owner is missing before it. `None` while
    /// the end of the lane decides that.
    pub(super) fn admits(&self, owner: &Group, key: &SortKey) -> Option<bool> {
        let known = self.known.as_ref()?;
        Some(match known.ends.get(owner) {
            None => known.has_all_others,
            Some(end) => end.after.as_ref().is_none_or(|after| key <= after),
        })
    }

    /// Returns whether owners have to be searched for; `None` while the number of candidates decides that.
    pub(super) fn is_low(&self) -> Option<bool> {
        self.known.is_some().then_some(self.is_low)
    }

    /// Returns whether owners are to be searched for without a pause.
    pub(super) fn may_go_on(&self) -> bool {
        self.known.is_some() && self.may_go_on
    }

    fn has_room_for_others(&self, known: &Known) -> bool {
        !known.has_all_others && self.counts.len() < (known.most_owners() / 4 * 3).max(1)
    }

    /// Makes room in a full lane: the owner with the most candidates loses its last. Returns the key of that one.
    /// `is_whole` says whether no due jobs are missing.
    pub(super) fn overflow(&mut self, is_whole: bool, capacity: usize, now: Timestamp) -> Option<SortKey> {
        let most = self.counts.iter().max_by(|(a, count), (b, other)| count.cmp(other).then_with(|| b.cmp(a)));
        let owner = most.map(|(owner, _)| owner.clone())?;
        let lines = self.levels.values().rev().filter_map(|level| level.lines.get(&owner));
        let mut last_two = lines.flat_map(|line| line.backwards(self.order));
        let (last, after) = (last_two.next().cloned()?, last_two.next().cloned());
        let share = (capacity / self.counts.len().max(1)).max(LEAST_SHARE);
        let known =
            self.known.get_or_insert_with(|| Known { has_all_others: is_whole, share, capacity, ..Known::default() });
        if after.is_some() {
            let look = known.ends.get(&owner).map_or(0, |end| end.look);
            known.ends.insert(owner, End { after, from_first_at: now, look });
        } else {
            // Nobody has more than one: there are more owners than the lane has room for.
            known.ends.remove(&owner);
            known.has_all_others = false;
        }
        (self.is_low, self.may_go_on) = (!known.has_all_others || self.is_low, self.may_go_on);
        Some(last)
    }

    /// Records that a look begins. Returns whether the owners take turns, so that they are to be counted.
    pub(super) fn begin_look(&mut self) -> bool {
        (self.is_low, self.may_go_on) = (false, false);
        self.is_fair()
    }

    /// Records that a look has failed: of the owners that it searched for, nothing is known.
    pub(super) fn fail_look(&mut self) {
        if let Some(known) = &mut self.known {
            let look = known.look;
            known.ends.retain(|_, end| end.look != look);
            known.has_all_others = false;
        }
        self.is_low = true;
    }

    /// Records that some due jobs may be missing, which a look finds.
    pub(super) fn may_miss_some(&mut self) {
        self.is_low = true;
    }

    /// Records that due jobs of any owner may be missing.
    pub(super) fn may_miss_any(&mut self) {
        if let Some(known) = &mut self.known {
            known.has_all_others = false;
        }
        (self.is_low, self.may_go_on) = (true, true);
    }

    /// Chooses the owners to search for, of those that have so many due jobs, into a lane that has room for `capacity`
    /// candidates. What is added from now on is admitted, until the look ends.
    pub(super) fn choose(
        &mut self,
        waiting: &[(Group, usize)],
        capacity: usize,
        page: usize,
        now: Timestamp,
        goes_on: bool,
    ) -> Vec<OwnerSearch> {
        let mut known = self.known.take().unwrap_or_default();
        known.capacity = capacity;
        known.share = share(waiting.iter().map(|(_, count)| *count), capacity);
        known.look += 1;
        known.has_all_others = true;
        let held = |owner: &Group| self.counts.get(owner).copied().unwrap_or(0);
        let is_wanted = |(owner, count): &&(Group, usize)| match known.ends.get(owner) {
            None => true,
            Some(End { after: Some(_), .. }) => held(owner) < (known.share / 2).max(1),
            Some(End { after: None, .. }) => held(owner) < known.share.min(*count),
        };
        let mut wanted: Vec<&Group> = waiting.iter().filter(is_wanted).map(|(owner, _)| owner).collect();
        // Whoever was never searched for comes first, then who was searched for longest ago.
        wanted.sort_by_key(|owner| (known.ends.get(*owner).map_or(0, |end| end.look), (*owner).clone()));
        let room = known.most_owners().saturating_sub(self.counts.len());
        let mut others = 0;
        wanted.retain(|owner| {
            let is_other = !self.counts.contains_key(*owner);
            others += usize::from(is_other);
            !is_other || others <= room
        });
        wanted.truncate(SEARCHES);
        let limit = known.share.min(page);
        let searches: Vec<OwnerSearch> = wanted
            .into_iter()
            .map(|owner| {
                let end = known.ends.get(owner).filter(|end| goes_on && now.since(end.from_first_at) < RESTART);
                let after = end.and_then(|end| end.after.clone());
                let from_first_at = end.filter(|_| after.is_some()).map_or(now, |end| end.from_first_at);
                OwnerSearch { owner: owner.clone(), after, limit, from_first_at }
            })
            .collect();
        for search in &searches {
            let end = End { after: None, from_first_at: search.from_first_at, look: known.look };
            known.ends.insert(search.owner.clone(), end);
        }
        self.known = Some(known);
        searches
    }

    /// Ends a look: each search went up to a key, or found all. Returns whether due jobs may be missing.
    pub(super) fn end_look(
        &mut self,
        waiting: &[(Group, usize)],
        ends: impl IntoIterator<Item = (Group, Option<SortKey>)>,
    ) -> bool {
        let Some(known) = &mut self.known else { return false };
        for (owner, after) in ends {
            if let (Some(end), Some(after)) = (known.ends.get_mut(&owner), after) {
                // The lane may have run over meanwhile.
                let is_less = end.after.as_ref().is_none_or(|now| after < *now);
                end.after = if is_less { Some(after) } else { end.after.take() };
            }
        }
        let counted: HashMap<&Group, usize> = waiting.iter().map(|(owner, count)| (owner, *count)).collect();
        known.ends.retain(|owner, _| counted.contains_key(owner) || self.counts.contains_key(owner));
        known.has_all_others = counted.keys().all(|owner| known.ends.contains_key(*owner));
        let count = |owner: &Group| self.counts.get(owner).copied().unwrap_or(0);
        for owner in counted.keys() {
            known.leave_out(owner, count(owner), self.counts.len());
        }
        let is_short = known.ends.keys().any(|owner| known.is_short(owner, count(owner)));
        let is_cut_off = known.ends.values().any(|end| end.after.is_some());
        let is_missing = is_cut_off || !known.has_all_others;
        let is_low = is_short || self.known.as_ref().is_some_and(|known| self.has_room_for_others(known));
        (self.is_low, self.may_go_on) = (is_low, is_low);
        is_missing
    }
}

/// Returns the room of each owner in a lane: those with few jobs take no more than they have, and leave the rest to the
/// others.
fn share(counts: impl Iterator<Item = usize> + Clone, capacity: usize) -> usize {
    let equal = capacity / counts.clone().count().max(1);
    let (few, many): (Vec<usize>, Vec<usize>) = counts.partition(|count| *count <= equal);
    let rest = capacity.saturating_sub(few.iter().sum());
    (rest / many.len().max(1)).max(LEAST_SHARE)
}

impl OwnerSearch {
    /// Returns the key up to which the search has come, if it was cut off; `None` if it found all.
    pub(in crate::manager) fn end_of(&self, found: &[Versioned]) -> Option<SortKey> {
        found.last().filter(|_| found.len() >= self.limit).map(|last| Sort::Dispatch.key(&last.job))
    }
}
