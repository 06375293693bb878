//! A query in Kibana's language as Elasticsearch's query DSL.
//!
//! The form is the one that Kibana gives it for the type of each field, so that a search in Kibana and one through the
//! API ask the server the same. `query_string` stands only where Kibana needs it too: for wildcards in what is not a
//! keyword. What is different on purpose is said in `docs/kql.md`: times have their format with them, values without a
//! field are looked for in named fields, and what can find nothing is `match_none`.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::clock::Timestamp;
use crate::query::fields::{FIELDS, HISTORY, LABELS};
use crate::query::kql::ast::{Operator, Value};
use crate::query::kql::date::is_epoch;
use crate::query::kql::pattern::Pattern;
use crate::query::kql::plan::{Clause, Plan, Target, Test};
use crate::query::kql::{Expression, Zone};

/// How times in queries are written: whole or cut short ISO 8601, or milliseconds since the epoch.
const DATE_FORMAT: &str = "strict_date_optional_time||epoch_millis";

/// A query of the DSL, as far as it is used here.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dsl {
    /// Every document.
    MatchAll {},
    /// No document.
    MatchNone {},
    /// Several queries together.
    Bool(Bool),
    /// A query on one element of a list.
    Nested {
        /// The list.
        path: &'static str,
        /// The query.
        query: Box<Dsl>,
        /// Nothing is scored.
        score_mode: &'static str,
    },
    /// The field has a value.
    Exists {
        /// The field.
        field: String,
    },
    /// The keyword is this.
    Term(Of<ValueOf<Scalar>>),
    /// The keyword is like this.
    Wildcard(Of<ValueOf<String>>),
    /// The field has one of these words, or is this.
    Match(Of<Scalar>),
    /// The field has these words in this order, or is this.
    MatchPhrase(Of<Scalar>),
    /// The field lies between these.
    Range(Of<Range>),
    /// One of the fields has these words.
    MultiMatch {
        /// `best_fields` or `phrase`.
        r#type: &'static str,
        /// The words.
        query: Scalar,
        /// A field that cannot have them is passed over.
        lenient: bool,
        /// The fields.
        fields: Vec<&'static str>,
    },
    /// One of the fields has one of these words with wildcards.
    QueryString {
        /// The fields.
        fields: Vec<String>,
        /// The words, in Lucene's language.
        query: String,
    },
}

/// Queries together: of each kind what there is.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Bool {
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<Vec<Dsl>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    should: Option<Vec<Dsl>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minimum_should_match: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    must_not: Option<Box<Dsl>>,
}

/// What is said of one field: `{field: what}`.
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

/// `{"value": …}`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ValueOf<T> {
    value: T,
}

/// A value as it was written: with its type where the language gives it one.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Scalar {
    /// `true` or `false`.
    Flag(bool),
    /// Anything else.
    Text(String),
}

/// The ends of a range, as they were written.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Range {
    #[serde(skip_serializing_if = "Option::is_none")]
    gt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gte: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lte: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
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

/// How a query's times are meant.
#[derive(Clone, Copy)]
struct Times {
    zone: Zone,
    /// The moment that is called now; the server's own when `None`.
    now: Option<Timestamp>,
}

impl Times {
    /// A time with the moment in the place of `now`.
    fn anchored(self, text: &str) -> Cow<'_, str> {
        match (self.now, text.strip_prefix("now")) {
            (Some(now), Some("")) => Cow::Owned(now.to_rfc3339()),
            (Some(now), Some(math)) => Cow::Owned(format!("{}||{math}", now.to_rfc3339())),
            _ => Cow::Borrowed(text),
        }
    }
}

/// Compiles a query as Kibana does: `now` is the server's.
#[must_use]
pub fn compile(expression: &Expression) -> Dsl {
    plan(expression.plan(), Times { zone: expression.zone(), now: None })
}

/// Compiles a query for which it is `now`, however often and whenever it is asked.
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

/// A value without a field. The fields are named: what Kibana leaves to the index's settings is the same on every index
/// so.
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

/// With all that Lucene's language and wildcard queries have a meaning for escaped, but for the wildcards.
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

/// The same for Lucene's language, where a word can be an operator too.
fn lucene(pattern: &Pattern) -> String {
    let word = |word: &str| match word.trim_end() {
        "AND" | "OR" | "NOT" => format!("\\{word}"),
        _ => word.to_owned(),
    };
    escaped(pattern).split_inclusive(char::is_whitespace).map(word).collect()
}

#[cfg(test)]
mod tests;
