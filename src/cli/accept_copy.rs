//! `leasehold cluster accept-copy`: lets a member start on a copy of its data directory.

use std::path::PathBuf;

use clap::Args;

use super::failure::Failure;
use super::force_alone::confirm;
use super::output::print;
use super::settings::Settings;
use crate::store::embedded::{accept_copy, member_of};

const HOW_IT_WORKS: &str = "\
A member refuses to start on a data directory that was copied file by file, as from a backup or another disk: since \
the copy was made, it may have acknowledged more than the copy has, and the others count on that. A single member that \
has lost its directory is started with an empty one instead, and `leasehold cluster replace` lets it begin again from \
the others.

This is for the day when all members are to start on copies: when they move to other disks, or go back to a backup. \
The copies of all of them must have been made while none of them ran. Stop all members, put the copies in their \
places, and run this for each. What the cluster has acknowledged since the copies were made is LOST.

It also lets a member start that was taken for one that went back in time, if you know better.

Example:
  leasehold cluster accept-copy --data-dir /var/lib/leasehold";

/// Let a member start on a copy of its data directory, where all members start on copies: DANGEROUS, data may be lost
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_WORKS)]
pub(super) struct AcceptCopyArgs {
    /// The data directory of the member [default: ./leasehold-data]
    #[arg(long, visible_alias = "data", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Lets a member start on a copy.
pub(super) fn run(args: AcceptCopyArgs, settings: Settings) -> Result<(), Failure> {
    let directory = settings.data_dir(args.data_dir);
    let Some((cluster, member)) = member_of(&directory).map_err(Failure::failed)? else {
        return Err(Failure::Failed(format!(
            "{} is not the directory of a member of a cluster: a server of its own starts on a copy as it is",
            directory.display()
        )));
    };
    let what = format!(
        "member {member} of the cluster `{cluster}` is to start on a copy of its data directory. Unless all members \
         start on copies that were made while none of them ran, what was acknowledged since is LOST"
    );
    if !args.yes {
        confirm(&cluster, &what, "accept-copy")?;
    }
    accept_copy(&directory).map_err(Failure::failed)?;
    print(&format!("member {member} of the cluster `{cluster}` can be started on this directory"))
}
