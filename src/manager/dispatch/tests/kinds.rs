//! Claims that name the kinds of jobs that they take.

use super::*;
use crate::job::Owner;
use crate::manager::dispatch::order::Order;
use crate::manager::dispatch::taking_kinds::KindSearch;

/// A due job of the queue `a`.
fn of_kind(kind: &str, id: &str, priority: i64, after: i64) -> Versioned {
    let mut job = job("a", id, priority, after);
    let spec = &mut Arc::make_mut(&mut job.job).spec;
    Arc::make_mut(spec).kind = Kind::new(kind).expect("a name");
    job
}

fn owned(mut job: Versioned, owner: &str) -> Versioned {
    let spec = &mut Arc::make_mut(&mut job.job).spec;
    Arc::make_mut(spec).owner = Some(Owner::new(owner).expect("a name"));
    job
}

fn kinds(names: &[&str]) -> Vec<Kind> {
    names.iter().map(|name| Kind::new(name).expect("a name")).collect()
}

impl Bench {
    fn take_kinds(&self, names: &[&str], max_jobs: usize) -> Vec<String> {
        let (queues, resources, labels) = (queues(&["a"]), Resources::new(), Offers::new());
        let wish = Wish { kinds: &kinds(names), ..wish(&queues, max_jobs, &resources, &labels) };
        self.dispatch.take(&wish).map_or_else(Vec::new, |offer| ids(offer.take()))
    }

    fn wait_for_kinds(&self, names: &[&str]) -> WaitingClaim {
        let request = ClaimRequest {
            worker_id: WorkerId::system("worker"),
            bearer: None,
            queues: queues(&["a"]),
            max_jobs: 1,
            resources: Resources::new(),
            labels: Offers::new(),
            kinds: kinds(names),
            wait: Duration::from_secs(60),
            lease: Duration::from_secs(60),
            order: ClaimOrder::default(),
            request_id: None,
            repeated: false,
        };
        let claimant = Claimant { request: Arc::new(request), call: None };
        self.dispatch.take_or_wait(&claimant).err().expect("nothing to take")
    }

    /// Searches for kinds, and returns which.
    fn search_for_kinds(&self, found: &[Versioned]) -> Vec<String> {
        let Some(searches) = self.dispatch.begin_look_for_kinds(&queue("a")) else { return Vec::new() };
        let search = |search: &KindSearch| {
            let hits = found.iter().filter(|hit| hit.job.spec.kind == search.kind).cloned().collect();
            self.dispatch.end_look_for_kind(&queue("a"), search, hits, |_| true);
            search.kind.to_string()
        };
        let mut searched: Vec<String> = searches.searches.iter().map(search).collect();
        searched.sort_unstable();
        searched
    }

    fn fill(&self, jobs: impl IntoIterator<Item = Versioned>) {
        self.know(&["a"]);
        self.dispatch.add(jobs);
    }

    fn indexes_kinds(&self) -> bool {
        self.dispatch.shared.board.lock().lane(&queue("a")).kinds.is_some()
    }
}

#[test]
fn a_claim_is_given_only_jobs_of_the_kinds_that_it_names_in_the_order_of_dispatch() {
    let jobs =
        || [of_kind("x", "1", 0, -9), of_kind("y", "2", 0, -8), of_kind("z", "3", 9, 0), of_kind("x", "4", 5, 0)];
    let known = || {
        let bench = bench(100, None);
        bench.fill(jobs());
        bench
    };
    assert_eq!(known().take_kinds(&["x"], 9), ["4", "1"]);
    assert_eq!(known().take_kinds(&["y", "z"], 9), ["3", "2"]);
    assert_eq!(known().take_kinds(&["y", "z"], 1), ["3"]);
    assert_eq!(known().take_kinds(&["none"], 9), [""; 0]);
    assert_eq!(known().take_kinds(&[], 9), ["3", "4", "1", "2"]);
    let bench = known();
    assert_eq!(bench.take_kinds(&["x"], 9), ["4", "1"]);
    assert_eq!(bench.take(&["a"], 9), ["3", "2"]);
    bench.dispatch.add([of_kind("x", "5", 0, 0)]);
    assert_eq!(bench.take_kinds(&["x"], 9), ["5"], "the index goes on with what comes later");
}

