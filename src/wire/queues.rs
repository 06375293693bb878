//! Changes of a queue's settings.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::job::OrphanPolicy;

/// A change of a queue's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeQueue {
    /// What happens to jobs of the queue whose lease expires, unless they have a policy themselves; null for the
    /// installation's policy.
    // `Option::deserialize` makes the field required, so that a forgotten field does not remove the policy.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required = true)]
    pub orphan_policy: Option<OrphanPolicy>,
}
