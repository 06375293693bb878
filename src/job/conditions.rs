//! The conditions of a job: what must hold before it may be claimed or submitted, beside its time and its state.

use serde::{Deserialize, Serialize, Serializer};

use super::names::{ConcurrencyKey, OrderingKey, UniqueKey};
use super::requirement::{Offers, Requirement};

/// What must hold before a job may be claimed or submitted. A job without conditions has none of these
/// ([`Conditions::stored`]), so that it takes no more room and time than a pointer does.
///
/// The JSON is part of what the fingerprint of a submission covers, so each condition is left out of it when it is not
/// set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conditions {
    /// What the worker that claims the job must offer: each of these is met.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<Requirement>,
    /// How many jobs of its key may run at once, if the job names a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// The key of which at most one job waits or runs, if the job names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<UniqueKey>,
    /// The key whose jobs run one after another, and the job's place among them, if the job names a key. Only the key
    /// is part of what a submission says.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "key_only")]
    pub ordering: Option<Ordered>,
}

fn key_only<S: Serializer>(ordering: &Option<Ordered>, serializer: S) -> Result<S::Ok, S::Error> {
    ordering.as_ref().map(|ordering| &ordering.key).serialize(serializer)
}

/// A key that a job names, and how many jobs of the key may run at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concurrency {
    /// The key, by which jobs of any queue and kind are counted together.
    pub key: ConcurrencyKey,
    /// The most jobs of the key that run at once if this is one of them, from 1 to
    /// [`MAX_CONCURRENT`](super::limit::MAX_CONCURRENT).
    pub max: u32,
}

/// A key whose jobs run one after another, and the place of a job in their line.
///
/// Places are allotted in the order of submissions, from 1 on, and never twice while a job of the key is live. A job
/// that is submitted, or returns from its end, gets the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ordered {
    /// The key, by which jobs of any queue and kind stand in one line.
    pub key: OrderingKey,
    /// The place in the line: the job begins once all with smaller ones have ended. 0 before it is allotted.
    pub seq: u64,
    /// The first of the places that were allotted together with this one.
    pub first: u64,
}

impl Ordered {
    /// Returns the ordering of a job that has no place yet.
    #[must_use]
    pub const fn without_place(key: OrderingKey) -> Self {
        Self { key, seq: 0, first: 0 }
    }
}

impl Conditions {
    /// Returns the conditions as a specification has them: `None` when there are none.
    #[must_use]
    pub fn stored(self) -> Option<Box<Self>> {
        (!self.is_default()).then(|| Box::new(self))
    }

    /// Returns whether nothing is asked for.
    #[must_use]
    pub const fn is_default(&self) -> bool {
        let Self { requires, concurrency, unique, ordering } = self;
        requires.is_empty() && concurrency.is_none() && unique.is_none() && ordering.is_none()
    }

    /// Returns whether a worker that offers these labels meets every requirement.
    #[must_use]
    pub fn are_met_by(&self, offered: &Offers) -> bool {
        self.requires.iter().all(|requirement| requirement.is_met_by(offered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_asks_for_nothing_has_no_conditions() {
        assert_eq!(Conditions::default().stored(), None);
        let requires = vec!["gpu".parse().expect("a requirement")];
        assert_eq!(
            Conditions { requires: requires.clone(), ..Conditions::default() }.stored().map(|stored| stored.requires),
            Some(requires)
        );
    }

    #[test]
    fn all_requirements_are_to_be_met_at_once() {
        let requires = ["hw = fpga", "build >= 42"].map(|text| text.parse().expect("a requirement")).to_vec();
        let conditions = Conditions { requires, ..Conditions::default() };
        let offers = |labels: &[(&str, &str)]| {
            labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Offers>()
        };
        assert!(conditions.are_met_by(&offers(&[("hw", "fpga"), ("build", "43")])));
        assert!(!conditions.are_met_by(&offers(&[("hw", "fpga")])));
        assert!(!conditions.are_met_by(&offers(&[("hw", "fpga"), ("build", "41")])));
        assert!(Conditions::default().are_met_by(&Offers::new()));
    }
}
