use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::breaker::{FAILURES, LEFT_ALONE, LEFT_ALONE_AT_MOST, PARTIES};
use super::*;
use crate::clock::ManualClock;
use crate::executor::{CallError, TargetUrl};

const MARGIN: Duration = Duration::from_secs(60);

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_millis(1_900_000_000_000))
}

fn party(owner: &str, schedule: &str) -> Party {
    Party::new(Some(owner), schedule)
}

async fn admit(hosts: &Hosts, host: &str, party: Party, clock: &ManualClock) -> Admission {
    let until = clock.now().plus(MARGIN);
    hosts.admit(&Caller { host, party, margin: MARGIN, until }, clock).await
}

/// Calls a host as a party that nobody else is.
async fn call(hosts: &Hosts, host: &str, clock: &ManualClock) -> Option<Call> {
    call_as(hosts, host, party("o", &rand::random::<u64>().to_string()), clock).await
}

async fn call_as(hosts: &Hosts, host: &str, party: Party, clock: &ManualClock) -> Option<Call> {
    match admit(hosts, host, party, clock).await {
        Admission::Call(call) => Some(call),
        Admission::Later(_) | Admission::Trying(_) | Admission::Down(_) => None,
    }
}

/// Takes all places that a party may have.
async fn take_all(hosts: &Hosts, host: &str, party: Party, clock: &ManualClock) -> Vec<Call> {
    let mut calls = Vec::new();
    while let Some(call) = call_as(hosts, host, party.clone(), clock).await {
        calls.push(call);
    }
    calls
}

async fn fail(hosts: &Hosts, party: Party, heard: Heard, clock: &ManualClock) {
    let call = call_as(hosts, "a", party, clock).await.expect("it is called");
    hosts.ended(call, heard, clock.now());
}

/// Returns how many places nobody has.
fn free(hosts: &Hosts) -> usize {
    hosts.called.lock().free
}

