//! The names of the indices, and which index is which place.

use super::archive::Month;
use crate::store::{Place, StoreError};

/// What an index holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Live jobs.
    Jobs,
    /// A month of the archive.
    Archive,
    /// Bodies that are kept apart.
    Bodies,
    /// Records.
    Records,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Jobs, Self::Archive, Self::Bodies, Self::Records];

    /// Whether it holds jobs.
    pub(super) fn is_of_jobs(self) -> bool {
        matches!(self, Self::Jobs | Self::Archive)
    }
}

/// The names of the indices. Those of jobs, bodies and records are aliases, each of one numbered index.
#[derive(Clone, Debug)]
pub(super) struct Indices {
    pub(super) jobs: String,
    pub(super) bodies: String,
    pub(super) records: String,
    /// What the names of the months' indices start with, and the name of their template.
    pub(super) archive: String,
    /// The alias over live jobs and the archive, for people and Kibana.
    pub(super) all: String,
}

impl Indices {
    /// The alias of the index of a kind; for the archive, what the names of its months start with.
    pub(super) fn name(&self, kind: Kind) -> &str {
        match kind {
            Kind::Jobs => &self.jobs,
            Kind::Archive => &self.archive,
            Kind::Bodies => &self.bodies,
            Kind::Records => &self.records,
        }
    }

    /// The index of a month.
    pub(super) fn of_month(&self, month: Month) -> String {
        format!("{}-{month}", self.archive)
    }

    /// All months' indices, as a pattern.
    pub(super) fn months(&self) -> String {
        format!("{}-*", self.archive)
    }

    /// Live jobs and the archive together.
    pub(super) fn whole(&self) -> String {
        format!("{},{}", self.jobs, self.months())
    }

    /// The index of a place.
    pub(super) fn of_place(&self, place: Place) -> String {
        Month::at(place).map_or_else(|| self.jobs.clone(), |month| self.of_month(month))
    }

    /// The month whose index this is.
    pub(super) fn month_of(&self, index: &str) -> Option<Month> {
        index.strip_prefix(&self.archive)?.strip_prefix('-').and_then(Month::parse)
    }

    /// The place that an index is, by the index's own name.
    pub(super) fn place_of(&self, index: &str) -> Result<Place, StoreError> {
        if index.strip_prefix(&self.jobs).is_some_and(|number| number.starts_with('-')) {
            return Ok(Place::Main);
        }
        let unknown = || StoreError::Corrupt(format!("`{index}` is named as the archive is and has no month"));
        self.month_of(index).map(Place::from).ok_or_else(unknown)
    }
}
