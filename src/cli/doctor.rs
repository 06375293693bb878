//! `leasehold doctor`: what on this machine could keep the program from working well.

use std::path::{Path, PathBuf};

use clap::Args;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;

use super::clean::clean;
use super::failure::{ExitStatus, Failure};
use super::output::print;
use super::server::ServerArgs;
use super::settings::Settings;
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::wire::{HealthCheck, HealthCheckName};

/// The open files that a server with many connections needs.
const OPEN_FILES: u64 = 4_096;
/// How much of a disk is to be free, in bytes.
const FREE_BYTES: u64 = 1 << 30;
/// How far the clocks of a server and of its clients may be apart, in milliseconds.
const CLOCKS_APART_MS: i64 = 1_000;

/// Check what on this machine could keep leasehold from working well
///
/// Looks at the settings, the data directory, the disk, the limit of open files, the server and its clock. Exits with 1
/// when something is wrong.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold doctor
  leasehold --config /etc/leasehold.toml doctor --data-dir /var/lib/leasehold")]
pub(super) struct DoctorArgs {
    /// The data directory of the embedded store [default: leasehold-data]
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

/// A check, and why it failed.
type Check = (&'static str, Result<String, String>);

/// Makes the checks and prints what they found.
pub(super) async fn run(args: DoctorArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.server.connect(&settings.client)?.with_max_retries(0);
    let data_dir = settings.data_dir(args.data_dir);
    let mut checks: Vec<Check> = vec![
        ("settings", Ok("they can be read".to_owned())),
        ("open files", open_files()),
        ("data folder", folder(&data_dir)),
        ("disk", disk(&data_dir)),
    ];
    let clock = SystemClock::default();
    let asked = clock.now();
    match client.health().await {
        Ok(health) => {
            let answered = clock.now();
            checks.push(("server", Ok(format!("it answers, and its state is {}", word(&health.status)))));
            checks.push(("store", client.ready().await.map(|_| "it serves".to_owned()).map_err(|e| e.to_string())));
            checks.push(("clocks", clocks(asked, health.at, answered)));
            checks.extend(health.configuration["secrets_shown_in_indices"].as_bool().map(secrets));
            checks.extend(health.checks.into_iter().filter_map(of_installation));
        }
        Err(error) => checks.push(("server", Err(Failure::from(error).to_string()))),
    }
    let line = |(what, found): &Check| match found {
        Ok(found) => format!("ok    {what}: {}", clean(found)),
        Err(why) => format!("WRONG {what}: {}", clean(why)),
    };
    print(&checks.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    if checks.iter().any(|(_, found)| found.is_err()) { Err(Failure::Reported(ExitStatus::Failed)) } else { Ok(()) }
}

/// Returns a check of the server's health that says what the installation lacks, and not how its jobs fare.
fn of_installation(check: HealthCheck) -> Option<Check> {
    use HealthCheckName::{Clock, Documents, Equality, Managers, Monitor, Months, Scans, Store, Writes};

    let is_of_it = [Clock, Documents, Equality, Managers, Monitor, Months, Scans, Store, Writes].contains(&check.name);
    check.found.filter(|_| is_of_it).map(|found| (check.name.as_str(), Err(found)))
}

/// Says whether what is secret can be read in the indices. Nothing is wrong where nobody else reads them.
fn secrets(are_shown: bool) -> Check {
    let found = match are_shown {
        true => "they can be read in the indices: `--secrets-key-file` has them encrypted",
        false => "they are not to be read in an index",
    };
    ("secrets", Ok(found.to_owned()))
}

fn word(status: &impl serde::Serialize) -> String {
    serde_json::to_value(status).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Compares this machine's clock with the server's, which said `there` between `asked` and `answered`.
fn clocks(asked: Timestamp, there: Timestamp, answered: Timestamp) -> Result<String, String> {
    let took = answered.as_millis() - asked.as_millis();
    let ahead = there.clamp(asked.min(answered), asked.max(answered)).as_millis() - there.as_millis();
    if ahead.abs() > CLOCKS_APART_MS {
        Err(format!("this machine's is at least {ahead} ms ahead of the server's: set one of them right (NTP)"))
    } else if took.abs() > CLOCKS_APART_MS {
        Ok(format!("the server took {took} ms to answer: its clock is this machine's within that time"))
    } else {
        Ok("this machine's and the server's agree within two seconds".to_owned())
    }
}

fn open_files() -> Result<String, String> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| error.to_string())?;
    match soft >= OPEN_FILES {
        true => Ok(format!("up to {soft}")),
        false => Err(format!("up to {soft} only: `ulimit -n {OPEN_FILES}` or LimitNOFILE= allows more")),
    }
}

/// Checks that a data directory can be made or written, and is closed to others.
fn folder(path: &Path) -> Result<String, String> {
    use std::os::unix::fs::PermissionsExt as _;

    let shown = path.display();
    let there = std::path::absolute(path).map_err(|error| error.to_string())?;
    let Some(nearest) = there.ancestors().find(|folder| folder.exists()) else {
        return Err(format!("{shown} has no folder above it"));
    };
    if nix::unistd::access(nearest, nix::unistd::AccessFlags::W_OK).is_err() {
        return Err(format!("{} cannot be written by this user", nearest.display()));
    }
    if nearest != there {
        return Ok(format!("{shown} is not there yet and can be made"));
    }
    let mode = std::fs::metadata(path).map_err(|error| error.to_string())?.permissions().mode() & 0o777;
    match mode & 0o077 {
        0 => Ok(format!("{shown} can be written")),
        _ => Err(format!("{shown} is open to other users (mode {mode:o}): close it with `chmod 700 {shown}`")),
    }
}

fn disk(path: &Path) -> Result<String, String> {
    let there = std::path::absolute(path).map_err(|error| error.to_string())?;
    let nearest = there.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let found = statvfs(nearest).map_err(|error| error.to_string())?;
    #[expect(clippy::useless_conversion, reason = "the types differ between systems")]
    let free = u64::from(found.blocks_available()) * u64::from(found.fragment_size());
    let mib = free >> 20;
    match free >= FREE_BYTES {
        true => Ok(format!("{mib} MiB are free")),
        false => Err(format!("only {mib} MiB are free: new jobs are refused when they are used up")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_does_not_set_clocks_apart() {
        let said = |asked, there, answered| {
            let [asked, there, answered] = [asked, there, answered].map(Timestamp::from_millis);
            clocks(asked, there, answered)
        };
        assert!(said(5_000, 5_010, 5_020).is_ok_and(|said| said.contains("agree")));
        for there in [5_000, 7_000, 60_000] {
            assert!(said(5_000, there, 60_000).is_ok_and(|said| said.contains("took 55000 ms")), "{there}");
        }
        assert!(said(5_000, 3_500, 60_000).is_err_and(|said| said.contains(" 1500 ms ahead")));
        assert!(said(5_000, 61_500, 60_000).is_err_and(|said| said.contains(" -1500 ms ahead")));
        // This machine's clock was set back meanwhile.
        assert!(said(5_000, 4_000, 3_000).is_ok());
    }
}
