use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::clock::ManualClock;

const SECOND: i64 = 1_000;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_900_000_000_000 + millis)
}

/// Member 1, and the time that really passes.
struct Machine {
    wall: Arc<ManualClock>,
    passed: Arc<AtomicU64>,
    clocks: MemberClocks,
}

impl Machine {
    fn new() -> Self {
        let (wall, passed, start) = (Arc::new(ManualClock::at(at(0))), Arc::new(AtomicU64::new(0)), Instant::now());
        let millis = Arc::clone(&passed);
        let monotonic = move || start + Duration::from_millis(millis.load(Ordering::SeqCst));
        let clocks = MemberClocks::timed_by(Arc::clone(&wall) as Arc<dyn Clock>, Arc::new(monotonic));
        Self { wall, passed, clocks }
    }

    fn pass(&self, millis: u64) {
        self.wall.advance(Duration::from_millis(millis));
        self.passed.fetch_add(millis, Ordering::SeqCst);
    }

    /// Member `of` is asked and answers in the middle of a round trip; its clock is so far ahead of the true time,
    /// which this member's shows.
    fn ask(&self, of: u64, ahead: i64, round_trip: u64) {
        let asked = self.clocks.moment();
        self.pass(round_trip / 2);
        let time = self.wall.now().as_millis() + ahead;
        self.pass(round_trip - round_trip / 2);
        self.clocks.note(of, asked, Timestamp::from_millis(time));
    }

    fn seen(&self, members: u64) -> ClocksSeen {
        self.clocks.seen(1, 1..=members)
    }
}

fn off(seen: &ClocksSeen) -> Vec<u64> {
    seen.off.keys().copied().collect()
}

#[test]
fn a_clock_is_off_only_where_most_members_agree_against_it() {
    let of = |clocks: &[i64]| {
        let machine = Machine::new();
        for (number, ahead) in (2..).zip(clocks) {
            machine.ask(number, *ahead, 10);
        }
        machine.seen(1 + clocks.len() as u64)
    };
    let (near, far) = (SECOND, 5 * SECOND);
    assert_eq!(of(&[near, -near]).trouble(1), None);
    assert_eq!(off(&of(&[far, far])), [1], "its own");
    assert_eq!(of(&[far, far]).off[&1].against, [2, 3]);
    assert_eq!(off(&of(&[0, far])), [3]);
    assert_eq!(off(&of(&[0, -far, 0, far])), [3, 5], "both, of five");
    for nobody in [&[far][..], &[far, -far], &[far, far, -far, 0], &[near, 2 * near + 500]] {
        let seen = of(nobody);
        assert_eq!(off(&seen), [0; 0], "{nobody:?}: no three, or two, agree against any");
        assert!(!seen.apart.is_empty() && seen.trouble(1).is_some(), "{nobody:?}: it is said all the same");
    }
}

#[test]
fn what_a_round_trip_leaves_open_is_held_against_nobody() {
    for (ahead, round_trip, is_off) in
        [(2_100, 100, true), (2_100, 400, false), (5_000, 8_000, false), (5_000, 500, true)]
    {
        let machine = Machine::new();
        machine.ask(2, 0, 10);
        machine.ask(3, ahead, round_trip);
        let seen = machine.seen(3);
        assert_eq!(seen.off.contains_key(&3), is_off, "{ahead} ms by {round_trip} ms: {seen:?}");
    }
}

#[test]
fn a_clock_is_right_only_where_a_majority_certainly_shows_the_same_time() {
    for (of_two, round_trip, of_three, is_right) in
        [(0, 10, None, true), (3_000, 10, Some(0), true), (3_000, 10, None, false), (0, 8_000, None, false)]
    {
        let machine = Machine::new();
        machine.ask(2, of_two, round_trip);
        of_three.into_iter().for_each(|ahead| machine.ask(3, ahead, 10));
        assert_eq!(machine.seen(3).is_right(3), is_right, "{of_two} {of_three:?}");
    }
    assert!(!Machine::new().seen(3).is_right(3), "nothing is known of the others");
}

#[test]
fn the_shortest_round_trip_counts_until_one_contradicts_it_or_it_is_old() {
    let machine = Machine::new();
    machine.ask(2, 300, 10);
    machine.ask(2, 300, 3_000);
    assert!(machine.seen(2).ahead[&2].width() < 20, "the short one");
    machine.ask(2, 5_000, 3_000);
    let after = machine.seen(2).ahead[&2];
    assert!(after.least > 3_000 && after.most < 7_000, "its clock was set: {after:?}");
    machine.pass(60_000);
    assert_eq!(machine.seen(2).ahead.get(&2), None, "nothing was heard of it for a minute");
}

#[test]
fn a_member_whose_own_clock_was_set_sees_that_at_once() {
    let machine = Machine::new();
    machine.ask(2, 0, 10);
    machine.ask(3, 0, 10);
    machine.wall.advance(Duration::from_secs(10));
    let seen = machine.seen(3);
    assert_eq!(off(&seen), [1]);
    assert!((9_900..10_100).contains(&seen.off[&1].ahead_ms), "{seen:?}");
    let said = seen.trouble(1).expect("trouble");
    assert!(said.starts_with("the clock of member 1 is 10.0 s ahead of"), "{said}");
}

/// A clock that does not follow its machine's wall clock, but is so many milliseconds ahead of it.
struct Unmoved {
    wall: Arc<ManualClock>,
    ahead: i64,
    is_wrong: AtomicBool,
}

