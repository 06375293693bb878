//! Leasehold from outside: against real servers, over real sockets.

mod architecture;
mod cli;
mod deployment;
mod engines;
mod manager;
mod program;
mod proxy;
mod run;
mod servers;
