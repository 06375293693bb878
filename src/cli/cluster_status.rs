//! `leasehold cluster`: the members of a cluster, which of them leads, and changes of both.

use std::time::Duration;

use clap::{Args, Subcommand};
use futures::future::join_all;
use serde::Serialize;
use tokio::time::timeout;

use super::accept_copy::{self, AcceptCopyArgs};
use super::failure::Failure;
use super::force_alone::{self, ForceAloneArgs};
use super::layout::Column;
use super::output::{print, table_with};
use super::server::ClientArgs;
use super::settings::Settings;
use crate::client::{Client, ClientError};
use crate::store::Unequal;
use crate::wire::{ChangeCluster, ClusterRole, ClusterStatus, MemberClockState, clock_trouble, went_back};

/// How long a member may take to say where it stands.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Show and change the members of a cluster of embedded stores
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold cluster status
  leasehold cluster status --server http://10.0.0.6:7400
  leasehold cluster add 4 http://10.0.0.8:7400
  leasehold cluster remove 2
  leasehold cluster transfer 3

When a member has lost its disk, or its data directory went back in time, and another member leads: stop it, move its \
directory away and keep it, start it with an empty one and --join, and `leasehold cluster replace N`. Where several \
members say so, touch none of their directories before it is known which of them has the most.
When more than half of the members are gone for good, read `leasehold cluster force-alone --help`.")]
pub(super) struct ClusterCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the members: which leads, which can be reached, and how far each is behind
    Status(ClientArgs),
    /// Add a member that runs and was started with `--join`; it votes once it has all that the others have
    Add(AddArgs),
    /// Remove a member that runs
    Remove(MemberArgs),
    /// Remove a member that is gone for good
    Forget(MemberArgs),
    /// Let a member that has lost its data directory, and runs with an empty one, begin again
    Replace(MemberArgs),
    /// Hand the lead over to another member
    Transfer(TransferArgs),
    ForceAlone(ForceAloneArgs),
    AcceptCopy(AcceptCopyArgs),
}

#[derive(Debug, Args)]
struct AddArgs {
    /// The number of the member
    #[arg(value_name = "N")]
    member: u64,
    /// The URL at which the other members reach it
    #[arg(value_name = "URL")]
    address: String,
    #[command(flatten)]
    answer: ClientArgs,
}

#[derive(Debug, Args)]
struct MemberArgs {
    /// The number of the member
    #[arg(value_name = "N")]
    member: u64,
    #[command(flatten)]
    answer: ClientArgs,
}

#[derive(Debug, Args)]
struct TransferArgs {
    /// The number of the member that is to lead [default: the one that has come furthest]
    #[arg(value_name = "N")]
    member: Option<u64>,
    #[command(flatten)]
    answer: ClientArgs,
}

/// A member, as a row of the table or a line of JSON.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    member: u64,
    address: String,
    /// `leader` or `follower`; `learner` while it does not vote yet, `receiving` while it receives another member's
    /// state, `joining` before it was added, `removed`, and `disowned` when the cluster knows it by another data
    /// directory; `unknown` when it does not answer.
    role: &'static str,
    reachable: bool,
    term: Option<u64>,
    /// The number of the last entry that the member has applied.
    applied: Option<u64>,
    /// How many entries it has applied fewer than most members have.
    lag: Option<u64>,
    /// By how many milliseconds its clock is ahead of that of the first member that was asked.
    clock_ahead_ms: Option<i64>,
    clock: MemberClockState,
    /// Why the member cannot be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

/// What a member says, or why it says nothing.
type Said = Result<ClusterStatus, String>;

/// Shows the members, or changes them and shows them then.
pub(super) async fn run(command: ClusterCommand, settings: Settings) -> Result<(), Failure> {
    let (change, answer) = match command.action {
        Action::Status(answer) => return status(&answer, &settings).await,
        Action::Add(AddArgs { member, address, answer }) => (ChangeCluster::Add { member, address }, answer),
        Action::Remove(MemberArgs { member, answer }) => (ChangeCluster::Remove { member }, answer),
        Action::Forget(MemberArgs { member, answer }) => (ChangeCluster::Forget { member }, answer),
        Action::Replace(MemberArgs { member, answer }) => (ChangeCluster::Replace { member }, answer),
        Action::Transfer(TransferArgs { member, answer }) => (ChangeCluster::Transfer { member }, answer),
        Action::ForceAlone(args) => return force_alone::run(args, settings).await,
        Action::AcceptCopy(args) => return accept_copy::run(args, settings),
    };
    let client = answer.connect(&settings.client)?;
    let leaves = match &change {
        ChangeCluster::Remove { member } => Some(*member),
        _ => None,
    };
    if let Some(leaves) = leaves
        && client.cluster().await.map_err(no_member)?.leader == Some(leaves)
    {
        client.change_cluster(&ChangeCluster::Transfer { member: None }).await?;
    }
    client.change_cluster(&change).await.map_err(no_member)?;
    status(&answer, &settings).await
}

