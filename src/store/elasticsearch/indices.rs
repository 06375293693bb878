//! The names of the indices, the place that each index is, and the keys for what is secret in them.

use super::archive::Month;
use super::encryption::EncryptionKeys;
use crate::query::table::Table;
use crate::store::{Place, StoreError};

/// The kind of documents that an index holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The index holds live jobs.
    Jobs,
    /// The index holds a month of the archive.
    Archive,
    /// The index holds bodies that are kept apart from their jobs.
    Bodies,
    /// The index holds records.
    Records,
    /// The index holds schedules.
    Schedules,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Jobs, Self::Archive, Self::Bodies, Self::Records, Self::Schedules];
    /// The kinds that have one index each, behind an alias, in the order in which they are made and migrated. The jobs
    /// come last: what refers to jobs is only there once their index has been.
    pub(super) const ALIASED: [Self; 4] = [Self::Bodies, Self::Records, Self::Schedules, Self::Jobs];

    /// Returns whether the number of shards of such an index is a setting. Live jobs and bodies are written all the
    /// time; records are few; a schedule is written when it is due and not with what becomes of its jobs; and a month
    /// takes one write for each job, while every search asks each of its shards.
    pub(super) fn follows_shards(self) -> bool {
        matches!(self, Self::Jobs | Self::Bodies)
    }

    /// Returns whether indices of an earlier version of the program may lack this one, which is then made at the start
    /// as for a new store.
    pub(super) fn is_recent(self) -> bool {
        matches!(self, Self::Schedules)
    }

    /// Returns whether the documents of such an index have labels.
    pub(super) fn has_labels(self) -> bool {
        self.table().is_some()
    }

    /// Returns the table of the fields by which people search such an index; `None` where nobody does.
    pub(super) fn table(self) -> Option<Table> {
        match self {
            Self::Jobs | Self::Archive => Some(Table::Jobs),
            Self::Schedules => Some(Table::Schedules),
            Self::Bodies | Self::Records => None,
        }
    }
}

/// The names of the indices, and the keys for what is secret in them. Those of jobs, bodies, records and schedules are
/// aliases, each of one numbered index.
#[derive(Clone, Debug)]
pub(super) struct Indices {
    pub(super) jobs: String,
    pub(super) bodies: String,
    pub(super) records: String,
    pub(super) schedules: String,
    /// The prefix of the names of the months' indices, and the name of their template.
    pub(super) archive: String,
    /// The alias over live jobs and the archive, for people and Kibana.
    pub(super) all: String,
    /// The start of the aliases that mark an index of which the number of shards is being changed.
    pub(super) resizing: String,
    /// The alias of an index that was replaced by one with another number of shards and is to be removed.
    pub(super) replaced: String,
    /// The keys with which what is secret in the documents of all of them is encrypted.
    pub(super) encryption: EncryptionKeys,
}

impl Indices {
    /// Returns the alias of the index of a kind; for the archive, the prefix of its months' names.
    pub(super) fn name(&self, kind: Kind) -> &str {
        match kind {
            Kind::Jobs => &self.jobs,
            Kind::Archive => &self.archive,
            Kind::Bodies => &self.bodies,
            Kind::Records => &self.records,
            Kind::Schedules => &self.schedules,
        }
    }

    /// Returns the aliases of the indices of [`Kind::ALIASED`], separated by commas.
    pub(super) fn aliases(&self) -> String {
        Kind::ALIASED.map(|kind| self.name(kind)).join(",")
    }

    /// Returns the name of a month's index.
    pub(super) fn of_month(&self, month: Month) -> String {
        format!("{}-{month}", self.archive)
    }

    /// Returns the pattern that matches all months' indices.
    pub(super) fn months(&self) -> String {
        format!("{}-*", self.archive)
    }

    /// Returns the search target for live jobs and the archive together.
    pub(super) fn whole(&self) -> String {
        format!("{},{}", self.jobs, self.months())
    }

    /// Returns the index of a place.
    pub(super) fn of_place(&self, place: Place) -> String {
        Month::at(place).map_or_else(|| self.jobs.clone(), |month| self.of_month(month))
    }

    /// Returns the month whose index this is; `None` for another index.
    pub(super) fn month_of(&self, index: &str) -> Option<Month> {
        index.strip_prefix(&self.archive)?.strip_prefix('-').and_then(Month::parse)
    }

    /// Returns the place of an index, given the index's own name and not an alias.
    pub(super) fn place_of(&self, index: &str) -> Result<Place, StoreError> {
        if index.strip_prefix(&self.jobs).is_some_and(|number| number.starts_with('-')) {
            return Ok(Place::Main);
        }
        let unknown = || StoreError::Corrupt(format!("`{index}` is named as the archive is and has no month"));
        self.month_of(index).map(Place::from).ok_or_else(unknown)
    }
}
