//! `leasehold verify`: checks a data directory of the embedded store.

use std::path::PathBuf;

use clap::Args;

use super::failure::{ExitStatus, Failure};
use super::output::{print, print_json};
use super::settings::Settings;
use crate::store::embedded::{Verified, verify};

const HOW_IT_WORKS: &str = "\
Stop the server first. Nothing in the directory is changed. Every file is compared with its checksum, and every record \
is read, for which up to 200 MB are copied to the directory for temporary files ($TMPDIR).

The state is a hash of all jobs, records and schedules in the database, as of an entry of the log. Members of a \
cluster that are stopped after the same entry have the same one.

Exit status: 0 when everything is as it was written, 1 when something is damaged or could not be checked.

Example:
  leasehold verify --data-dir /var/lib/leasehold";

/// Check the data directory of the embedded store for damage
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_WORKS)]
pub(super) struct VerifyArgs {
    /// The data directory [default: ./leasehold-data]
    #[arg(long, visible_alias = "data", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks a data directory.
pub(super) fn run(args: VerifyArgs, settings: Settings) -> Result<(), Failure> {
    let directory = settings.data_dir(args.data_dir);
    let verified = verify(&directory).map_err(Failure::failed)?;
    let Verified { jobs, bodies, records, schedules, entries, is_read, state, damages } = verified;
    let is_whole = damages.is_empty();
    if args.json {
        let damages: Vec<_> =
            damages.iter().map(|damage| serde_json::json!({ "path": damage.path, "what": damage.what })).collect();
        print_json(&serde_json::json!({
            "whole": is_whole, "jobs": jobs, "bodies": bodies, "records": records, "schedules": schedules,
            "log_entries": entries, "records_read": is_read, "damages": damages,
            "state": state.map(|state| state.to_string()), "state_entry": state.map(|state| state.entry),
        }))?;
    } else {
        for damage in &damages {
            print(&damage.to_string())?;
        }
        let mut counts = format!("{jobs} jobs, {bodies} bodies, {records} records and {schedules} schedules");
        if entries > 0 {
            counts += &format!(", and {entries} entries of the log with later changes");
        }
        match (is_whole, is_read) {
            (true, _) => {
                print(&format!("everything is as it was written: {counts}"))?;
                if let Some(state) = state {
                    print(&format!("state {state} as of entry {}", state.entry))?;
                }
            }
            (false, true) => print(&format!("{counts} were read\n{ADVICE}"))?,
            (false, false) => print(&format!("the records were not read, since files are damaged\n{ADVICE}"))?,
        }
    }
    if is_whole { Ok(()) } else { Err(Failure::Reported(ExitStatus::Failed)) }
}

const ADVICE: &str = "\
Keep a copy of the directory as it is, and restore the whole directory from a backup or a snapshot of the disk: its \
files belong together. A member of a cluster begins again with an empty directory instead: see `leasehold cluster \
replace --help`. Check the disk.";
