//! Claims that jobs are being written for.

use super::claims::of_bytes;
use super::*;

impl Bench {
    /// Reserves claims for these jobs. Returns the numbers of the jobs of each.
    fn reserve(&self, new: &[Versioned]) -> (Vec<Reservation>, Vec<Vec<usize>>) {
        let new = new.iter().enumerate().map(|(number, new)| (number, &new.job));
        let reserved = self.dispatch.reserve(new);
        let jobs = reserved.iter().map(|reservation| reservation.jobs().to_vec()).collect();
        (reserved, jobs)
    }
}

#[test]
fn the_most_urgent_job_is_for_the_claim_that_has_waited_longest() {
    let bench = bench(100, None);
    bench.know(&["a", "b"]);
    let _waiting = [bench.wait(&["a"], 2), bench.wait(&["b"], 9), bench.wait(&["a", "b"], 9), bench.wait(&["a"], 9)];
    let new =
        [job("a", "0", 0, -1), job("b", "1", 0, 0), job("a", "2", 5, 0), job("a", "3", 0, -2), job("a", "4", 1, 0)];
    let (reserved, jobs) = bench.reserve(&new);
    assert_eq!(jobs, [vec![2, 4], vec![1], vec![3, 0]]);
    assert_eq!(bench.dispatch.waiting(), 1);
    drop(reserved);
    assert_eq!(bench.dispatch.waiting(), 4);
}

#[test]
fn no_claim_is_reserved_for_a_job_that_it_could_not_be_given() {
    let bench = bench(100, None);
    bench.know(&["a", "paused"]);
    bench.pause(&["paused"]);
    let _waiting = [bench.wait_with(&["a", "paused"], 9, &[("memory", 4)]), bench.wait(&["paused"], 9)];
    let new = [job("a", "later", 0, 1), job("paused", "0", 0, 0), job("other", "0", 0, 0), needing("a", "large", 5)];
    assert!(bench.reserve(&new).1.is_empty());
    let together = [needing("a", "1", 3), needing("a", "2", 2), needing("a", "3", 1)];
    assert_eq!(bench.reserve(&together).1, [vec![0, 2]], "not more than it has room for");
}

#[test]
fn a_new_job_is_for_a_claim_that_offers_what_it_requires() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let _waiting = [bench.wait(&["a"], 9), bench.wait_offering(&["a"], 9, &[("memory", 4)], &[("hw", "fpga")])];
    let fpga = |memory| requiring(needing("a", "fpga", memory), "hw = fpga");
    assert!(bench.reserve(&[fpga(5), requiring(job("a", "gpu", 0, 0), "hw = gpu")]).1.is_empty());
    assert_eq!(bench.reserve(&[fpga(3), job("a", "any", 0, 0)]).1, [vec![1], vec![0]]);
}

#[test]
fn a_job_that_others_come_before_is_not_reserved_for() {
    let bench = bench(2, None);
    bench.know(&["a"]);
    bench.dispatch.add((0..3).map(|number| needing("a", &number.to_string(), 5)));
    let _waiting = bench.wait_with(&["a"], 9, &[("memory", 4)]);
    assert!(bench.reserve(&[job("a", "new", 0, 1), job("a", "last", -1, 0)]).1.is_empty());
    assert_eq!(bench.reserve(&[job("a", "urgent", 9, 0)]).1, [vec![0]], "the lane knows all that come before it");
}

#[test]
fn a_job_that_is_larger_than_an_answer_goes_alone() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let (large, small) = (of_bytes("large", 1, MAX_CLAIM_BYTES + 1), of_bytes("small", 0, 1));
    let _waiting = [bench.wait(&["a"], 9), bench.wait(&["a"], 9)];
    assert_eq!(bench.reserve(&[small, large]).1, [[1], [0]]);
}

#[tokio::test]
async fn a_claim_waits_on_in_its_place_when_nothing_was_written() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let (mut first, mut second) = (bench.wait(&["a"], 1), bench.wait(&["a"], 1));
    let (reserved, jobs) = bench.reserve(&[job("a", "new", 0, 0)]);
    assert_eq!(jobs, [[0]]);
    bench.dispatch.add([job("a", "1", 0, 0)]);
    assert_eq!(offered(&mut second).await, ["1"], "who is reserved is kept from other jobs");
    bench.dispatch.add([job("a", "2", 0, 0)]);
    drop(reserved);
    assert_eq!(offered(&mut first).await, ["2"], "what came meanwhile is handed out");
}

#[tokio::test]
async fn a_claim_whose_time_is_up_waits_for_what_is_being_written_for_it() {
    for is_written in [true, false] {
        let bench = bench(100, None);
        bench.know(&["a"]);
        let waiting = bench.wait(&["a"], 1);
        let (mut reserved, _) = bench.reserve(&[job("a", "new", 0, 0)]);
        let end = tokio::spawn(waiting.withdraw());
        tokio::task::yield_now().await;
        assert!(!end.is_finished());
        let reservation = reserved.pop().expect("one");
        if is_written {
            reservation.hand(Ok(Claimed::none()));
        } else {
            drop(reservation);
        }
        let handed = end.await.expect("no panic");
        assert_eq!(matches!(handed, Some(Handed::Claimed(Ok(_)))), is_written);
        assert_eq!(bench.dispatch.waiting(), 0);
    }
}

#[tokio::test]
async fn a_claim_that_went_away_does_not_wait_on() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let waiting = bench.wait(&["a"], 1);
    let (reserved, _) = bench.reserve(&[job("a", "new", 0, 0)]);
    drop(waiting);
    drop(reserved);
    assert_eq!(bench.dispatch.waiting(), 0);
    assert!(bench.wait(&["a"], 1).withdraw().await.is_none());
}
