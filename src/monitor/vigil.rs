//! The awake time of the monitors of a store, which follow each other: each writes its own into the record of the
//! monitor's lease ([`super::leader`]), and goes on from what the one before has written. So what passes between two of
//! them counts for no lease, and what passes under each of them counts, however often they are restarted.

use parking_lot::Mutex;

use crate::clock::{AwakeInstant, AwakeTime, Mark};

/// The awake time of the monitors before this one.
#[derive(Debug, Default)]
pub struct Vigil {
    /// The moment at which this process took over a store that another one wrote to before, if it did: what its clock
    /// has shown until then says nothing of the times that the other one has written.
    since: Option<AwakeInstant>,
    /// The marks of those before; `None` as long as they are not read.
    before: Mutex<Option<Vec<Mark>>>,
}

impl Vigil {
    /// Creates the vigil of a process that took over at this moment, if it did.
    #[must_use]
    pub fn of(leads_since: Option<AwakeInstant>) -> Self {
        Self { since: leads_since, before: Mutex::default() }
    }

    /// Goes on from these marks, unless it goes on from others already.
    pub(super) fn go_on_from(&self, marks: &[Mark]) {
        self.before.lock().get_or_insert_with(|| marks.to_vec());
    }

    /// Returns the awake time of this process after that of those before it.
    #[must_use]
    pub fn goes_on_with(&self, own: AwakeTime) -> AwakeTime {
        match &*self.before.lock() {
            Some(marks) => own.after(marks, self.since),
            None => own,
        }
    }
}
