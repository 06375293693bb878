//! A query in Kibana's language as Elasticsearch's query DSL.
//!
//! The form is the one that Kibana gives it for the type of each field, so that a search in Kibana and one through the
//! API send the server the same query. `query_string` is used only where Kibana uses it too: for wildcards in fields
//! other than keywords. The intended differences are described in `docs/kql.md`: times carry their format, values
//! without a field are searched in named fields, and a query that cannot match is `match_none`.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::clock::Timestamp;
use crate::query::fields::{FIELDS, HISTORY, LABELS};
use crate::query::kql::ast::{Operator, Value};
use crate::query::kql::date::is_epoch;
use crate::query::kql::pattern::Pattern;
use crate::query::kql::plan::{Clause, Plan, Target, Test};
use crate::query::kql::{Expression, Zone};

/// The format of times in queries: whole or cut short ISO 8601, or milliseconds since the epoch.
const DATE_FORMAT: &str = "strict_date_optional_time||epoch_millis";

/// A query of the DSL, as far as it is used here.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dsl {
    /// Matches every document.
    MatchAll {},
    /// Matches no document.
    MatchNone {},
    /// Combines several queries.
    Bool(Bool),
    /// Matches a query against single elements of a list of objects.
    Nested {
        /// The path of the list.
        path: &'static str,
        /// The query on one element.
        query: Box<Dsl>,
        /// The score mode, which turns scoring off.
        score_mode: &'static str,
    },
    /// Matches when the field has a value.
    Exists {
        /// The name of the field.
        field: String,
    },
    /// Matches when the keyword equals the value.
    Term(Of<ValueOf<Scalar>>),
    /// Matches when the keyword matches the wildcard pattern.
    Wildcard(Of<ValueOf<String>>),
    /// Matches when a text field has one of the words, or another field equals the value.
    Match(Of<Scalar>),
    /// Matches when a text field has the words in this order, or another field equals the value.
    MatchPhrase(Of<Scalar>),
    /// Matches when the field lies in the range.
    Range(Of<Range>),
    /// Matches when one of the fields has the words.
    MultiMatch {
        /// The type of the match: `best_fields` or `phrase`.
        r#type: &'static str,
        /// The words to search for.
        query: Scalar,
        /// Whether a field whose type cannot hold the words is skipped.
        lenient: bool,
        /// The names of the fields.
        fields: Vec<&'static str>,
    },
    /// Matches when one of the fields has one of the words, which may contain wildcards.
    QueryString {
        /// The names of the fields.
        fields: Vec<String>,
        /// The words, in Lucene's query syntax.
        query: String,
    },
}

/// A combination of queries; empty clauses are left out.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Bool {
    filter: Option<Vec<Dsl>>,
    should: Option<Vec<Dsl>>,
    minimum_should_match: Option<u8>,
    must_not: Option<Box<Dsl>>,
}

/// A clause on one field, written as `{field: clause}`.
#[derive(Clone, Debug, PartialEq)]
pub struct Of<T> {
    field: String,
    what: T,
}

impl<T: Serialize> Serialize for Of<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(&self.field, &self.what)?;
        map.end()
    }
}

/// A value, written as `{"value": …}`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ValueOf<T> {
    value: T,
}

/// A value as written in the query, with its type where the language has one.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Scalar {
    /// The value `true` or `false`.
    Flag(bool),
    /// Any other value, as text.
    Text(String),
}

/// The ends of a range, as written in the query.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Range {
    gt: Option<String>,
    gte: Option<String>,
    lt: Option<String>,
    lte: Option<String>,
    format: Option<&'static str>,
    time_zone: Option<String>,
}

impl Range {
    fn of(operator: Operator, bound: String) -> Self {
        let bound = Some(bound);
        match operator {
            Operator::Less => Self { lt: bound, ..Self::default() },
            Operator::AtMost => Self { lte: bound, ..Self::default() },
            Operator::Greater => Self { gt: bound, ..Self::default() },
            Operator::AtLeast => Self { gte: bound, ..Self::default() },
        }
    }

    fn of_time(operator: Option<Operator>, text: &str, times: Times) -> Self {
        let text = &*times.anchored(text);
        let zone = times.zone;
        let ends = match operator {
            Some(operator) => Self::of(operator, text.to_owned()),
            None => Self { gte: Some(text.to_owned()), lte: Some(text.to_owned()), ..Self::default() },
        };
        // Milliseconds since the epoch are the same everywhere, but the server would move them.
        let time_zone = (!zone.is_utc() && !is_epoch(text)).then(|| zone.name());
        Self { format: Some(DATE_FORMAT), time_zone, ..ends }
    }
}

/// The context in which a query's times are interpreted.
#[derive(Clone, Copy)]
struct Times {
    zone: Zone,
    /// The time that `now` stands for; `None` for the server's clock.
    now: Option<Timestamp>,
}

impl Times {
    /// Returns a time with `now` replaced by the given time.
    fn anchored(self, text: &str) -> Cow<'_, str> {
        match (self.now, text.strip_prefix("now")) {
            (Some(now), Some("")) => Cow::Owned(now.to_rfc3339()),
            (Some(now), Some(math)) => Cow::Owned(format!("{}||{math}", now.to_rfc3339())),
            _ => Cow::Borrowed(text),
        }
    }
}

