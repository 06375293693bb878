//! Loopback ports that are free.
//!
//! A listener that was closed may be there for some milliseconds longer: a process that is being started has a copy of
//! every socket of this one until it runs its program.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::program::{DEADLINE, eventually};

/// Below the range from which systems give ports to outgoing connections: one that is free here is not taken a moment
/// later by a connection of some other test.
const FIRST: u16 = 15_000;
const COUNT: u16 = 15_000;

/// A free port that this process has not given out before.
pub(crate) fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes start at different places, so that they seldom try the same ones.
    let start = (std::process::id().wrapping_mul(7_919) % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (start + step) % COUNT;
        if is_free(port) {
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}

/// Whether nobody listens on `port`. It is asked for by a connection and not by a listener, of which a process that is
/// being started could have a copy: then the next one to listen there would find its port taken.
pub(crate) fn is_free(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let connected = TcpStream::connect_timeout(&address, Duration::from_secs(1));
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Listens at an address where nobody does any more, or will not in a moment.
pub(crate) async fn listen_again(address: SocketAddr) -> tokio::net::TcpListener {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match tokio::net::TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < deadline, "{address}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a listener that was closed refuses connections.
pub(crate) async fn closed(address: SocketAddr) {
    let refuses = async || {
        let connected = tokio::net::TcpStream::connect(address).await;
        connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    eventually("connections are refused", refuses).await;
}

mod tests {
    use std::net::TcpListener;
    use std::process::Command;
    use std::thread;

    use super::*;

    /// The processes are started by several threads, as those of other tests are.
    #[test]
    fn a_port_that_is_free_can_be_listened_on_while_processes_are_started() {
        const PORTS: usize = 500;
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        Command::new("true").status().expect("true runs");
                    }
                });
            }
            let taken: Vec<_> = (0..PORTS).filter_map(|_| TcpListener::bind(("127.0.0.1", free())).err()).collect();
            is_done.store(true, Ordering::Relaxed);
            assert!(taken.is_empty(), "{} of {PORTS}: {taken:?}", taken.len());
        });
    }
}