#[tokio::test(start_paused = true)]
async fn a_host_takes_its_own_places_only() {
    let (hosts, clock) = (Hosts::new(100, 2), clock());
    let taken = [call(&hosts, "a", &clock).await, call(&hosts, "a", &clock).await];
    assert!(taken.iter().all(Option::is_some));
    assert!(matches!(admit(&hosts, "a", party("o", "s"), &clock).await, Admission::Later(wait) if wait >= LATER));
    assert!(call(&hosts, "b", &clock).await.is_some());
    drop(taken);
    assert!(call(&hosts, "a", &clock).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn neither_a_schedule_nor_an_owner_takes_all_places_of_a_host() {
    let (hosts, clock) = (Hosts::new(512, 128), clock());
    let one = take_all(&hosts, "a", party("x", "1"), &clock).await;
    let other = take_all(&hosts, "a", party("x", "2"), &clock).await;
    assert!(one.len() >= 64 && !other.is_empty(), "{} and {}", one.len(), other.len());
    let mut of_owner = one.len() + other.len();
    let mut taken = vec![one, other];
    for number in 3..200 {
        let more = take_all(&hosts, "a", party("x", &number.to_string()), &clock).await;
        of_owner += more.len();
        taken.push(more);
    }
    assert!((64..100).contains(&of_owner), "the schedules of one owner have {of_owner} together");
    let of_other = take_all(&hosts, "a", party("y", "1"), &clock).await;
    assert!(of_other.len() >= 8, "another owner has {}", of_other.len());
    let third = call_as(&hosts, "a", party("z", "1"), &clock).await;
    assert!(third.is_some(), "and there is room for a third one");
}

#[tokio::test(start_paused = true)]
async fn a_place_that_becomes_free_goes_to_the_party_with_the_fewest() {
    let (hosts, clock) = (Arc::new(Hosts::new(100, 3)), Arc::new(clock()));
    let mut taken = Vec::new();
    for (owner, schedule) in [("x", "1"), ("x", "2"), ("y", "1")] {
        taken.push(call_as(&hosts, "a", party(owner, schedule), &clock).await.expect("it is called"));
    }
    let mut waits = Vec::new();
    for owner in ["x", "x", "y", "z"] {
        let (hosts, clock) = (Arc::clone(&hosts), Arc::clone(&clock));
        waits.push(tokio::spawn(async move { call_as(&hosts, "a", party(owner, "1"), &clock).await }));
        tokio::task::yield_now().await;
    }
    // The second schedule of `x` ends, of which the first has a place like the schedule of `y`.
    drop(taken.remove(1));
    let mut got = Vec::new();
    for wait in waits {
        got.push(wait.await.expect("it ends").is_some());
    }
    assert_eq!(got, [false, false, false, true]);
}

/// Of 14 due times of another owner, ten were missed.
#[tokio::test(start_paused = true)]
async fn schedules_with_short_time_limits_keep_nobody_else_from_calling_the_host() {
    let (hosts, clock) = (Hosts::new(512, 128), clock());
    for second in 0..140 {
        for slow in 0..8 {
            if let Some(call) = call_as(&hosts, "a", party("x", &slow.to_string()), &clock).await {
                hosts.ended(call, Heard::Silence, clock.now());
            }
        }
        if second % 10 == 9 {
            for of in [party("y", "1"), party("x", "quick")] {
                let call = call_as(&hosts, "a", of, &clock).await.expect("it is called at once");
                hosts.ended(call, Heard::Answer, clock.now());
            }
        }
        clock.advance(Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_silent_host_each_party_finds_out_for_itself_and_an_answer_to_one_lets_all_go_on() {
    let (hosts, clock) = (Hosts::new(512, 128), clock());
    for number in 0..8 {
        for _ in 0..2 {
            fail(&hosts, party("x", &number.to_string()), Heard::Silence, &clock).await;
        }
    }
    clock.advance(MARGIN);
    let first = call_as(&hosts, "a", party("x", "1"), &clock).await.expect("one finds out");
    assert!(matches!(admit(&hosts, "a", party("x", "1"), &clock).await, Admission::Trying(_)));
    let other = call_as(&hosts, "a", party("x", "2"), &clock).await.expect("another one does as well");
    hosts.ended(other, Heard::Silence, clock.now());
    assert!(matches!(admit(&hosts, "a", party("x", "2"), &clock).await, Admission::Down(_)));
    hosts.ended(first, Heard::Answer, clock.now());
    assert!(call_as(&hosts, "a", party("x", "2"), &clock).await.is_some(), "an answer to one lets all go on");
}

/// Calls of another owner that hang for a minute, and ever new ones that fail, kept the host closed for ever.
#[tokio::test(start_paused = true)]
async fn nothing_that_others_do_keeps_a_party_from_finding_out_that_a_host_is_back() {
    let (hosts, clock) = (Hosts::new(512, 128), clock());
    for _ in 0..FAILURES {
        fail(&hosts, party("v", "s"), Heard::Silence, &clock).await;
        clock.advance(LEFT_ALONE_AT_MOST);
    }
    for _ in 0..2 {
        fail(&hosts, party("x", "hangs"), Heard::Silence, &clock).await;
    }
    let mut hanging = Vec::new();
    for second in 0..60 {
        for number in 0..4 {
            hanging.extend(call_as(&hosts, "a", party("x", "hangs"), &clock).await);
            if let Some(call) = call_as(&hosts, "a", party("x", &format!("{second}-{number}")), &clock).await {
                hosts.ended(call, Heard::Silence, clock.now());
            }
        }
        clock.advance(Duration::from_secs(1));
        if second == 30 {
            let call = call_as(&hosts, "a", party("v", "s"), &clock).await.expect("it finds out by itself");
            drop(call);
        }
    }
    assert!((5..=10).contains(&hanging.len()), "fewer and fewer of them find out: {}", hanging.len());
}

/// A call with a long time limit kept everybody from a host that took connections again.
#[tokio::test(start_paused = true)]
async fn a_call_that_finds_out_and_hangs_puts_off_the_next_one_no_longer_than_a_failure() {
    let (hosts, clock) = (Hosts::new(512, 128), clock());
    for _ in 0..2 * FAILURES {
        clock.advance(LEFT_ALONE_AT_MOST);
        fail(&hosts, party("x", "s"), Heard::NoConnection, &clock).await;
    }
    clock.advance(LEFT_ALONE_AT_MOST);
    let hangs = call_as(&hosts, "a", party("x", "s"), &clock).await.expect("it finds out");
    clock.advance(MARGIN / 4 - Duration::from_secs(1));
    assert!(matches!(admit(&hosts, "a", party("v", "s"), &clock).await, Admission::Trying(_)));
    clock.advance(Duration::from_secs(1));
    let other = call_as(&hosts, "a", party("v", "s"), &clock).await.expect("a quarter of its margin is over");
    hosts.ended(other, Heard::Answer, clock.now());
    assert!(call_as(&hosts, "a", party("w", "s"), &clock).await.is_some());
    hosts.ended(hangs, Heard::Silence, clock.now());
    assert!(call_as(&hosts, "a", party("w", "s"), &clock).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_find_out_in_turn() {
    let (hosts, clock) = (Arc::new(Hosts::new(512, 128)), Arc::new(clock()));
    for _ in 0..FAILURES {
        fail(&hosts, party("x", "s"), Heard::NoConnection, &clock).await;
    }
    clock.advance(LEFT_ALONE);
    let first = call_as(&hosts, "a", party("x", "s"), &clock).await.expect("it finds out");
    let wait = {
        let (hosts, clock) = (Arc::clone(&hosts), Arc::clone(&clock));
        tokio::spawn(async move { call_as(&hosts, "a", party("v", "s"), &clock).await })
    };
    tokio::task::yield_now().await;
    // Nothing was sent, and the same party is back at once.
    hosts.ended(first, Heard::Nothing, clock.now());
    assert!(call_as(&hosts, "a", party("x", "s"), &clock).await.is_none(), "it was not its turn");
    assert!(wait.await.expect("it ends").is_some());
}

#[tokio::test(start_paused = true)]
async fn the_parties_whose_failures_are_remembered_are_bounded() {
    let (hosts, clock) = (Hosts::new(512, 128), clock());
    for number in 0..PARTIES + 100 {
        clock.advance(Duration::from_millis(1));
        fail(&hosts, party("x", &number.to_string()), Heard::Silence, &clock).await;
    }
    assert_eq!(hosts.called.lock().hosts["a"].breaker.parties(), PARTIES);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_takes_no_connection_is_left_alone_and_called_by_one_at_a_time_after_that() {
    let (hosts, clock) = (Hosts::new(512, 128), clock());
    for _ in 0..FAILURES {
        fail(&hosts, party("o", "s"), Heard::NoConnection, &clock).await;
    }
    assert!(matches!(admit(&hosts, "a", party("p", "t"), &clock).await, Admission::Down(wait) if wait == LEFT_ALONE));
    assert!(call(&hosts, "b", &clock).await.is_some());

    clock.advance(LEFT_ALONE);
    let probe = call(&hosts, "a", &clock).await.expect("one call finds out");
    assert!(matches!(admit(&hosts, "a", party("p", "t"), &clock).await, Admission::Trying(wait) if wait >= LATER));
    hosts.ended(probe, Heard::NoConnection, clock.now());
    let wait = 2 * LEFT_ALONE;
    assert!(matches!(admit(&hosts, "a", party("p", "t"), &clock).await, Admission::Down(left) if left == wait));

    clock.advance(wait);
    drop(call(&hosts, "a", &clock).await.expect("one call finds out"));
    let probe = call(&hosts, "a", &clock).await.expect("another does when that one has ended without an answer");
    hosts.ended(probe, Heard::Answer, clock.now());
    let first = take_many(&hosts, &clock).await;
    assert!((7..=13).contains(&first.len()), "a tenth of the places at first: {}", first.len());
    for call in first {
        hosts.ended(call, Heard::Answer, clock.now());
    }
    let second = take_many(&hosts, &clock).await.len();
    assert!((14..=26).contains(&second), "more with each answer: {second}");
}

async fn take_many(hosts: &Hosts, clock: &ManualClock) -> Vec<Call> {
    let mut calls = Vec::new();
    for owner in 0..300 {
        calls.extend(call_as(hosts, "a", party(&owner.to_string(), "s"), clock).await);
    }
    calls
}

#[tokio::test(start_paused = true)]
async fn the_smallest_margin_of_those_that_wait_says_when_a_host_is_called_again() {
    let (hosts, clock) = (Hosts::new(512, 128), clock());
    let wait = async |seconds: u64| {
        let margin = Duration::from_secs(seconds);
        let until = clock.now().plus(margin);
        match hosts.admit(&Caller { host: "a", party: party("o", "s"), margin, until }, &clock).await {
            Admission::Down(wait) => Some(wait),
            Admission::Call(call) => {
                hosts.ended(call, Heard::NoConnection, clock.now());
                None
            }
            Admission::Later(_) | Admission::Trying(_) => panic!("there are places, and nobody finds out"),
        }
    };
    for _ in 0..30 {
        clock.advance(LEFT_ALONE_AT_MOST);
        assert_eq!(wait(u64::MAX / 1_000).await, None);
    }
    assert_eq!(wait(86_400).await, Some(LEFT_ALONE_AT_MOST));
    assert_eq!(wait(60).await, Some(Duration::from_secs(15)));
    assert_eq!(wait(86_400).await, Some(Duration::from_secs(15)), "who waits for longer has the use of it");
    assert_eq!(wait(1).await, Some(LEFT_ALONE), "and no sooner than a second");
    clock.advance(Duration::from_secs(3));
    assert_eq!(wait(60).await, None);
    assert_eq!(wait(60).await, Some(Duration::from_secs(15)));
    clock.turn_back(Duration::from_secs(86_400));
    assert_eq!(wait(86_400).await, None, "the clock was set back");
    assert_eq!(wait(60).await, Some(Duration::from_secs(15)), "and its new times count");
}

#[tokio::test(start_paused = true)]
async fn calls_that_fail_together_count_once() {
    for heard in [Heard::NoConnection, Heard::Silence] {
        let (hosts, clock) = (Hosts::new(1_000, 100), clock());
        let mut calls = Vec::new();
        for _ in 0..30 {
            calls.push(call_as(&hosts, "a", party("o", "s"), &clock).await.expect("it is called"));
        }
        calls.into_iter().for_each(|call| hosts.ended(call, heard, clock.now()));
        assert!(call(&hosts, "a", &clock).await.is_some(), "it is not left alone for that");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_sent_says_nothing_of_a_host() {
    let (hosts, clock) = (Hosts::new(512, 128), clock());
    for _ in 0..2 * FAILURES {
        fail(&hosts, party("o", "s"), Heard::Nothing, &clock).await;
    }
}

#[test]
fn however_many_hosts_take_all_they_can_there_is_room_for_another() {
    for hosts in 1..100 {
        let (mut free, mut taken) = (512_usize, vec![0_usize; hosts]);
        // Calls end in turn and others come in their place, until the parts are those that stay: the host that
        // comes first begins with 128 places, and loses one of them in so many rounds as there are hosts.
        for round in 0..200 * hosts {
            let place = round % hosts;
            (taken[place], free) = (taken[place].saturating_sub(1), free + taken[place].min(1));
            for place in (0..hosts).map(|other| (place + other) % hosts) {
                while may_take(taken[place], free, 128) {
                    (taken[place], free) = (taken[place] + 1, free - 1);
                }
            }
        }
        let (least, most) = (taken.iter().min().copied(), taken.iter().max().copied());
        let part = (512 / (hosts + 1)).min(128);
        assert!(least >= Some(part - 1) && most <= Some(part + 2), "{hosts}: {taken:?} of {part}");
        assert!(free + 1 >= part, "{hosts}: {free} of {part}");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_hosts_leave_room_for_others() {
    let (hosts, clock) = (Hosts::new(64, 64), clock());
    let mut slow = Vec::new();
    for host in ["a", "b", "c", "d"] {
        while let Some(call) = call(&hosts, host, &clock).await {
            slow.push(call);
        }
    }
    assert!(call(&hosts, "e", &clock).await.is_some(), "{} of 64 are taken", slow.len());
    assert!(slow.len() > 32, "what nobody else wants is taken");
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_the_place_of_one_that_ends_in_time() {
    let (hosts, clock) = (Hosts::new(100, 1), clock());
    let first = call(&hosts, "a", &clock).await.expect("it is called");
    let (second, ()) = tokio::join!(call(&hosts, "a", &clock), async { drop(first) });
    assert!(second.is_some());
}

/// Whatever is called, given up and answered in whatever order, no place is lost and none is made.
#[tokio::test(start_paused = true)]
async fn places_are_neither_lost_nor_made() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let most = random.random_range(1..20);
        let (hosts, clock) = (Arc::new(Hosts::new(24, most)), Arc::new(clock()));
        let mut callers = Vec::new();
        for _ in 0..120 {
            let (hosts, clock, mut random) =
                (Arc::clone(&hosts), Arc::clone(&clock), StdRng::seed_from_u64(random.random()));
            callers.push(tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(random.random_range(0..5_000))).await;
                let host = ["a", "b", "c"][random.random_range(0..3_usize)];
                let owner = ["x", "y", "z"][random.random_range(0..3_usize)];
                if let Some(call) = call_as(&hosts, host, party(owner, "s"), &clock).await {
                    assert!(free(&hosts) < 24);
                    tokio::time::sleep(Duration::from_millis(random.random_range(0..2_000))).await;
                    let heard = [Heard::Answer, Heard::Silence, Heard::NoConnection, Heard::Nothing];
                    match random.random_range(0..5_usize) {
                        4 => drop(call),
                        heard_now => hosts.ended(call, heard[heard_now], clock.now()),
                    }
                }
            }));
        }
        for second in 0..10 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            clock.advance(Duration::from_secs(second));
            let one = callers.swap_remove(random.random_range(0..callers.len()));
            one.abort();
        }
        for one in callers {
            one.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        tokio::task::yield_now().await;
        assert_eq!(free(&hosts), 24, "seed {seed}");
        let called = hosts.called.lock();
        let is_idle = |host: &Host| host.shares.all() == 0 && host.waiting.is_empty() && host.breaker.is_idle();
        assert!(called.hosts.values().all(is_idle), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn hosts_that_nobody_calls_are_forgotten() {
    let (hosts, clock) = (Hosts::new(10, 1), clock());
    let kept = call(&hosts, "kept", &clock).await.expect("it is called");
    for number in 0..=REMEMBERED {
        assert!(call(&hosts, &number.to_string(), &clock).await.is_some());
    }
    assert!(hosts.called.lock().hosts.len() < REMEMBERED && hosts.called.lock().hosts.contains_key("kept"));
    hosts.ended(kept, Heard::Answer, clock.now());
}

#[test]
fn failures_without_a_connection_are_told_from_those_of_what_was_sent_over_it() {
    let of = |error| Heard::of(&Err(error));
    assert_eq!(of(CallError::Unreachable("refused".to_owned())), Heard::NoConnection);
    // Another one may speak TLS with it, or not.
    assert_eq!(of(CallError::NoTls("no certificate".to_owned())), Heard::Silence);
    let origins = ["http://a", "https://a:80", "https://a", "http://a:443"]
        .map(|url| TargetUrl::parse(url).expect("a target").origin());
    let distinct: std::collections::BTreeSet<&String> = origins.iter().collect();
    assert_eq!(distinct.len(), origins.len(), "{origins:?}");
}