/// Compiles a query as Kibana does, with `now` evaluated by the server.
#[must_use]
pub fn compile(expression: &Expression) -> Dsl {
    plan(expression.plan(), Times { zone: expression.zone(), now: None })
}

/// Compiles a query with `now` fixed to the given time, however often and whenever the query runs.
#[must_use]
pub fn compile_at(expression: &Expression, now: Timestamp) -> Dsl {
    plan(expression.plan(), Times { zone: expression.zone(), now: Some(now) })
}

fn plan(asked: &Plan, times: Times) -> Dsl {
    let all = |plans: &[Plan]| plans.iter().map(|asked| plan(asked, times)).collect();
    match asked {
        Plan::All => Dsl::MatchAll {},
        Plan::Nothing => Dsl::MatchNone {},
        Plan::And(plans) => Dsl::Bool(Bool { filter: Some(all(plans)), ..Bool::default() }),
        Plan::Or(plans) => should(all(plans)),
        Plan::Not(asked) => Dsl::Bool(Bool { must_not: Some(Box::new(plan(asked, times))), ..Bool::default() }),
        Plan::InHistory(asked) => in_history(plan(asked, times)),
        Plan::Fields(clauses) => should(clauses.iter().map(|asked| clause(asked, times)).collect()),
        Plan::Anywhere { value, .. } => anywhere(value),
    }
}

fn should(queries: Vec<Dsl>) -> Dsl {
    Dsl::Bool(Bool { should: Some(queries), minimum_should_match: Some(1), ..Bool::default() })
}

fn in_history(query: Dsl) -> Dsl {
    Dsl::Nested { path: HISTORY, query: Box::new(query), score_mode: "none" }
}

fn clause(asked: &Clause, times: Times) -> Dsl {
    let field = match &asked.target {
        Target::Field(field) => field.name.to_owned(),
        Target::Label(label) => format!("{LABELS}.{label}"),
        Target::Group(group) => group.clone(),
    };
    let is_keyword = matches!(&asked.target, Target::Field(field) if field.name != LABELS);
    let query = test(field, &asked.test, is_keyword, times);
    if asked.in_any_entry { in_history(query) } else { query }
}

fn test(field: String, asked: &Test, is_keyword: bool, times: Times) -> Dsl {
    match asked {
        Test::Exists => Dsl::Exists { field },
        Test::Never => Dsl::MatchNone {},
        Test::Equals(value) if is_keyword => Dsl::Term(Of { field, what: ValueOf { value: scalar(value) } }),
        Test::Equals(value)
        | Test::Words { value, .. }
        | Test::Number { operator: None, value, .. }
        | Test::Flag { value, .. } => {
            let what = scalar(value);
            match value {
                Value::Phrase(_) => Dsl::MatchPhrase(Of { field, what }),
                _ => Dsl::Match(Of { field, what }),
            }
        }
        Test::Like(pattern) => Dsl::Wildcard(Of { field, what: ValueOf { value: escaped(pattern) } }),
        Test::Parts { pattern, .. } => Dsl::QueryString { fields: vec![field], query: lucene(pattern) },
        Test::Compare { operator, bound } => Dsl::Range(Of { field, what: Range::of(*operator, bound.clone()) }),
        Test::Number { operator: Some(operator), value, .. } => {
            let bound = value.text().unwrap_or_default().to_owned();
            Dsl::Range(Of { field, what: Range::of(*operator, bound) })
        }
        Test::Time { operator, text, .. } => Dsl::Range(Of { field, what: Range::of_time(*operator, text, times) }),
    }
}

/// Compiles a value without a field. The fields are named explicitly, so that the result does not depend on the index's
/// settings, as it does in Kibana.
fn anywhere(value: &Value) -> Dsl {
    let fields = FIELDS.iter().filter(|field| field.default).map(|field| field.name);
    match value {
        Value::Pattern(pattern) => {
            Dsl::QueryString { fields: fields.map(str::to_owned).collect(), query: lucene(pattern) }
        }
        value => {
            let r#type = if matches!(value, Value::Phrase(_)) { "phrase" } else { "best_fields" };
            Dsl::MultiMatch { r#type, query: scalar(value), lenient: true, fields: fields.collect() }
        }
    }
}

fn scalar(value: &Value) -> Scalar {
    match value {
        Value::Flag(flag) => Scalar::Flag(*flag),
        value => Scalar::Text(value.text().unwrap_or_default().to_owned()),
    }
}

/// Returns the pattern with every character escaped that is special in Lucene's syntax or in wildcard queries, except
/// the wildcards.
fn escaped(pattern: &Pattern) -> String {
    let escape = |piece: &String| {
        let mut escaped = String::with_capacity(piece.len());
        for character in piece.chars() {
            if "+-=&|><!(){}[]^\"~*?:\\/".contains(character) {
                escaped.push('\\');
            }
            escaped.push(character);
        }
        escaped
    };
    pattern.pieces().iter().map(escape).collect::<Vec<_>>().join("*")
}

/// Returns the pattern escaped for Lucene's syntax, where a word can be an operator too.
fn lucene(pattern: &Pattern) -> String {
    let word = |word: &str| match word.trim_end() {
        "AND" | "OR" | "NOT" => format!("\\{word}"),
        _ => word.to_owned(),
    };
    escaped(pattern).split_inclusive(char::is_whitespace).map(word).collect()
}

#[cfg(test)]
mod tests;
