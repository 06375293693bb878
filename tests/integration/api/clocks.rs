//! Members that tell each other what time it is, and a leader whose clock is off.

use std::time::Duration;

use bytes::Bytes;
use leasehold::clock::Timestamp;
use leasehold::peers::{CLOCK, Envelope};
use leasehold::store::Member as _;
use leasehold::wire::{ClusterStatus, MemberClockState};

use super::members::{NOWHERE, Process, clock, led, pair, secret};
use super::messages::tell;
use super::server::eventually;

const FAR: i64 = 5_000;

/// Has member 1 hear that the clock of another one is so far ahead of its own.
fn hears(process: &Process, member: u64, ahead: i64) {
    let time = Timestamp::from_millis(clock().now().as_millis() + ahead);
    process.clocks.note(member, process.clocks.moment(), time);
}

fn states(status: &ClusterStatus) -> Vec<MemberClockState> {
    status.members.iter().map(|member| member.clock).collect()
}

#[tokio::test]
async fn an_answer_to_another_member_says_what_time_it_is_and_one_to_a_stranger_does_not() {
    let [member, _other] = pair(NOWHERE).await;
    let envelope = Envelope { cluster: "test".to_owned(), from: 2, to: 1, messages: vec![Bytes::from_static(b"one")] };
    let before = clock().now().minus(Duration::from_secs(1));
    let answer = tell(&member, &envelope, &secret()).await;
    let said = answer.headers()[CLOCK].to_str().expect("a text").parse().map(Timestamp::from_millis).expect("a time");
    assert!(before <= said && said <= clock().now().plus(Duration::from_secs(1)), "{said}");
    let other = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=".parse().expect("a secret");
    assert_eq!(tell(&member, &envelope, &other).await.headers().get(CLOCK), None);
}

#[tokio::test]
async fn a_leader_whose_clock_is_off_has_one_lead_whose_clock_is_not() {
    use MemberClockState::{Near, Off};
    let (leader, _, _follower) = led().await;
    [2, 3].into_iter().for_each(|member| hears(&leader, member, FAR));
    let status = leader.status().await;
    assert_eq!(states(&status), [Off, Near, Near]);
    let ahead = status.members[1].clock_ahead_ms.expect("it was compared");
    assert!(ahead.abs_diff(FAR) < 1_000, "{ahead}");
    let leads = || leader.puppet.standing().borrow().leader;
    eventually("another one leads", || leads().is_some_and(|leader| leader != 1)).await;
}

#[tokio::test]
async fn clocks_that_all_differ_are_named_and_the_leader_goes_on() {
    use MemberClockState::{Apart, Near, Unknown};
    let (leader, _, _follower) = led().await;
    hears(&leader, 2, FAR);
    assert_eq!(states(&leader.status().await), [Near, Apart, Unknown], "of one nothing was heard");
    hears(&leader, 3, -FAR);
    assert_eq!(states(&leader.status().await), [Near, Apart, Apart]);
    // The looks after which a leader whose clock is off gives up, and some more.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let status = leader.status().await;
    assert_eq!((status.leader, status.leads, status.term), (Some(1), true, 1));
}
