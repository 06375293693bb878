//! The server that is measured.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::Duration;

use futures::future::try_join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use super::args::BenchArgs;
use crate::cli::engine::StoreKind;
use crate::cli::failure::Failure;
use crate::client::{Client, CountQuery, JobQuery};
use crate::executor::webhook::Secret;
use crate::job::JobState;
use crate::worker::shell::remove_settings;

/// How long a server may take until it is ready.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How long one of several may take to answer: a claim may meet thousands of jobs that another one has taken.
const LOADED_WITHIN: Duration = Duration::from_secs(300);
/// How long it may take to end.
const END_WITHIN: Duration = Duration::from_secs(30);
/// How often the server counts at most, until its searches show the last job.
const MAX_COUNTS: u32 = 200;
const COUNT_EVERY: Duration = Duration::from_millis(50);

/// How often and at most how many times it is checked whether searches show every job that was submitted.
const VISIBLE: (Duration, u32) = (Duration::from_millis(100), 600);

/// The server, and the queue that this measurement has for itself.
pub(super) struct Target {
    pub(super) client: Client,
    pub(super) url: String,
    pub(super) queue: String,
    /// A description for the report.
    pub(super) what: String,
    started: Option<Started>,
}

struct Started {
    server: Child,
    /// Never read, but open: a server cannot write to a closed output.
    _output: BufReader<ChildStdout>,
    _data: TempDir,
}

impl Target {
    /// Connects to the named server, or starts one.
    pub(super) async fn prepare(args: &BenchArgs) -> Result<Self, Failure> {
        let run: u32 = rand::random();
        let queue = format!("bench-{run:08x}");
        let (url, what, started) = match &args.server {
            Some(url) => (url.clone(), format!("the server at {url}"), None),
            None => {
                let data = scratch_directory()?;
                let mut options = match args.store() {
                    StoreKind::Embedded => vec!["--data-dir".into(), data.path().into()],
                    StoreKind::Elasticsearch => elasticsearch(args, &args.elasticsearch_url, &queue),
                };
                // Server and workers are on one machine, which has one clock, and so is the receiver of calls.
                options.extend(["--clock-skew-ms", "0", "--allow-private-targets"].map(OsString::from));
                options.extend(args.without_batches.then(|| "--trigger-page=1".into()));
                options.extend(args.without_concurrency.then(|| "--trigger-slots=1".into()));
                if let Some(kept) = args.trigger_retention {
                    let kept = format!("{}ms", kept.as_millis());
                    options.extend(["--retention-period-ms", "1000", "--trigger-retention", &kept].map(OsString::from));
                }
                let (url, started) = start(&options, data).await?;
                (url, format!("a server on this machine, {} store", args.store().as_str()), Some(started))
            }
        };
        Ok(Self { client: Client::new(&url, args.token.as_deref())?, url, queue, what, started })
    }

    /// Starts servers over one Elasticsearch, in new indices. The first one has the monitor.
    pub(super) async fn managers(args: &BenchArgs, urls: &[String], count: u16) -> Result<Vec<Self>, Failure> {
        let run: u32 = rand::random();
        let queue = format!("bench-{run:08x}");
        let one = async |options: Vec<OsString>| -> Result<Self, Failure> {
            let (url, started) = start(&options, scratch_directory()?).await?;
            let what = "managers on this machine".to_owned();
            let client = Client::new(&url, None)?.with_answer_timeout(LOADED_WITHIN);
            Ok(Self { client, url, queue: queue.clone(), what, started: Some(started) })
        };
        let mut options = elasticsearch(args, urls, &queue);
        options.extend(["--clock-skew-ms", "0"].map(OsString::from));
        let secret = Secret::generate().reveal();
        options.extend(["--advertise", "http://127.0.0.1:0", "--cluster-secret", &secret].map(OsString::from));
        // It makes the indices, which the others find.
        let mut managers = vec![one(options.clone()).await?];
        options.push("--no-monitor".into());
        managers.extend(try_join_all((1..count).map(|_| one(options.clone()))).await?);
        Ok(managers)
    }

    /// Returns another server of the same store, which jobs for this one's workers are submitted to.
    pub(super) fn beside(&self, args: &BenchArgs, url: &str) -> Result<Self, Failure> {
        let client = Client::new(url, args.token.as_deref())?;
        let what = format!("{}, submitted at {url}", self.what);
        Ok(Self { client, url: url.to_owned(), queue: self.queue.clone(), what, started: None })
    }

    /// Returns the process of the server, if it was started here.
    pub(super) fn process(&self) -> Option<u32> {
        self.started.as_ref()?.server.id()
    }

    /// Counts this measurement's completed jobs on the server. Searches may lag, and those of one copy of the index
    /// more than those of another, so it counts until there are as many as expected, or for long enough.
    pub(super) async fn completed(&self, expected: u64) -> Result<u64, Failure> {
        self.count_until(&self.jobs(&[JobState::Completed]), expected).await
    }

    /// Counts jobs as [`Target::completed`] does.
    pub(super) async fn count_until(&self, jobs: &JobQuery, expected: u64) -> Result<u64, Failure> {
        let mut counted = 0;
        for _ in 0..MAX_COUNTS {
            counted = self.count_of(jobs.clone()).await?;
            if counted >= expected {
                break;
            }
            tokio::time::sleep(COUNT_EVERY).await;
        }
        Ok(counted)
    }

