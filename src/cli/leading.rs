//! What a member of a group does while it leads: the duties of a manager, which it begins on what the group has agreed
//! on and gives up as soon as another member may lead.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::managing::{Managing, Means, Shown, retire};
use crate::api::Office;
use crate::store::{Member, Standing};

/// A member, and what it leads with.
pub(super) struct Leading {
    pub(super) member: Arc<dyn Member>,
    pub(super) means: Means,
    pub(super) shown: Shown,
    /// Where the calls find the manager.
    pub(super) office: Office,
    /// Cancelled when the process stops.
    pub(super) retiring: CancellationToken,
}

/// What has ended first.
enum End<T> {
    /// The member leads no longer.
    Deposed,
    /// The process stops.
    Retiring,
    /// What was waited for is there.
    Done(T),
}

impl Leading {
    /// Leads whenever the member does, until the process stops.
    ///
    /// # Errors
    /// What the duties cannot be started with, whoever leads.
    pub(super) async fn run(self) -> Result<(), Failure> {
        let mut standing = self.member.standing();
        loop {
            let term = tokio::select! {
                () = self.retiring.cancelled() => return Ok(()),
                term = leads(&mut standing) => term,
            };
            tracing::info!(term, member = self.member.number(), "this member leads the cluster");
            let since = self.means.clock.now();
            let manager = self.means.manager();
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
                End::Retiring => {
                    retire(&manager).await;
                    return Ok(());
                }
            };
            self.office.take(managing.state(&self.shown, None));
            match self.until_the_end(term, std::future::pending::<()>()).await {
                End::Retiring => {
                    self.office.leave();
                    return self.stop(term, managing).await;
                }
                End::Deposed | End::Done(()) => {
                    self.office.leave();
                    tracing::warn!(term, member = self.member.number(), "this member leads the cluster no longer");
                    managing.abandon().await;
                }
            }
        }
    }

    /// Waits for something until the member leads no longer or the process stops.
    async fn until_the_end<T>(&self, term: u64, done: impl Future<Output = T>) -> End<T> {
        tokio::select! {
            done = done => End::Done(done),
            () = deposed(self.member.standing(), term) => End::Deposed,
            () = self.retiring.cancelled() => End::Retiring,
        }
    }

    /// Ends the duties in good order, for as long as the member leads.
    async fn stop(&self, term: u64, managing: Managing) -> Result<(), Failure> {
        let mut deposed = pin!(deposed(self.member.standing(), term));
        tokio::select! {
            () = managing.shutdown() => {}
            () = &mut deposed => {}
        }
        Ok(())
    }
}

/// Waits until the member leads, and returns the term in which it does.
async fn leads(standing: &mut watch::Receiver<Standing>) -> u64 {
    let term = standing.wait_for(|standing| standing.leads).await.map(|standing| standing.term);
    match term {
        Ok(term) => term,
        // A store that is closed leads no more.
        Err(_) => std::future::pending().await,
    }
}

/// Waits until the member does not lead in this term any more.
async fn deposed(mut standing: watch::Receiver<Standing>, term: u64) {
    // A store that is closed leads no more either.
    let _closed = standing.wait_for(|standing| !standing.leads || standing.term != term).await.is_err();
}
