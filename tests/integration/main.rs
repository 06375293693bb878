//! Leasehold from outside: against real servers, over real sockets.

mod architecture;
mod deployment;
mod proxy;
mod servers;
