//! A query bound to the fields: which field is compared with what, with every value parsed as the type of the field
//! requires.
//!
//! The evaluator and the compiler for Elasticsearch both work from the plan, so that they test the same fields in the
//! same way.

use super::ast::{Literal, Node, Operator, Value};
use super::date::{Moment, Zone};
use super::error::KqlError;
use super::number::{Decimal, MAX_DIGITS};
use super::parse;
use super::pattern::Pattern;
use super::phase::{self, PHASE};
use super::words::{Part, parts, small_letters, words};
use crate::job::is_resource_name;
use crate::query::fields::{Field, FieldType, HISTORY, LABELS, LONG, RESOURCES, closest, key_in};
use crate::query::table::Table;

/// The largest number of comparisons in one query. Each value counts once for each field that it is compared with.
pub const MAX_COMPARISONS: usize = 1_024;

/// A query, bound to the fields that it tests.
#[derive(Clone, Debug)]
pub enum Plan {
    /// Every job, or every schedule, matches: whatever the query is about.
    All,
    /// Nothing matches.
    Nothing,
    /// Matches what matches all of these plans.
    And(Vec<Self>),
    /// Matches what matches at least one of these plans.
    Or(Vec<Self>),
    /// Matches what does not match this plan.
    Not(Box<Self>),
    /// Matches the jobs that have an entry in their history that matches this plan.
    InHistory(Box<Self>),
    /// Matches what satisfies at least one of these clauses.
    Fields(Vec<Clause>),
    /// Matches what satisfies at least one of these clauses, which come from a value without a field name.
    Anywhere {
        /// The value as it was given.
        value: Value,
        /// A clause for each of the default fields.
        clauses: Vec<Clause>,
    },
}

/// One test of one field.
#[derive(Clone, Debug)]
pub struct Clause {
    /// The field, label, resource or group that is tested.
    pub target: Target,
    /// The condition that a value must satisfy.
    pub test: Test,
    /// Whether the field is one of the history's entries and named outside of `history: { }`, so that any entry may
    /// satisfy the test.
    pub in_any_entry: bool,
}

/// The field, label, resource or group that a clause tests.
#[derive(Clone, Debug)]
pub enum Target {
    /// Tests this field.
    Field(&'static Field),
    /// Tests the label with this name.
    Label(String),
    /// Tests the amount of the resource with this name.
    Resource(String),
    /// Tests the fields whose names begin with this one and a dot: `lease`.
    Group(String),
}

/// The condition that a value must satisfy.
#[derive(Clone, Debug)]
pub enum Test {
    /// Any value satisfies the test.
    Exists,
    /// No value satisfies the test.
    Never,
    /// The value is exactly this text.
    Equals(Value),
    /// The value matches this pattern.
    Like(Pattern),
    /// The value has one of these words, or all of them in this order.
    Words {
        /// The words as they were given.
        value: Value,
        /// The words one by one, in lower case.
        words: Vec<String>,
        /// Whether the value must have all of the words, one after the other in this order.
        phrase: bool,
    },
    /// The value matches one of these parts of a pattern.
    Parts {
        /// The pattern as it was given.
        pattern: Pattern,
        /// The parts of the pattern.
        pieces: Vec<Piece>,
    },
    /// The value is before or after this text, compared by bytes.
    Compare {
        /// The comparison of the value with the bound.
        operator: Operator,
        /// The text that the value is compared with.
        bound: String,
    },
    /// The value is this number, or is below or above it.
    Number {
        /// The comparison of the value with the number; `None` tests whether both are equal.
        operator: Option<Operator>,
        /// The number as it was given.
        value: Value,
        /// The parsed number.
        number: Decimal,
    },
    /// The value is within this time, or is before or after it.
    Time {
        /// The comparison of the value with the time; `None` tests whether the value is within it.
        operator: Option<Operator>,
        /// The time as it was given.
        text: String,
        /// The parsed time.
        moment: Moment,
    },
    /// The value is this flag.
    Flag {
        /// The flag as it was given.
        value: Value,
        /// The parsed flag.
        flag: bool,
    },
}

/// A part of a value with wildcards.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Words without a wildcard.
    Words {
        /// The words as they were given.
        whole: String,
        /// The words one by one, in lower case.
        words: Vec<String>,
    },
    /// A word with wildcards.
    Pattern {
        /// The pattern as it was given.
        exact: Pattern,
        /// The pattern in lower case.
        small: Pattern,
    },
}

