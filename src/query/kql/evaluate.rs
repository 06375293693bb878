//! Evaluates a query on one job or schedule, by the same rules as Elasticsearch applies to its document.

use std::collections::BTreeMap;

use super::ast::{Operator, Value};
use super::bounds::Span;
use super::date::End;
use super::pattern::Pattern;
use super::plan::{Clause, Piece, Plan, Target, Test};
use super::words::words;
use crate::clock::Timestamp;
use crate::job::{HistoryEntry, Job};
use crate::query::fields::{Access, Field, FieldType, FieldValue, LONG, LONGEST_KEYWORD, fits, unsigned};
use crate::query::table::Table;
use crate::schedule::Schedule;

/// The job, history entry or schedule that a plan is evaluated on.
#[derive(Clone, Copy)]
pub(super) enum Subject<'a> {
    Job(&'a Job),
    Entry(&'a HistoryEntry),
    Schedule(&'a Schedule),
}

impl<'a> Subject<'a> {
    fn labels(self) -> Option<&'a BTreeMap<String, String>> {
        match self {
            Self::Job(job) => Some(&job.spec.labels),
            Self::Schedule(schedule) => Some(&schedule.definition.labels),
            Self::Entry(_) => None,
        }
    }

    /// Returns the table that has the fields of the subject.
    fn table(self) -> Table {
        match self {
            Self::Job(_) | Self::Entry(_) => Table::Jobs,
            Self::Schedule(_) => Table::Schedules,
        }
    }
}

impl Plan {
    pub(super) fn holds(&self, subject: Subject<'_>, now: Timestamp) -> bool {
        match self {
            Self::All => true,
            Self::Nothing => false,
            Self::And(plans) => plans.iter().all(|plan| plan.holds(subject, now)),
            Self::Or(plans) => plans.iter().any(|plan| plan.holds(subject, now)),
            Self::Not(plan) => !plan.holds(subject, now),
            Self::InHistory(plan) => match subject {
                Subject::Job(job) => job.history.entries().iter().any(|entry| plan.holds(Subject::Entry(entry), now)),
                Subject::Entry(_) | Subject::Schedule(_) => false,
            },
            Self::Fields(clauses) | Self::Anywhere { clauses, .. } => {
                clauses.iter().any(|clause| clause.holds(subject, now))
            }
        }
    }
}

impl Clause {
    fn holds(&self, subject: Subject<'_>, now: Timestamp) -> bool {
        match &self.target {
            Target::Field(field) => has_value(field, subject, &mut |value| self.test.accepts(field.kind, value, now)),
            Target::Label(name) => subject
                .labels()
                .and_then(|labels| labels.get(name))
                .filter(|text| fits(text, LONGEST_KEYWORD))
                .is_some_and(|text| self.test.accepts(FieldType::Labels, FieldValue::Text(text), now)),
            Target::Resource(name) => match subject {
                Subject::Job(job) => {
                    let amount = job.spec.resources.get(name).copied().and_then(unsigned);
                    amount.is_some_and(|amount| self.test.accepts(LONG, amount, now))
                }
                Subject::Entry(_) | Subject::Schedule(_) => false,
            },
            Target::Group(group) => subject
                .table()
                .members(group)
                .any(|field| has_value(field, subject, &mut |_| matches!(self.test, Test::Exists))),
        }
    }
}

/// Returns whether the field has a value in the index that `wanted` accepts.
fn has_value(field: &Field, subject: Subject<'_>, wanted: &mut dyn FnMut(FieldValue<'_>) -> bool) -> bool {
    let longest = match field.kind {
        FieldType::Keyword { longest } => longest,
        FieldType::Labels => Some(LONGEST_KEYWORD),
        _ => None,
    };
    let mut indexed = |value: FieldValue<'_>| match (value, longest) {
        (FieldValue::Text(text), Some(longest)) if !fits(text, longest) => false,
        (value, _) => wanted(value),
    };
    match (field.access, subject) {
        (Access::Job(get), Subject::Job(job)) => get(job).is_some_and(&mut indexed),
        (Access::History(get), Subject::Entry(entry)) => get(entry).is_some_and(&mut indexed),
        (Access::History(get), Subject::Job(job)) => {
            job.history.entries().iter().any(|entry| get(entry).is_some_and(&mut indexed))
        }
        (Access::Schedule(get), Subject::Schedule(schedule)) => get(schedule).is_some_and(&mut indexed),
        (Access::Action(get), Subject::Schedule(schedule)) => {
            get(&schedule.definition.action).is_some_and(|text| indexed(FieldValue::Text(&text)))
        }
        (Access::Labels, subject) => {
            let texts = subject.labels().into_iter().flat_map(BTreeMap::values);
            texts.map(|text| FieldValue::Text(text)).any(indexed)
        }
        (Access::Resources, Subject::Job(job)) => {
            job.spec.resources.values().any(|amount| unsigned(*amount).is_some_and(&mut indexed))
        }
        (Access::Requires, Subject::Job(job)) => {
            job.spec.requires().iter().any(|requirement| indexed(FieldValue::Text(&requirement.to_string())))
        }
        // A field of the one table says nothing of the subjects of the other.
        _ => false,
    }
}

