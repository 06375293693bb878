//! The slots under random interleavings of managers: a model of the store and of what managers do, request by request.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock::Timestamp;
use crate::job::{Body, Change, Claim, JobSpec, Kind, LeaseProof, QueueName, WorkerId};
use crate::store::Place;

const JOBS: usize = 5;
const MANAGERS: usize = 3;

fn version(seq_no: u64) -> Version {
    Version { place: Place::Main, primary_term: 1, seq_no }
}

fn limit() -> LimitName {
    "key:db".parse().expect("a limit")
}

fn job(id: &str) -> Job {
    of_priority(id, 0)
}

fn of_priority(id: &str, priority: i64) -> Job {
    let priority = Priority::new(priority).expect("a priority");
    let spec = JobSpec { priority, ..JobSpec::new(QueueName::system("q"), Kind::system("k")) };
    let at = Timestamp::from_millis(1);
    Job::submit(
        JobId::new(id).expect("an id"),
        Arc::new(spec),
        Body::Empty,
        (at, None),
        &crate::job::Actor::system("a"),
        at,
    )
}

/// Returns a job as it is known that was written with this number.
fn known(job: &Job, number: u64) -> Versioned {
    Versioned { job: Arc::new(job.clone()), version: version(number) }
}

fn claimed(job: &Job) -> Option<Job> {
    let claim = Claim {
        worker_id: WorkerId::system("w"),
        holder: None,
        request_id: None,
        term: Duration::from_secs(60),
        margin: Duration::ZERO,
    };
    job.claim(&claim, Timestamp::from_millis(2)).ok()
}

fn released(job: &Job) -> Option<Job> {
    let proof = LeaseProof { worker_id: WorkerId::system("w"), fence: job.fence, bearer: None };
    match job.release(&proof, "again", Timestamp::from_millis(3)) {
        Ok(Change::To(job)) => Some(*job),
        _ => None,
    }
}

#[test]
fn a_slot_is_over_unless_its_job_runs_under_its_fence_or_may_come_to() {
    let waiting = job("a");
    let holder = Holder::of_next_claim(&known(&waiting, 1), None);
    assert_eq!(holder.evidence(Some(&waiting)), Evidence::MayBeClaimed);
    let running = claimed(&waiting).expect("claimed");
    assert_eq!(holder.evidence(Some(&running)), Evidence::Runs);
    let again = released(&running).expect("released");
    assert_eq!(holder.evidence(Some(&again)), Evidence::Over);
    assert_eq!(Holder::of_next_claim(&known(&again, 3), None).evidence(Some(&running)), Evidence::Over);
    assert_eq!(holder.evidence(None), Evidence::Over);
}

#[test]
fn the_smallest_number_that_any_says_counts_unless_one_is_set() {
    let mut slots = Slots::default();
    slots.take(&known(&job("a"), 1), Some(5));
    slots.take(&known(&job("b"), 1), Some(3));
    assert_eq!(slots.room(&job("c"), None, Some(9)), 1);
    assert_eq!(slots.room(&job("c"), None, Some(2)), 0);
    assert_eq!(slots.room(&job("c"), Some(9), Some(2)), 7);
    assert_eq!(slots.room(&job("b"), None, Some(3)), 2, "its own slot is not in its way");
    assert_eq!(slots.room(&job("c"), None, None), 1);
}

#[test]
fn what_is_known_of_a_slot_is_kept_as_long_as_it_is_for_the_same_claim() {
    let mut slots = Slots::default();
    for id in ["a", "b", "c"] {
        slots.take(&known(&job(id), 1), None);
    }
    let document = slots.document(&limit()).expect("slots");
    slots.wrote(&document.holders, Some(version(1)));
    let fence = Fence::new(1);
    let [a, b, c] = ["a", "b", "c"].map(|id| JobId::new(id).expect("an id"));
    slots.settle(&a, fence, Fate::Runs);
    assert!(slots.learn(&b, fence, Fate::Gone));
    slots.settle(&b, fence, Fate::Runs);
    assert!(!slots.learn(&b, fence, Fate::Runs) && !slots.learn(&b, fence, Fate::Gone), "an end is not taken back");
    assert_eq!(slots.taken(), 2);
    slots.take_over(Some((document.clone(), version(1))));
    assert_eq!(slots.taken(), 2, "it is the same document");
    slots.take_over(Some((document.clone(), version(2))));
    let fates = |slots: &Slots| slots.slots.iter().map(|slot| slot.fate).collect::<Vec<Fate>>();
    assert_eq!(fates(&slots), [Fate::Runs, Fate::Gone, Fate::Claiming]);
    assert!(slots.is_claiming() && slots.slots[2].holder.job == c);
    // The job was written again since, or removed and created again; or its slot does not say for which claim it is.
    for over in [Some((1, 2)), None, None] {
        assert!(slots.learn(&b, fence, Fate::Gone) || over.is_some());
        let mut later = document.clone();
        later.holders[1].over = over;
        slots.take_over(Some((later, version(slots.version.map_or(0, |last| last.seq_no) + 1))));
        assert_eq!(fates(&slots), [Fate::Runs, Fate::Unknown, Fate::Claiming]);
    }
}