/// Binds `node` to the fields of `table` that it names.
pub(super) fn bind(query: &str, node: &Node, zone: Zone, table: Table) -> Result<Plan, KqlError> {
    let mut binder = Binder { query, zone, table, comparisons: 0 };
    binder.node(node, None)
}

struct Binder<'q> {
    query: &'q str,
    zone: Zone,
    table: Table,
    comparisons: usize,
}

/// The fields that a name stands for.
enum Named {
    One(Target),
    /// The fields whose names match a name with wildcards.
    Many(Vec<&'static Field>),
    Unknown,
}

/// The list whose entries the current part of the query tests, if it is inside of one.
type Scope = Option<&'static str>;

impl Binder<'_> {
    fn node(&mut self, node: &Node, scope: Scope) -> Result<Plan, KqlError> {
        match node {
            Node::And(nodes) => Ok(Plan::And(self.nodes(nodes, scope)?)),
            Node::Or(nodes) => Ok(Plan::Or(self.nodes(nodes, scope)?)),
            Node::Not(node) => Ok(Plan::Not(Box::new(self.node(node, scope)?))),
            Node::Nested { path, inside } => {
                self.check_path(path, scope)?;
                Ok(Plan::InHistory(Box::new(self.node(inside, Some(HISTORY))?)))
            }
            Node::Is { field: Some(field), value } if field.value.is_any() && value.value.is_any() => Ok(Plan::All),
            Node::Is { field: Some(field), value } if self.is_phase(field, scope) => self.phase(None, value),
            Node::Range { field, operator, value } if self.is_phase(field, scope) => self.phase(Some(*operator), value),
            Node::Is { field: Some(field), value } => self.fields(field, None, value, scope),
            Node::Is { field: None, value } => self.anywhere(value, scope),
            Node::Range { field, operator, value } => self.fields(field, Some(*operator), value, scope),
        }
    }

    fn nodes(&mut self, nodes: &[Node], scope: Scope) -> Result<Vec<Plan>, KqlError> {
        nodes.iter().map(|node| self.node(node, scope)).collect()
    }

    fn check_path(&self, path: &Literal, scope: Scope) -> Result<(), KqlError> {
        if scope.is_none() && self.table.has_history() && path.value.text() == Some(HISTORY) {
            return Ok(());
        }
        let advice = match self.table.has_history() {
            true => format!("`{HISTORY}: {{ … }}` is the only one, and has none inside"),
            false => format!("a {} has none", self.table.noun()),
        };
        Err(self.error(path, format!("`{path}` is not a list of entries")).suggesting(advice))
    }

    fn error(&self, literal: &Literal, problem: impl Into<String>) -> KqlError {
        KqlError::at(self.query, literal.offset.0, problem)
    }

    fn count(&mut self, literal: &Literal, more: usize) -> Result<(), KqlError> {
        self.comparisons += more;
        if self.comparisons > MAX_COMPARISONS {
            let problem = format!("the query compares fields with values more than {MAX_COMPARISONS} times");
            let advice = "each value counts, once for each field that it is compared with";
            return Err(self.error(literal, problem).suggesting(advice));
        }
        Ok(())
    }

    fn is_phase(&self, name: &Literal, scope: Scope) -> bool {
        self.table == Table::Jobs && scope.is_none() && name.value.text() == Some(PHASE)
    }

    /// Returns the plan for the phases that satisfy the comparison, from the queries that they stand for.
    fn phase(&mut self, operator: Option<Operator>, value: &Literal) -> Result<Plan, KqlError> {
        if value.value == Value::Null {
            return Err(self.error(value, "nothing is equal to `null`"));
        }
        let plans =
            phase::meant(operator, &value.value).map(|phase| self.node(&parse::parse(phase::query_of(phase))?, None));
        let plans = plans.collect::<Result<Vec<_>, _>>()?;
        Ok(if plans.is_empty() { Plan::Nothing } else { Plan::Or(plans) })
    }

