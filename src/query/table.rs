//! The tables of fields: one for each kind of document that queries are about.

use super::fields::{FIELDS, Field};
use super::schedule_fields::SCHEDULE_FIELDS;

/// A table of fields, and so what a query is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Table {
    /// The fields of jobs.
    Jobs,
    /// The fields of schedules.
    Schedules,
}

impl Table {
    /// Every table.
    pub const ALL: [Self; 2] = [Self::Jobs, Self::Schedules];

    /// Returns the fields of the table.
    #[must_use]
    pub fn fields(self) -> &'static [Field] {
        match self {
            Self::Jobs => FIELDS,
            Self::Schedules => SCHEDULE_FIELDS,
        }
    }

    /// Finds the field of this name.
    #[must_use]
    pub fn named(self, name: &str) -> Option<&'static Field> {
        self.fields().iter().find(|field| field.name == name)
    }

    /// Returns the searchable fields whose names begin with the group's name and a dot.
    pub fn members(self, group: &str) -> impl Iterator<Item = &'static Field> {
        let inside = move |field: &&Field| field.name.strip_prefix(group).is_some_and(|rest| rest.starts_with('.'));
        self.fields().iter().filter(inside).filter(|field| field.is_searchable())
    }

    /// Returns the word for what has the fields.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Jobs => "job",
            Self::Schedules => "schedule",
        }
    }

    /// Returns whether what has the fields has a history, which is a list of entries.
    #[must_use]
    pub const fn has_history(self) -> bool {
        matches!(self, Self::Jobs)
    }
}
