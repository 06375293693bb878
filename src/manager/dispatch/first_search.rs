//! Whether a queue was searched for in the store.
//!
//! Where managers share a store, jobs that are submitted here are kept in memory at once, also of a queue that nobody
//! has asked this manager for yet, or not for long. Until the first search of the queue is over they are all that is
//! known of it, and must not overtake what waits in the store.

/// Where the first search for a queue stands, of those since its candidates were last dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FirstSearch {
    #[default]
    NotMade,
    UnderWay,
    /// It has failed. Claims go by what is known meanwhile: a store that cannot be searched may still be written to.
    Failed,
    Ended,
}

impl FirstSearch {
    pub(super) const fn is_over(self) -> bool {
        matches!(self, Self::Failed | Self::Ended)
    }

    /// Records that a search begins, which is the first one unless one was made or is under way.
    pub(super) fn begin(&mut self) {
        if *self == Self::NotMade {
            *self = Self::UnderWay;
        }
    }

    /// Records that a search has ended, and returns whether it was the first one that did not fail. One that began
    /// before the candidates were dropped shows nothing of those that are missing since.
    pub(super) fn end(&mut self) -> bool {
        let is_first = matches!(self, Self::UnderWay | Self::Failed);
        if *self != Self::NotMade {
            *self = Self::Ended;
        }
        is_first
    }

    /// Records that a search has failed. After the first one, what is known is handed out.
    pub(super) fn fail(&mut self) {
        if *self == Self::UnderWay {
            *self = Self::Failed;
        }
    }
}
