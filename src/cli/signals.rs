//! SIGTERM and Ctrl-C: the first requests a graceful stop, the second an immediate one. SIGHUP, where a command asks
//! for it, requests a graceful one as the first of them, and nothing after one: a terminal that is closed sends it, and
//! so does the shell in it.

use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::failure::{ExitStatus, Failure};
use crate::worker::{Stop, StopHandle};

/// Receives signals for as long as the process lives.
#[derive(Clone, Debug, Default)]
pub(super) struct Signals {
    stop: StopHandle,
    /// The exit status for the first signal.
    first: Arc<OnceLock<ExitStatus>>,
    /// Cancelled at the signal that requests an immediate stop.
    second: CancellationToken,
}

impl Signals {
    /// Starts to listen. `on_stop` is called at each signal with how urgent the stop has become.
    pub(super) fn listen(on_stop: impl Fn(Stop) + Send + Sync + 'static) -> Result<Self, Failure> {
        Self::listen_with(Arc::new(on_stop))
    }

    /// Starts to listen also to SIGHUP, unless this process was started with that ignored, as `nohup` does.
    pub(super) fn listen_also_to_hangup(on_stop: impl Fn(Stop) + Send + Sync + 'static) -> Result<Self, Failure> {
        let on_stop = Arc::new(on_stop);
        // Before a handler takes its place.
        let is_ignored = is_hangup_ignored();
        let signals = Self::listen_with(on_stop.clone())?;
        if !is_ignored {
            let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
            let receiver = signals.clone();
            tokio::spawn(async move {
                if hangup.recv().await.is_some() && receiver.first.set(ExitStatus::HungUp).is_ok() {
                    receiver.stop.request(Stop::Drain);
                    on_stop(Stop::Drain);
                }
                while hangup.recv().await.is_some() {}
            });
        }
        Ok(signals)
    }

    fn listen_with(on_stop: Arc<impl Fn(Stop) + Send + Sync + 'static>) -> Result<Self, Failure> {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
        let signals = Self::default();
        let receiver = signals.clone();
        tokio::spawn(async move {
            loop {
                let status = next(&mut interrupt, &mut terminate).await;
                // After a hangup this is the second one.
                let stop = if receiver.first.set(status).is_ok() { Stop::Drain } else { Stop::Now };
                receiver.stop.request(stop);
                on_stop(stop);
                if stop == Stop::Now {
                    receiver.second.cancel();
                    return;
                }
            }
        });
        Ok(signals)
    }

    /// Returns the handle that the signals stop.
    pub(super) fn stop(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Waits for the signal that requests an immediate stop.
    pub(super) async fn at_once(&self) {
        self.second.cancelled().await;
    }

    /// Returns the exit status for the first signal, if there was one.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        self.first.get().copied()
    }
}

async fn next(interrupt: &mut Signal, terminate: &mut Signal) -> ExitStatus {
    tokio::select! {
        _ = interrupt.recv() => ExitStatus::Interrupted,
        _ = terminate.recv() => ExitStatus::Terminated,
    }
}

fn cannot(error: std::io::Error) -> Failure {
    Failure::Failed(format!("cannot listen for signals: {error}"))
}

/// Returns whether this process was started with SIGHUP ignored.
#[cfg(target_os = "linux")]
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The lowest bit is that of the first signal.
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

/// Returns whether this process was started with SIGHUP ignored: a process of its own inherits that, and lives on.
#[cfg(not(target_os = "linux"))]
fn is_hangup_ignored() -> bool {
    let shell = std::process::Command::new("sh").args(["-c", "kill -HUP $$; exit 0"]).status();
    shell.is_ok_and(|status| status.success())
}