impl Clock for Unmoved {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.wall.now().as_millis() + self.ahead)
    }

    fn wall(&self) -> Timestamp {
        self.wall.now()
    }

    fn distrust(&self, is_wrong: bool) {
        self.is_wrong.store(is_wrong, Ordering::SeqCst);
    }
}

#[test]
fn the_wall_clock_of_a_machine_is_judged_and_the_time_that_a_process_goes_by() {
    let year = 366 * 86_400 * SECOND;
    // How far the wall clock and the time of the process are ahead of what the others show, and what that means.
    for (wall, shown, is_off, is_far_off) in [
        (0, 0, false, false),
        (year, 0, true, false),
        (year, year, true, true),
        (0, year, false, true),
        (0, -year, false, true),
        (-30 * SECOND, -30 * SECOND, true, false),
    ] {
        let of_machine = Arc::new(ManualClock::at(at(wall)));
        let clock = Arc::new(Unmoved { wall: of_machine, ahead: shown - wall, is_wrong: AtomicBool::new(false) });
        let clocks = MemberClocks::new(Arc::clone(&clock) as Arc<dyn Clock>);
        for other in [2, 3] {
            assert!(!clocks.is_far_off(clock.now(), 1, 1..=3), "no majority is known");
            clocks.note(other, clocks.moment(), at(0));
        }
        let seen = clocks.seen(1, 1..=3);
        clocks.judge_own(1, &seen);
        let is_wrong = clock.is_wrong.load(Ordering::SeqCst);
        assert_eq!((is_wrong, clocks.is_far_off(clock.now(), 1, 1..=3)), (is_off, is_far_off), "{wall} and {shown}");
        assert!(!clocks.is_far_off(clock.now(), 1, 1..=5), "two of five");
    }
}

/// Of three members one is down, so that there is no majority against either of the others.
#[test]
fn a_clock_that_leaves_all_that_are_known_of_is_not_followed_where_the_time_without_it_is_near_to_them() {
    let year = 366 * 86_400 * SECOND;
    for (wall, shown, others, is_left_alone) in [
        (year, 0, vec![0], true),
        (-year, 500, vec![0], true),
        (0, 0, vec![0], false),
        // It was wrong before, or the other one was set as well.
        (0, year, vec![0], false),
        (year, 0, vec![year], false),
        (year, 0, vec![0, year], false),
        (year, 0, vec![], false),
    ] {
        let of_machine = Arc::new(ManualClock::at(at(wall)));
        let clock = Arc::new(Unmoved { wall: of_machine, ahead: shown - wall, is_wrong: AtomicBool::new(false) });
        let clocks = MemberClocks::new(Arc::clone(&clock) as Arc<dyn Clock>);
        for (number, other) in (2..).zip(&others) {
            clocks.note(number, clocks.moment(), at(*other));
        }
        clocks.judge_own(1, &clocks.seen(1, 1..=5));
        let is_wrong = clock.is_wrong.load(Ordering::SeqCst);
        assert_eq!(is_wrong, is_left_alone, "{wall} and {shown} among {others:?}");
    }
}

#[test]
fn a_member_that_was_heard_hours_ago_says_that_a_clock_is_far_off_and_not_that_it_is_off() {
    const YEAR: i64 = 366 * 86_400 * SECOND;
    const HOUR: u64 = 3_600_000;
    let machine = Machine::new();
    let is_far_off = || machine.clocks.is_far_off(machine.wall.now(), 1, 1..=3);
    machine.ask(2, -YEAR, 10);
    machine.pass(3 * HOUR);
    assert!(!is_far_off(), "one of three is no majority");
    machine.ask(3, -YEAR, 10);
    assert!(is_far_off());
    assert!(off(&machine.seen(3)).is_empty(), "for two seconds it is too long ago");
    machine.pass(2 * HOUR);
    machine.ask(3, -YEAR, 10);
    assert!(!is_far_off(), "it was too long ago");
}

/// What the manager goes by is not what the machine shows, where it goes on from a time that others have written.
#[test]
fn the_time_that_a_leader_goes_on_from_is_judged() {
    let machine = Arc::new(ManualClock::at(at(0)));
    let clocks = Arc::new(MemberClocks::new(Arc::clone(&machine) as Arc<dyn Clock>));
    for other in [2, 3] {
        clocks.note(other, clocks.moment(), at(0));
    }
    let continued = Arc::new(crate::clock::ContinuedClock::new(machine));
    let judged = MemberClock::new(
        Arc::clone(&continued) as Arc<dyn Clock>,
        || None,
        move |now| clocks.is_far_off(now, 1, 1..=3),
    );
    assert_eq!(judged.offset(), None);
    continued.go_on_from(at(366 * 86_400 * SECOND));
    assert_eq!(judged.offset(), Some(Offset::FAR));
}

proptest! {
    /// Whoever is judged is judged rightly, whatever the round trips were.
    #[test]
    fn no_clock_is_off_that_is_near_to_most(
        clocks in prop::collection::vec((-6_000_i64..6_000, 1_u64..4_000), 1..5),
    ) {
        let machine = Machine::new();
        for (number, (ahead, round_trip)) in (2..).zip(&clocks) {
            machine.ask(number, *ahead, *round_trip);
        }
        let all: Vec<i64> = std::iter::once(0).chain(clocks.iter().map(|(ahead, _)| *ahead)).collect();
        let seen = machine.seen(all.len() as u64);
        for member in seen.off.keys() {
            let own = all[*member as usize - 1];
            let far = all.iter().filter(|other| own.abs_diff(**other) > 2_000).count();
            prop_assert!(far > all.len() / 2, "member {member} of {all:?}");
        }
    }
}
