//! What one step of the archive has done.

/// The result of one step of [`Store::archive`](super::Store::archive).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archived {
    /// How many jobs were moved to the archive.
    pub moved: usize,
    /// How many tombstones of former moves and removals were removed, since no write can need them any more.
    pub cleared: usize,
    /// How many stale copies were removed, which an interrupted move or a return to the live jobs had left behind.
    pub stale: usize,
    /// How many bodies were removed to which no job had referred for a day.
    pub bodies: usize,
    /// How many jobs could not be moved now and are left for a later step.
    pub left: usize,
    /// The first reason why something could not be done that should have been; `None` when there is none.
    pub obstacle: Option<String>,
    /// Whether there may be more to do. Another step goes on where this one ended, past what could not be done.
    pub more: bool,
}
