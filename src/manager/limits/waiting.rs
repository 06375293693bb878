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

use crate::job::{Job, LimitName, Priority, QueueName};
use crate::manager::Manager;

/// How long a mark counts after it was first read: long enough to be renewed.
const FRESH_FOR: Duration = Duration::from_secs(2);

/// The time between two renewals of a mark.
const RENEWED_EVERY: Duration = Duration::from_secs(1);

/// The most marks of one document. More managers than these have to wait for a slot as if there were no marks.
const MOST: usize = 64;

/// The most own marks that are looked at at once.
const LOOKED_AT: usize = 16;

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
    written_at: Instant,
    /// The priority of the job that got the slot.
    beaten_by: Priority,
    /// Whether nothing waited any more when it was last looked at.
    is_idle: bool,
}

/// The marks of one document.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    others: Vec<Seen>,
    own: Option<Own>,
}

impl Marks {
    /// Takes over the marks of a document that was read.
    pub(super) fn take_over(&mut self, read: Vec<Mark>, now: Instant) {
        let known = std::mem::take(&mut self.others);
        let is_own = |mark: &Mark| self.own.as_ref().is_some_and(|own| own.mark.manager == mark.manager);
        let others = read.into_iter().filter(|mark| !is_own(mark)).map(|mark| {
            let since = known.iter().find(|seen| seen.mark == mark).map_or(now, |seen| seen.since);
            Seen { mark, since }
        });
        self.others = others.collect();
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
    pub(super) fn set(&mut self, manager: u32, job: &Job, beaten_by: Priority, now: Instant) -> bool {
        let (queue, priority) = (&job.spec.queue, job.spec.priority);
        let is_marked = |own: &Own| {
            own.mark.queue == *queue
                && own.mark.priority >= priority
                && now.duration_since(own.written_at) < RENEWED_EVERY
        };
        if let Some(own) = &mut self.own
            && is_marked(own)
        {
            own.is_idle = false;
            return false;
        }
        let renewal = Uuid::new_v4();
        let mark = Mark { manager, queue: queue.clone(), priority, renewal };
        self.own = Some(Own { mark, written_at: now, beaten_by, is_idle: false });
        true
    }

    /// Renews the own mark for the job that waits, if one does, or takes it off. Returns whether that is to be written.
    pub(super) fn renew(&mut self, waiting: Option<&Job>, now: Instant) -> bool {
        let Some(own) = &mut self.own else { return false };
        let is_marked = |job: &&Job| job.spec.queue == own.mark.queue && job.spec.priority > own.beaten_by;
        let Some(job) = waiting.filter(is_marked) else {
            // The job may be with a claim that is being decided about.
            let is_over = std::mem::replace(&mut own.is_idle, true);
            if is_over {
                self.own = None;
            }
            return is_over;
        };
        own.is_idle = false;
        if now.duration_since(own.written_at) < RENEWED_EVERY {
            return false;
        }
        (own.mark.priority, own.mark.renewal, own.written_at) = (job.spec.priority, Uuid::new_v4(), now);
        true
    }

    /// Returns whether this manager has a mark.
    pub(super) fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// Returns when the own mark was last written.
    pub(super) fn own_since(&self) -> Option<Instant> {
        self.own.as_ref().map(|own| own.written_at)
    }
}

impl Manager {
    /// Renews this manager's marks, and takes off those for which nothing waits any more.
    pub(super) async fn keep_marks(&self) {
        let marked = self.shared.limits.documents.marked(LOOKED_AT);
        if marked.is_empty() {
            return;
        }
        let now = self.shared.clock.now();
        let documents = &self.shared.limits.documents;
        let waits_in_vain = |name: &LimitName, job: &Job| {
            let under = self.limits_of(job);
            let others_have_room =
                under.iter().filter(|under| under.name != *name).all(|under| documents.room(under, job, now) > 0);
            others_have_room && self.shared.dispatch.suits_a_waiting_claim(job)
        };
        let renewed = marked.into_iter().filter(|name| {
            let next = self.shared.dispatch.next_of(name).filter(|next| waits_in_vain(name, next));
            documents.renew_mark(name, next.as_deref())
        });
        let renewed = renewed.collect();
        self.write_slots(&mut [], renewed).await;
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

    /// Marks of a manager that was beaten by a job of no urgency, as another manager reads them.
    fn read_by_another(writer: &Marks, now: Instant) -> Marks {
        let mut reader = Marks::default();
        reader.take_over(writer.to_write(now), now);
        reader
    }

    #[test]
    fn a_mark_refuses_less_urgent_jobs_of_its_queue_at_other_managers_only() {
        let (mut marks, now) = (Marks::default(), Instant::now());
        assert!(marks.set(1, &job("q", 5), Priority::default(), now));
        assert!(!marks.set(1, &job("q", 5), Priority::default(), now), "it is written");
        let others = read_by_another(&marks, now);
        let refused = |marks: &Marks, queue, priority| marks.refuse(&job(queue, priority), now).is_some();
        assert!(refused(&others, "q", 4) && !refused(&others, "q", 5) && !refused(&others, "r", 4));
        assert!(!refused(&marks, "q", 4));
    }

    #[test]
    fn a_mark_that_is_not_renewed_ends_by_itself_and_is_not_written_again() {
        let (mut marks, now) = (Marks::default(), Instant::now());
        marks.set(1, &job("q", 5), Priority::default(), now);
        let mut others = read_by_another(&marks, now);
        let late = now + FRESH_FOR;
        others.take_over(marks.to_write(late), late);
        assert!(others.refuse(&job("q", 0), late).is_none() && others.to_write(late).is_empty());
        assert!(marks.renew(Some(&job("q", 5)), late));
        others.take_over(marks.to_write(late), late);
        assert!(others.refuse(&job("q", 0), late).is_some());
    }

    #[test]
    fn a_mark_is_taken_off_when_nothing_that_was_beaten_waits_at_two_looks() {
        for waiting in [None, Some(job("q", 0)), Some(job("r", 5))] {
            let (mut marks, now) = (Marks::default(), Instant::now());
            marks.set(1, &job("q", 5), Priority::default(), now);
            assert!(!marks.renew(waiting.as_ref(), now) && marks.renew(waiting.as_ref(), now));
            assert!(marks.to_write(now).is_empty());
        }
    }

    #[test]
    fn of_two_that_wait_the_more_urgent_is_refused_by_neither() {
        let now = Instant::now();
        let [mut low, mut high] = [Marks::default(), Marks::default()];
        high.set(1, &job("q", 9), Priority::default(), now);
        low.take_over(high.to_write(now), now);
        low.set(2, &job("q", 5), Priority::default(), now);
        high.take_over(low.to_write(now), now);
        assert!(high.refuse(&job("q", 9), now).is_none() && low.refuse(&job("q", 5), now).is_some());
        assert_eq!(high.to_write(now).len(), 2);
    }
}
