use std::time::Duration;

use proptest::prelude::*;

use super::super::arbitrary;
use super::*;
use crate::job::{Actor, Change, Claim, JobSpec, LeaseProof, Progress, WorkerId};
use crate::store::{Place, Version, Versioned};

fn read_again(before: Option<&Job>, after: &Job) -> Result<Job, String> {
    let mut bytes = b"what is there".to_vec();
    let place = bytes.len();
    encode(before, after, &mut bytes).expect("every job can be written");
    bytes.push(7);
    let (delta, rest) = Delta::decode(&after.id, &bytes[place..])?;
    assert_eq!(rest, [7], "it says where it ends");
    delta.applied_to(before)
}

proptest! {
    #[test]
    fn every_change_of_any_job_into_any_other_is_read_as_it_was_written(
        before in proptest::option::of(arbitrary::job()),
        after in arbitrary::job(),
        shares in any::<[bool; 4]>(),
    ) {
        let mut after = after;
        if let Some(before) = &before {
            after.id = before.id.clone();
            // Without what they share, hardly any two jobs would have the same specification.
            let [spec, state, history, rest] = shares;
            if spec { after.spec = Arc::clone(&before.spec) }
            if state { after.state = before.state.clone() }
            if history { after.history = with_entries(&before.history, after.history.entries().iter().cloned()) }
            if rest {
                after.outbox.clone_from(&before.outbox);
                after.payload = before.payload.clone();
                after.run_at = before.run_at;
            }
        }
        prop_assert_eq!(read_again(before.as_ref(), &after), Ok(after));
    }

    #[test]
    fn a_change_that_is_read_is_the_same_bit_by_bit(
        before in arbitrary::job(),
        after in arbitrary::job(),
        is_beaten in any::<bool>(),
        negatives in any::<[[bool; 3]; 2]>(),
    ) {
        let id = before.id.clone();
        let (mut jobs, times) = ([before.clone(), before], (after.run_at, after.created_at));
        for (job, [factor, jitter, percent]) in jobs.iter_mut().zip(negatives) {
            let zero = |is_negative| if is_negative { -0.0 } else { 0.0 };
            let mut spec = (*job.spec).clone();
            (spec.retry.factor, spec.retry.jitter) = (zero(factor), zero(jitter));
            job.spec = Arc::new(spec);
            let Some(State::Running(running)) = [&job.state, &after.state].into_iter().find(|state| is_running(state))
            else { continue };
            let mut running = running.clone();
            running.progress = Some(Progress { percent: Some(zero(percent)), message: None });
            job.state = State::Running(running);
        }
        let [before, mut changed] = jobs;
        if let (State::Running(running), true) = (&changed.state, is_beaten) {
            changed.state = State::Running(Box::new(with_times(running, times)));
        }
        let other = Job { id, ..after };
        for after in [changed, other] {
            let read = read_again(Some(&before), &after).map_err(TestCaseError::fail)?;
            prop_assert_eq!(bytes(read), bytes(after));
        }
    }

    #[test]
    fn no_bytes_make_reading_panic(before in arbitrary::job(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok((delta, _)) = Delta::decode(&before.id, &bytes) {
            drop(delta.applied_to(Some(&before)));
            // One of fields needs a job that it changes, and says so.
        }
    }

    #[test]
    fn a_change_cut_short_is_reported(
        before in arbitrary::job(),
        after in arbitrary::job(),
        cut in any::<prop::sample::Index>(),
    ) {
        let after = Job { id: before.id.clone(), spec: Arc::clone(&before.spec), ..after };
        let mut bytes = Vec::new();
        encode(Some(&before), &after, &mut bytes).expect("every job can be written");
        prop_assert!(Delta::decode(&after.id, &bytes[..cut.index(bytes.len())]).is_err());
    }
}

fn is_running(state: &State) -> bool {
    matches!(state, State::Running(_))
}

/// Returns a job as it lies on disk.
fn bytes(job: Job) -> Vec<u8> {
    let (mut buffer, version) = (Vec::new(), Version { place: Place::Main, primary_term: 3, seq_no: 400 });
    stored::encode(&Versioned { job: Arc::new(job), version }, &mut buffer).expect("every job can be written");
    buffer
}

#[test]
fn a_heartbeat_that_reports_another_zero_is_written_with_it() {
    let running = running(&submitted());
    let lease = running.lease().expect("it runs");
    let proof = LeaseProof { worker_id: lease.worker_id.clone(), fence: running.fence, bearer: None };
    let beat = |job: &Job, percent: f64, millis: i64| {
        let progress = Progress { percent: Some(percent), message: None };
        job.heartbeat(&proof, Some(progress), Duration::ZERO, at(millis)).expect("it holds the lease")
    };
    let first = beat(&running, 0.0, 1_000);
    for millis in [1_000, 2_000] {
        let second = beat(&first, -0.0, millis);
        assert_eq!(bytes(read_again(Some(&first), &second).expect("readable")), bytes(second), "{millis}");
    }
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + millis)
}