#[test]
fn of_a_slot_for_another_claim_under_the_same_fence_nothing_of_the_first_one_is_kept() {
    let mut slots = Slots::default();
    slots.take(&known(&job("a"), 1), None);
    let mut document = slots.document(&limit()).expect("slots");
    slots.wrote(&document.holders, Some(version(1)));
    let (first, now) = (document.holders[0].clone(), Instant::now());
    slots.missed_since(&first, now);
    document.holders[0].over = Some((1, 2));
    slots.take_over(Some((document, version(2))));
    let Slot { fate, missed_since, is_own, .. } = &slots.slots[0];
    assert_eq!((*fate, *missed_since, *is_own), (Fate::Unknown, None, false));
}

#[test]
fn a_job_is_beaten_by_less_urgent_ones_that_got_slots_since_the_first_read_and_until_they_are_looked_at() {
    let written = |id: &str, number| {
        let mut others = Slots::default();
        others.take(&known(&of_priority(id, 1), 1), None);
        Some((others.document(&limit()).expect("slots"), version(number)))
    };
    let (mut slots, urgent) = (Slots::default(), of_priority("u", 2));
    slots.take_over(written("a", 1));
    assert!(slots.beaten_by(&urgent).is_none(), "it ran before");
    slots.take_over(written("a", 2));
    assert!(slots.beaten_by(&urgent).is_none());
    // Its manager takes the slot again.
    slots.take_over(written("b", 3));
    assert_eq!(slots.beaten_by(&urgent).map(|lowest| lowest == Priority::new(1).expect("a priority")), Some(true));
    assert!(slots.beaten_by(&of_priority("v", 1)).is_none());
    slots.learn(&job("b").id, Fence::new(1), Fate::Runs);
    assert!(slots.beaten_by(&urgent).is_none());
}

#[test]
fn jobs_that_were_counted_stay_until_a_document_lists_them_or_they_are_over() {
    let mut slots = Slots::default();
    let others = || {
        let mut others = Slots::default();
        others.take(&known(&job("b"), 1), None);
        others.document(&limit()).expect("slots")
    };
    slots.add_running(["a", "c"].map(|id| Holder::of_running(&job(id))));
    slots.take_over(None);
    assert_eq!(slots.taken(), 2);
    for number in [1, 2] {
        slots.take_over(Some((others(), version(number))));
        assert_eq!(slots.taken(), 3, "another manager has not counted them");
    }
    assert!(slots.learn(&job("c").id, job("c").fence, Fate::Gone));
    let document = slots.document(&limit()).expect("slots");
    assert_eq!(document.holders.len(), 2);
    slots.wrote(&document.holders, Some(version(3)));
    slots.take_over(Some((others(), version(4))));
    assert_eq!(slots.taken(), 1, "it was taken off a document that listed it, so it is over");
}