impl Test {
    fn accepts(&self, kind: FieldType, value: FieldValue<'_>, now: Timestamp) -> bool {
        match (self, value) {
            (Self::Exists, _) => true,
            (Self::Equals(wanted), FieldValue::Text(text)) => wanted.text() == Some(text),
            (Self::Like(pattern), FieldValue::Text(text)) => pattern.matches(text),
            (Self::Words { words: wanted, phrase, .. }, FieldValue::Text(text)) => has_words(text, wanted, *phrase),
            (Self::Parts { pieces, .. }, FieldValue::Text(text)) if kind == FieldType::Text => {
                let words = words(text);
                pieces.iter().any(|piece| piece.is_among(&words))
            }
            (Self::Parts { pieces, .. }, FieldValue::Text(text)) => pieces.iter().any(|piece| piece.is(text)),
            (Self::Compare { operator, bound }, FieldValue::Text(text)) if kind == FieldType::Text => {
                words(text).iter().any(|word| operator.admits(word.as_str().cmp(bound)))
            }
            (Self::Compare { operator, bound }, FieldValue::Text(text)) => operator.admits(text.cmp(bound)),
            (Self::Number { operator, number, .. }, FieldValue::Integer(value)) => {
                admits(*operator, number.order_of(value))
            }
            (Self::Number { operator, number, .. }, FieldValue::Number(value)) => {
                admits(*operator, number.order_of_float(value))
            }
            (Self::Time { .. }, FieldValue::Time(time)) => {
                self.span(now).is_some_and(|span| span.contains(time.as_millis()))
            }
            (Self::Flag { flag, .. }, FieldValue::Flag(value)) => *flag == value,
            _ => false,
        }
    }
}

fn admits(operator: Option<Operator>, ordering: std::cmp::Ordering) -> bool {
    operator.map_or(ordering.is_eq(), |operator| operator.admits(ordering))
}

fn has_words(text: &str, wanted: &[String], phrase: bool) -> bool {
    if wanted.is_empty() {
        return false;
    }
    let words = words(text);
    if phrase {
        words.windows(wanted.len()).any(|window| window == wanted)
    } else {
        wanted.iter().any(|word| words.contains(word))
    }
}

impl Piece {
    /// Returns whether the piece matches among the words of a text.
    fn is_among(&self, text: &[String]) -> bool {
        match self {
            Self::Words { words, .. } => words.iter().any(|word| text.contains(word)),
            // `*` tests whether there is a value, even one without words.
            Self::Pattern { small, .. } if small.is_any() => true,
            Self::Pattern { small, .. } => text.iter().any(|word| small.matches(word)),
        }
    }

    /// Returns whether the piece matches a whole keyword.
    fn is(&self, keyword: &str) -> bool {
        match self {
            Self::Words { whole, .. } => whole == keyword,
            Self::Pattern { exact, .. } => exact.matches(keyword),
        }
    }
}

impl Test {
    /// Returns whether a keyword with this value satisfies the test.
    pub(super) fn accepts_keyword(&self, text: &str) -> bool {
        let keyword = FieldType::Keyword { longest: None };
        self.accepts(keyword, FieldValue::Text(text), Timestamp::default())
    }

    /// Returns the times that satisfy the test, if it tests times. "After a day" is after its end, and "up to a day" is
    /// up to its end; "before" and "from" refer to its beginning.
    pub(super) fn span(&self, now: Timestamp) -> Option<Span> {
        let Self::Time { operator, moment, .. } = self else { return None };
        let at = |end| moment.at(now, end).as_millis();
        Some(match operator {
            None => Span { first: at(End::First), last: at(End::Last) },
            Some(Operator::Less) => Span { last: at(End::First) - 1, ..Span::ALWAYS },
            Some(Operator::AtMost) => Span { last: at(End::Last), ..Span::ALWAYS },
            Some(Operator::Greater) => Span { first: at(End::Last) + 1, ..Span::ALWAYS },
            Some(Operator::AtLeast) => Span { first: at(End::First), ..Span::ALWAYS },
        })
    }

    /// Returns the pattern that a text must match to satisfy the test, if there is one.
    pub(super) fn pattern(&self) -> Option<&Pattern> {
        match self {
            Self::Like(pattern) => Some(pattern),
            _ => None,
        }
    }

    /// Returns the only text that satisfies the test, if there is only one.
    pub(super) fn only_text(&self) -> Option<&str> {
        match self {
            Self::Equals(value) => Value::text(value),
            _ => None,
        }
    }
}
