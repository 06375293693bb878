//! The flags with which `list`, `export`, `count`, `stats`, `orphans` and `events` select jobs.

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::complete;
use super::output::complain;
use crate::client::JobQuery;
use crate::job::JobState;
use crate::query::kql::{Expression, Zone};
use crate::query::table::Table;

/// Selects jobs by queue, kind and owner.
#[derive(Clone, Debug, Args)]
pub(super) struct NameFilterArgs {
    /// Select only jobs in this queue (repeatable)
    #[arg(long = "queue", value_name = "QUEUE", add = ArgValueCompleter::new(complete::queues))]
    pub(super) queues: Vec<String>,
    /// Select only jobs of this kind (repeatable)
    #[arg(long = "kind", value_name = "KIND", add = ArgValueCompleter::new(complete::kinds))]
    pub(super) kinds: Vec<String>,
    /// Select only jobs that belong to this owner (repeatable)
    #[arg(long = "owner", value_name = "OWNER")]
    pub(super) owners: Vec<String>,
}

/// Selects the jobs that satisfy every part.
#[derive(Clone, Debug, Args)]
pub(super) struct FilterArgs {
    /// Select only jobs that this KQL query matches, such as `state: running and expected_runtime_ms < 60000`
    #[arg(value_name = "KQL", add = ArgValueCompleter::new(complete::kql))]
    kql: Option<String>,
    /// The same query as an option, as the commands that change jobs take it
    #[arg(long = "query", visible_alias = "kql", value_name = "KQL", conflicts_with = "kql",
          add = ArgValueCompleter::new(complete::kql))]
    query: Option<String>,
    /// The time zone of the query's days and of its times without a zone, such as Europe/Berlin or +02:00 [default:
    /// UTC]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Select only jobs in this state: available, running, completed, failed, cancelled or expired (repeatable)
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', add = ArgValueCompleter::new(complete::states))]
    states: Vec<JobState>,
    #[command(flatten)]
    names: NameFilterArgs,
}

impl FilterArgs {
    /// Returns the filter for the client.
    fn into_query(self) -> JobQuery {
        let NameFilterArgs { queues, kinds, owners } = self.names;
        let Self { kql, query, time_zone, states, .. } = self;
        let kql = kql.or(query);
        warn_of(Table::Jobs, kql.as_deref());
        JobQuery { states, queues, kinds, owners, kql, time_zone, ..JobQuery::default() }
    }
}

/// Warns of values in a query that its fields cannot have. What else is wrong with it, the server says.
pub(super) fn warn_of(table: Table, kql: Option<&str>) {
    let query = kql.and_then(|kql| Expression::parse_about(table, kql, Zone::default()).ok());
    for doubt in query.iter().flat_map(Expression::doubts) {
        complain(&format!("leasehold: {doubt}"));
    }
}

/// Selects jobs, their order, and the fields that are shown.
#[derive(Clone, Debug, Args)]
pub(super) struct ListingArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Order by this field, smallest first; with a leading `-`, largest first
    #[arg(
        long,
        value_name = "FIELD",
        default_value = "-created_at",
        allow_hyphen_values = true,
        add = ArgValueCompleter::new(complete::sortable)
    )]
    sort: String,
    /// Show only these fields, separated by commas, with dots for fields of fields
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', add = ArgValueCompleter::new(complete::job_fields))]
    pub(super) fields: Vec<String>,
}

impl ListingArgs {
    /// Returns the filter and the order for the client.
    pub(super) fn query(&self) -> JobQuery {
        JobQuery { sort: Some(self.sort.clone()), ..self.filter.clone().into_query() }
    }
}

/// Selects jobs, and groups them.
#[derive(Clone, Debug, Args)]
pub(super) struct GroupingArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Group by these fields, separated by commas; a label is `labels.` and its name
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', add = ArgValueCompleter::new(complete::groupable))]
    pub(super) by: Vec<String>,
}

impl GroupingArgs {
    /// Returns the filter for the client.
    pub(super) fn query(&self) -> JobQuery {
        self.filter.clone().into_query()
    }
}
