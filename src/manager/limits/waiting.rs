//! Which managers wait for slots that less urgent jobs get elsewhere.
//!
//! A manager learns at once that one of its own jobs has ended, and takes the slot again; the others find it a moment
//! later. So one with many jobs could take each slot again for jobs of a low priority, while a more urgent one waits at
//! another manager. A manager that is beaten to a slot so, with a claim for the urgent job at hand and slots of all its
//! other limits, writes a *mark* into the document: the queue and the job's priority. While the mark is fresh, the
//! other managers leave the slots of the limit to jobs of that priority and above, in that queue.
//!
//! A mark is fresh for a time since it was first read, by the reader's monotonic clock, so that one of a manager that
//! has stopped ends by itself. Its writer renews it while the job and a claim that takes it wait, and takes it off when
//! they do not. Marks do not lock each other out: none refuses the most urgent job of all that wait.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use crate::job::{Job, Priority, QueueName};

/// How long a mark counts after it was first read: long enough to be renewed.
const FRESH_FOR: Duration = Duration::from_secs(2);

/// The time between two renewals of a mark.
const RENEWED_EVERY: Duration = Duration::from_secs(1);

/// The most marks of one document. More managers than these have to wait for a slot as if there were no marks.
const MOST: usize = 64;

/// A mark, as it is in a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// The number of the manager that waits.
    pub(super) manager: u32,
    pub(super) queue: QueueName,
    /// The priority of the job that waits.
    pub(super) priority: Priority,
    /// What tells a renewed mark from the one before.
    pub(super) renewal: Uuid,
}

/// A mark that is known.
#[derive(Clone, Debug)]
struct Seen {
    mark: Mark,
    /// Since when it is.
    since: Instant,
}

/// This manager's own mark.
#[derive(Clone, Debug)]
struct Own {
    mark: Mark,
    /// Since when the document has it; `None` while it has not.
    written_at: Option<Instant>,
    /// The priority of the job that got the slot.
    beaten_by: Priority,
    /// Whether nothing waited any more when it was last looked at.
    is_idle: bool,
}

impl Own {
    /// Returns whether it was written so long ago that it is to be renewed.
    fn is_old(&self, now: Instant) -> bool {
        self.written_at.is_some_and(|at| now.duration_since(at) >= RENEWED_EVERY)
    }
}

/// The marks of one document.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    /// The number of this manager.
    number: u32,
    others: Vec<Seen>,
    own: Option<Own>,
    /// The renewal of this manager's mark that is in the document, as it was last read or written.
    stored: Option<Uuid>,
}

impl Marks {
    /// Returns the marks as the manager of this number knows them, which is nothing yet.
    pub(super) fn of(number: u32) -> Self {
        Self { number, ..Self::default() }
    }

    /// Takes over the marks of a document that was read.
    pub(super) fn take_over(&mut self, read: Vec<Mark>, now: Instant) {
        let known = std::mem::take(&mut self.others);
        let (own, others): (Vec<Mark>, Vec<Mark>) = read.into_iter().partition(|mark| mark.manager == self.number);
        self.has_stored(own.first().map(|own| own.renewal), now);
        let others = others.into_iter().map(|mark| {
            let since = known.iter().find(|seen| seen.mark == mark).map_or(now, |seen| seen.since);
            Seen { mark, since }
        });
        self.others = others.collect();
    }

    /// Takes note that the document was written with the marks that were to be written.
    pub(super) fn wrote(&mut self, now: Instant) {
        self.has_stored(self.own.as_ref().map(|own| own.mark.renewal), now);
    }

    fn has_stored(&mut self, stored: Option<Uuid>, now: Instant) {
        self.stored = stored;
        if let Some(own) = &mut self.own {
            own.written_at = (stored == Some(own.mark.renewal)).then(|| own.written_at.unwrap_or(now));
        }
    }

    /// Returns whether the document has another mark of this manager than it is to have.
    fn is_to_be_written(&self) -> bool {
        self.stored != self.own.as_ref().map(|own| own.mark.renewal)
    }

    /// Returns the marks that are to be written: the own one, and those of others that are fresh.
    pub(super) fn to_write(&self, now: Instant) -> Vec<Mark> {
        let own = self.own.iter().map(|own| own.mark.clone());
        own.chain(self.fresh(now).cloned()).take(MOST).collect()
    }

    fn fresh(&self, now: Instant) -> impl Iterator<Item = &Mark> {
        let is_fresh = move |seen: &&Seen| now.duration_since(seen.since) < FRESH_FOR;
        self.others.iter().filter(is_fresh).map(|seen| &seen.mark)
    }

    /// Returns the priority below which jobs of this one's queue leave the slots to another manager, if the job does.
    pub(super) fn refuse(&self, job: &Job, now: Instant) -> Option<Priority> {
        let of_queue = self.fresh(now).filter(|mark| mark.queue == job.spec.queue);
        of_queue.map(|mark| mark.priority).max().filter(|priority| job.spec.priority < *priority)
    }

    /// Marks that a job waits that was beaten to a slot by one of this priority. Returns whether that is to be written.
    pub(super) fn set(&mut self, job: &Job, beaten_by: Priority, now: Instant) -> bool {
        let (queue, priority) = (&job.spec.queue, job.spec.priority);
        let is_marked = |own: &Own| own.mark.queue == *queue && own.mark.priority >= priority && !own.is_old(now);
        if let Some(own) = &mut self.own
            && is_marked(own)
        {
            own.is_idle = false;
        } else {
            let mark = Mark { manager: self.number, queue: queue.clone(), priority, renewal: Uuid::new_v4() };
            self.own = Some(Own { mark, written_at: None, beaten_by, is_idle: false });
        }
        self.is_to_be_written()
    }