/// Asks every member that the leader names, or the first one that is asked where the leader does not answer.
async fn status(answer: &ClientArgs, settings: &Settings) -> Result<(), Failure> {
    let mut first = answer.connect(&settings.client)?.cluster().await.map_err(no_member)?;
    let ask_at = async |address: &str, member: u64, of: &ClusterStatus| match answer
        .server
        .connect_to(address, &settings.client)
    {
        Ok(client) => ask(&client.with_max_retries(0), of, member).await,
        Err(_) => Err("its address is wrong".to_owned()),
    };
    // Another member may not know yet who has come and gone.
    if let (false, Some(leader), Some(address)) = (first.leads, first.leader, &first.leader_address)
        && let Ok(status) = ask_at(address, leader, &first).await
    {
        first = status;
    }
    let asked = first.members.iter().map(async |listed| {
        if listed.member == first.member {
            return Ok(first.clone());
        }
        ask_at(&listed.address, listed.member, &first).await
    });
    let rows = rows(&first, &join_all(asked).await);
    if !answer.is_for_programs() {
        print(&headline(&first, &rows))?;
    }
    answer.print_all(&rows, overview)
}

/// Says what a server that is in no cluster can be asked instead.
fn no_member(error: ClientError) -> Failure {
    match error.code() {
        Some("no_such_route") => Failure::Failed(
            "this server is not a member of a cluster; `leasehold top` and `/v1/health` show how it is".to_owned(),
        ),
        _ => error.into(),
    }
}

async fn ask(client: &Client, of: &ClusterStatus, member: u64) -> Said {
    let ClusterStatus { cluster, identity, .. } = of;
    match timeout(ANSWERS_WITHIN, client.cluster()).await {
        Ok(Ok(status)) if status.cluster != *cluster => Err(format!("it is in the cluster `{}`", status.cluster)),
        Ok(Ok(status)) if status.identity.as_ref().zip(identity.as_ref()).is_some_and(|(one, other)| one != other) => {
            Err("it is in another cluster of this name".to_owned())
        }
        Ok(Ok(status)) if status.member != member => Err(format!("member {} answers here", status.member)),
        Ok(Ok(status)) => Ok(status),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", ANSWERS_WITHIN.as_secs())),
    }
}

/// Returns a row for each member. `said` has their answers, in the order in which the first member lists them.
fn rows(first: &ClusterStatus, said: &[Said]) -> Vec<Row> {
    let committed = said.iter().flatten().map(|status| status.committed).max().unwrap_or_default();
    // A member that was cut off may still believe to lead, in a term that is over.
    let term = said.iter().flatten().map(|status| status.term).max();
    let row = |(listed, said): (&crate::wire::ClusterMember, &Said)| {
        let status = said.as_ref().ok();
        Row {
            member: listed.member,
            address: listed.address.clone(),
            role: match status {
                None => "unknown",
                Some(status) if status.leads && Some(status.term) == term => "leader",
                Some(status) if status.receives.is_some() => "receiving",
                Some(status) => match status.role {
                    ClusterRole::Voter => "follower",
                    ClusterRole::Learner => "learner",
                    ClusterRole::Joining => "joining",
                    ClusterRole::Removed => "removed",
                    ClusterRole::Disowned => "disowned",
                },
            },
            reachable: status.is_some(),
            term: status.map(|status| status.term),
            applied: status.map(|status| status.applied),
            lag: status.map(|status| committed.saturating_sub(status.applied)),
            clock_ahead_ms: listed.clock_ahead_ms,
            clock: listed.clock,
            trouble: said.as_ref().err().cloned(),
        }
    };
    first.members.iter().zip(said).map(row).collect()
}

