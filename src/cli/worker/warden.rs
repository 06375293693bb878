//! The warden: a small process beside a worker that ends the worker's commands when the worker dies.
//!
//! It is this program again and waits at a pipe whose other end only the worker has. The system closes that end however
//! the worker ends; then the warden kills every process that carries the worker's scope, children of commands and
//! those that left their process group too. One warden serves all commands of a worker.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::failure::Failure;
use crate::worker::shell::Scope;

/// The name of the subcommand that is the warden.
const COMMAND: &str = "warden";
/// How long processes may take to end after SIGKILL.
const PATIENCE: Duration = Duration::from_secs(60);
/// When the warden looks a second time, since a command that was just being started has its scope only a moment later.
const AGAIN: Duration = Duration::from_millis(300);

/// End the commands of a worker once it has died; `leasehold worker` starts it
#[derive(Debug, Args)]
pub(crate) struct WardenArgs {
    /// The scope of the worker's commands
    scope: String,
}

/// A warden that watches over this process. It ends when this is dropped.
pub(super) struct Warden(Option<Child>);

impl Warden {
    /// Starts the warden of a scope. `program` is this program.
    pub(super) fn start(program: &Path, scope: &Scope) -> Self {
        let mut command = Command::new(program);
        command.arg(COMMAND).arg(scope.as_str()).env_clear().current_dir("/");
        // In a process group of its own, so that Ctrl-C does not end it before the worker.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        match command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn() {
            Ok(child) => Self(Some(child)),
            Err(error) => {
                tracing::warn!(%error, "nothing ends the commands of this worker when it is killed");
                Self(None)
            }
        }
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        if let Some(mut warden) = self.0.take() {
            drop(warden.stdin.take());
            // It finds nothing to end, as the worker has ended its commands itself.
            let _ = warden.wait();
        }
    }
}

/// Waits until the worker has died, and ends what it left.
pub(crate) async fn run(args: WardenArgs) -> Result<(), Failure> {
    let cannot = |error| Failure::Failed(format!("cannot listen for signals: {error}"));
    // Whoever stops a service signals all of its processes, and the worker needs its warden until it has stopped.
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    for listened in signals {
        let mut listened = listened.map_err(cannot)?;
        tokio::spawn(async move { while listened.recv().await.is_some() {} });
    }
    let died = tokio::task::spawn_blocking(|| {
        let mut pipe = std::io::stdin().lock();
        let mut bytes = [0; 64];
        // Nothing is ever written: it ends with the worker.
        while matches!(pipe.read(&mut bytes), Ok(1..)) {}
    });
    drop(died.await);
    let scope = Scope::new(&args.scope);
    scope.end_leftovers(PATIENCE).await;
    tokio::time::sleep(AGAIN).await;
    scope.end_leftovers(PATIENCE).await;
    Ok(())
}
