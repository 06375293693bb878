//! Whether the clocks of the members agree, and what a leader does whose clock is off: it has another member lead.
//!
//! There is always a leader, however wrong the clocks are: the lead is given up only to a member that can take it, and
//! kept where the members do not agree on the time. It does not go in circles either. A clock is off only where most
//! members agree against it, which is so for no other one at the same time unless that is off as well, and the lead
//! goes to one of those that agree. Since clocks may be set while they are compared, a member that has just begun to
//! lead keeps the lead for a while, and one that has given it up and got it back does for longer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Front;
use super::cluster::{SILENT, transfer};
use crate::clock::ClocksSeen;
use crate::store::{Heard, Standing};
use crate::wire::MemberClockState;

/// How often the clocks are looked at.
const EVERY: Duration = Duration::from_secs(1);
/// For how many looks in a row the clock of a leader must be off. The first ones after a machine has slept are by what
/// was heard before.
const LOOKS: u32 = 3;
/// How long a member leads at least before it gives the lead up for its clock.
const LEADS_AT_LEAST: Duration = Duration::from_secs(5);
/// How long it keeps the lead after it has tried to give that up for its clock, also where it got the lead back.
const TRIES_EVERY: Duration = Duration::from_secs(60);

impl Front {
    /// Returns what this member knows of the clocks of all.
    pub(super) fn clocks_seen(&self) -> ClocksSeen {
        let members = self.member.members();
        let members = members.borrow().clone();
        self.clocks.seen(self.map.member, members.that_vote(true))
    }
}

/// Compares the clocks of the members from time to time, and has another member lead where this one leads with a clock
/// that is off.
pub(in crate::api) async fn compare_clocks(front: Arc<Front>) {
    let (mut ticks, mut patience, mut said) = (interval(EVERY), Patience::default(), None);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (clocks, own) = (front.clocks_seen(), front.map.member);
        front.clocks.judge_own(own, &clocks);
        let trouble = (
            MemberClockState::of(&clocks, own),
            clocks.off.keys().chain(clocks.apart.keys()).copied().collect::<Vec<_>>(),
        );
        if said.as_ref() != Some(&trouble) {
            match clocks.trouble(own) {
                Some(trouble) => tracing::warn!("the clocks of the members differ: {trouble}"),
                None if said.is_some() => tracing::info!("the clocks of the members agree"),
                None => {}
            }
            said = Some(trouble);
        }
        let successor = successor(&clocks, own, &front.member.heard());
        if !patience.is_over(&front.standing(), successor.is_some(), Instant::now()) {
            continue;
        }
        tracing::warn!(
            member = own,
            to = successor,
            "this member leads with a clock that is off, and gives up the lead"
        );
        if let Err(error) = transfer(&front, successor).await {
            let why = error.detail();
            tracing::warn!(why, "the lead was not given up: this member goes on with a clock that is off");
        }
    }
}

/// Returns the member that is to lead in place of one whose clock is off: of those that agree on the time, and were
/// heard of a moment ago, the one that has come furthest.
fn successor(clocks: &ClocksSeen, own: u64, heard: &BTreeMap<u64, Heard>) -> Option<u64> {
    let against = clocks.off.get(&own)?.against.iter();
    let there = against.filter_map(|member| Some((*member, heard.get(member).filter(|heard| heard.ago < SILENT)?)));
    there.max_by_key(|(_, heard)| heard.last).map(|(member, _)| member)
}

/// For how long a leader has had a clock that is off, and kept the lead.
#[derive(Default)]
struct Patience {
    looks: u32,
    /// The term in which it leads, and since when.
    leads: Option<(u64, Instant)>,
    /// When it has last tried to give the lead up, in this term or before.
    tried: Option<Instant>,
}

impl Patience {
    /// Returns whether the lead is to be given up now, which `has_successor` says to be possible.
    fn is_over(&mut self, standing: &Standing, has_successor: bool, now: Instant) -> bool {
        if self.leads.is_none_or(|(term, _)| !standing.leads || term != standing.term) {
            self.leads = standing.leads.then_some((standing.term, now));
            self.looks = 0;
        }
        let Some((_, since)) = self.leads else { return false };
        self.looks = if has_successor { self.looks.saturating_add(1) } else { 0 };
        let has_led = now.duration_since(since) >= LEADS_AT_LEAST;
        let may_try = self.tried.is_none_or(|tried| now.duration_since(tried) >= TRIES_EVERY);
        let is_over = self.looks >= LOOKS && has_led && may_try;
        if is_over {
            self.tried = Some(now);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::OffClock;

    fn heard(of: &[(u64, u64, u64)]) -> BTreeMap<u64, Heard> {
        let one = |(member, ago, last): &(u64, u64, u64)| {
            (*member, Heard { ago: Duration::from_secs(*ago), knows: 1, last: *last, declines: false })
        };
        of.iter().map(one).collect()
    }

    #[test]
    fn the_lead_goes_to_the_furthest_of_those_that_agree_and_are_there() {
        let off = |member: u64, against: &[u64]| {
            let off = [(member, OffClock { ahead_ms: 9_000, against: against.to_vec() })];
            ClocksSeen { off: off.into(), ..ClocksSeen::default() }
        };
        let all = heard(&[(2, 0, 5), (3, 0, 7), (4, 0, 9), (5, 9, 8)]);
        assert_eq!(successor(&off(1, &[2, 3, 5]), 1, &all), Some(3), "5 is silent, and 4 does not agree");
        assert_eq!(successor(&off(1, &[5]), 1, &all), None);
        assert_eq!(successor(&off(2, &[1, 3]), 1, &all), None, "the clock of another one is off");
        assert_eq!(successor(&ClocksSeen::default(), 1, &all), None, "no majority says so");
    }

    /// Plays seconds of a leader whose clock is off in those for which `is_off` says so; returns in which it gives up.
    fn gives_up(seconds: u64, term: impl Fn(u64) -> Option<u64>, is_off: impl Fn(u64) -> bool) -> Vec<u64> {
        let (mut patience, start) = (Patience::default(), Instant::now());
        let is_over = |second: &u64| {
            let term = term(*second);
            let standing = Standing { term: term.unwrap_or_default(), leads: term.is_some(), ..Standing::default() };
            patience.is_over(&standing, is_off(*second), start + Duration::from_secs(*second))
        };
        (0..seconds).filter(is_over).collect()
    }

    #[test]
    fn a_leader_gives_up_once_its_clock_is_off_for_a_while_and_tries_again_after_a_minute() {
        assert_eq!(gives_up(200, |_| Some(1), |second| second >= 100), [102, 162]);
        assert_eq!(gives_up(65, |_| Some(1), |_| true), [5], "one that has just begun leads for a while");
        assert_eq!(gives_up(300, |_| Some(1), |second| second % 3 > 0), [0; 0], "a clock that drifts around the bound");
        assert_eq!(gives_up(300, |_| None, |_| true), [0; 0], "it does not lead");
    }

    #[test]
    fn a_member_that_gets_the_lead_back_keeps_it_for_a_minute() {
        let term = |second: u64| match second {
            0..=5 => Some(1),
            6..=20 => None,
            _ => Some(3),
        };
        assert_eq!(gives_up(75, term, |_| true), [5, 65]);
    }
}
