//! One write of a job in a batch: the open question about its job, the document sent, and its result.

use std::time::Duration;

use super::bulk::{ItemOutcome, Lines};
use super::conditional::{ConditionalWrite, Content};
use super::copies::Copy;
use super::document::{BodyForm, JobDocument, WriteIds};
use super::documents::Stored;
use super::encryption::EncryptionKeys;
use super::intake::Size;
use super::locate::{Located, Lock};
use super::resolution::Condition;
use super::tombstone::{Destination, TombstoneDocument};
use super::write_id::{RecentWrites, WriteIdSource};
use crate::clock::Timestamp;
use crate::job::{Body, BodyId, Job};
use crate::store::{Place, StoreError, Version, Versioned, Write, WriteError, WriteResult};

/// The greatest age of an id that the manager has just generated, including the time that a write may wait.
const OWN_ID_AGE: Duration = Duration::from_secs(60);

/// The room in bytes for a document that is being encoded, so that most need no more.
const TYPICAL_BYTES: usize = 1_536;

/// The approximate length in bytes of the line before a document.
const ACTION_BYTES: usize = 100;

/// The lanes in which writes travel. Writes of one call that are of one job go in the last lane that one of them needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// Writes that can be sent at once.
    Direct,
    /// Writes that bring bodies, which are written first.
    Bodies,
    /// Writes whose job has to be looked for in the archive first.
    History,
}

/// The open question about a job before its write can be sent or answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Whether the archive has a job under the id that is to be created.
    IsKnown,
    /// Whether a tombstone or no document is in the live index under the id of a job that is not in it.
    Lock,
    /// The current job, for the answer of a conflict.
    Current,
}

/// One write of a job under way.
pub(super) struct Task {
    pub(super) write: Write,
    pub(super) ids: WriteIds,
    /// When the write was handed over.
    now: Timestamp,
    /// The bodies that the version to be replaced refers to, as far as they are known.
    former_bodies: Box<[BodyId]>,
    form: BodyForm,
    /// The document that is written: the job, or a removed job's tombstone. It is encoded once, and bounds are held by
    /// its true length.
    document: Vec<u8>,
    pub(super) question: Option<Question>,
    /// When the bodies that the write brings were written last.
    pub(super) bodies_stored: Option<Timestamp>,
    /// Whether an earlier write of the same job in the same batch is still open.
    pub(super) held: bool,
    /// The copy in the archive that is to be removed once the write is accepted.
    pub(super) copy: Option<Version>,
    pub(super) course: ConditionalWrite<Versioned>,
}

impl Task {
    pub(super) fn new(
        write: Write,
        now: Timestamp,
        ids: &WriteIdSource,
        recent: &RecentWrites,
        keys: &EncryptionKeys,
    ) -> Self {
        let expected = match &write {
            Write::Create { .. } => None,
            Write::Replace { expected, .. } | Write::Remove { expected, .. } => Some(*expected),
        };
        let (previous, bodies) = match expected.and_then(|expected| recent.get(&write.job().id, expected)) {
            Some(known) => (Some(known.write_id), known.bodies),
            None => (None, Box::default()),
        };
        let former_bodies = if matches!(write, Write::Replace { .. }) { bodies } else { Box::default() };
        let ids = WriteIds { own: ids.next(), previous };
        let copy = expected.filter(|expected| expected.place != Place::Main);
        let (condition, question) = match expected {
            None if is_own_id(write.job(), now) => (Condition::Absent, None),
            None => (Condition::Absent, Some(Question::IsKnown)),
            // The document to be replaced in the live index is not known yet.
            Some(_) if copy.is_some() => (Condition::Absent, Some(Question::Lock)),
            Some(expected) => (Condition::Replace(expected), None),
        };
        let mut course = ConditionalWrite::new(condition, ids.own);
        let form = BodyForm::Json;
        let document = encode(&write, ids, form, now, keys).unwrap_or_else(|error| {
            course.decide(Err(WriteError::Refused(StoreError::Corrupt(error.to_string()))));
            b"null".to_vec()
        });
        Self {
            write,
            ids,
            now,
            former_bodies,
            form,
            document,
            question,
            bodies_stored: None,
            held: false,
            copy,
            course,
        }
    }

    /// Returns a time before which no job under the write's id has ended, if one is known. What the system submits for
    /// a moment has an id that is derived from it, and is in no month before.
    pub(super) fn since(&self) -> Option<Timestamp> {
        let job = self.write.job();
        if !matches!(self.write, Write::Create { .. }) {
            return Some(job.created_at);
        }
        let due_at = job.spec.due.as_ref().map(|due| due.due_at);
        let derived_at = || job.id.derived_at().filter(|_| job.spec.queue.is_internal());
        due_at.or_else(derived_at).max(job.id.made_at())
    }

