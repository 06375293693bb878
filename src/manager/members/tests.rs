use super::*;
use crate::store::Place;

fn workers(count: u32) -> Arc<Workers> {
    Arc::new([(QueueName::system("q"), count)].into())
}

fn settled(state: &State, now: Instant) -> Option<u32> {
    state.settled(now).get(&QueueName::system("q")).copied()
}

#[test]
fn workers_count_once_others_know_of_them_and_no_longer_when_they_are_gone() {
    let (mut state, start) = (State::default(), Instant::now());
    let after = |seconds| start + Duration::from_secs(seconds);
    state.tell(workers(4), start);
    assert_eq!(settled(&state, after(1)), None);
    state.tell(workers(8), after(2));
    assert_eq!(settled(&state, after(3)), Some(4));
    state.tell(workers(2), after(4));
    assert_eq!(settled(&state, after(5)), Some(2));
    state.tell(Arc::default(), after(6));
    assert_eq!(settled(&state, after(6)), None);
    for second in 7..100 {
        state.tell(workers(9), after(second));
    }
    assert_eq!(settled(&state, after(100)), Some(9));
    assert!(state.told.len() < 5, "only what counts is kept");
}

#[test]
fn a_manager_runs_as_long_as_its_record_changes() {
    let (mut state, now) = (State::default(), Instant::now() + SILENCE);
    let (settled, kinds) = Default::default();
    let workers_of_it = (*workers(4)).clone();
    let (at, address) = (Timestamp::MIN, None);
    let (reads_heads, tells_of_changes) = (true, true);
    let beat = Beat { at, workers: workers_of_it, settled, kinds, address, reads_heads, tells_of_changes };
    let version = Version { place: Place::Main, primary_term: 1, seq_no: 1 };
    let of_a_later_version = None;
    for (name, ago, beat) in [
        ("silent", SILENCE, Some(beat.clone())),
        ("running", SILENCE - Duration::from_millis(1), Some(beat)),
        ("later-version", Duration::ZERO, of_a_later_version),
    ] {
        let name = RecordName::new(name).expect("a name");
        state.others.insert(name, Sighting { version, since: now - ago, beat });
    }
    let mut running = state.running(now);
    running.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<&str> = running.iter().map(|member| member.name.as_str()).collect();
    assert_eq!(names, ["later-version", "running"]);
    assert_eq!([running[0].workers.len(), running[1].workers.len()], [0, 1]);
}

#[test]
fn a_record_of_an_earlier_version_does_not_say_that_its_manager_reads_heads() {
    let beat = |text: &str| serde_json::from_str::<Beat>(text).expect("a record");
    let earlier = r#"{"at": "2026-01-01T00:00:00Z", "workers": {}, "address": "http://a"}"#;
    let of = |beat: Beat| {
        let (name, mut state) = (RecordName::new("a").expect("a name"), State::default());
        let version = Version { place: Place::Main, primary_term: 1, seq_no: 1 };
        state.others.insert(name.clone(), Sighting { version, since: Instant::now(), beat: Some(beat) });
        state.called(&name).expect("an address")
    };
    assert!(!of(beat(earlier)).reads_heads);
    let own = serde_json::to_string(&Beat { reads_heads: true, ..beat(earlier) }).expect("JSON");
    assert!(of(beat(&own)).reads_heads);
}

/// A manager's record after so many writes.
fn record(name: &str, writes: u64) -> Record {
    let (workers, settled, kinds) = Default::default();
    let (at, address, reads_heads, tells_of_changes) = (Timestamp::MIN, None, true, true);
    let beat = Beat { at, workers, settled, kinds, address, reads_heads, tells_of_changes };
    let version = Version { place: Place::Main, primary_term: 1, seq_no: writes };
    Record { key: key(&RecordName::new(name).expect("a name")), version, body: body(&beat).expect("JSON") }
}

#[test]
fn a_record_is_removed_once_it_has_stayed_the_same_for_a_minute_and_no_other() {
    let (mut state, start) = (State::default(), Instant::now());
    let mut see = |after: Duration, records: &[(&str, u64)]| -> Vec<String> {
        let records = records.iter().map(|(name, writes)| record(name, *writes));
        let gone = state.see(records, start + after);
        gone.iter().map(|removal| removal.key().name.to_string()).collect()
    };
    let (moment, none) = (Duration::from_millis(1), [""; 0]);
    assert_eq!(see(Duration::ZERO, &[("silent", 1), ("running", 1)]), none);
    assert_eq!(see(KEPT - moment, &[("silent", 1), ("running", 2)]), none);
    assert_eq!(see(KEPT, &[("silent", 1), ("running", 2), ("new", 1)]), ["silent"]);
    assert_eq!(see(KEPT, &[("silent", 1)]), ["silent"], "and again, if that was in vain");
    assert_eq!(see(2 * KEPT, &[("running", 2), ("silent", 2)]), none, "who is back is seen anew");
}

#[test]
fn a_manager_was_away_when_the_others_may_have_taken_it_for_gone() {
    let start = Instant::now();
    assert!(!State::default().was_away(start + KEPT), "it has not been there before");
    let state = State { last: Some(start), ..State::default() };
    assert!(!state.was_away(start + SILENCE - Duration::from_millis(1)));
    assert!(state.was_away(start + SILENCE));
}

#[test]
fn numbers_of_workers_are_rounded_down_to_two_bits() {
    assert_eq!([0, 1, 2, 3, 4, 5, 7, 11, 2_000].map(roughly), [0, 1, 2, 3, 4, 4, 6, 8, 1_536]);
}
