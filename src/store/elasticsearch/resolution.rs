//! The pure decision on a write that was answered with a conflict, or not at all.
//!
//! The store reads the document back in real time and looks for the write's id in it. A read-back alone is no
//! acknowledgement: it may show a write that no other copy has yet and that a failing primary takes with it. So the
//! document read is confirmed by writing it once more, under the version read, before the write is acknowledged.

use super::write_id::WriteId;
use crate::store::Version;

/// The condition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// No such document may exist.
    Absent,
    /// The document must have this version, which the write replaces.
    Replace(Version),
    /// The document must have this version, which the write removes.
    Remove(Version),
}

/// The result of reading back the document of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadBack {
    /// There is no document.
    Missing,
    /// There is a document.
    Found {
        version: Version,
        write_id: Option<WriteId>,
        previous: Option<WriteId>,
        /// Whether the document refers to a body that this write brought, and so descends from this write.
        has_our_body: bool,
    },
}

/// The writer of a document that is to be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lineage {
    /// This write made the document.
    Ours,
    /// Another write made the document, based on this one.
    BuiltOnOurs,
}

/// The next step for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The document read is written once more; then the write is acknowledged.
    Confirm(Lineage),
    /// Another writer was first, so the write met a conflict.
    Conflict,
    /// The removal was applied.
    Removed,
    /// The write is undecided and is sent again.
    SendAgain,
    /// The write is undecided, and sending it again could apply it twice, so the document is read again.
    LookAgain,
}

/// Returns the next step for a write. `maybe_applied` says that a try of it may have been applied without an answer.
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
        // No try of this write was applied: the document it met was another's, even if it is gone by now.
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
