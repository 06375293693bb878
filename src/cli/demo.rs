//! `leasehold demo`: a server with an invented night, to look around in.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::failure::{ExitStatus, Failure};
use super::output::print;
use super::signals::Signals;
use crate::client::Client;
use crate::clock::{Clock as _, SystemClock};
use crate::job::{Json, OrphanPolicy};
use crate::wire::{ChangeQueue, ClaimJobs, PutSchedule, SubmitJob};
use crate::worker::Stop;

/// How long the server may take to listen.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How often new jobs come, and how often a worker goes and another comes.
const JOBS_EVERY: Duration = Duration::from_secs(3);
const WORKERS_EVERY: Duration = Duration::from_secs(25);
/// How many workers there are at a time.
const WORKERS: usize = 3;
/// How long a process may take to end by itself.
const ENDS_WITHIN: Duration = Duration::from_secs(3);
/// The worker that is never heard of again.
const LOST_WORKER: &str = "render-07:4711";

/// Start a server with an invented night to look around in, and remove it all at Ctrl-C
///
/// The jobs, workers and schedules are made up; they run on this machine and do nothing but wait and write a line.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  leasehold demo                         then open http://127.0.0.1:7400 in a browser")]
pub(super) struct DemoArgs {
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1:7400", value_name = "ADDRESS")]
    listen: String,
}

/// Runs the server, its workers, and who submits jobs, until it is told to stop.
pub(super) async fn run(args: DemoArgs) -> Result<(), Failure> {
    let signals = Signals::listen(|_| {})?;
    let mut stopped = signals.stop().listen();
    let place = tempfile::tempdir().map_err(|error| Failure::Failed(format!("no folder to work in: {error}")))?;
    let mut night = Night::begin(place.path(), &args.listen)?;
    let outcome = tokio::select! {
        outcome = night.go_on() => outcome,
        () = stopped.reached(Stop::Drain) => {
            Err(Failure::Reported(signals.status().unwrap_or(ExitStatus::Interrupted)))
        }
    };
    night.end().await;
    outcome
}

/// The processes of the night.
struct Night {
    url: String,
    place: PathBuf,
    client: Client,
    server: Child,
    workers: Vec<Child>,
    made: u64,
}

impl Night {
    fn begin(place: &Path, listen: &str) -> Result<Self, Failure> {
        let url = format!("http://{listen}");
        let client = Client::new(&url, None)?;
        let server = start(place, "server.log", &["serve", "--listen", listen, "--data-dir", "data", "--audit"])?;
        Ok(Self { url, place: place.to_owned(), client, server, workers: Vec::new(), made: 0 })
    }

    async fn go_on(&mut self) -> Result<(), Failure> {
        self.is_ready().await?;
        self.invent().await?;
        for _ in 0..WORKERS {
            self.worker_comes()?;
        }
        print(&format!(
            "A made-up night is at {}\nIts jobs, workers and schedules are gone at Ctrl-C. Try: leasehold --help",
            self.url
        ))?;
        let (mut jobs, mut workers) = (interval(JOBS_EVERY), interval(WORKERS_EVERY));
        jobs.set_missed_tick_behavior(MissedTickBehavior::Delay);
        workers.set_missed_tick_behavior(MissedTickBehavior::Delay);
        workers.reset();
        loop {
            tokio::select! {
                _ = jobs.tick() => self.jobs_come().await?,
                _ = workers.tick() => {
                    ask_to_end(&self.workers.remove(0));
                    self.worker_comes()?;
                }
                ended = self.server.wait() => {
                    let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
                    return Err(self.without_server(&format!("has ended ({how})")));
                }
            }
        }
    }