fn submitted() -> Job {
    let spec = JobSpec {
        labels: [("filling".to_owned(), "x".repeat(200))].into(),
        ..JobSpec::new("reports".parse().expect("a name"), "render".parse().expect("a name"))
    };
    Job::submit(JobId::generate(), Arc::new(spec), Body::Empty, (at(0), None), &Actor::system("test"), at(0))
}

fn running(submitted: &Job) -> Job {
    let claim = Claim {
        worker_id: WorkerId::new("host-17:4711").expect("a name"),
        holder: None,
        request_id: None,
        term: Duration::from_secs(30),
        margin: Duration::ZERO,
    };
    submitted.claim(&claim, at(10)).expect("it waits")
}

fn changed<E: std::fmt::Debug>(change: Result<Change, E>) -> Job {
    match change.expect("it is allowed") {
        Change::To(job) => *job,
        other @ Change::Already => panic!("{other:?}"),
    }
}

fn bytes_of(before: Option<&Job>, after: &Job) -> usize {
    let mut bytes = Vec::new();
    encode(before, after, &mut bytes).expect("every job can be written");
    bytes.len()
}

#[test]
fn a_heartbeat_takes_few_bytes_and_no_transition_takes_the_job_again() {
    let submitted = submitted();
    let running = running(&submitted);
    let lease = running.lease().expect("it runs");
    let proof = LeaseProof { worker_id: lease.worker_id.clone(), fence: running.fence, bearer: None };
    let beaten = running.heartbeat(&proof, None, Duration::ZERO, at(10_000)).expect("it holds the lease");
    let whole = bytes_of(None, &running);
    assert!(whole > 250, "{whole}");
    assert!(bytes_of(Some(&running), &beaten) <= 16);
    assert!(bytes_of(Some(&submitted), &running) < whole / 2);
    assert!(bytes_of(Some(&beaten), &changed(beaten.complete(&proof, &Body::Empty, at(11_000)))) < whole / 3);
}

#[test]
fn a_job_that_ended_before_is_written_whole() {
    let running = running(&submitted());
    let proof = LeaseProof {
        worker_id: running.lease().expect("it runs").worker_id.clone(),
        fence: running.fence,
        bearer: None,
    };
    let ended = changed(running.complete(&proof, &Body::Empty, at(11_000)));
    assert!(ended.is_settled());
    assert_eq!(bytes_of(Some(&ended), &running), bytes_of(None, &running));
}

#[test]
fn a_change_of_fields_needs_the_job_that_it_changes() {
    let submitted = submitted();
    let running = running(&submitted);
    let mut bytes = Vec::new();
    encode(Some(&submitted), &running, &mut bytes).expect("every job can be written");
    let (delta, _) = Delta::decode(&running.id, &bytes).expect("readable");
    assert!(delta.applied_to(None).is_err());
}
