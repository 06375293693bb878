//! A filter and its query brought together, as far as indexes can answer them: of jobs, and of schedules.

use std::str::FromStr;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::job::{JobId, JobState, Owner, ScheduleId, WorkerId};
use crate::query::kql::Span;
use crate::query::kql::pattern::Pattern;
use crate::query::{Filter, ScheduleFilter};
use crate::schedule::Schedule;

/// The finest difference between two times.
const MOMENT: Duration = Duration::from_millis(1);

/// The span of all times.
const EVER: Span = Span { first: Timestamp::MIN.as_millis(), last: Timestamp::MAX.as_millis() };

/// How many owners' indexes are read for one list. With more owners all schedules are read.
const MAX_OWNERS: usize = 16;

/// A filter, with what its query binds made part of it where the filter has a part for it.
#[derive(Clone, Debug)]
pub(super) struct Narrowed {
    /// The filter, which matches the same jobs as before.
    pub(super) filter: Filter,
    /// The ids that jobs must have, if the query names any.
    pub(super) ids: Option<Vec<JobId>>,
    /// A pattern that the ids of the jobs match, if the query says one.
    pub(super) id_like: Option<Pattern>,
    /// The spans in which jobs must have been submitted, written last, due and ended, in the order of the columns.
    pub(super) spans: [Span; 4],
    /// Whether every settled job that satisfies all of this, but for `ids`, matches. Then the columns decide.
    pub(super) exact: bool,
}

impl Narrowed {
    /// Narrows `filter`; `None` when no job can match it.
    pub(super) fn of(filter: &Filter) -> Option<Self> {
        let bounds = filter.query.as_ref().map(|query| query.expression.bounds(query.now));
        let exact = bounds.as_ref().is_none_or(|bounds| bounds.exact);
        let mut bounds = bounds.unwrap_or_default();
        let id_like = bounds.id_like.take();
        let ids = named::<JobId>(bounds.texts("id"));
        let created_at = bounds.span("created_at");
        let updated_at = bounds.span("updated_at").and(span(filter.updated_after, None));
        let run_at = bounds.span("run_at").and(span(filter.run_after, filter.run_at_most));
        let finished_at = bounds.span("finished_at").and(span(filter.finished_after, filter.finished_at_most));
        let spans = [created_at, updated_at, run_at, finished_at];
        let mut narrowed = filter.clone();
        meet(&mut narrowed.states, named(bounds.texts("state")))?;
        meet(&mut narrowed.queues, named(bounds.texts("queue")))?;
        meet(&mut narrowed.kinds, named(bounds.texts("kind")))?;
        meet(&mut narrowed.owners, named(bounds.texts("owner")))?;
        let workers = named::<WorkerId>(bounds.texts("lease.worker_id"));
        match workers.as_deref() {
            Some([]) => return None,
            Some([worker]) if narrowed.worker_id.is_none() => narrowed.worker_id = Some(worker.clone()),
            _ => {}
        }
        let never = spans.into_iter().any(|span| span.and(EVER).is_empty());
        if never || ids.as_ref().is_some_and(Vec::is_empty) {
            return None;
        }
        (narrowed.run_after, narrowed.run_at_most) = (after(run_at), at_most(run_at));
        (narrowed.finished_after, narrowed.finished_at_most) = (after(finished_at), at_most(finished_at));
        narrowed.updated_after = after(updated_at);
        let has_no_part =
            ids.is_some() || workers.is_some() || created_at != Span::ALWAYS || updated_at.last != i64::MAX;
        if exact && !has_no_part {
            // The query says nothing that the other parts do not say by now.
            narrowed.query = None;
        }
        // The columns have no keys.
        let exact = exact && ids.is_none() && filter.under.is_empty() && filter.not_under.is_empty();
        let exact = exact && filter.in_line_of.is_empty() && filter.not_in_line_of.is_empty();
        let exact = exact && filter.not_requiring.is_empty() && filter.more_urgent_than.is_none();
        let exact = exact && !filter.without_owner && filter.held.is_none();
        Some(Self { filter: narrowed, ids, id_like, spans, exact })
    }

    /// Returns whether a finished job in this state can match.
    pub(super) fn admits(&self, state: JobState) -> bool {
        self.filter.states.is_empty() || self.filter.states.contains(&state)
    }

