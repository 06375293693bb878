//! SIGTERM and Ctrl-C: the first requests a graceful stop, the second an immediate one.

use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failure::{ExitStatus, Failure};
use crate::worker::{Stop, StopHandle};

/// Receives signals for as long as the process lives.
#[derive(Clone, Debug, Default)]
pub(super) struct Signals {
    stop: StopHandle,
    /// The exit status for the first signal.
    first: Arc<OnceLock<ExitStatus>>,
}

impl Signals {
    /// Starts to listen. `on_stop` is called at each signal with how urgent the stop has become.
    pub(super) fn listen(on_stop: impl Fn(Stop) + Send + 'static) -> Result<Self, Failure> {
        let cannot = |error| Failure::Failed(format!("cannot listen for signals: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
        let signals = Self::default();
        let receiver = signals.clone();
        tokio::spawn(async move {
            for stop in [Stop::Drain, Stop::Now] {
                let status = next(&mut interrupt, &mut terminate).await;
                receiver.first.get_or_init(|| status);
                receiver.stop.request(stop);
                on_stop(stop);
            }
        });
        Ok(signals)
    }

    /// Returns the handle that the signals stop.
    pub(super) fn stop(&self) -> StopHandle {
        self.stop.clone()
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
