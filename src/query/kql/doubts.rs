//! Values in a query that no job or schedule can have, such as `state: runing`: the query is a good one, and finds
//! nothing.

use super::Expression;
use super::ast::{Literal, Node, Value};
use super::phase::{PHASE, PHASE_FIELD};
use crate::query::fields::{Field, closest};
use crate::query::table::Table;

impl Expression {
    /// Returns a sentence for each value that its field cannot have, with the closest one that it can.
    #[must_use]
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        doubts_of(self.node(), self.table(), "", &mut doubts);
        doubts
    }
}

fn doubts_of(node: &Node, table: Table, within: &str, doubts: &mut Vec<String>) {
    match node {
        Node::And(nodes) | Node::Or(nodes) => nodes.iter().for_each(|node| doubts_of(node, table, within, doubts)),
        Node::Not(node) => doubts_of(node, table, within, doubts),
        Node::Nested { path, inside } => {
            let within = format!("{within}{}.", path.value.text().unwrap_or_default());
            doubts_of(inside, table, &within, doubts);
        }
        Node::Is { field: Some(name), value } => doubts.extend(doubt(name, value, table, within)),
        Node::Is { field: None, .. } | Node::Range { .. } => {}
    }
}

fn doubt(name: &Literal, value: &Literal, table: Table, within: &str) -> Option<String> {
    let full = format!("{within}{}", name.value.text()?);
    let values = field(table, &full)?.values();
    let (Value::Words(word) | Value::Phrase(word)) = &value.value else { return None };
    if values.is_empty() || values.contains(&word.as_str()) {
        return None;
    }
    let advice = match closest(word, values.iter().copied()) {
        Some(close) => format!("is `{close}` meant?"),
        None => format!("it is one of {}", values.join(", ")),
    };
    Some(format!("no {} has the {full} `{word}`; {advice}", table.noun()))
}

fn field(table: Table, name: &str) -> Option<&'static Field> {
    if table == Table::Jobs && name == PHASE { Some(&PHASE_FIELD) } else { table.named(name) }
}
