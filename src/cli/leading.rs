//! What a member of a group does while it leads: the duties of a manager, which it begins on what the group has agreed
//! on and gives up as soon as another member may lead.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::managing::{Managing, Means, Shown, retire};
use crate::api::Office;
use crate::clock::{Clock as _, ContinuedClock, FAR_AHEAD, Timestamp};
use crate::store::{Member, Standing};

/// How long another member may take to lead once this one has given that up. A follower that has the log needs a few
/// round trips.
const HANDED_OVER_WITHIN: Duration = Duration::from_millis(2_500);

/// When to hand over the lead once more: the store gives up a try after a second.
const AGAIN_AFTER: Duration = Duration::from_millis(1_200);

/// When to hand over the lead to the next member after one that does not take it.
const NEXT_AFTER: Duration = Duration::from_millis(100);

/// How often a leader that goes on from a time that is far ahead of its clock looks whether that is wrong.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// How long a member that began to lead with a time that is far off keeps the lead when it gets it once more.
const GIVES_WAY_EVERY: Duration = Duration::from_secs(60);

/// By how much clocks that are kept in time are apart at most.
const WORTH_SAYING: Duration = Duration::from_millis(500);

/// A member, and what it leads with.
pub(super) struct Leading {
    pub(super) member: Arc<dyn Member>,
    /// The clock of the means, which goes on from the times that leaders before have written.
    pub(super) clock: Arc<ContinuedClock>,
    /// Returns whether the clock of this machine is certainly right, since most members' clocks show the same time.
    pub(super) is_right: Box<dyn Fn() -> bool + Send + Sync>,
    pub(super) means: Means,
    pub(super) shown: Shown,
    /// Where the calls find the manager.
    pub(super) office: Office,
    pub(super) stages: Stages,
}

/// How far a process that stops has come.
#[derive(Clone, Default)]
pub(super) struct Stages {
    /// Cancelled when the process is to stop. Calls are served on.
    pub(super) stopping: CancellationToken,
    /// Cancelled when nothing is done any more but calls, which may end then.
    pub(super) wound_down: CancellationToken,
    /// Cancelled when the calls have ended.
    pub(super) retiring: CancellationToken,
}

/// What has ended first.
enum End<T> {
    /// The member leads no longer.
    Deposed,
    /// The process stops.
    Stopping,
    /// What was waited for is there.
    Done(T),
}

impl Leading {
    /// Leads whenever the member does, until the process stops; then another member is to lead.
    ///
    /// # Errors
    /// What the duties cannot be started with, whoever leads.
    pub(super) async fn run(self) -> Result<(), Failure> {
        self.lead().await?;
        self.stages.wound_down.cancel();
        self.give_up().await;
        Ok(())
    }

    /// Leads whenever the member does, until the process stops and the calls to its manager have ended.
    async fn lead(&self) -> Result<(), Failure> {
        let mut standing = self.member.standing();
        let mut gave_way: Option<Instant> = None;
        loop {
            let Standing { term, time, .. } = tokio::select! {
                () = self.stages.stopping.cancelled() => return Ok(()),
                standing = leads(&mut standing) => standing,
            };
            if gave_way.is_none_or(|last| last.elapsed() >= GIVES_WAY_EVERY) && self.is_far_off() {
                gave_way = Some(Instant::now());
                if self.gives_way(term).await {
                    continue;
                }
            }
            tracing::info!(term, member = self.member.number(), "this member leads the cluster");
            self.go_on_from(time);
            let since = self.means.clock.awake().now();
            let (mark, manager) = (self.means.mark(), self.means.manager());
            let managing = match self.until_the_end(term, self.means.start(manager.clone(), Some(since))).await {
                End::Done(Ok(managing)) => managing,
                End::Done(Err(failure)) => {
                    retire(&manager).await;
                    return Err(failure);
                }
                End::Deposed => {
                    retire(&manager).await;
                    continue;
                }
                End::Stopping => {
                    retire(&manager).await;
                    return Ok(());
                }
            };
            self.office.take(managing.state(&self.shown), mark);
            match self.until_the_end(term, self.keep_right()).await {
                End::Stopping => {
                    self.stop(term, managing).await;
                    return Ok(());
                }
                End::Deposed | End::Done(()) => {
                    self.office.leave();
                    tracing::warn!(term, member = self.member.number(), "this member leads the cluster no longer");
                    managing.abandon().await;
                }
            }
        }
    }

    /// Returns whether the time of this process is certainly so far off that nothing may be done by it that cannot be
    /// undone.
    fn is_far_off(&self) -> bool {
        self.means.clock.offset().is_some_and(|offset| offset.is_far_off)
    }

    /// Hands the lead over before anything is done by a time that is far off, and returns whether another member took
    /// it in time.
    async fn gives_way(&self, term: u64) -> bool {
        tracing::warn!(term, member = self.member.number(), "this member's clock is far off: another one is to lead");
        let given_up = async {
            let has_given_up = self.member.hand_over(None).await;
            if has_given_up {
                deposed(self.member.standing(), term).await;
            }
            has_given_up
        };
        timeout(AGAIN_AFTER, given_up).await.unwrap_or(false)
    }

    /// Goes on from the latest time that the members have written, unless that is certainly wrong.
    fn go_on_from(&self, written: Timestamp) {
        if written.since(self.clock.now()) > FAR_AHEAD && (self.is_right)() {
            go_back_from(&self.clock, written);
        } else {
            go_on_from(&self.clock, written);
        }
    }