    fn fields(
        &mut self,
        name: &Literal,
        operator: Option<Operator>,
        value: &Literal,
        scope: Scope,
    ) -> Result<Plan, KqlError> {
        match self.named(name, scope)? {
            Named::Unknown => Ok(Plan::Nothing),
            Named::One(target) => {
                self.count(name, 1)?;
                let test = self.test(&target, operator, &value.value).map_err(|wrong| {
                    let error = self.error(value, wrong.problem);
                    wrong.suggestion.into_iter().fold(error, KqlError::suggesting)
                })?;
                Ok(Plan::Fields(vec![Clause { target, test, in_any_entry: false }]))
            }
            Named::Many(fields) => {
                self.count(name, fields.len())?;
                let clause = |field: &'static Field| {
                    // A field that cannot have the value is left out.
                    let test = self.test(&Target::Field(field), operator, &value.value).ok()?;
                    let in_any_entry = scope.is_none() && field.nested_in().is_some();
                    Some(Clause { target: Target::Field(field), test, in_any_entry })
                };
                let clauses: Vec<Clause> = fields.into_iter().filter_map(clause).collect();
                Ok(if clauses.is_empty() { Plan::Nothing } else { Plan::Fields(clauses) })
            }
        }
    }

    fn anywhere(&mut self, value: &Literal, scope: Scope) -> Result<Plan, KqlError> {
        if value.value == Value::Null {
            return Err(self.error(value, "`null` cannot be looked for").suggesting("for the word write \"null\""));
        }
        if scope.is_some() {
            return Ok(Plan::Nothing);
        }
        if value.value.is_any() {
            return Ok(Plan::All);
        }
        let fields: Vec<&'static Field> = self.table.fields().iter().filter(|field| field.default).collect();
        self.count(value, fields.len())?;
        let clause = |field: &'static Field| {
            let target = Target::Field(field);
            let test = match &value.value {
                Value::Pattern(pattern) => Test::Parts { pattern: pattern.clone(), pieces: pieces(pattern) },
                value => self.test(&target, None, value).ok()?,
            };
            Some(Clause { target, test, in_any_entry: false })
        };
        Ok(Plan::Anywhere { value: value.value.clone(), clauses: fields.into_iter().filter_map(clause).collect() })
    }

    fn named(&self, name: &Literal, scope: Scope) -> Result<Named, KqlError> {
        let within = scope.map(|list| format!("{list}.")).unwrap_or_default();
        if let Value::Pattern(pattern) = &name.value {
            let mut pieces = pattern.pieces().to_vec();
            for (map, one) in [(LABELS, "team"), (RESOURCES, "gpus")] {
                if self.table.named(map).is_some()
                    && pieces[0].strip_prefix(map).is_some_and(|rest| rest.starts_with('.'))
                {
                    let problem = format!("the name of one of the `{map}` cannot have wildcards");
                    return Err(self.error(name, problem).suggesting(format!("name one, such as `{map}.{one}`")));
                }
            }
            pieces[0].insert_str(0, &within);
            let fits = |field: &&Field| {
                field.is_searchable() && Pattern::new(pieces.clone()).is_some_and(|name| name.matches(field.name))
            };
            return Ok(Named::Many(self.table.fields().iter().filter(fits).collect()));
        }
        let full = format!("{within}{}", name.value.text().unwrap_or("null"));
        if let Some(field) = self.table.named(&full).filter(|field| field.is_searchable()) {
            if scope.is_none()
                && let Some(list) = field.nested_in()
            {
                let inside = field.name.trim_start_matches(list).trim_start_matches('.');
                let problem = format!("`{full}` is a field of the entries of `{list}`");
                return Err(self.error(name, problem).suggesting(format!("write `{list}: {{ {inside}: … }}`")));
            }
            return Ok(Named::One(Target::Field(field)));
        }
        if let Some(label) = key_in(LABELS, &full) {
            return Ok(Named::One(Target::Label(label.to_owned())));
        }
        if let Some(resource) = key_in(RESOURCES, &full).filter(|_| self.table.named(RESOURCES).is_some()) {
            let is_name = is_resource_name(resource);
            return Ok(if is_name { Named::One(Target::Resource(resource.to_owned())) } else { Named::Unknown });
        }
        let inside_of = |outer: &str, inner: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'));
        let (fields, noun) = (self.table.fields(), self.table.noun());
        if fields.iter().any(|kept| !kept.is_searchable() && (kept.name == full || inside_of(kept.name, &full))) {
            let problem = format!("`{full}` is kept with the {noun} and cannot be searched");
            return Err(self.error(name, problem).suggesting(format!("give the {noun} a label to find it by")));
        }
        if full == HISTORY && self.table.has_history() {
            let problem = format!("`{HISTORY}` is a list of entries");
            return Err(self.error(name, problem).suggesting(format!("write `{HISTORY}: {{ to: running }}`")));
        }
        if self.table.members(&full).next().is_some() {
            return Ok(Named::One(Target::Group(full)));
        }
        // A part of the answer's form that the index does not have, as in `lease.fence`.
        let last = full.rsplit_once('.').and_then(|(_, last)| self.table.named(last));
        let last = last.filter(|field| field.is_searchable());
        // And the other way round, as in `worker_id`.
        let is_end = |field: &&&'static Field| {
            field.nested_in().is_none() && field.name.rsplit_once('.').is_some_and(|(_, last)| last == full)
        };
        let phase = (self.table == Table::Jobs && scope.is_none()).then_some(PHASE);
        let names = fields.iter().filter(|field| field.is_searchable()).map(|field| field.name).chain(phase);
        let ending = fields.iter().filter(|field| field.is_searchable()).find(|field| is_end(&field));
        match closest(&full, names).or(last.or(ending).map(|field| field.name)) {
            Some(close) => {
                let close = close.strip_prefix(&within).unwrap_or(close);
                Err(self.error(name, format!("there is no field `{name}`")).suggesting(format!("is `{close}` meant?")))
            }
            None => Ok(Named::Unknown),
        }
    }

    /// Returns the test of `value` for a target of this type.
    fn test(&self, target: &Target, operator: Option<Operator>, value: &Value) -> Result<Test, Wrong> {
        if operator.is_none() && value.is_any() {
            return Ok(Test::Exists);
        }
        if *value == Value::Null {
            let advice = format!("for {}s without a value write `not field: *`", self.table.noun());
            return Err(Wrong::new("nothing is equal to `null`").suggesting(advice));
        }
        match target {
            Target::Group(group) => {
                let problem = format!("`{group}` is a group of fields, of which only `{group}: *` can be asked");
                let names: Vec<&str> = self.table.members(group).map(|field| field.name).collect();
                Err(Wrong::new(problem).suggesting(format!("its fields are {}", names.join(", "))))
            }
            Target::Label(_) => match operator {
                Some(_) => Err(Wrong::new("a label has no order, it can only be compared with `:`")),
                None => label(value),
            },
            Target::Resource(name) => self.value(&format!("{RESOURCES}.{name}"), LONG, operator, value),
            Target::Field(field) => self.value(field.name, field.kind, operator, value),
        }
    }

    /// Returns the test of `value` for a field of this name and type.
    fn value(&self, name: &str, kind: FieldType, operator: Option<Operator>, value: &Value) -> Result<Test, Wrong> {
        let wrong = |what: &str| Wrong::new(format!("`{name}` is {what}"));
        match (kind, operator, value) {
            (FieldType::Kept, ..) => Err(wrong("kept and cannot be searched")),
            (FieldType::Amounts, ..) => Err(wrong("a map of numbers").suggesting(format!("write `{name}.gpus`"))),
            (FieldType::Keyword { .. } | FieldType::Text | FieldType::Labels, Some(operator), value) => {
                Ok(Test::Compare { operator, bound: written(value) })
            }
            (FieldType::Keyword { .. }, None, Value::Pattern(pattern)) => Ok(Test::Like(pattern.clone())),
            (FieldType::Text | FieldType::Labels, None, Value::Pattern(pattern)) => {
                Ok(Test::Parts { pattern: pattern.clone(), pieces: pieces(pattern) })
            }
            (FieldType::Keyword { .. } | FieldType::Labels, None, value) => Ok(Test::Equals(value.clone())),
            (FieldType::Text, None, value) => {
                let phrase = matches!(value, Value::Phrase(_));
                Ok(Test::Words { words: words(&written(value)), value: value.clone(), phrase })
            }
            (FieldType::Date, operator, value) => {
                let text = written(value);
                let moment = Moment::parse(&text, self.zone).ok_or_else(|| {
                    wrong("a time from the year 1 to 9999")
                        .suggesting("such as \"2030-01-31T08:00:00Z\", 2030-01-31, now-15m or now/d")
                })?;
                Ok(Test::Time { operator, text, moment })
            }
            (FieldType::Integer { .. } | FieldType::Number, operator, value) => {
                let number = Decimal::parse(&written(value)).ok_or_else(|| {
                    let range = match kind {
                        FieldType::Integer { least, most } => format!("a number from {least} to {most}"),
                        _ => "a number".to_owned(),
                    };
                    wrong(&range).suggesting(format!("such as 5, -0.5 or 1e3, in at most {MAX_DIGITS} characters"))
                })?;
                Ok(within_type(kind, operator, number).unwrap_or_else(|| Test::Number {
                    operator,
                    value: value.clone(),
                    number,
                }))
            }
            (FieldType::Flag, Some(_), _) => Err(wrong("true or false and has no order")),
            (FieldType::Flag, None, value) => match value.text() {
                Some("true") => Ok(Test::Flag { value: value.clone(), flag: true }),
                Some("false") => Ok(Test::Flag { value: value.clone(), flag: false }),
                _ => Err(wrong("true or false")),
            },
        }
    }
}

