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
            let apart = ahead(asked, health.at, answered);
            checks.push((
                "clocks",
                match apart.abs() <= CLOCKS_APART_MS {
                    true => Ok("this machine's and the server's agree within a second".to_owned()),
                    false => {
                        Err(format!("this machine's is {apart} ms ahead of the server's: set one of them right (NTP)"))
                    }
                },
            ));
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

fn word(status: &impl serde::Serialize) -> String {
    serde_json::to_value(status).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Returns by how many milliseconds this machine's clock is ahead of another one, which said `there` between `before` and
/// `after`.
fn ahead(before: Timestamp, there: Timestamp, after: Timestamp) -> i64 {
    there.clamp(before.min(after), before.max(after)).as_millis() - there.as_millis()
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
        let at = Timestamp::from_millis;
        for there in [5_000, 7_000, 60_000] {
            assert_eq!(ahead(at(5_000), at(there), at(60_000)), 0, "{there}");
        }
        assert_eq!(ahead(at(5_000), at(3_500), at(60_000)), 1_500);
        assert_eq!(ahead(at(5_000), at(61_500), at(60_000)), -1_500);
        // A clock that was set back meanwhile.
        assert_eq!(ahead(at(5_000), at(4_000), at(3_000)), 0);
    }
}
