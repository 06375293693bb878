//! Leasehold from outside: against real servers, over real sockets.

mod architecture;
mod deployment;
mod engines;
mod manager;
mod proxy;
mod servers;
