//! Jobs of kind `shell`: a command, run as a process group of its own.
//!
//! The payload is a [`ShellPayload`], the result a [`ShellResult`]. What holds:
//!
//! - A job is its process group and ends with its command: what the command leaves behind in its group is killed, so
//!   that nothing runs outside of a lease. A daemon that starts a session of its own escapes this.
//! - Ending an attempt early sends SIGTERM to the group and, if its command is still there after a grace, SIGKILL.
//! - The output is passed on while the command runs, and its last part is kept, in bounded memory, with its length.
//! - Standard input is empty.
//! - The worker's own settings, its token above all, are not in the command's environment.
//!
//! When the worker itself is killed with SIGKILL, it does not end its commands. Each carries the worker's [`Scope`] in
//! its environment; whoever notices the death, or takes the worker's place, calls [`Scope::end_leftovers`].

mod payload;
mod process;
mod scope;
mod tail;

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::FutureExt as _;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::process::{Child, Command};

pub use payload::{CommandLine, ShellPayload};
pub use process::{hide_settings, remove_settings};
pub use scope::{Leftovers, Scope};

use self::process::Group;
use self::tail::Capture;
use super::handler::{Attempt, Ending, Handler, HandlerError};
use crate::clock::millis;
use crate::job::{Json, Kind};
use crate::store::Stream;

/// The name of the kind of shell jobs.
pub const KIND: &str = "shell";
/// How long the end of the output is waited for after the command has ended, since an escaped process may hold the pipe
/// open. What can be read without a wait is read after that.
const LAST_OUTPUT: Duration = Duration::from_millis(200);
/// How often a command is tried that cannot be started for what the worker lacks, and how long after each other.
const SHORTAGE_TRIES: usize = 20;
const SHORTAGE_PAUSE: Duration = Duration::from_millis(250);
/// The time between two warnings of that.
const WARNS_EVERY: Duration = Duration::from_secs(60);
/// The most lines from the end of standard error in a failure's message.
const SHOWN_LINES: usize = 10;
/// The most bytes from the end of standard error in a failure's message.
const SHOWN_BYTES: usize = 2048;

/// Returns the kind of shell jobs.
///
/// # Panics
/// Never, since the name is valid.
#[must_use]
pub fn kind() -> Kind {
    Kind::new(KIND).expect("a good name")
}

/// The result of a shell job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShellResult {
    /// The command's exit code.
    pub exit_code: i32,
    /// The last 64 KiB of the command's standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// The last 64 KiB of the command's standard error; bytes that are not UTF-8 are replaced.
    pub stderr: String,
    /// The total number of bytes that the command wrote to standard output.
    pub stdout_bytes: u64,
    /// The total number of bytes that the command wrote to standard error.
    pub stderr_bytes: u64,
    /// How long the command took, in milliseconds.
    pub duration_ms: u64,
}

/// Runs the commands of shell jobs.
#[derive(Clone, Debug)]
pub struct ShellHandler {
    scope: Scope,
    grace: Duration,
    /// When it was last said that commands cannot be started for what the worker lacks.
    warned: Arc<Mutex<Option<Instant>>>,
}

impl ShellHandler {
    /// Creates a handler whose commands belong to `scope` and have `grace` between SIGTERM and SIGKILL.
    #[must_use]
    pub fn new(scope: Scope, grace: Duration) -> Self {
        Self { scope, grace, warned: Arc::default() }
    }

    /// Returns the handler in the form that workers take.
    #[must_use]
    pub fn shared(self) -> Arc<dyn Handler> {
        Arc::new(self)
    }

