//! Leasehold from outside: against real servers, over real sockets.

mod proxy;
mod servers;