    /// Counts this measurement's jobs in these states.
    pub(super) async fn count(&self, states: &[JobState]) -> Result<u64, Failure> {
        self.count_of(self.jobs(states)).await
    }

    fn jobs(&self, states: &[JobState]) -> JobQuery {
        JobQuery { queues: vec![self.queue.clone()], states: states.to_vec(), ..JobQuery::default() }
    }

    /// Counts jobs as a search shows them.
    pub(super) async fn count_of(&self, jobs: JobQuery) -> Result<u64, Failure> {
        Ok(self.client.count(&CountQuery { jobs, by: Vec::new() }).await?.total)
    }

    /// Waits until searches show every job as available.
    pub(super) async fn until_visible(&self, jobs: u32) -> Result<(), Failure> {
        for _ in 0..VISIBLE.1 {
            if self.count(&[JobState::Available]).await? == u64::from(jobs) {
                return Ok(());
            }
            tokio::time::sleep(VISIBLE.0).await;
        }
        Err(Failure::Failed("searches do not show all jobs that were submitted".to_owned()))
    }

    /// Returns the alias of the index that holds the live jobs of [`Target::managers`].
    pub(super) fn live_index(&self) -> String {
        format!("{}jobs", index_prefix(&self.queue))
    }

    /// Stops the server, if it was started here.
    pub(super) async fn stop(self) {
        let Some(mut started) = self.started else { return };
        if let Some(pid) = started.server.id().and_then(|id| i32::try_from(id).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        // Killed when dropped, if it does not end in time.
        drop(tokio::time::timeout(END_WITHIN, started.server.wait()).await);
    }
}

/// Returns a command for this program, without settings from the environment: those of another server do not count.
/// A Ctrl-C does not reach it, and it is killed when dropped.
pub(super) fn this_program() -> Result<Command, Failure> {
    let missing = |error| Failure::Failed(format!("cannot find this program: {error}"));
    let program = std::env::current_exe().map_err(missing)?;
    let mut command = Command::new(program);
    remove_settings(&mut command);
    command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    Ok(command)
}

/// Creates a directory for this user alone, which is removed when dropped. Not in /tmp, which may be in memory: syncing
/// would then cost nothing.
pub(super) fn scratch_directory() -> Result<TempDir, Failure> {
    let own = Permissions::from_mode(0o700);
    let made = tempfile::Builder::new().prefix("leasehold-bench-").permissions(own).tempdir_in(".");
    made.map_err(|error| Failure::Failed(format!("cannot make a directory here: {error}")))
}

/// Returns the prefix of the indices for the measurement that has this queue.
fn index_prefix(queue: &str) -> String {
    format!("leasehold-{queue}-")
}

/// Returns the options of a server over these nodes, with new indices for the measurement that has this queue.
fn elasticsearch(args: &BenchArgs, urls: &[String], queue: &str) -> Vec<OsString> {
    let prefix = index_prefix(queue);
    let flag = |name: &str, value: Option<u32>| value.map(|value| format!("{name}={value}").into());
    let urls = urls.iter().flat_map(|url| ["--elasticsearch-url", url]);
    ["--store", "elasticsearch", "--index-prefix", &prefix]
        .into_iter()
        .chain(urls)
        .map(OsString::from)
        .chain(flag("--elasticsearch-shards", args.elasticsearch_shards))
        .chain(flag("--elasticsearch-replicas", args.elasticsearch_replicas))
        .collect()
}

async fn start(options: &[OsString], data: TempDir) -> Result<(String, Started), Failure> {
    let failed = |what: &str| Failure::Failed(what.to_owned());
    let mut command = this_program()?;
    command.args(["serve", "--listen", "127.0.0.1:0"]).args(options);
    command.env("LEASEHOLD_LOG", "warn").stdout(Stdio::piped());
    let mut server = command.spawn().map_err(|error| failed(&format!("cannot start a server: {error}")))?;
    let output = server.stdout.take().ok_or_else(|| failed("the server has no output"))?;
    let mut output = BufReader::new(output);
    let mut line = String::new();
    let read = tokio::time::timeout(READY_WITHIN, output.read_line(&mut line)).await;
    match (read, line.trim().strip_prefix("listening on ")) {
        (Ok(Ok(_)), Some(url)) => Ok((url.to_owned(), Started { server, _output: output, _data: data })),
        (Err(_), _) => Err(failed("the server was not ready in time")),
        _ => Err(failed("the server did not start; its message is above")),
    }
}

/// Returns the value of a series in Prometheus' text format.
pub(super) fn counter(metrics: &str, series: &str) -> f64 {
    let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_read_by_its_whole_name() {
        let metrics = "# HELP a A.\na_total_more 7\na_total{operation=\"claim\"} 3\na_total{operation=\"update\"} 4\n";
        assert_eq!(counter(metrics, "a_total{operation=\"claim\"}"), 3.0);
        assert_eq!(counter(metrics, "a_total"), 0.0);
    }
}
