//! What the claims of a queue have offered lately: which of the jobs that are held, or lie in the store, somebody can
//! take.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::room::{Resources, Wish};
use crate::clock::Timestamp;
use crate::job::{Job, Kind, Offers, Requirement};
use crate::manager::request::ClaimOrder;

/// The most different offers of one queue that are kept. Where there are more, nothing is taken to suit nobody.
const MOST: usize = 64;

/// How long an offer counts after the claim that made it: longer than a claim can wait.
const LASTS: Duration = Duration::from_secs(75);

/// The offers that claims for one queue have made lately.
#[derive(Default)]
pub(super) struct LaneOffers {
    lately: Vec<Offered>,
    /// The number of the latest change after which somebody may take what nobody took before: no two lanes have the
    /// same.
    generation: u64,
    /// When there were too many offers to keep the last time.
    too_many_at: Option<Timestamp>,
}

static GENERATIONS: AtomicU64 = AtomicU64::new(1);

/// What claims offer with these labels and for these kinds.
struct Offered {
    /// The most of each resource that one of them had; without any, one that states none.
    resources: Resources,
    labels: Offers,
    kinds: Vec<Kind>,
    at: Timestamp,
}

impl Offered {
    fn wish(&self) -> Wish<'_> {
        let (resources, labels, kinds) = (&self.resources, &self.labels, &self.kinds);
        Wish { queues: &[], max_jobs: 1, resources, labels, kinds, order: &ClaimOrder::Dispatch }
    }

    fn lasts(&self, now: Timestamp) -> bool {
        now.since(self.at) < LASTS
    }

    /// Takes note of what a claim has. Returns whether that is more than any before had.
    fn raise(&mut self, resources: &Resources, now: Timestamp) -> bool {
        self.at = now;
        let mut is_more = false;
        for (name, amount) in resources {
            if self.resources.get(name).is_none_or(|most| most < amount) {
                self.resources.insert(name.clone(), *amount);
                is_more = true;
            }
        }
        is_more
    }
}

impl LaneOffers {
    /// Takes note of what a claim offers.
    pub(super) fn note(&mut self, wish: &Wish<'_>, now: Timestamp) {
        let is_same = |offered: &&mut Offered| {
            let states_any = !wish.resources.is_empty();
            offered.labels == *wish.labels && offered.kinds == *wish.kinds && offered.resources.is_empty() != states_any
        };
        if let Some(offered) = self.lately.iter_mut().find(is_same).filter(|offered| offered.lasts(now)) {
            let is_more = offered.raise(wish.resources, now);
            if is_more {
                self.generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        self.lately.retain(|offered| offered.lasts(now));
        if self.lately.len() >= MOST
            && let Some((oldest, _)) = self.lately.iter().enumerate().min_by_key(|(_, offered)| offered.at)
        {
            self.lately.swap_remove(oldest);
            self.too_many_at = Some(now);
        }
        let (resources, labels) = (wish.resources.clone(), wish.labels.clone());
        self.lately.push(Offered { resources, labels, kinds: wish.kinds.to_vec(), at: now });
        self.generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether there may be offers that are not kept.
    fn has_too_many(&self, now: Timestamp) -> bool {
        self.too_many_at.is_some_and(|at| now.since(at) < LASTS)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns whether claims have come lately.
    pub(super) fn is_live(&self, now: Timestamp) -> bool {
        self.lately.iter().any(|offered| offered.lasts(now))
    }

    /// Returns whether a claim of lately offers what the job asks for, as far as is known.
    pub(super) fn suit(&self, job: &Job, now: Timestamp) -> bool {
        self.has_too_many(now) || self.lasting(now).any(|offered| offered.wish().suits(job, &offered.resources))
    }

    /// Returns the kinds that claims of lately take; none if any takes all.
    pub(super) fn kinds(&self, now: Timestamp) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for offered in self.lasting(now) {
            if offered.kinds.is_empty() {
                return Vec::new();
            }
            kinds.extend_from_slice(&offered.kinds);
        }
        kinds.sort_unstable();
        kinds.dedup();
        if self.has_too_many(now) { Vec::new() } else { kinds }
    }

    /// Returns whether no claim of lately meets a requirement.
    pub(super) fn meet_none(&self, requirement: &Requirement, now: Timestamp) -> bool {
        !self.has_too_many(now) && !self.lasting(now).any(|offered| requirement.is_met_by(&offered.labels))
    }

    /// Returns whether all claims of lately meet a requirement.
    pub(super) fn meet_all(&self, requirement: &Requirement, now: Timestamp) -> bool {
        !self.has_too_many(now) && self.lasting(now).all(|offered| requirement.is_met_by(&offered.labels))
    }

    fn lasting(&self, now: Timestamp) -> impl Iterator<Item = &Offered> {
        self.lately.iter().filter(move |offered| offered.lasts(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobSpec, QueueName};

    /// Returns whether somebody may take by now what nobody took before.
    fn note(offers: &mut LaneOffers, memory: Option<u64>, label: &str, at: i64) -> bool {
        let resources = memory.map(|memory| ("memory".to_owned(), memory)).into_iter().collect();
        let labels = Offers::from([(label.to_owned(), "a".to_owned())]);
        let (kinds, order) = (&[], &ClaimOrder::Dispatch);
        let wish = Wish { queues: &[], max_jobs: 1, resources: &resources, labels: &labels, kinds, order };
        let before = offers.generation();
        offers.note(&wish, Timestamp::from_millis(at));
        offers.generation() != before
    }

    fn job(memory: u64) -> Job {
        let resources = [("memory".to_owned(), memory)].into();
        let spec = JobSpec { resources, ..JobSpec::new(QueueName::system("q"), Kind::system("k")) };
        let (id, at) = (crate::job::JobId::new("j").expect("an id"), Timestamp::from_millis(0));
        let body = crate::job::Body::Empty;
        Job::submit(id, std::sync::Arc::new(spec), body, (at, None), &crate::job::Actor::system("a"), at)
    }

    #[test]
    fn what_a_worker_has_left_from_claim_to_claim_is_one_offer_with_the_most_of_it() {
        let mut offers = LaneOffers::default();
        assert!(note(&mut offers, Some(5), "gpu", 0) && note(&mut offers, Some(8), "gpu", 1));
        assert!(!note(&mut offers, Some(2), "gpu", 2) && offers.lately.len() == 1);
        let now = Timestamp::from_millis(2);
        assert!(offers.suit(&job(8), now) && !offers.suit(&job(9), now));
        assert!(note(&mut offers, None, "gpu", 3) && offers.suit(&job(9), now), "one that states none takes any");
    }

    #[test]
    fn an_offer_counts_for_a_while_and_of_too_many_nothing_suits_nobody() {
        let (mut offers, gpu) = (LaneOffers::default(), "gpu".parse().expect("a requirement"));
        note(&mut offers, None, "gpu", 0);
        let [now, late] = [0, 75_000].map(Timestamp::from_millis);
        assert!(offers.is_live(now) && offers.meet_all(&gpu, now));
        assert!(!offers.is_live(late) && offers.meet_none(&gpu, late));
        for number in 0..=MOST {
            note(&mut offers, None, &format!("host-{number}"), 1);
        }
        assert_eq!(offers.lately.len(), MOST);
        assert!(!offers.meet_none(&gpu, now) && !offers.meet_all(&gpu, now) && offers.suit(&job(1), now));
    }
}
