//! A query in Kibana's language as Elasticsearch's query DSL.
//!
//! The form is the one that Kibana gives it for the type of each field, so that a search in Kibana and one through the
//! API send the server the same query. `query_string` is used only where Kibana uses it too: for wildcards in fields
//! other than keywords. The intended differences are described in `docs/kql.md`: times carry their format, values
//! without a field are searched in named fields, and a query that cannot match is `match_none`.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::clock::Timestamp;
use crate::query::fields::{HISTORY, LABELS, RESOURCES};
use crate::query::kql::ast::{self, Operator};
use crate::query::kql::date::is_epoch;
use crate::query::kql::pattern::Pattern;
use crate::query::kql::plan::{Clause, Plan, Target, Test};
use crate::query::kql::{Expression, Zone};
use crate::query::table::Table;

/// The format of times in queries: whole or cut short ISO 8601, or milliseconds since the epoch.
const DATE_FORMAT: &str = "strict_date_optional_time||epoch_millis";

/// The context in which a query is interpreted: what it is about, and its context.
#[derive(Clone, Copy)]
struct Context {
    table: Table,
    zone: Zone,
    /// The time that `now` stands for; `None` for the server's clock.
    now: Option<Timestamp>,
}

impl Context {
    fn of(expression: &Expression, now: Option<Timestamp>) -> Self {
        Self { table: expression.table(), zone: expression.zone(), now }
    }

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
pub fn compile(expression: &Expression) -> Value {
    plan(expression.plan(), Context::of(expression, None))
}

/// Compiles a query with `now` fixed to the given time, however often and whenever the query runs.
#[must_use]
pub fn compile_at(expression: &Expression, now: Timestamp) -> Value {
    plan(expression.plan(), Context::of(expression, Some(now)))
}

fn plan(plan: &Plan, context: Context) -> Value {
    let all = |plans: &[Plan]| -> Vec<Value> { plans.iter().map(|part| self::plan(part, context)).collect() };
    match plan {
        Plan::All => json!({ "match_all": {} }),
        Plan::Nothing => json!({ "match_none": {} }),
        Plan::And(plans) => json!({ "bool": { "filter": all(plans) } }),
        Plan::Or(plans) => should(&all(plans)),
        Plan::Not(part) => json!({ "bool": { "must_not": self::plan(part, context) } }),
        Plan::InHistory(part) => in_history(&self::plan(part, context)),
        Plan::Fields(clauses) => should(&clauses.iter().map(|part| clause(part, context)).collect::<Vec<_>>()),
        Plan::Anywhere { value, .. } => anywhere(value, context.table),
    }
}

fn should(queries: &[Value]) -> Value {
    json!({ "bool": { "should": queries, "minimum_should_match": 1 } })
}

fn in_history(query: &Value) -> Value {
    // Without a score, which nobody reads.
    json!({ "nested": { "path": HISTORY, "query": query, "score_mode": "none" } })
}

fn clause(clause: &Clause, context: Context) -> Value {
    let field = match &clause.target {
        Target::Field(field) => field.name.to_owned(),
        Target::Label(label) => format!("{LABELS}.{label}"),
        Target::Resource(resource) => format!("{RESOURCES}.{resource}"),
        Target::Group(group) => group.clone(),
    };
    let is_keyword = matches!(&clause.target, Target::Field(field) if field.name != LABELS);
    let query = test(&field, &clause.test, is_keyword, context);
    if clause.in_any_entry { in_history(&query) } else { query }
}

fn test(field: &str, test: &Test, is_keyword: bool, context: Context) -> Value {
    match test {
        Test::Exists => json!({ "exists": { "field": field } }),
        Test::Never => json!({ "match_none": {} }),
        Test::Equals(value) if is_keyword => json!({ "term": { field: { "value": scalar(value) } } }),
        Test::Equals(value)
        | Test::Words { value, .. }
        | Test::Number { operator: None, value, .. }
        | Test::Flag { value, .. } => {
            let query = if matches!(value, ast::Value::Phrase(_)) { "match_phrase" } else { "match" };
            json!({ query: { field: scalar(value) } })
        }
        Test::Like(pattern) => json!({ "wildcard": { field: { "value": escaped(pattern) } } }),
        Test::Parts { pattern, .. } => json!({ "query_string": { "fields": [field], "query": lucene(pattern) } }),
        Test::Compare { operator, bound } => json!({ "range": { field: { comparison(*operator): bound } } }),
        Test::Number { operator: Some(operator), value, .. } => {
            json!({ "range": { field: { comparison(*operator): value.text().unwrap_or_default() } } })
        }
        Test::Time { operator, text, .. } => json!({ "range": { field: range_of_time(*operator, text, context) } }),
    }
}

/// Returns the name of a comparison in a range.
fn comparison(operator: Operator) -> &'static str {
    match operator {
        Operator::Less => "lt",
        Operator::AtMost => "lte",
        Operator::Greater => "gt",
        Operator::AtLeast => "gte",
    }
}

fn range_of_time(operator: Option<Operator>, text: &str, context: Context) -> Value {
    let text = &*context.anchored(text);
    let mut range = match operator {
        Some(operator) => json!({ comparison(operator): text }),
        None => json!({ "gte": text, "lte": text }),
    };
    range["format"] = DATE_FORMAT.into();
    // Milliseconds since the epoch are the same everywhere, but the server would move them.
    if !context.zone.is_utc() && !is_epoch(text) {
        range["time_zone"] = context.zone.name().into();
    }
    range
}

/// Compiles a value without a field. The fields are named explicitly, so that the result does not depend on the index's
/// settings, as it does in Kibana.
fn anywhere(value: &ast::Value, table: Table) -> Value {
    let fields: Vec<&str> = table.fields().iter().filter(|field| field.default).map(|field| field.name).collect();
    let kind = match value {
        ast::Value::Pattern(pattern) => {
            return json!({ "query_string": { "fields": fields, "query": lucene(pattern) } });
        }
        ast::Value::Phrase(_) => "phrase",
        _ => "best_fields",
    };
    json!({ "multi_match": { "type": kind, "query": scalar(value), "lenient": true, "fields": fields } })
}

/// Returns a value as it was written, with its type where the language has one.
fn scalar(value: &ast::Value) -> Value {
    match value {
        ast::Value::Flag(flag) => json!(flag),
        value => json!(value.text().unwrap_or_default()),
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
