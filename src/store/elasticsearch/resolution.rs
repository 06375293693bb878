//! What to make of a write that was answered with a conflict, or not at all: pure.
//!
//! The store reads the document back in real time and looks for the write's id in it. A read-back alone is no
//! acknowledgement: it may show a write that no other copy has yet and that a failing primary takes with it. So what it
//! shows is confirmed by writing the same once more, under the version read, before anyone is told.

use super::write_id::WriteId;
use crate::store::Version;

/// What a write wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// That there is no such document.
    Absent,
    /// That the document has this version, to write over it.
    Replace(Version),
    /// That the document has this version, to remove it.
    Remove(Version),
}

/// What stands in the write's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadBack {
    /// No document.
    Missing,
    /// A document.
    Found {
        version: Version,
        write_id: Option<WriteId>,
        previous: Option<WriteId>,
        /// It refers to a body that this write brought, and so descends from it.
        has_our_body: bool,
    },
}

/// Whose the document is that is to be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lineage {
    /// This write's.
    Ours,
    /// Another's, built on this write.
    BuiltOnOurs,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Write what was read once more; then the write is acknowledged.
    Confirm(Lineage),
    /// Somebody else was first.
    Conflict,
    /// The removal was done.
    Removed,
    /// Nothing is decided: send the write again.
    SendAgain,
    /// Nothing is decided, and sending again could do it twice: read again.
    LookAgain,
}

/// Judges a write. `maybe_applied`: a try of it may have got through without an answer.
pub(super) fn judge(condition: Condition, ours: WriteId, maybe_applied: bool, read: ReadBack) -> Verdict {
    match (condition, read) {
        (Condition::Remove(_), ReadBack::Missing) if maybe_applied => Verdict::Removed,
        (Condition::Remove(expected) | Condition::Replace(expected), ReadBack::Found { version, .. })
            if version == expected =>
        {
            // The conflict came from elsewhere than the copy that was read, as while a primary changes.
            Verdict::SendAgain
        }
        (Condition::Remove(_), _) => Verdict::Conflict,
        (_, ReadBack::Found { write_id, .. }) if write_id == Some(ours) => Verdict::Confirm(Lineage::Ours),
        (_, ReadBack::Found { previous, has_our_body, .. }) if previous == Some(ours) || has_our_body => {
            Verdict::Confirm(Lineage::BuiltOnOurs)
        }
        (_, ReadBack::Found { .. }) => Verdict::Conflict,
        // It may have been written and removed since: writing it again would bring a removed job back.
        (_, ReadBack::Missing) if maybe_applied => Verdict::LookAgain,
        // Nothing of this write's got through: what it met was another's, even if that is gone by now.
        (_, ReadBack::Missing) => Verdict::Conflict,
    }
}

#[cfg(test)]
mod tests {
    use super::super::write_id::WriteIdSource;
    use super::*;
    use crate::store::Place;

    const EXPECTED: Version = Version { place: Place::Main, primary_term: 1, seq_no: 5 };
    const LATER: Version = Version { place: Place::Main, primary_term: 1, seq_no: 9 };

    fn found(version: Version, write_id: WriteId, previous: Option<WriteId>) -> ReadBack {
        ReadBack::Found { version, write_id: Some(write_id), previous, has_our_body: false }
    }

    #[test]
    fn a_document_with_our_write_id_is_ours_and_only_needs_confirming() {
        let source = WriteIdSource::new();
        let (ours, other) = (source.next(), source.next());
        for condition in [Condition::Absent, Condition::Replace(EXPECTED)] {
            for maybe_applied in [false, true] {
                let judged = |read| judge(condition, ours, maybe_applied, read);
                assert_eq!(judged(found(LATER, ours, None)), Verdict::Confirm(Lineage::Ours));
                assert_eq!(judged(found(LATER, other, Some(ours))), Verdict::Confirm(Lineage::BuiltOnOurs));
                assert_eq!(judged(found(LATER, other, None)), Verdict::Conflict);
            }
        }
    }

    #[test]
    fn a_document_that_refers_to_our_body_descends_from_our_write() {
        let source = WriteIdSource::new();
        let (ours, other) = (source.next(), source.next());
        let read = ReadBack::Found { version: LATER, write_id: Some(other), previous: None, has_our_body: true };
        assert_eq!(judge(Condition::Absent, ours, true, read), Verdict::Confirm(Lineage::BuiltOnOurs));
    }

    #[test]
    fn a_document_still_at_the_expected_version_is_written_again() {
        let source = WriteIdSource::new();
        let (ours, other) = (source.next(), source.next());
        for condition in [Condition::Replace(EXPECTED), Condition::Remove(EXPECTED)] {
            assert_eq!(judge(condition, ours, true, found(EXPECTED, other, None)), Verdict::SendAgain);
        }
    }

    #[test]
    fn a_write_that_may_have_been_done_is_not_repeated_over_a_missing_document() {
        let ours = WriteIdSource::new().next();
        for condition in [Condition::Absent, Condition::Replace(EXPECTED)] {
            assert_eq!(judge(condition, ours, true, ReadBack::Missing), Verdict::LookAgain);
            assert_eq!(judge(condition, ours, false, ReadBack::Missing), Verdict::Conflict);
        }
    }

    #[test]
    fn a_removal_is_done_when_its_answer_was_lost_and_the_document_is_gone() {
        let source = WriteIdSource::new();
        let (ours, other) = (source.next(), source.next());
        let remove = Condition::Remove(EXPECTED);
        assert_eq!(judge(remove, ours, true, ReadBack::Missing), Verdict::Removed);
        assert_eq!(judge(remove, ours, false, ReadBack::Missing), Verdict::Conflict);
        assert_eq!(judge(remove, ours, true, found(LATER, other, None)), Verdict::Conflict);
    }
}