/// The reason why a field cannot be tested in this way.
struct Wrong {
    problem: String,
    suggestion: Option<String>,
}

impl Wrong {
    fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), suggestion: None }
    }

    fn suggesting(self, suggestion: impl Into<String>) -> Self {
        Self { suggestion: Some(suggestion.into()), ..self }
    }
}

/// Returns the test against a number outside the range of the type, which has the same result for every value.
fn within_type(kind: FieldType, operator: Option<Operator>, number: Decimal) -> Option<Test> {
    let FieldType::Integer { least, most } = kind else { return None };
    let side = number.side_of(least, most);
    if side.is_eq() {
        return None;
    }
    // The value compares to the number in the reverse of how the number compares to the values.
    let holds = operator.is_some_and(|operator| operator.admits(side.reverse()));
    Some(if holds { Test::Exists } else { Test::Never })
}

/// Returns the test of `value` for one label. The index has all labels in one field, where the value of one label can
/// be searched by its beginning only.
fn label(value: &Value) -> Result<Test, Wrong> {
    let Value::Pattern(pattern) = value else { return Ok(Test::Equals(value.clone())) };
    let pieces = pieces(pattern);
    let begins = |piece: &Piece| match piece {
        Piece::Words { .. } => true,
        Piece::Pattern { exact, .. } => exact.prefix().is_some(),
    };
    if pieces.iter().all(begins) {
        return Ok(Test::Parts { pattern: pattern.clone(), pieces });
    }
    Err(Wrong::new("in one label's value, a wildcard can only stand at the end")
        .suggesting("`labels: *x*` looks in all labels"))
}

fn pieces(pattern: &Pattern) -> Vec<Piece> {
    let piece = |part: Part| match part {
        Part::Words(whole) => Piece::Words { words: words(&whole), whole },
        Part::Pattern(exact) => Piece::Pattern { small: exact.map(small_letters), exact },
    };
    parts(pattern).into_iter().map(piece).collect()
}

/// Returns the value as a text, with its wildcards as they were written.
fn written(value: &Value) -> String {
    match value {
        Value::Pattern(pattern) => pattern.pieces().join("*"),
        value => value.text().unwrap_or_default().to_owned(),
    }
}