    /// Returns the length in bytes of the write's lines, without its bodies.
    pub(super) fn document_bytes(&self) -> usize {
        self.document.len() + ACTION_BYTES
    }

    /// Returns the size of the write, with its bodies.
    pub(super) fn size(&self) -> Size {
        let bodies: usize = self.write.bodies().iter().map(|body| body.json.bytes()).sum();
        Size { items: 1, bytes: self.document_bytes() + bodies }
    }

    /// Returns the lane in which the write sets out.
    pub(super) fn lane(&self) -> Lane {
        if self.question.is_some() {
            Lane::History
        } else if !self.write.bodies().is_empty() {
            Lane::Bodies
        } else {
            Lane::Direct
        }
    }

    /// Returns whether the write replaces a tombstone or no document, and not a live job.
    fn takes_lock(&self) -> bool {
        self.copy.is_some() || matches!(self.write, Write::Create { .. })
    }

    pub(super) fn is_to_be_sent(&self) -> bool {
        !self.held && self.question.is_none() && self.course.is_to_be_sent()
    }

    pub(super) fn is_to_be_read(&self) -> bool {
        self.question.is_none() && self.course.is_to_be_read()
    }

    /// Adds the next try of the write to a bulk.
    pub(super) fn append(&mut self, lines: &mut Lines) -> Result<(), StoreError> {
        let (action, content) = self.course.begin_try(self.write.job().id.as_str());
        match content {
            Content::Again(source) => lines.add(&action, Some(source)),
            Content::Own => lines.add_written(&action, &self.document),
        }
    }

    /// Processes the outcome of a try.
    pub(super) fn sent(&mut self, outcome: ItemOutcome, keys: &EncryptionKeys) {
        match outcome {
            ItemOutcome::Invalid(_) if self.form == BodyForm::Json && has_inline_body(&self.write) => {
                self.form = BodyForm::Text;
                match encode(&self.write, self.ids, self.form, self.now, keys) {
                    Ok(document) => self.document = document,
                    Err(error) => {
                        self.course.decide(Err(WriteError::Refused(StoreError::Corrupt(error.to_string()))));
                    }
                }
            }
            outcome => self.course.sent(outcome, format_args!("job `{}`", self.write.job().id)),
        }
    }

    /// Processes the document that was read back.
    pub(super) fn on_read_back(&mut self, found: Option<Stored<'_>>) {
        match found {
            Some(Stored::Job(found)) => {
                let has_our_body = found.job.stored_bodies().any(|body| self.brings(body.id));
                self.course.on_read_back(Some(found.document), has_our_body, || Some(found.into_versioned()));
            }
            Some(Stored::Tombstone(tombstone)) => {
                self.course.on_read_back(Some(tombstone.document), false, || None);
                self.on_absent(Some(tombstone.destination));
            }
            None => {
                self.course.on_read_back(None, false, || None);
                self.on_absent(None);
            }
        }
    }

    /// Handles a write that met a tombstone or no document. A conflict is not answered yet, since the job may be in the
    /// archive.
    fn on_absent(&mut self, destination: Option<Destination>) {
        if !matches!(self.course.decided(), Some(Err(WriteError::Conflict(_)))) {
            return;
        }
        if self.takes_lock() && !self.course.may_be_applied() {
            self.question = Some(Question::Lock);
        } else if destination == Some(Destination::Nowhere) {
            return;
        } else {
            self.question = Some(Question::Current);
        }
        self.course.reopen();
    }

    /// Processes the place in which the job was located.
    pub(super) fn located(&mut self, located: Located) {
        let question = self.question.take();
        let lock = match (&self.write, located) {
            (Write::Create { .. }, Located::Nowhere(lock)) => Ok(lock),
            (Write::Replace { expected, .. } | Write::Remove { expected, .. }, Located::Moved(found, lock))
                if found.version == *expected =>
            {
                Ok(lock)
            }
            (_, located) => Err(located.into_job()),
        };
        match lock {
            Ok(_) if question == Some(Question::Current) => {
                self.course.decide(Err(WriteError::Unknown("the job moved while it was written".to_owned())));
            }
            Ok(Lock::Absent) => self.course.retarget(Condition::Absent),
            Ok(Lock::Tombstone(version)) => self.course.retarget(Condition::Replace(version)),
            Err(current) => self.course.decide(Err(WriteError::Conflict(current))),
        }
    }

