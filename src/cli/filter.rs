//! Which jobs a command is about, as `list`, `export`, `count`, `stats`, `orphans` and `events` are told.

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::complete;
use crate::client::JobQuery;
use crate::job::JobState;

/// Whose jobs, and of which queues and kinds.
#[derive(Clone, Debug, Args)]
pub(super) struct NameFilterArgs {
    /// In this queue (repeatable)
    #[arg(long = "queue", value_name = "QUEUE", env = "LEASEHOLD_QUEUE", add = ArgValueCompleter::new(complete::queues))]
    pub(super) queues: Vec<String>,
    /// Of this kind (repeatable)
    #[arg(long = "kind", value_name = "KIND", env = "LEASEHOLD_KIND")]
    pub(super) kinds: Vec<String>,
    /// Belonging to this owner (repeatable)
    #[arg(long = "owner", value_name = "OWNER", env = "LEASEHOLD_OWNER")]
    pub(super) owners: Vec<String>,
}

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
    #[command(flatten)]
    names: NameFilterArgs,
}

impl FilterArgs {
    /// The same for the client.
    fn into_query(self) -> JobQuery {
        let NameFilterArgs { queues, kinds, owners } = self.names;
        let Self { kql, time_zone, states, .. } = self;
        JobQuery { states, queues, kinds, owners, kql, time_zone, ..JobQuery::default() }
    }
}

/// Which jobs, in which order, and what of them.
#[derive(Clone, Debug, Args)]
pub(super) struct ListingArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Order by this field, smallest first; `-` in front turns it round
    #[arg(
        long,
        value_name = "FIELD",
        env = "LEASEHOLD_SORT",
        default_value = "-created_at",
        allow_hyphen_values = true,
        add = ArgValueCompleter::new(complete::sortable)
    )]
    sort: String,
    /// Only these fields, with commas between them and dots for those inside of others
    #[arg(long, value_name = "FIELDS", env = "LEASEHOLD_FIELDS", value_delimiter = ',', add = ArgValueCompleter::new(complete::job_fields))]
    pub(super) fields: Vec<String>,
}

impl ListingArgs {
    /// The same for the client.
    pub(super) fn query(&self) -> JobQuery {
        JobQuery { sort: Some(self.sort.clone()), ..self.filter.clone().into_query() }
    }
}

/// Which jobs, and the groups that they are put in.
#[derive(Clone, Debug, Args)]
pub(super) struct GroupingArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Grouped by these fields, with commas between them; a label is `labels.` and its name
    #[arg(long, value_name = "FIELDS", env = "LEASEHOLD_BY", value_delimiter = ',', add = ArgValueCompleter::new(complete::groupable))]
    pub(super) by: Vec<String>,
}

impl GroupingArgs {
    /// The jobs, for the client.
    pub(super) fn query(&self) -> JobQuery {
        self.filter.clone().into_query()
    }
}
