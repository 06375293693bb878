//! The entry that a thread is at, for what is said when it panics.

use std::cell::Cell;

use super::last::Last;

thread_local! {
    static AT: Cell<Option<Last>> = const { Cell::new(None) };
}

/// Takes note of the entry that this thread is at.
pub(super) fn is_at(number: u64, term: u64) {
    AT.set(Some(Last { number, term }));
}

/// Returns the entry that this thread was at last, if it was at one.
pub(super) fn last_at() -> Option<Last> {
    AT.get()
}