    /// Goes back to the machine's clock once it is certain that this one is right, and a time that the members have
    /// written was not.
    async fn keep_right(&self) {
        loop {
            sleep(LOOKS_EVERY).await;
            if self.clock.is_ahead_by() > FAR_AHEAD && (self.is_right)() {
                go_back_from(&self.clock, self.clock.now());
            }
        }
    }

    /// Waits for something until the member leads no longer or the process stops.
    async fn until_the_end<T>(&self, term: u64, done: impl Future<Output = T>) -> End<T> {
        tokio::select! {
            done = done => End::Done(done),
            () = deposed(self.member.standing(), term) => End::Deposed,
            () = self.stages.stopping.cancelled() => End::Stopping,
        }
    }

    /// Ends the duties in good order, for as long as the member leads. What takes long ends first, while calls are
    /// served as before: no other member can lead meanwhile, and the calls would have nobody.
    async fn stop(&self, term: u64, managing: Managing) {
        let manager = managing.manager().clone();
        let in_order = async {
            managing.wind_down().await;
            self.stages.wound_down.cancel();
            self.stages.retiring.cancelled().await;
            self.office.leave();
            manager.retire().await;
        };
        tokio::select! {
            () = in_order => {}
            () = deposed(self.member.standing(), term) => {
                self.office.leave();
                retire(&manager).await;
            }
        }
    }

    /// Hands over the lead, also one that this member gets while it stops, and waits until another member leads or the
    /// calls have ended and there is none in time.
    async fn give_up(&self) {
        let (number, mut standing) = (self.member.number(), self.member.standing());
        let giving_up = async {
            loop {
                let Standing { term, .. } = leads(&mut standing).await;
                let given_up = async {
                    // Another one may take the lead, or the same one later.
                    while !self.member.hand_over(None).await {
                        sleep(NEXT_AFTER).await;
                    }
                    deposed(self.member.standing(), term).await;
                };
                // One that does not take the lead in this time does not take it at all.
                let _gone = timeout(AGAIN_AFTER, given_up).await;
            }
        };
        let given_up = async {
            self.stages.retiring.cancelled().await;
            let mut standing = self.member.standing();
            let another = standing.wait_for(|standing| standing.leader.is_some_and(|leader| leader != number));
            match timeout(HANDED_OVER_WITHIN, another).await {
                Ok(Ok(standing)) => {
                    tracing::info!(leader = standing.leader, term = standing.term, "another member leads")
                }
                Ok(Err(_)) => {}
                Err(_) => tracing::warn!("no other member leads yet"),
            }
        };
        tokio::select! {
            () = giving_up => {}
            () = given_up => {}
        }
    }
}

/// Goes on from the latest time in the store, which this machine's clock may be behind.
pub(super) fn go_on_from(clock: &ContinuedClock, written: Timestamp) {
    let behind = clock.go_on_from(written);
    if behind > WORTH_SAYING {
        tracing::warn!(?behind, "this machine's clock is behind the times in the store: time passes at half the speed");
    }
}

/// Goes on from the latest time in a store that only this machine writes to, unless its clock must have been wrong when
/// that was written: time would go at half the speed for twice as long as the clock was ahead. Everything that compares
/// stored times bears that they are to come.
pub(super) fn go_on_alone_from(clock: &ContinuedClock, written: Timestamp) {
    if written.since(clock.now()) <= FAR_AHEAD {
        return go_on_from(clock, written);
    }
    go_back_from(clock, written);
}

/// Begins at the machine's clock, which is far behind a time that was written.
fn go_back_from(clock: &ContinuedClock, written: Timestamp) {
    clock.go_back_from(written);
    tracing::warn!(
        behind = ?clock.behind_written(),
        %written,
        "the latest time in the store is far ahead of this machine's clock, which was wrong then or is wrong now: time \
         goes on from the machine's clock"
    );
}

/// Waits until the member leads, and returns where it stands then.
async fn leads(standing: &mut watch::Receiver<Standing>) -> Standing {
    let leading = standing.wait_for(|standing| standing.leads).await.map(|standing| *standing);
    match leading {
        Ok(leading) => leading,
        // A store that is closed leads no more.
        Err(_) => std::future::pending().await,
    }
}

/// Waits until the member does not lead in this term any more.
async fn deposed(mut standing: watch::Receiver<Standing>, term: u64) {
    // A store that is closed leads no more either.
    let _closed = standing.wait_for(|standing| !standing.leads || standing.term != term).await.is_err();
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{Clock, ManualClock};

    #[test]
    fn a_process_that_is_alone_does_not_go_on_from_a_time_that_is_far_ahead() {
        let now = Timestamp::from_millis(1_900_000_000_000);
        for (ahead, goes_on) in [(60, true), (61, false), (365 * 86_400, false)] {
            let clock = ContinuedClock::new(Arc::new(ManualClock::at(now)) as Arc<dyn Clock>);
            let written = now.plus(Duration::from_secs(ahead));
            go_on_alone_from(&clock, written);
            assert_eq!(clock.now() >= written, goes_on, "{ahead} s");
            let said = if goes_on { clock.ahead_of_machine() } else { clock.behind_written() };
            assert!(said >= Duration::from_secs(ahead - 1), "it is said");
            assert!(clock.set_back_by().is_zero(), "nobody has set this machine's clock");
        }
    }
}