    fn command(&self, payload: &ShellPayload, attempt: &Attempt) -> Command {
        let (program, arguments) = payload.command.program_and_arguments();
        let mut command = Command::new(program);
        process::remove_settings(&mut command);
        command.args(arguments).envs(&payload.env);
        if let Some(cwd) = &payload.cwd {
            command.current_dir(cwd);
        }
        command
            .env("LEASEHOLD_JOB_ID", attempt.job.id.as_str())
            .env("LEASEHOLD_FENCE", attempt.job.fence.get().to_string())
            .env("LEASEHOLD_ATTEMPT", attempt.job.attempt.to_string())
            .env(scope::VARIABLE, self.scope.as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        command
    }
}

#[async_trait]
impl Handler for ShellHandler {
    async fn run(&self, mut attempt: Attempt) -> Result<Option<Json>, HandlerError> {
        let payload = ShellPayload::parse(attempt.job.payload.as_ref())
            .map_err(|why| HandlerError::permanent("payload", format!("the payload is not a command: {why}")))?;
        let begun = Instant::now();
        let mut child = self.start(&payload, &mut attempt).await?;
        let group = Group::of(&child);
        let pass_on = |stream| {
            let attempt = attempt.clone();
            move |chunk: &[u8]| attempt.write_output(stream, chunk)
        };
        let ready = || {
            let attempt = attempt.clone();
            move || {
                let attempt = attempt.clone();
                async move { attempt.output_ready().await }.boxed()
            }
        };
        let stdout = Capture::start(child.stdout.take(), ready(), pass_on(Stream::Stdout));
        let stderr = Capture::start(child.stderr.take(), ready(), pass_on(Stream::Stderr));

        let ended = self.wait(&mut child, &group, &mut attempt).await;
        group.kill();
        let (stdout, stderr) = tokio::join!(stdout.finish(LAST_OUTPUT), stderr.finish(LAST_OUTPUT));
        let (status, ending) =
            ended.map_err(|error| HandlerError::retryable("wait", format!("cannot wait for the command: {error}")))?;

        if status.success() && ending.is_none() {
            let result = ShellResult {
                exit_code: 0,
                stdout_bytes: stdout.total(),
                stderr_bytes: stderr.total(),
                stdout: stdout.into_text(),
                stderr: stderr.into_text(),
                duration_ms: millis(begun.elapsed()),
            };
            let json = Json::of(&result).map_err(|error| HandlerError::permanent("result", error.to_string()))?;
            return Ok(Some(json));
        }
        Err(HandlerError::retryable("exit", exit_message(status, &stderr.into_text())))
    }
}

impl ShellHandler {
    /// Starts the command. What the worker lacks for it, it may have a moment later, when other commands have ended; if
    /// it has not, the job is given back. Meanwhile the job keeps its place, so that a worker which stays short claims
    /// no more.
    async fn start(&self, payload: &ShellPayload, attempt: &mut Attempt) -> Result<Child, HandlerError> {
        for _ in 0..SHORTAGE_TRIES {
            match self.command(payload, attempt).spawn() {
                Err(error) if payload::is_shortage(&error) => {
                    if self.is_to_warn() {
                        tracing::warn!(%error, "no command can be started: tried again, and then given back");
                    }
                }
                started => return started.map_err(|error| payload.spawn_failure(&error)),
            }
            tokio::select! {
                () = tokio::time::sleep(SHORTAGE_PAUSE) => {}
                _ = attempt.ended() => break,
            }
        }
        self.command(payload, attempt).spawn().map_err(|error| payload.spawn_failure(&error))
    }

    /// Returns whether a shortage is to be written to the log now: once a minute.
    fn is_to_warn(&self) -> bool {
        let mut warned = self.warned.lock();
        let is_due = warned.is_none_or(|at| at.elapsed() >= WARNS_EVERY);
        if is_due {
            *warned = Some(Instant::now());
        }
        is_due
    }

    /// Waits for the command to end, by itself or because the attempt is ended. A command that was ended early counts
    /// as such even when it then exits with success, since it may have skipped a part of its work.
    async fn wait(
        &self,
        child: &mut Child,
        group: &Group,
        attempt: &mut Attempt,
    ) -> std::io::Result<(ExitStatus, Option<Ending>)> {
        let ending = tokio::select! {
            biased;
            status = child.wait() => return Ok((status?, None)),
            ending = attempt.ended() => ending,
        };
        group.terminate();
        if let Ok(status) = tokio::time::timeout(self.grace, child.wait()).await {
            return Ok((status?, Some(ending)));
        }
        group.kill();
        Ok((child.wait().await?, Some(ending)))
    }
}

/// Describes how the command ended, with its last lines of standard error.
fn exit_message(status: ExitStatus, stderr: &str) -> String {
    let how = process::describe(status);
    let said = last_lines(stderr);
    if said.is_empty() { how } else { format!("{how}: {said}") }
}

fn last_lines(text: &str) -> &str {
    let text = text.trim_end();
    let line_start = text.rmatch_indices('\n').nth(SHOWN_LINES - 1).map_or(0, |(at, _)| at + 1);
    let mut start = line_start.max(text.len().saturating_sub(SHOWN_BYTES));
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests;