#[test]
fn a_slot_says_the_priority_of_its_job_and_the_places_for_urgent_ones_are_not_the_others() {
    let urgent = |places| Urgent { places, min_priority: Priority::new(50).expect("a priority") };
    let mut slots = Slots::default();
    slots.take(&known(&of_priority("a", 49), 1), None);
    slots.take(&known(&of_priority("b", 50), 1), None);
    slots.take(&known(&job("c"), 1), None);
    assert_eq!(slots.room_of_others(&job("d"), urgent(2), 3), 1);
    assert_eq!(slots.room_of_others(&job("c"), urgent(2), 3), 2, "its own slot is not in its way");
    let text = serde_json::to_string(&slots.document(&limit()).expect("slots")).expect("JSON");
    assert!(text.contains(r#"{"job":"a","fence":1,"priority":49,"over":[1,1]}"#), "{text}");
    assert!(text.contains(r#"{"job":"c","fence":1,"over":[1,1]}"#), "the usual one is not written: {text}");
    let document: SlotDocument = serde_json::from_str(&text).expect("a document");
    slots.take_over(Some((document, version(1))));
    assert_eq!(slots.room_of_others(&job("d"), urgent(1), 2), 0);
    slots.add_running([Holder::of_running(&of_priority("e", 99)), Holder::of_running(&of_priority("f", -1))]);
    assert_eq!(slots.room_of_others(&job("d"), urgent(1), 4), 1);
}

/// A step of one manager, or of the world.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Reads a job and the document, and takes a slot if there is one.
    Take(usize, usize),
    /// Makes the claim for which it has taken a slot, under the version of the job that it knew then.
    Claim(usize, usize),
    /// Gives a claim up that it was to make.
    Forget(usize, usize),
    /// Looks at a slot as it knows the document, and writes the job again where a claim may be under way.
    Look(usize, usize),
    /// A job's run ends.
    End(usize),
    /// A job that does not run is removed, and created again under the same id.
    Renew(usize),
}

/// A job that begins while not all managers know of the limit.
#[derive(Clone, Copy, Debug)]
enum Early {
    /// At one that does not, without a slot.
    Without(usize),
    /// At one that does, which has a slot for it.
    With(usize, usize),
}

fn early() -> impl Strategy<Value = Vec<Early>> {
    let with = (0..MANAGERS, 0..JOBS).prop_map(|(manager, job)| Early::With(manager, job));
    prop::collection::vec(prop_oneof![(0..JOBS).prop_map(Early::Without), with], 0..6)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (manager, job) = (0..MANAGERS, 0..JOBS);
    let of_manager = (manager, job.clone());
    let step = prop_oneof![
        4 => of_manager.clone().prop_map(|(manager, job)| Step::Take(manager, job)),
        4 => of_manager.clone().prop_map(|(manager, job)| Step::Claim(manager, job)),
        1 => of_manager.clone().prop_map(|(manager, job)| Step::Forget(manager, job)),
        4 => of_manager.prop_map(|(manager, job)| Step::Look(manager, job)),
        3 => job.clone().prop_map(Step::End),
        1 => job.prop_map(Step::Renew),
    ];
    prop::collection::vec(step, 0..200)
}

/// The store: each job and the document with their versions.
struct World {
    jobs: Vec<(Job, u64)>,
    document: Option<(SlotDocument, Version)>,
    writes: u64,
}

impl World {
    fn write_job(&mut self, number: usize, job: Job) {
        self.writes += 1;
        self.jobs[number] = (job, self.writes);
    }

    fn running_jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter().map(|(job, _)| job).filter(|job| matches!(job.state, State::Running(_)))
    }

    fn running(&self) -> usize {
        self.running_jobs().count()
    }

    /// Returns whether one more such job may run.
    fn has_room(&self, job: &Job, most: u32, urgent: Option<Urgent>) -> bool {
        let of_others = urgent.filter(|urgent| !urgent.is(job.spec.priority));
        self.running() < most as usize
            && of_others.is_none_or(|urgent| self.others(urgent) < urgent.most_others(most) as usize)
    }

    /// Returns how many of the jobs run that are not urgent.
    fn others(&self, urgent: Urgent) -> usize {
        self.running_jobs().filter(|job| !urgent.is(job.spec.priority)).count()
    }
}

/// A manager: what it knows of the document, and the claims that it is to make, each with the job as it was read.
#[derive(Default)]
struct Known {
    slots: Slots,
    to_claim: Vec<Option<(Job, u64)>>,
}

impl Known {
    /// Returns for how many more jobs there is room, if `job` is the next and its limit keeps places free.
    fn room(&self, job: &Job, most: u32, urgent: Option<Urgent>) -> usize {
        let others = urgent.filter(|urgent| !urgent.is(job.spec.priority));
        let others = others.map(|urgent| self.slots.room_of_others(job, urgent, urgent.most_others(most)));
        self.slots.room(job, Some(most), None).min(others.unwrap_or(usize::MAX))
    }

    fn take(&mut self, world: &mut World, number: usize, most: u32, urgent: Option<Urgent>) {
        if self.to_claim[number].is_some() {
            return;
        }
        // The job is known before the document is written.
        let (job, seen) = world.jobs[number].clone();
        if job.state != State::Available || self.room(&job, most, urgent) == 0 {
            self.slots.take_over(world.document.clone());
            return;
        }
        self.slots.take(&known(&job, seen), None);
        if self.slots.version != world.document.as_ref().map(|(_, version)| *version) {
            self.slots.take_over(world.document.clone());
            return;
        }
        world.writes += 1;
        let document = self.slots.document(&limit()).expect("at least its own");
        self.slots.wrote(&document.holders, Some(version(world.writes)));
        world.document = Some((document, version(world.writes)));
        self.to_claim[number] = Some((job, seen));
    }

    fn claim(&mut self, world: &mut World, number: usize) {
        let Some((job, seen)) = self.to_claim[number].take() else { return };
        let is_written = world.jobs[number].1 == seen;
        if is_written {
            world.write_job(number, claimed(&job).expect("it was available"));
        }
        // A conflict shows the job as it is.
        let later = Holder::of_next_claim(&known(&job, seen), None).evidence(Some(&world.jobs[number].0));
        if !is_written && later != Evidence::Runs {
            self.slots.refuse(&known(&job, seen));
        }
        let fate = if is_written || later == Evidence::Runs { Fate::Runs } else { Fate::Unknown };
        self.slots.settle(&job.id, job.fence.next(), fate);
    }

    fn look(&mut self, world: &mut World, number: usize) {
        let id = world.jobs[number].0.id.clone();
        let is_open = |slot: &&Slot| slot.holder.job == id && !matches!(slot.fate, Fate::Claiming | Fate::Gone);
        let open: Vec<Holder> = self.slots.slots.iter().filter(is_open).map(|slot| slot.holder.clone()).collect();
        for holder in open {
            let job = world.jobs[number].0.clone();
            let fate = match holder.evidence(Some(&job)) {
                Evidence::Runs => Fate::Runs,
                Evidence::Over => Fate::Gone,
                Evidence::MayBeClaimed => {
                    world.write_job(number, job);
                    Fate::Gone
                }
            };
            self.slots.learn(&holder.job, holder.fence, fate);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn no_more_jobs_run_than_the_limit_lets_however_managers_interleave(
        early in early(), steps in steps(), most in 1_u32..4, places in 0_u32..3,
    ) {
        let min_priority = Priority::new(1).expect("a priority");
        let urgent = (1..most).contains(&places).then_some(Urgent { places, min_priority });
        // Two of the five are urgent.
        let priority = |number: usize| i64::from(number >= 3);
        let jobs = (0..JOBS).map(|number| (of_priority(&format!("j{number}"), priority(number)), 0)).collect();
        let mut world = World { jobs, document: None, writes: 0 };
        let known = || Known { to_claim: vec![None; JOBS], ..Known::default() };
        let mut managers: Vec<Known> = (0..MANAGERS).map(|_| known()).collect();
        for step in early {
            let (Early::Without(number) | Early::With(_, number)) = step;
            if !world.has_room(&world.jobs[number].0, most, urgent) {
                continue;
            }
            match step {
                Early::Without(_) => {
                    if let Some(job) = claimed(&world.jobs[number].0) {
                        world.write_job(number, job);
                    }
                }
                Early::With(manager, _) => {
                    managers[manager].take(&mut world, number, most, urgent);
                    managers[manager].claim(&mut world, number);
                }
            }
        }
        // From now on all know of it, and each counts what runs before it decides.
        for manager in &mut managers {
            manager.slots.add_running(world.running_jobs().map(Holder::of_running));
        }
        for step in steps {
            match step {
                Step::Take(manager, number) => managers[manager].take(&mut world, number, most, urgent),
                Step::Claim(manager, number) => managers[manager].claim(&mut world, number),
                Step::Forget(manager, number) => {
                    if let Some((job, _)) = managers[manager].to_claim[number].take() {
                        managers[manager].slots.settle(&job.id, job.fence.next(), Fate::Unknown);
                    }
                }
                Step::Look(manager, number) => managers[manager].look(&mut world, number),
                Step::End(number) => {
                    if let Some(job) = released(&world.jobs[number].0) {
                        world.write_job(number, job);
                    }
                }
                Step::Renew(number) if world.jobs[number].0.state == State::Available => {
                    world.write_job(number, of_priority(&format!("j{number}"), priority(number)));
                }
                Step::Renew(_) => {}
            }
            prop_assert!(world.running() <= most as usize, "{} run after {step:?}", world.running());
            if let Some(urgent) = urgent {
                let others = world.others(urgent);
                prop_assert!(others <= urgent.most_others(most) as usize, "{others} others run after {step:?}");
            }
        }
        // What nobody claims comes free: a manager that looks at every slot has the whole limit.
        let last = &mut managers[0];
        last.slots.take_over(world.document.clone());
        for slot in &mut last.slots.slots {
            if slot.fate == Fate::Claiming {
                slot.fate = Fate::Unknown;
            }
        }
        (0..JOBS).for_each(|number| last.look(&mut world, number));
        prop_assert_eq!(last.slots.taken(), world.running());
        // Urgent jobs may use all places, and the others have those that are not kept free.
        let new = |priority| of_priority("new", priority);
        prop_assert_eq!(last.room(&new(9), most, urgent), most as usize - world.running());
        if let Some(urgent) = urgent {
            let of_others = urgent.most_others(most) as usize - world.others(urgent);
            prop_assert_eq!(last.room(&new(0), most, Some(urgent)), of_others.min(most as usize - world.running()));
        }
    }
}