    async fn is_ready(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + READY_WITHIN;
        while self.client.queues().await.is_err() {
            let has_ended = self.server.try_wait().is_ok_and(|status| status.is_some());
            if has_ended || Instant::now() > deadline {
                return Err(self.without_server("does not start"));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Says what is the matter with the server, in its own last words.
    fn without_server(&self, what: &str) -> Failure {
        let log = std::fs::read_to_string(self.place.join("server.log")).unwrap_or_default();
        Failure::Failed(format!("the server {what}: {}", log.lines().last().unwrap_or("it said nothing")))
    }

    /// Makes what was there before the reader came.
    async fn invent(&mut self) -> Result<(), Failure> {
        for (id, cron, line) in [
            ("nightly-report", "0 2 * * *", "echo the report is written"),
            ("hourly-mail", "0 * * * *", "echo 12 messages sent"),
            ("clean-up", "*/5 * * * *", "echo 3 files removed"),
        ] {
            let schedule = json!({
                "id": id, "period": {"cron": cron},
                "action": {"type": "job", "job": {"queue": "reports", "kind": "shell", "payload": shell(line)}},
            });
            let schedule: PutSchedule = serde_json::from_value(schedule).map_err(Failure::failed)?;
            self.client.create_schedule(&schedule).await?;
        }
        self.lose_a_worker().await?;
        for _ in 0..30 {
            self.jobs_come().await?;
        }
        self.client.pause_queue("archive", Some("the archive's disk is being replaced")).await?;
        Ok(())
    }

    /// Has a worker take a job and never be heard of again.
    async fn lose_a_worker(&self) -> Result<(), Failure> {
        let held = ChangeQueue { orphan_policy: Some(Some(OrphanPolicy::Flag)), ..ChangeQueue::default() };
        self.client.change_queue("render", &held).await?;
        let mut job = SubmitJob::new("render", "shell");
        job.payload = Json::of(&shell("echo frame 0815")).ok();
        (job.expected_runtime_ms, job.owner) = (Some(1_000), Some("studio".to_owned()));
        self.client.submit(&job).await?;
        let claim = ClaimJobs {
            worker_id: LOST_WORKER.to_owned(),
            queues: vec!["render".to_owned()],
            lease_ms: Some(2_000),
            ..ClaimJobs::default()
        };
        self.client.claim(&claim).await?;
        Ok(())
    }

    /// Submits the next few jobs: most end well, some fail, some take long, and some are for later.
    async fn jobs_come(&mut self) -> Result<(), Failure> {
        for _ in 0..2 {
            self.made += 1;
            let made = self.made;
            let (queue, owner) = [("mail", "crm"), ("reports", "finance"), ("images", "studio"), ("archive", "ops")]
                [usize::try_from(made % 4).unwrap_or_default()];
            let line = match made % 11 {
                3 => "echo connecting; echo 'connection refused: db-3' >&2; exit 3".to_owned(),
                7 => "for part in 1 2 3 4 5 6 7 8 9; do echo part $part of 9; sleep 2; done".to_owned(),
                _ => format!("echo {queue} {made}; sleep 0.{}; echo done", made % 10),
            };
            let mut job = SubmitJob::new(queue, "shell");
            job.payload = Json::of(&shell(&line)).ok();
            job.owner = Some(owner.to_owned());
            job.labels = [("month".to_owned(), format!("2030-{:02}", made % 12 + 1))].into();
            (job.max_attempts, job.expected_runtime_ms) = (Some(1 + made % 3), Some(5_000));
            job.priority = i64::try_from(made % 5).ok();
            if made.is_multiple_of(13) {
                job.run_at = Some(SystemClock::default().now().plus(Duration::from_secs(3600)).to_rfc3339());
            }
            self.client.submit(&job).await?;
        }
        Ok(())
    }

    fn worker_comes(&mut self) -> Result<(), Failure> {
        let queues = ["--queue", "mail", "--queue", "reports", "--queue", "images", "--queue", "archive"];
        let options = ["worker", "--server", &self.url, "--slots", "2", "--drain-timeout", "1s"];
        self.workers.push(start(&self.place, "worker.log", &[&options[..], &queues].concat())?);
        Ok(())
    }

    /// Ends the workers and the server, by force those that do not end in time.
    async fn end(mut self) {
        for process in self.workers.iter().chain([&self.server]) {
            ask_to_end(process);
        }
        for process in self.workers.iter_mut().chain([&mut self.server]) {
            if tokio::time::timeout(ENDS_WITHIN, process.wait()).await.is_err() {
                drop(process.kill().await);
            }
        }
    }
}

/// The payload of a job that runs a line of the shell.
fn shell(line: &str) -> serde_json::Value {
    json!({"command": ["sh", "-c", line]})
}

/// Starts another process of this program in a folder, with none of this one's settings.
fn start(place: &Path, log: &str, arguments: &[&str]) -> Result<Child, Failure> {
    let cannot = |error: std::io::Error| Failure::Failed(format!("cannot start: {error}"));
    let log = std::fs::File::options().create(true).append(true).open(place.join(log)).map_err(cannot)?;
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"LEASEHOLD_")) {
        command.env_remove(name);
    }
    // Ctrl-C in the terminal is for this process, which ends the others in their order.
    command.process_group(0).env("XDG_CONFIG_HOME", place).current_dir(place);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
    command.spawn().map_err(cannot)
}

fn ask_to_end(process: &Child) {
    if let Some(pid) = process.id().and_then(|pid| i32::try_from(pid).ok()) {
        // One that has ended by itself needs no signal.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
}
