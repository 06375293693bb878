//! Tells whoever supervises the worker that it is ready, and that it stops: by a file, and by systemd's `sd_notify`
//! protocol, which is a datagram to the socket that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use crate::client::Client;

/// How long the worker waits before it asks again whether the server is ready.
const PAUSE: Duration = Duration::from_millis(500);

/// Tells of the worker's readiness, until it is dropped.
pub(super) struct Readiness {
    file: Option<PathBuf>,
    _waiting: AbortOnDropHandle<()>,
}

impl Readiness {
    /// Tells that the worker is ready once its server is.
    pub(super) fn tell(client: Client, file: Option<PathBuf>) -> Self {
        let written = file.clone();
        let waiting = tokio::spawn(async move {
            let client = client.with_max_retries(0);
            // Ends with the server's first good answer, or with the worker.
            while client.ready().await.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
            if let Some(file) = written
                && let Err(error) = std::fs::write(&file, format!("{}\n", std::process::id()))
            {
                tracing::warn!(%error, file = %file.display(), "the readiness file cannot be written");
            }
            notify("READY=1\nSTATUS=working");
        });
        Self { file, _waiting: AbortOnDropHandle::new(waiting) }
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // It is not there if the worker was never ready.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Tells the supervisor that the worker stops.
pub(super) fn stopping() {
    notify("STOPPING=1\nSTATUS=waiting for running jobs");
}

/// Tells the supervisor that the worker waits for its jobs before it starts itself again.
pub(super) fn restarting() {
    notify("STATUS=restarting once the running jobs have ended");
}

fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, state) {
        tracing::debug!(%error, "the supervisor cannot be told");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_reads_what_is_told() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("notify");
        let supervisor = UnixDatagram::bind(&path).expect("a socket");
        send(path.as_os_str(), "READY=1").expect("sent");
        let mut told = [0; 64];
        let length = supervisor.recv(&mut told).expect("received");
        assert_eq!(&told[..length], b"READY=1");
    }
}
