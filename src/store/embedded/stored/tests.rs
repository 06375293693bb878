use proptest::prelude::*;

use super::super::arbitrary;
use super::*;
use crate::job::{
    Actor, BodyId, BodyRef, Concurrency, ConcurrencyKey, EventName, HistoryEntry, Hold, Json, Lease, NoticeFormat,
    NoticeTarget, Ordered, OrderingKey, Orphan, OrphanPolicy, Progress, RequestId, Running, ScheduleId, UniqueKey,
    WorkerId,
};

fn encoded(head: &Versioned) -> Vec<u8> {
    let mut buffer = b"what was there before".to_vec();
    encode(head, &mut buffer).expect("every job can be written");
    buffer
}

proptest! {
    #[test]
    fn every_job_is_read_as_it_was_written(head in arbitrary::head()) {
        let read = decode(&head.job.id, &encoded(&head)).map_err(|Corrupt(what)| TestCaseError::fail(what))?;
        prop_assert_eq!(read, head);
    }

    #[test]
    fn a_stored_job_cut_short_or_prolonged_is_reported(head in arbitrary::head(), cut in any::<prop::sample::Index>()) {
        let mut bytes = encoded(&head);
        prop_assert!(decode(&head.job.id, &bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert!(decode(&head.job.id, &bytes).is_err());
    }

    #[test]
    fn no_damage_makes_reading_panic(
        head in arbitrary::head(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = encoded(&head);
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        // Some damage makes another job that is as good; all other is an error.
        drop(decode(&head.job.id, &bytes));
    }
}

proptest! {
    #[test]
    fn a_job_that_is_not_held_and_no_rerun_lies_there_as_it_did_before_jobs_could_be(head in arbitrary::head()) {
        let spec = JobSpec { rerun_of: None, ..(*head.job.spec).clone() };
        let job = Job { hold: None, spec: Arc::new(spec), ..(*head.job).clone() };
        let plain = Versioned { job: Arc::new(job), version: head.version };
        prop_assert_eq!(encoded(&plain)[0], FORMAT);
        prop_assert_eq!(encoded(&head)[0] == FORMAT, encoded(&head) == encoded(&plain));
    }
}

#[test]
fn a_stored_job_of_another_format_is_reported() {
    let id = JobId::new("job-7").expect("a job id");
    let Err(Corrupt(what)) = decode(&id, &[FORMAT_WITH_MORE + 1, 0, 0]) else { panic!("it was read") };
    assert_eq!(what, "the stored job job-7: it has format 6, this version reads 4");
}

#[test]
fn each_state_has_a_number_of_its_own_for_good() {
    use JobState::{Available, Cancelled, Completed, Expired, Failed, Running};
    for (code, state) in [Available, Running, Completed, Failed, Cancelled, Expired].into_iter().enumerate() {
        assert_eq!((usize::from(state_code(state)), state_of(code as u8)), (code, Ok(state)));
    }
    assert!(state_of(6).is_err());
}

/// A lease and an entry of the history as earlier versions wrote them, and with the names of tokens.
#[test]
fn a_name_of_a_token_lies_beside_the_worker_and_nothing_where_there_is_none() {
    let at = Timestamp::from_millis(1);
    let lease = Lease {
        worker_id: WorkerId::system("w"),
        holder: None,
        request_id: None,
        acquired_at: at,
        heartbeat_at: at,
        expires_at: at,
        term: Duration::from_millis(3),
    };
    let entry = HistoryEntry {
        at,
        from: None,
        to: JobState::Running,
        fence: Fence::new(1),
        attempt: Attempt::new(1),
        event: EventName::ALL[1],
        actor: Actor::system("w"),
        worker_id: None,
        reason: None,
    };
    let named_lease = Lease { holder: Some(Actor::system("ci")), ..lease.clone() };
    let named_entry =
        HistoryEntry { actor: Actor::system("ci"), worker_id: Some(WorkerId::system("w")), ..entry.clone() };
    for (lease, bytes) in [
        (lease, &b"\x01w\0\x02\x02\x02\0\xc0\x8d\xb7\x01"[..]),
        (named_lease, b"\x04w\nci\0\x02\x02\x02\0\xc0\x8d\xb7\x01"),
    ] {
        assert_eq!(
            postcard::to_stdvec(&lease).expect("bytes").escape_ascii().to_string(),
            bytes.escape_ascii().to_string()
        );
        assert_eq!(postcard::from_bytes::<Lease>(bytes).expect("a lease"), lease);
    }
    for (entry, bytes) in
        [(entry, &b"\x02\0\x01\x01\x01\x01\x01w\0"[..]), (named_entry, b"\x02\0\x01\x01\x01\x01\x04ci\nw\0")]
    {
        assert_eq!(
            postcard::to_stdvec(&entry).expect("bytes").escape_ascii().to_string(),
            bytes.escape_ascii().to_string()
        );
        assert_eq!(postcard::from_bytes::<HistoryEntry>(bytes).expect("an entry"), entry);
    }
}

/// As below: a change of these bytes is a change of what is on disk.
#[test]
fn the_bytes_of_every_state_but_running_stay_as_they_are() {
    let finished_at = Timestamp::from_millis(1);
    let result = Body::Stored(BodyRef { id: BodyId(uuid::Uuid::nil()), bytes: 2 });
    let completed = [&[2, 2, 2, 16][..], &[0; 16], &[2]].concat();
    let states = [
        (State::Available, vec![0]),
        (State::Completed { finished_at, result: Body::Empty }, vec![2, 2, 0]),
        (State::Completed { finished_at, result }, completed),
        (State::Failed { finished_at }, vec![3, 2]),
        (State::Cancelled { finished_at }, vec![4, 2]),
        (State::Expired { finished_at }, vec![5, 2]),
    ];
    for (state, bytes) in states {
        assert_eq!(postcard::to_stdvec(&state).expect("bytes"), bytes, "{state:?}");
    }
}

/// A change of these bytes is a change of what is on disk: then the format gets another number, here and in the
/// directory.
#[test]
fn the_bytes_of_a_job_stay_as_they_are() {
    let at = Timestamp::from_millis;
    let entry = HistoryEntry {
        at: at(1),
        from: Some(JobState::Running),
        to: JobState::Available,
        fence: Fence::new(2),
        attempt: Attempt::new(3),
        event: EventName::ALL[4],
        actor: Actor::new("a").expect("an actor"),
        worker_id: None,
        reason: Some("r".to_owned()),
    };
    let target = NoticeTarget { url: "u".to_owned(), events: vec![EventName::ALL[5]], format: NoticeFormat::Slack };
    let spec = JobSpec {
        queue: QueueName::new("q").expect("a name"),
        kind: Kind::new("k").expect("a name"),
        priority: Priority::new(-6).expect("a priority"),
        owner: Some(Owner::new("o").expect("a name")),
        labels: BTreeMap::from([("l".to_owned(), "v".to_owned())]),
        expected_runtime: Some(Duration::from_millis(7)),
        timeout: Some(Duration::from_secs(8)),
        max_attempts: 9,
        retry: RetryPolicy::default(),
        resources: BTreeMap::from([("c".to_owned(), 10)]),
        oversight: Oversight { orphan_policy: Some(OrphanPolicy::Flag), notify: vec![target] },
        due: Some(Box::new(Due { schedule_id: ScheduleId::new("s").expect("an id"), due_at: at(11) })),
        rerun_of: Some(JobId::new("f").expect("an id")),
        conditions: Conditions {
            requires: vec!["h = f".parse().expect("a requirement")],
            concurrency: Some(Concurrency { key: ConcurrencyKey::new("c").expect("a key"), max: 5 }),
            unique: Some(UniqueKey::new("d").expect("a key")),
            ordering: Some(Ordered { key: OrderingKey::new("e").expect("a key"), seq: 8, first: 7 }),
        }
        .stored(),
        fingerprint: Some(Fingerprint(12)),
    };
    let lease = Lease {
        worker_id: WorkerId::new("w").expect("a name"),
        holder: None,
        request_id: Some(RequestId::new("i").expect("a name")),
        acquired_at: at(13),
        heartbeat_at: at(14),
        expires_at: at(15),
        term: Duration::from_secs(16),
    };
    let running = Running {
        lease,
        progress: Some(Progress { percent: Some(0.5), message: Some("p".to_owned()) }),
        cancel_requested_at: Some(at(17)),
        orphan: Some(Orphan { flagged_at: at(18), reason: "g".to_owned(), held: true }),
        overdue_at: Some(at(19)),
    };
    let job = Job {
        id: JobId::new("job-7").expect("an id"),
        spec: Arc::new(spec),
        payload: Body::Inline(Json::parse("{}".to_owned()).expect("JSON")),
        state: State::Running(Box::new(running)),
        run_at: at(20),
        expires_at: Some(at(21)),
        attempt: Attempt::new(22),
        fence: Fence::new(23),
        error: Some(JobError { code: "e".to_owned(), message: "m".to_owned() }),
        history: History::from_parts(vec![entry.clone()], 24),
        outbox: vec![Notice { number: 25, entry }],
        created_at: at(26),
        updated_at: at(27),
        started_at: Some(at(28)),
        hold: Some(Box::new(Hold { at: at(31), by: Actor::new("b").expect("an actor"), reason: Some("y".to_owned()) })),
    };
    let version = Version { place: Place::Main, primary_term: 29, seq_no: 30 };
    let bytes = encoded(&Versioned { job: Arc::new(job), version });
    let expected =
        b"\x05\x1d\x1e\x01q\x01k\xfa\x01\x01o\x01\x01l\x01v\x01\x00\xc0\x9f\xab\x03\x01\x08\x00\t\x01\x00\x00\
          \x00\x00\x00\x00\x00\x00@\xd8\x04\x00\x9a\x99\x99\x99\x99\x99\xc9?\x01\x01c\n\x01\x02\x01\x01u\x01\
          \x05\x01\x01\x01s\x16\x01\x01\x05h = f\x01\x01c\x05\x01\x01d\x01\x01e\x08\x07\x01\x0c\x01\x02{}\
          \x01\x01w\x01\x01i\x1a\x1c\x1e\x10\x00\x01\x01\x00\x00\x00\x00\x00\x00\xe0\
          ?\x01\x01p\x01\"\x01$\x01g\x01\x01&(\x01*\x16\x17\x01\x01e\x01m\x01\x02\x01\x01\x00\x02\x03\x04\x01a\
          \x01\x01r\x18\x01\x19\x02\x01\x01\x00\x02\x03\x04\x01a\x01\x01r46\x018\x01>\x01b\x01\x01y\x01\x01f";
    assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
}
