//! Changes of a queue's settings.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::rust::double_option;
use utoipa::ToSchema;

use super::check::{Checks, Invalid};
use super::described::OwnerWeights;
use crate::job::{OrphanPolicy, Owner};
use crate::manager::{Fairness, JobOrder, MAX_WEIGHT, MAX_WEIGHTS, QueueChange};

/// A change of a queue's settings. What is not named stays as it is; something must be named.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"fairness": "owner", "weights": {"team-a": 3}}))]
pub struct ChangeQueue {
    /// What happens to jobs of the queue whose lease expires, unless they have a policy themselves; null for the
    /// installation's policy.
    #[serde(default, with = "double_option")]
    #[schema(value_type = Option<OrphanPolicy>)]
    pub orphan_policy: Option<Option<OrphanPolicy>>,
    /// Whose turn it is among the due jobs of one priority: `none` for the job that has been due longest, `owner` to
    /// let the owners take turns, `owner_runtime` to let them take turns by their jobs' expected runtimes.
    pub fairness: Option<Fairness>,
    /// The weights of owners where owners take turns, in place of all that were set: an owner is given so many jobs,
    /// from 1 to 1,000, for each of an owner that is not named (at most 100 owners).
    #[schema(value_type = Option<OwnerWeights>)]
    pub weights: Option<BTreeMap<String, u64>>,
    /// Which of the due jobs of one priority is next, of one owner where owners take turns: `dispatch` for the job that
    /// has been due longest, `shortest` for the one that is expected to run shortest, unless another has waited long.
    pub order: Option<JobOrder>,
}

impl ChangeQueue {
    /// Checks the change.
    ///
    /// # Errors
    /// The fields that are wrong, by name.
    pub fn into_change(self) -> Result<QueueChange, Invalid> {
        let mut checks = Checks::default();
        if self == Self::default() {
            let others = "`fairness`, `weights` or `order`";
            checks.fault("orphan_policy", format!("is not named, and nor is {others}: there is nothing to change"));
        }
        checks.count("weights", self.weights.as_ref().map_or(0, BTreeMap::len), MAX_WEIGHTS);
        let mut weight = |(owner, weight): (String, u64)| {
            let field = format!("weights.{owner}");
            let weight = checks.within(&field, weight, 1..=u64::from(MAX_WEIGHT));
            let owner: Option<Owner> = checks.name(&field, &owner);
            Some((owner?, u32::try_from(weight).unwrap_or(MAX_WEIGHT)))
        };
        let weights = self.weights.map(|weights| weights.into_iter().filter_map(&mut weight).collect());
        let Self { orphan_policy, fairness, order, .. } = self;
        checks.finish(Some(QueueChange { orphan_policy, fairness, weights, order }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> ChangeQueue {
        serde_json::from_str(text).expect("a change")
    }

    fn refused(text: &str) -> Vec<String> {
        let invalid = parsed(text).into_change().expect_err("refused");
        invalid.errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn what_is_not_named_stays_and_null_removes() {
        let change = parsed(r#"{"orphan_policy": null}"#);
        assert_eq!(change.orphan_policy, Some(None));
        assert_eq!(serde_json::to_string(&change).expect("JSON"), r#"{"orphan_policy":null}"#);
        let change = parsed(r#"{"fairness": "owner", "weights": {"a": 3}}"#).into_change().expect("valid");
        assert_eq!((change.orphan_policy, change.fairness), (None, Some(Fairness::Owner)));
        assert_eq!(change.weights.expect("weights").into_values().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn weights_out_of_bounds_are_refused_by_owner() {
        assert_eq!(refused("{}"), ["orphan_policy"]);
        assert_eq!(
            refused(r#"{"weights": {"a": 0, "b": 1001, "c": 1000, " ": 1}}"#),
            ["weights. ", "weights.a", "weights.b"]
        );
        let many: BTreeMap<String, u64> = (0..101).map(|number| (format!("o{number}"), 1)).collect();
        let many = ChangeQueue { weights: Some(many), ..ChangeQueue::default() };
        assert_eq!(many.into_change().expect_err("refused").errors[0].field, "weights");
    }
}