#[test]
fn a_claim_whose_kinds_come_first_makes_no_index_of_them() {
    let bench = bench(100, None);
    bench.fill((0..9).map(|number| of_kind("x", &number.to_string(), 0, number)));
    bench.clock.advance(Duration::from_millis(9));
    assert_eq!(bench.take_kinds(&["x"], 3).len(), 3);
    assert!(!bench.indexes_kinds());
    assert!(bench.take_kinds(&["y"], 3).is_empty() && bench.indexes_kinds());
    bench.clock.advance(LANE_IDLE);
    bench.take(&["a"], 1);
    bench.dispatch.plan();
    assert!(!bench.indexes_kinds(), "nobody has named kinds for a while");
}

#[test]
fn what_is_behind_any_number_of_jobs_of_another_kind_is_found_without_stepping_over_them() {
    let bench = bench(4 * STEPS_PER_CLAIM, None);
    bench.fill((0..3 * STEPS_PER_CLAIM).map(|number| of_kind("usual", &format!("u{number}"), 1, 0)));
    bench.dispatch.add([of_kind("rare", "r", 0, 0)]);
    let (queues, resources, labels) = (queues(&["a"]), Resources::new(), Offers::new());
    let wish = Wish { kinds: &kinds(&["rare"]), ..wish(&queues, 9, &resources, &labels) };
    let mut steps = 7;
    let taken = bench.dispatch.shared.board.lock().take(&wish, Timestamp::from_millis(START), &mut steps);
    assert_eq!((ids(taken), steps), (vec!["r".to_owned()], 7));
}

#[tokio::test]
async fn a_new_job_goes_to_the_claim_that_waits_for_its_kind() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let (_usual, mut rare) = (bench.wait_for_kinds(&["usual"]), bench.wait_for_kinds(&["rare"]));
    bench.dispatch.add([of_kind("rare", "r", 0, 0), of_kind("other", "o", 9, 0)]);
    assert_eq!(offered(&mut rare).await, ["r"]);
    assert_eq!(bench.dispatch.waiting(), 1);
    let new: Vec<Arc<Job>> = vec![of_kind("other", "p", 0, 0).job, of_kind("usual", "u", 0, 0).job];
    let reserved = bench.dispatch.reserve(new.iter().enumerate());
    assert_eq!(reserved.iter().map(|claim| claim.jobs().to_vec()).collect::<Vec<_>>(), [[1]]);
}

#[tokio::test]
async fn a_kind_of_which_a_full_lane_has_none_is_searched_for_and_overtakes_no_other_claims_jobs() {
    let bench = bench(4, None);
    bench.fill((0..9).map(|number| of_kind("usual", &format!("u{number}"), 1, 0)));
    let behind = [of_kind("rare", "r1", 0, -2), of_kind("rare", "r2", 0, -1)];
    assert!(bench.search_for_kinds(&[]).is_empty(), "no claim has named a kind");
    assert!(bench.take_kinds(&["usual"], 1).len() == 1 && bench.search_for_kinds(&[]).is_empty());
    let mut rare = bench.wait_for_kinds(&["rare"]);
    assert_eq!(bench.search_for_kinds(&behind), ["rare"]);
    assert_eq!(offered(&mut rare).await, ["r1"]);
    assert!(bench.search_for_kinds(&behind).is_empty(), "one is here");
    // What comes after the found ones is kept with them, as long as nothing is missing between.
    bench.dispatch.add([of_kind("rare", "r3", 0, 0)]);
    assert_eq!(bench.take(&["a"], 9), ["u1", "u2", "u3"], "a claim for any kind is not given what is behind the end");
    assert_eq!(bench.take_kinds(&["rare"], 9), ["r2", "r3"]);
    assert_eq!(bench.search_for_kinds(&[]), [""; 0], "it was searched for a moment ago");
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.search_for_kinds(&[]), ["rare"]);
}