    /// Takes the result in the form that the caller gets; for a removal, the version removed.
    pub(super) fn take_answer(&mut self) -> Option<WriteResult> {
        let result = self.course.take_result()?;
        Some(match (&self.write, result) {
            (Write::Remove { expected, .. }, Ok(_)) => Ok(*expected),
            (_, result) => result,
        })
    }

    /// Takes the copy in the archive that is to be removed, once the write is accepted.
    pub(super) fn take_copy(&mut self) -> Option<Copy> {
        let Some(Ok(_)) = self.course.decided() else { return None };
        let version = self.copy.take()?;
        Some(Copy { id: self.write.job().id.clone(), version })
    }

    fn brings(&self, body: BodyId) -> bool {
        self.write.bodies().iter().any(|own| own.reference.id == body)
    }

    /// Returns the bodies that nothing refers to any more; none while the write is open.
    pub(super) fn dead_bodies(&self) -> Vec<BodyId> {
        let Some(result) = self.course.decided() else { return Vec::new() };
        match (result, &self.write) {
            (Ok(_), Write::Remove { job, .. }) => job.stored_bodies().map(|body| body.id).collect(),
            (Ok(_), Write::Replace { job, .. }) => {
                let kept = |former: &BodyId| job.stored_bodies().any(|body| body.id == *former);
                self.former_bodies.iter().filter(|former| !kept(former)).copied().collect()
            }
            // What the caller is shown instead may be this very write, done by an earlier try and moved since.
            (Err(WriteError::Conflict(current)), write) => {
                let is_kept = |body: BodyId| {
                    current.iter().flat_map(|current| current.job.stored_bodies()).any(|kept| kept.id == body)
                };
                write.bodies().iter().map(|body| body.reference.id).filter(|body| !is_kept(*body)).collect()
            }
            (Err(WriteError::Refused(_)), write) => write.bodies().iter().map(|body| body.reference.id).collect(),
            _ => Vec::new(),
        }
    }
}

/// Returns the document of a write, in which what is secret is encrypted with these keys.
fn encode(
    write: &Write,
    ids: WriteIds,
    form: BodyForm,
    now: Timestamp,
    keys: &EncryptionKeys,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut document = Vec::with_capacity(TYPICAL_BYTES);
    match write {
        Write::Create { job, .. } | Write::Replace { job, .. } => {
            serde_json::to_writer(&mut document, &JobDocument::new(job, Some(ids), form).encrypt(job, keys)?)?;
        }
        Write::Remove { job, .. } => {
            let tombstone = TombstoneDocument::new(job.id.clone(), Destination::Nowhere, now, ids);
            serde_json::to_writer(&mut document, &tombstone)?;
        }
    }
    Ok(document)
}

/// Returns whether the manager has just generated the id of a new job: then nobody else can know it, and no archive can
/// have it. (A client's own id may look the same, but comes with a fingerprint.)
fn is_own_id(job: &Job, now: Timestamp) -> bool {
    let is_young = |made: Timestamp| now.since(made) < OWN_ID_AGE && made.since(now) < OWN_ID_AGE;
    job.spec.fingerprint.is_none() && job.id.made_at().is_some_and(is_young)
}

fn has_inline_body(write: &Write) -> bool {
    let job = write.job();
    [&job.payload, job.result()].into_iter().any(|body| matches!(body, Body::Inline(_)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::document::tests::available;
    use super::*;
    use crate::job::{BodyRef, Json, NewBody};

    fn version(place: Place, seq_no: u64) -> Version {
        Version { place, primary_term: 1, seq_no }
    }

    #[test]
    fn a_conflict_with_the_writes_own_job_in_the_archive_spares_the_body_that_the_job_refers_to() {
        let json = Json::parse("[1]".to_owned()).expect("JSON");
        let bodies = [1_u128, 2].map(|id| NewBody {
            reference: BodyRef { id: BodyId(uuid::Uuid::from_u128(id)), bytes: 3 },
            json: json.clone(),
        });
        let [kept, dropped] = bodies.clone().map(|body| body.reference);
        let job = Arc::new(available(Body::Stored(kept)));
        let write =
            Write::Replace { job: Arc::clone(&job), expected: version(Place::Main, 4), bodies: bodies.to_vec() };
        let (now, keys) = (Timestamp::from_millis(0), EncryptionKeys::default());
        let mut task = Task::new(write, now, &WriteIdSource::new(), &RecentWrites::default(), &keys);
        task.question = Some(Question::Current);
        let moved = Versioned { job, version: version(Place::Other(1), 1) };
        task.located(Located::Moved(moved, Lock::Absent));

        assert_eq!(task.dead_bodies(), [dropped.id]);
        assert!(matches!(task.take_answer(), Some(Err(WriteError::Conflict(Some(_))))));
    }
}