fn headline(first: &ClusterStatus, rows: &[Row]) -> String {
    let ClusterStatus { cluster, hindrances, .. } = first;
    let leader = match rows.iter().find(|row| row.role == "leader") {
        Some(row) => format!("member {} leads in term {}", row.member, row.term.unwrap_or_default()),
        None => "no member leads".to_owned(),
    };
    let reachable = rows.iter().filter(|row| row.reachable).count();
    let mut text = format!("cluster {cluster}: {leader}, {reachable} of {} members answer\n", rows.len());
    for trouble in first.members.iter().filter_map(|listed| clock_trouble(first.member, listed)) {
        text.push_str(&format!("{trouble}\n"));
    }
    for hindrance in hindrances {
        text.push_str(&format!("{hindrance}\n"));
    }
    for member in &first.went_back {
        text.push_str(&format!("{}\n", went_back(*member)));
    }
    let unequal = Unequal { members: first.unequal.iter().copied().collect(), is_certain: !first.uncertain };
    if let Some(reason) = unequal.reason() {
        text.push_str(&format!("{reason}\n"));
    }
    text
}

/// The columns of a table of members.
const COLUMNS: &[Column] = &[
    Column::word("member").weight(100),
    Column::text("address").weight(70),
    Column::state("role"),
    Column::text("reachable").weight(80),
    Column::word("applied").weight(50),
    Column::word("lag").weight(60),
];

fn overview(rows: &[Row]) -> String {
    let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    let cells = rows.iter().map(|row| {
        vec![
            row.member.to_string(),
            row.address.clone(),
            row.role.to_owned(),
            match &row.trouble {
                None => "yes".to_owned(),
                // The last part is the specific one; JSON has it all.
                Some(trouble) => format!("no: {}", trouble.rsplit(": ").next().unwrap_or(trouble)),
            },
            number(row.applied),
            number(row.lag),
        ]
    });
    table_with(COLUMNS, cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ClusterMember;

    fn status(member: u64, term: u64, leads: bool, applied: u64, committed: u64) -> ClusterStatus {
        let listed = |member| ClusterMember {
            member,
            address: format!("http://m{member}:7400"),
            votes: true,
            heard_ms: None,
            version: None,
            lag: None,
            clock_ahead_ms: None,
            clock_uncertain_ms: None,
            clock: MemberClockState::Unknown,
        };
        ClusterStatus {
            cluster: "jobs".to_owned(),
            identity: None,
            version: 0,
            member,
            term,
            leader: Some(2),
            leader_address: Some("http://m2:7400".to_owned()),
            leads,
            role: ClusterRole::Voter,
            receives: None,
            applied,
            committed,
            members: [1, 2, 3].map(listed).to_vec(),
            hindrances: Vec::new(),
            went_back: Vec::new(),
            unequal: Vec::new(),
            uncertain: false,
        }
    }

    #[test]
    fn the_table_shows_who_leads_who_is_gone_and_how_far_each_is_behind() {
        let first = status(1, 4, false, 90, 95);
        let said = [
            Ok(first.clone()),
            Ok(status(2, 4, true, 100, 100)),
            Err("cannot reach it: connection refused".to_owned()),
        ];
        let rows = rows(&first, &said);
        assert_eq!(headline(&first, &rows), "cluster jobs: member 2 leads in term 4, 2 of 3 members answer\n");
        let text = overview(&rows);
        let lines: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["1", "http://m1:7400", "follower", "yes", "90", "10"], "{text}");
        assert_eq!(lines[1], ["2", "http://m2:7400", "leader", "yes", "100", "0"], "{text}");
        assert_eq!(lines[2], ["3", "http://m3:7400", "unknown", "no:", "connection", "refused"], "{text}");
    }

    #[test]
    fn a_clock_that_is_off_is_named_with_how_far() {
        let mut first = status(1, 4, true, 90, 95);
        first.members[2].clock_ahead_ms = Some(-5_250);
        for (clock, says) in [
            (MemberClockState::Off, "the clock of member 3 is off from those of most members: it is 5.2 s behind that"),
            (MemberClockState::Apart, "the clock of member 3 is 5.2 s behind that of member 1, and no majority says"),
        ] {
            first.members[2].clock = clock;
            let text = headline(&first, &rows(&first, &[Ok(first.clone())]));
            assert!(text.contains(says), "{text}");
        }
        first.members[2].clock = MemberClockState::Near;
        assert_eq!(headline(&first, &[]).lines().count(), 1);
    }

    #[test]
    fn a_member_that_was_cut_off_is_not_shown_as_the_leader() {
        let first = status(1, 3, true, 90, 90);
        let said = [Ok(first.clone()), Ok(status(2, 4, true, 100, 100)), Ok(status(3, 4, false, 99, 100))];
        let roles: Vec<&str> = rows(&first, &said).iter().map(|row| row.role).collect();
        assert_eq!(roles, ["follower", "leader", "follower"]);
    }
}