#[test]
fn a_search_for_a_kind_that_was_cut_off_goes_on_after_its_last_hit_and_begins_anew_after_a_while() {
    let bench = bench(4, None);
    bench.fill((0..9).map(|number| of_kind("usual", &format!("u{number}"), 1, 0)));
    assert!(bench.take_kinds(&["rare"], 1).is_empty());
    let page: Vec<Versioned> = (0..4).map(|number| of_kind("rare", &format!("r{number}"), 0, number - 9)).collect();
    assert_eq!(bench.search_for_kinds(&page), ["rare"]);
    bench.dispatch.add([of_kind("rare", "r9", 0, 0)]);
    assert_eq!(bench.take_kinds(&["rare"], 9), ["r0", "r1", "r2", "r3"], "others may be missing before the last");
    assert_eq!(bench.search_for_kinds(&[]), [""; 0], "there is a pause between two searches");
    for (after, from) in [(50, Some(Sort::Dispatch.key(&page[3].job))), (2_000, None)] {
        bench.clock.advance(Duration::from_millis(after));
        let looks = bench.dispatch.begin_look_for_kinds(&queue("a")).expect("a search is due");
        assert_eq!(looks.searches[0].after, from);
        bench.dispatch.end_look_for_kind(&queue("a"), &looks.searches[0], page.clone(), |_| false);
    }
}

#[test]
fn a_job_that_was_kept_behind_the_end_of_a_lane_joins_the_others_when_the_end_has_come_to_it() {
    let bench = bench(2, None);
    bench.fill((0..3).map(|number| of_kind("usual", &format!("u{number}"), 1, 0)));
    let behind = [of_kind("rare", "r", 0, 0)];
    assert!(bench.take_kinds(&["rare"], 1).is_empty());
    assert_eq!(bench.search_for_kinds(&behind), ["rare"]);
    assert_eq!(bench.take(&["a"], 9), ["u0", "u1"]);
    let lookup = bench.dispatch.begin_lookup(&queue("a")).expect("it has run out");
    let due = vec![of_kind("usual", "u2", 1, 0), behind[0].clone()];
    bench.dispatch.end_lookup(&queue("a"), &lookup, LookupResult { due, later: Vec::new() }, |_| true);
    assert_eq!(bench.take(&["a"], 9), ["u2", "r"]);
    assert!(bench.take_kinds(&["rare"], 1).is_empty());
}

#[test]
fn a_job_behind_the_end_of_a_lane_that_is_gone_is_not_offered() {
    let bench = bench(2, None);
    bench.fill((0..3).map(|number| of_kind("usual", &format!("u{number}"), 1, 0)));
    let behind = [of_kind("rare", "r", 0, 0)];
    assert!(bench.take_kinds(&["rare"], 1).is_empty());
    bench.search_for_kinds(&behind);
    bench.dispatch.remove(std::iter::once(&*behind[0].job));
    assert!(bench.take_kinds(&["rare"], 1).is_empty());
}

#[test]
fn owners_take_turns_with_their_jobs_of_the_kinds_that_a_claim_names() {
    let bench = bench(100, None);
    let rule = Rule { order: Order::BY_OWNER, weights: Arc::default() };
    bench.dispatch.go_by([(queue("a"), rule)].into());
    let job = |kind: &str, id: &str, owner: &str| owned(of_kind(kind, id, 0, 0), owner);
    bench.fill([job("x", "a1", "ann"), job("x", "a2", "ann"), job("y", "a3", "ann"), job("x", "b1", "bob")]);
    assert_eq!(bench.take_kinds(&["x"], 9), ["a1", "b1", "a2"]);
    bench.dispatch.add([job("x", "b2", "bob"), job("y", "b3", "bob")]);
    assert_eq!(bench.take_kinds(&["y"], 9), ["b3", "a3"], "ann has had two turns");
    assert_eq!(bench.take(&["a"], 9), ["b2"]);
}