    /// Returns whether any finished job can match.
    pub(super) fn may_be_finished(&self) -> bool {
        !self.filter.only_live()
    }
}

/// A filter of schedules, with what its query binds.
#[derive(Clone, Debug)]
pub(super) struct NarrowedSchedules {
    /// The ids that schedules must have, in order, if the query names any.
    pub(super) ids: Option<Vec<ScheduleId>>,
    /// The owners of whom they must have one; any where there are none.
    pub(super) owners: Vec<Owner>,
    /// What the other parts do not say.
    rest: ScheduleFilter,
}

impl NarrowedSchedules {
    /// Narrows `filter`; `None` when no schedule can match it.
    pub(super) fn of(filter: &ScheduleFilter) -> Option<Self> {
        let bounds = filter.query.as_ref().map(|query| query.expression.bounds(query.now)).unwrap_or_default();
        let mut ids = named::<ScheduleId>(bounds.texts("id"));
        if let Some(ids) = &mut ids {
            ids.sort_unstable();
            ids.dedup();
        }
        let mut owners: Vec<Owner> = filter.owner.iter().cloned().collect();
        meet(&mut owners, named(bounds.texts("owner")))?;
        if bounds.is_empty() || ids.as_ref().is_some_and(Vec::is_empty) {
            return None;
        }
        let bounds_times = ["created_at", "updated_at"].into_iter().any(|field| bounds.span(field) != Span::ALWAYS);
        let query = filter.query.clone().filter(|_| !bounds.exact || bounds_times);
        let rest = ScheduleFilter { owner: None, paused: filter.paused, query };
        Some(Self { ids, owners, rest })
    }

    /// Returns the owners whose indexes have all that match; `None` stands for the index of all schedules.
    pub(super) fn indexes(&self) -> Vec<Option<&Owner>> {
        match self.owners.len() {
            1..=MAX_OWNERS => self.owners.iter().map(Some).collect(),
            _ => vec![None],
        }
    }

    /// Returns whether everything in these indexes matches, so that nothing has to be read to know.
    pub(super) fn is_exact(&self) -> bool {
        self.ids.is_none() && self.rest == ScheduleFilter::default() && self.owners.len() <= MAX_OWNERS
    }

    /// Returns whether few schedules have to be read to find the first that match.
    pub(super) fn is_quick(&self) -> bool {
        self.ids.is_some() || self.is_exact()
    }

    /// Returns whether a schedule matches.
    pub(super) fn matches(&self, schedule: &Schedule) -> bool {
        let owner = schedule.definition.owner.as_ref();
        (self.owners.is_empty() || owner.is_some_and(|owner| self.owners.contains(owner)))
            && self.ids.as_ref().is_none_or(|ids| ids.binary_search(&schedule.id).is_ok())
            && self.rest.matches(schedule)
    }
}

fn span(after: Option<Timestamp>, at_most: Option<Timestamp>) -> Span {
    Span {
        first: after.map_or(i64::MIN, |after| after.as_millis() + 1),
        last: at_most.map_or(i64::MAX, Timestamp::as_millis),
    }
}

/// Returns the last moment before a span; `None` when the span has no beginning.
fn after(span: Span) -> Option<Timestamp> {
    (span.first > Timestamp::MIN.as_millis()).then(|| Timestamp::from_millis(span.first).minus(MOMENT))
}

/// Returns the last moment of a span; `None` when the span has no end.
fn at_most(span: Span) -> Option<Timestamp> {
    // A span up to the end of all time still needs a value.
    (span.last < i64::MAX).then(|| Timestamp::from_millis(span.last))
}

/// The texts as names; a text that cannot be a name is left out, since no job has it.
fn named<T: FromStr>(texts: Option<&[String]>) -> Option<Vec<T>> {
    texts.map(|texts| texts.iter().filter_map(|text| text.parse().ok()).collect())
}

/// Keeps of `wanted`, where an empty list stands for everything, what is among `bound`; `None` when nothing is left.
fn meet<T: PartialEq>(wanted: &mut Vec<T>, bound: Option<Vec<T>>) -> Option<()> {
    let Some(bound) = bound else { return Some(()) };
    if wanted.is_empty() {
        *wanted = bound;
    } else {
        wanted.retain(|value| bound.contains(value));
    }
    (!wanted.is_empty()).then_some(())
}
