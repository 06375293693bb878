//! The worker's restart in place: on SIGHUP, and when it has come to take too much memory.

use std::io::IsTerminal as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};

use super::readiness;
use super::telling::Telling;
use crate::cli::failure::Failure;
use crate::worker::{Stop, StopHandle};

/// How often the memory is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// This program, and whether it is to start again in this process once the worker has ended.
#[derive(Clone, Debug)]
pub(super) struct Restart {
    program: PathBuf,
    is_wanted: Arc<AtomicBool>,
    stop: StopHandle,
    /// Held until the reason of a restart is logged.
    logging: Arc<Mutex<()>>,
}

impl Restart {
    /// Takes note of where this program is: another one may take its place there before the restart.
    pub(super) fn prepare(stop: StopHandle) -> Result<Self, Failure> {
        let program =
            std::env::current_exe().map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
        Ok(Self { program, is_wanted: Arc::default(), stop, logging: Arc::default() })
    }

    /// Returns the path of this program.
    pub(super) const fn program(&self) -> &PathBuf {
        &self.program
    }

    /// Returns whether the program is to start again.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Has the program start again once the running jobs have ended, and logs the reason: after the worker has stopped
    /// taking jobs, and before the program starts again.
    fn request(&self, log: impl FnOnce()) {
        let _logging = self.logging.lock();
        self.is_wanted.store(true, Ordering::Relaxed);
        readiness::restarting();
        self.stop.request(Stop::Drain);
        log();
    }

    /// Restarts at SIGHUP. A worker in a terminal stops instead, since the terminal is gone.
    pub(super) fn on_hangup(&self) -> Result<(), Failure> {
        let cannot = |error| Failure::Failed(format!("cannot listen for signals: {error}"));
        let mut hangups = signal(SignalKind::hangup()).map_err(cannot)?;
        let (restart, is_in_terminal) = (self.clone(), std::io::stdin().is_terminal());
        tokio::spawn(async move {
            if hangups.recv().await.is_none() {
                return;
            }
            if is_in_terminal {
                restart.stop.request(Stop::Drain);
                tracing::info!("the terminal is gone; stopping once the running jobs have ended");
            } else {
                restart.request(|| tracing::info!("restarting once the running jobs have ended"));
            }
            while hangups.recv().await.is_some() {}
        });
        Ok(())
    }

    /// Restarts when the resident memory of this process is above `bytes` after a job. One that takes more without
    /// having worked would take as much after a restart.
    pub(super) fn above(&self, bytes: u64, telling: Arc<Telling>) {
        let restart = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(resident) = resident_bytes() else { continue };
                if resident > bytes && telling.has_worked() {
                    return restart.request(|| {
                        tracing::info!(
                            resident,
                            max = bytes,
                            "above --max-memory; restarting once the jobs have ended"
                        );
                    });
                }
            }
        });
    }

    /// Starts the program again in this process, with the same arguments. Returns only when that fails.
    pub(super) fn exec(&self) -> Failure {
        let _logged = self.logging.lock();
        let error = Command::new(&self.program).args(std::env::args_os().skip(1)).exec();
        Failure::Failed(format!("cannot start {} again: {error}", self.program.display()))
    }
}

/// Returns the resident memory of this process; `None` where the system does not say it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