    /// Renews the own mark for the job that waits, if one does, or takes it off. Returns whether that is to be written.
    pub(super) fn renew(&mut self, waiting: Option<&Job>, now: Instant) -> bool {
        let Some(own) = &mut self.own else { return self.is_to_be_written() };
        let is_marked = |job: &&Job| job.spec.queue == own.mark.queue && job.spec.priority > own.beaten_by;
        let Some(job) = waiting.filter(is_marked) else {
            // The job may be with a claim that is being decided about.
            if std::mem::replace(&mut own.is_idle, true) {
                self.own = None;
            }
            return self.is_to_be_written();
        };
        own.is_idle = false;
        if own.is_old(now) {
            (own.mark.priority, own.mark.renewal, own.written_at) = (job.spec.priority, Uuid::new_v4(), None);
        }
        self.is_to_be_written()
    }

    /// Returns whether this manager has a mark.
    pub(super) fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// Returns since when the document has had the own mark, `None` for one that is to be written or taken off; `None`
    /// in place of that where there is no mark.
    pub(super) fn own_since(&self) -> Option<Option<Instant>> {
        let written_at = self.own.as_ref().map(|own| own.written_at);
        written_at.or_else(|| self.is_to_be_written().then_some(None))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::Timestamp;
    use crate::job::{Actor, Body, JobId, JobSpec, Kind};

    fn job(queue: &'static str, priority: i64) -> Job {
        let priority = Priority::new(priority).expect("a priority");
        let spec = JobSpec { priority, ..JobSpec::new(QueueName::system(queue), Kind::system("k")) };
        let (id, at) = (JobId::new("j").expect("an id"), Timestamp::from_millis(1));
        Job::submit(id, Arc::new(spec), Body::Empty, (at, None), &Actor::system("a"), at)
    }

    /// Returns marks with one for a job of this priority, that another of no urgency has beaten, and that was written.
    fn written(number: u32, priority: i64, now: Instant) -> Marks {
        let mut marks = Marks::of(number);
        assert!(marks.set(&job("q", priority), Priority::default(), now));
        marks.wrote(now);
        marks
    }

    #[test]
    fn a_mark_refuses_less_urgent_jobs_of_its_queue_at_other_managers_only() {
        let now = Instant::now();
        let (mut marks, mut others) = (written(1, 5, now), Marks::of(2));
        assert!(!marks.set(&job("q", 5), Priority::default(), now), "it is written");
        others.take_over(marks.to_write(now), now);
        let refused = |marks: &Marks, queue, priority| marks.refuse(&job(queue, priority), now).is_some();
        assert!(refused(&others, "q", 4) && !refused(&others, "q", 5) && !refused(&others, "r", 4));
        assert!(!refused(&marks, "q", 4));
    }

    #[test]
    fn a_mark_that_is_not_renewed_ends_by_itself_and_is_not_written_again() {
        let now = Instant::now();
        let (mut marks, mut others) = (written(1, 5, now), Marks::of(2));
        others.take_over(marks.to_write(now), now);
        let late = now + FRESH_FOR;
        others.take_over(marks.to_write(late), late);
        assert!(others.refuse(&job("q", 0), late).is_none() && others.to_write(late).is_empty());
        assert!(marks.renew(Some(&job("q", 5)), late));
        others.take_over(marks.to_write(late), late);
        assert!(others.refuse(&job("q", 0), late).is_some());
    }

    #[test]
    fn a_mark_is_taken_off_when_nothing_that_was_beaten_waits_at_two_looks() {
        let now = Instant::now();
        for waiting in [None, Some(job("q", 0)), Some(job("r", 5))] {
            let mut marks = written(1, 5, now);
            assert!(!marks.renew(waiting.as_ref(), now) && marks.renew(waiting.as_ref(), now));
            assert!(marks.to_write(now).is_empty());
        }
    }

    #[test]
    fn what_a_conflict_has_kept_from_the_document_is_to_be_written_until_it_is() {
        let now = Instant::now();
        let (waits, mut marks, mut others) = (job("q", 5), Marks::of(1), Marks::of(2));
        others.set(&job("q", 3), Priority::default(), now);
        for _ in 0..2 {
            assert!(marks.set(&waits, Priority::default(), now) && marks.renew(Some(&waits), now));
            assert_eq!(marks.own_since(), Some(None));
            marks.take_over(others.to_write(now), now);
        }
        marks.wrote(now);
        others.take_over(marks.to_write(now), now);
        assert!(!marks.renew(Some(&waits), now) && marks.own_since() == Some(Some(now)));
        // Taken off, which meets a conflict: it is no other manager's mark.
        assert!(!marks.renew(None, now) && marks.renew(None, now));
        marks.take_over(others.to_write(now), now);
        assert!(marks.refuse(&job("q", 4), now).is_none() && marks.to_write(now).len() == 1);
        assert!(marks.own_since() == Some(None) && marks.renew(None, now), "it is to be taken off");
        marks.wrote(now);
        assert!(marks.own_since().is_none() && !marks.renew(None, now));
    }

    #[test]
    fn of_two_that_wait_the_more_urgent_is_refused_by_neither() {
        let now = Instant::now();
        let (mut high, mut low) = (written(1, 9, now), Marks::of(2));
        low.take_over(high.to_write(now), now);
        low.set(&job("q", 5), Priority::default(), now);
        high.take_over(low.to_write(now), now);
        assert!(high.refuse(&job("q", 9), now).is_none() && low.refuse(&job("q", 5), now).is_some());
        assert_eq!(high.to_write(now).len(), 2);
    }
}
