//! `leasehold cluster force-alone`: lets the one member that is left of a cluster go on.

use std::io::{BufRead, IsTerminal, stdin};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::time::timeout;

use super::failure::Failure;
use super::members::SETTLED;
use super::output::{complain, print};
use super::settings::Settings;
use crate::clock::{Clock, SystemClock};
use crate::job::shell::leasehold;
use crate::job::{Fence, Job};
use crate::manager::{Manager, ManagerConfig};
use crate::query::{Filter, Search, Sort};
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore, GroupOptions, member_of};
use crate::store::{Member, MemberChange, Store, Versioned, Write};

/// By how much every fence is raised: more than a job was claimed in what is lost.
const RAISED_BY: u64 = 1_000_000;

/// How long the member may take to lead.
const LEADS_WITHIN: Duration = Duration::from_secs(60);

/// How many jobs are read at once.
const PAGE: usize = 1_000;

/// The time between two ticks of a member that has nobody to wait for.
const TICK: Duration = Duration::from_millis(20);

const HOW_IT_WORKS: &str = "\
This is for the day when more than half of the members are gone for good, and their data directories with them. What \
the lost members had agreed on and this one does not have is LOST, though it was acknowledged. When this member has \
been behind, choose the one whose `applied` is the highest.

Stop this member first, and make sure that no other member of the cluster runs or will ever run again. Then:
- the member is the only one of the cluster from then on, in a later term;
- every job that runs is given back, and the fence of every job is raised by 1000000, so that no worker which was \
given a job by the lost members can complete it.

Afterwards start it as before, and start two others with empty data directories and `--join`; `leasehold cluster add` \
adds them.

Example:
  leasehold cluster force-alone --data-dir /var/lib/leasehold";

/// Let the only member that is left go on without the others, which are gone for good: DANGEROUS, data may be lost
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_WORKS)]
pub(super) struct ForceAloneArgs {
    /// The data directory of the member [default: ./leasehold-data]
    #[arg(long, visible_alias = "data", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Lets a member go on alone.
pub(super) async fn run(args: ForceAloneArgs, settings: Settings) -> Result<(), Failure> {
    let directory = settings.data_dir(args.data_dir);
    let Some((cluster, member)) = member_of(&directory).map_err(Failure::failed)? else {
        return Err(Failure::Failed(format!("{} is not the directory of a member of a cluster", directory.display())));
    };
    let what = format!(
        "member {member} is to go on without the other members of the cluster `{cluster}`. What only they had is LOST, \
         and none of them may ever run again"
    );
    if !args.yes {
        confirm(&cluster, &what, "force-alone")?;
    }
    let store = Arc::new(open(&directory, cluster.clone(), member)?);
    let done = go_on(&store, &cluster, member).await;
    store.close().await;
    let (released, raised) = done?;
    print(&format!(
        "member {member} is the only member of the cluster `{cluster}` now: {released} running jobs were given back, \
         and the fences of {raised} jobs raised\nstart it as before, and add others: see `leasehold cluster add --help`"
    ))
}

/// Asks the person at the terminal to type the name of the cluster, before the action is done that says `what`.
///
/// # Errors
/// That nobody is there, or has typed something else.
pub(super) fn confirm(cluster: &str, what: &str, action: &str) -> Result<(), Failure> {
    if !stdin().is_terminal() {
        let help = leasehold("cluster --help").operand(action);
        return Err(Failure::Usage(format!(
            "something acknowledged may be lost with this: read `{help}`, and say --yes"
        )));
    }
    complain(&format!("{what}. Type the name of the cluster to go on:"));
    let mut answer = String::new();
    let read = stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::Failed(format!("cannot read the answer: {error}")))?;
    match answer.trim() == cluster {
        true => Ok(()),
        false => Err(Failure::Failed("nothing was changed".to_owned())),
    }
}

fn open(directory: &Path, cluster: String, member: u64) -> Result<EmbeddedStore, Failure> {
    let group = GroupOptions {
        cluster,
        member,
        members: vec![member],
        tick: TICK,
        settles_in: SETTLED,
        goes_on_alone: true,
        ..GroupOptions::default()
    };
    let options = EmbeddedOptions { group: Some(group), ..EmbeddedOptions::default() };
    EmbeddedStore::open(directory, &options).map_err(Failure::failed)
}

/// Makes the member the only one, and raises the fences. Returns how many jobs were given back, and how many raised.
async fn go_on(store: &Arc<EmbeddedStore>, cluster: &str, number: u64) -> Result<(usize, u64), Failure> {
    let not_alone = || Failure::Failed(format!("member {number} of the cluster `{cluster}` does not come to lead"));
    let member: Arc<dyn Member> = store.member().ok_or_else(not_alone)?;
    let mut standing = member.standing();
    let leads = timeout(LEADS_WITHIN, standing.wait_for(|standing| standing.leads)).await;
    leads.map_err(|_| not_alone())?.map_err(|_| not_alone())?;
    member.change(MemberChange::Alone).await.map_err(Failure::failed)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let manager = Manager::start(Arc::clone(store) as Arc<dyn Store>, clock, ManagerConfig::default());
    let released = manager.reclaim_all("the cluster goes on with one member, and its others are lost").await;
    manager.retire().await;
    Ok((released.map_err(Failure::failed)?, raise(&**store).await?))
}

/// Raises the fence of every job, also of those that have ended, which may be retried.
async fn raise(store: &dyn Store) -> Result<u64, Failure> {
    let mut search = Search { filter: Filter::default(), sort: Sort::default(), after: None, limit: PAGE };
    let mut raised = 0;
    // Bounded by the number of jobs: each page starts after the one before.
    loop {
        let page = store.search(&search).await.map_err(Failure::failed)?;
        let Some(last) = page.last() else { return Ok(raised) };
        search.after = Some(search.sort.key(&last.job));
        let replace = |Versioned { job, version }: &Versioned| {
            let job = Arc::new(Job { fence: Fence::new(job.fence.get() + RAISED_BY), ..(**job).clone() });
            Write::Replace { job, expected: *version, bodies: Vec::new() }
        };
        for answer in store.write(page.iter().map(replace).collect()).await {
            answer.map_err(Failure::failed)?;
            raised += 1;
        }
    }
}
