//! Which jobs a command looks at, as `list`, `count`, `stats` and `export` are told.

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::complete;
use crate::client::JobQuery;
use crate::job::JobState;

/// Which jobs: those that satisfy every part.
#[derive(Clone, Debug, Args)]
pub(super) struct FilterArgs {
    /// As this query in Kibana's language says, such as `state: running and expected_runtime_ms < 60000`
    #[arg(value_name = "KQL", add = ArgValueCompleter::new(complete::kql))]
    kql: Option<String>,
    /// Where the query's times without a zone are meant and its days begin, such as Europe/Berlin or +02:00 [default: UTC]
    #[arg(long, value_name = "ZONE", env = "LEASEHOLD_TIME_ZONE")]
    time_zone: Option<String>,
    /// In this state: available, running, completed, failed, cancelled or expired (repeatable)
    #[arg(long = "state", value_name = "STATE", env = "LEASEHOLD_STATE", value_delimiter = ',', add = ArgValueCompleter::new(complete::states))]
    states: Vec<JobState>,
    /// In this queue (repeatable)
    #[arg(long = "queue", value_name = "QUEUE", env = "LEASEHOLD_QUEUE", add = ArgValueCompleter::new(complete::queues))]
    queues: Vec<String>,
    /// Of this kind (repeatable)
    #[arg(long = "kind", value_name = "KIND", env = "LEASEHOLD_KIND")]
    kinds: Vec<String>,
    /// Belonging to this owner (repeatable)
    #[arg(long = "owner", value_name = "OWNER", env = "LEASEHOLD_OWNER")]
    owners: Vec<String>,
}

impl FilterArgs {
    /// The same for the client.
    pub(super) fn into_query(self) -> JobQuery {
        JobQuery {
            states: self.states.clone(),
            queues: self.queues,
            kinds: self.kinds,
            owners: self.owners,
            kql: self.kql,
            time_zone: self.time_zone,
            ..JobQuery::default()
        }
    }
}
