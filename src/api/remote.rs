//! The other end of a connection, as far as it is known. It is among the extensions of each request.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::budget::Share;

/// The other end of a connection.
#[derive(Debug)]
pub(super) struct Remote {
    address: IpAddr,
    /// Whether a call on this connection has shown whose it is.
    is_known: AtomicBool,
    /// The connection's share of those of which that is not known.
    share: Mutex<Option<Share>>,
}

impl Remote {
    /// Describes the other end at this address, with the share that it has until it is known.
    pub(super) fn new(address: IpAddr, share: Option<Share>) -> Self {
        Self { address: address.to_canonical(), is_known: AtomicBool::new(false), share: Mutex::new(share) }
    }

    pub(super) const fn address(&self) -> IpAddr {
        self.address
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Takes note of that it has shown who it is, or is gone.
    pub(super) fn known(&self) {
        if !self.is_known.swap(true, Ordering::Relaxed) {
            let share = self.share.lock().take();
            drop(share);
        }
    }
}
