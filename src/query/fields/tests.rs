use std::collections::BTreeMap;

use serde_json::Value;

use super::*;
use crate::query::kql::{Expression, Zone};
use crate::query::table::Table;
use crate::query::{GroupField, SortField};

/// Fields of the index that no job has: those of a tombstone, which is hidden from every search.
const OF_NO_JOB: [&str; 2] = ["moved_to", "moved_at"];

/// Returns what the mapping of an index says of each of its fields.
fn mapping(table: Table) -> BTreeMap<String, String> {
    fn walk(prefix: &str, properties: &Value, nested: bool, fields: &mut BTreeMap<String, String>) {
        for (name, field) in properties.as_object().expect("properties") {
            let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            if let Some(inner) = field.get("properties") {
                walk(&name, inner, nested || field["type"] == "nested", fields);
                continue;
            }
            let kept = field["enabled"] == false || field["index"] == false;
            let kind = match field["type"].as_str().expect("a type") {
                _ if kept => "kept",
                "object" if field["dynamic"] == "true" => "amounts",
                kind => kind,
            };
            let longest = field["ignore_above"].as_u64().filter(|_| !kept).map(|longest| format!(" {longest}"));
            let list = if nested { " nested" } else { "" };
            fields.insert(name.clone(), format!("{kind}{}{list}", longest.unwrap_or_default()));
            if let Some(inner) = field.get("fields") {
                walk(&name, inner, nested, fields);
            }
        }
    }
    let text = match table {
        Table::Jobs => include_str!("../../../mappings/jobs.json"),
        Table::Schedules => include_str!("../../../mappings/schedules.json"),
    };
    let index: Value = serde_json::from_str(text).expect("JSON");
    let mut fields = BTreeMap::new();
    walk("", &index["mappings"]["properties"], false, &mut fields);
    fields
}

/// Returns what the table says of a field, in the same form.
fn mapped(field: &Field) -> String {
    let kind = match field.kind {
        FieldType::Keyword { longest: None } => "keyword".to_owned(),
        FieldType::Keyword { longest: Some(longest) } => format!("keyword {longest}"),
        FieldType::Text => "text".to_owned(),
        FieldType::Date => "date".to_owned(),
        FieldType::Integer { most, .. } => if most == i64::MAX { "long" } else { "short" }.to_owned(),
        FieldType::Number => "double".to_owned(),
        FieldType::Flag => "boolean".to_owned(),
        FieldType::Labels => format!("flattened {LONGEST_KEYWORD}"),
        FieldType::Amounts | FieldType::Kept => field.kind.as_str().to_owned(),
    };
    if field.nested_in().is_some() { format!("{kind} nested") } else { kind }
}

#[test]
fn each_table_has_the_fields_of_its_index_and_their_types() {
    for table in Table::ALL {
        let fields: BTreeMap<String, String> =
            table.fields().iter().map(|field| (field.name.to_owned(), mapped(field))).collect();
        assert_eq!(fields.len(), table.fields().len(), "no name stands twice");
        let mut mapping = mapping(table);
        mapping.retain(|name, _| fields.contains_key(name) || !OF_NO_JOB.contains(&name.as_str()));
        assert_eq!(fields, mapping, "{table:?}");
    }
}

#[test]
fn every_example_is_a_query_for_its_field() {
    for table in Table::ALL {
        for field in table.fields().iter().filter(|field| field.is_searchable()) {
            let name = field.name.strip_prefix("history.").unwrap_or(field.name);
            assert!(field.example.contains(name), "{}", field.name);
            assert!(field.meaning.ends_with('.'), "{}", field.name);
            if let Err(error) = Expression::parse_about(table, field.example, Zone::default()) {
                panic!("{}", error.render());
            }
        }
    }
}

#[test]
fn every_field_has_a_way_to_its_value_in_what_its_table_is_about() {
    let of_job = |access| match access {
        Access::Job(_) | Access::History(_) | Access::Labels | Access::Resources | Access::Requires => true,
        Access::Schedule(_) | Access::Action(_) | Access::None => false,
    };
    let of_schedule = |access| matches!(access, Access::Schedule(_) | Access::Action(_) | Access::Labels);
    for (table, is_right) in [(Table::Jobs, of_job as fn(Access) -> bool), (Table::Schedules, of_schedule)] {
        for field in table.fields().iter().filter(|field| field.is_searchable()) {
            assert!(is_right(field.access), "{table:?}: {}", field.name);
        }
    }
}

#[test]
fn what_stores_keep_an_order_or_counts_of_can_be_sorted_and_grouped_by() {
    let sorted = SortField::KEPT.map(SortField::as_str);
    let grouped = GroupField::ALL.map(GroupField::as_str);
    assert!(sorted.iter().all(|name| Field::named(name).is_some_and(|field| field.sortable)));
    assert!(grouped.iter().all(|name| Field::named(name).is_some_and(|field| field.groupable)));
}

#[test]
fn only_what_has_one_value_in_order_can_be_sorted_by() {
    for field in FIELDS.iter().filter(|field| field.sortable) {
        let ordered = matches!(
            field.kind,
            FieldType::Keyword { .. } | FieldType::Date | FieldType::Integer { .. } | FieldType::Number
        );
        assert!(ordered && matches!(field.access, Access::Job(_)), "{}", field.name);
    }
}

#[test]
fn the_documentation_has_each_table() {
    let documentation = include_str!("../../../docs/kql.md");
    let (of_jobs, of_schedules) = documentation.split_once("\n## Fields of schedules\n").expect("a section");
    for (table, section) in [(Table::Jobs, of_jobs), (Table::Schedules, of_schedules)] {
        for field in table.fields() {
            let example = if field.is_searchable() { format!("`{}`", field.example) } else { String::new() };
            let row = format!("| `{}` | {} | {} | {} |", field.name, field.kind.as_str(), field.meaning, example);
            assert!(section.lines().any(|line| line == row), "docs/kql.md lacks this row:\n{row}");
        }
        let default: Vec<String> =
            table.fields().iter().filter(|field| field.default).map(|field| format!("`{}`", field.name)).collect();
        let default = format!("searches these fields: {}", default.join(", "));
        assert!(section.contains(&default), "docs/kql.md does not say: {default}");
    }
}

#[test]
fn the_few_values_of_a_field_are_those_that_a_query_finds() {
    for (table, field) in
        Table::ALL.into_iter().flat_map(|table| table.fields().iter().map(move |field| (table, field)))
    {
        for value in field.values() {
            let name = field.name.strip_prefix("history.");
            let query =
                name.map_or(format!("{}: {value}", field.name), |name| format!("history: {{ {name}: {value} }}"));
            assert!(Expression::parse_about(table, &query, Zone::default()).is_ok(), "{query}");
        }
    }
    assert_eq!(Field::named("state").map(|field| field.values().len()), Some(6));
}
