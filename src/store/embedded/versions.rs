//! What a member of one version may say and write so that a member of another one understands it.
//!
//! Each member says which version of the exchange it knows. The lowest of them is the version of the group: its leader
//! writes it into the log, among the members, once all members have said that they know it. What is new in a version
//! waits for that, wherever all members meet with it: in entries of the log, and in what lies on their disks. What goes
//! to one member only waits for that one.
//!
//! | Version | What is new in it                                                                        |
//! |---------|------------------------------------------------------------------------------------------|
//! | 1       | messages of the library                                                                  |
//! | 2       | words, numbers of directories, changes of members                                        |
//! | 3       | the identity of the group and its version, among the members and before every message    |
//! | 4       | the openings of directories, and what of the log their members have acknowledged         |
//! |         | signed heads of the calls that bring messages                                            |
//! | 5       | segments of the log whose frames are synced together                                     |
//! | 6       | words about the output of attempts and the audit                                         |
//! | 6       | the sum over the state of the leader, beside what members have acknowledged; what        |
//! |         | members say of their sums                                                                |
//! | 7       | a member that differs asks its leader for the whole state                                |
//! | 7       | that a member does not stand for election                                                |
//! |         | answers to messages that prove that the member has the secret                            |
//! | 8       | the names of tokens beside workers, in leases and histories                              |
//! |         | who created a schedule                                                                   |
//!
//! A member with version 2 reads the members of version 3, and leaves out what it does not know: a group all of whose
//! members went back to version 2 may have forgotten its version and, but for their seals, its identity. Once all know
//! version 3 again, they are agreed on again. What members have acknowledged stands beside them in the same entries,
//! and versions before 4 leave it out as well. So a group can go back as long as its version is at most [`UNDONE`].
//!
//! The first later one is agreed on only once all members have known it for a while, and its group cannot go back from
//! it. A group that has done so waits for no further one.

use std::time::{Duration, Instant};

/// The version that this one knows.
pub(super) const OWN: u32 = 8;

/// The last version from which a group can go back.
pub(super) const UNDONE: u32 = 4;

/// The version from which on members can be changed.
pub(super) const CHANGES: u32 = 2;

/// The version from which on a group has an identity.
pub(super) const IDENTITY: u32 = 3;

/// The version from which on members say how their directories were opened.
pub(super) const OPENINGS: u32 = 4;

/// The version from which on entries that come together are synced together in the log.
pub(super) const BATCHES: u32 = 5;

/// The version from which on members keep copies of output and of the audit for each other.
pub(super) const COPIES: u32 = 6;
/// The version from which on members compare the sums over their states.
pub(super) const SUMS: u32 = 6;
/// The version from which on a member offers its state to one that asks for it.
pub(super) const REBUILDS: u32 = 7;

/// The version from which on members say that they do not stand for election.
pub(super) const DECLINES: u32 = 7;

/// The version from which on leases and histories have the names of tokens beside workers, and schedules that of
/// who created them.
pub(super) const HOLDERS: u32 = 8;

/// In which term, and since when, a leader has heard that all members know a version from which their group cannot go
/// back.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// How long they must have known it.
    needed: Duration,
    since: Option<(u64, Instant)>,
}

impl Settling {
    pub(super) fn of(needed: Duration) -> Self {
        Self { needed, since: None }
    }

    /// Returns the version that may be agreed on where all members know one, as the leader of a term hears, and the
    /// group has agreed on another. Only the step from which it cannot go back waits.
    pub(super) fn agreeable(&mut self, known: u32, (agreed, term): (u32, u64)) -> u32 {
        // Between two terms of a leader another one heard them, or nobody.
        self.since = self.since.filter(|(of, _)| *of == term && known > UNDONE);
        if known <= UNDONE || agreed > UNDONE {
            return known;
        }
        let (_, since) = *self.since.get_or_insert_with(|| (term, Instant::now()));
        if since.elapsed() >= self.needed { known } else { UNDONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_cannot_be_undone_waits_until_all_have_known_it_for_a_while() {
        let mut settling = Settling::of(Duration::from_secs(3_600));
        let agreed = [3, UNDONE, UNDONE + 1, OWN].map(|known| settling.agreeable(known, (UNDONE, 7)));
        assert_eq!(agreed, [3, UNDONE, UNDONE, UNDONE]);
        let begun = settling.since;
        assert_eq!((settling.agreeable(OWN, (UNDONE, 7)), settling.since), (UNDONE, begun));
        assert_eq!(settling.agreeable(OWN, (UNDONE, 9)), UNDONE);
        assert_ne!(settling.since, begun, "another one has led in between");
        assert_eq!((settling.agreeable(0, (UNDONE, 9)), settling.since), (0, None), "one of them was not heard of");
        assert_eq!(Settling::default().agreeable(OWN, (UNDONE, 1)), OWN);
    }

    #[test]
    fn a_group_that_cannot_go_back_any_more_waits_for_no_further_version() {
        let mut settling = Settling::of(Duration::from_secs(3_600));
        assert_eq!(settling.agreeable(OWN, (BATCHES, 7)), OWN);
        assert_eq!(settling.agreeable(0, (BATCHES, 7)), 0, "one of them was not heard of");
    }
}
