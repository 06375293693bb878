//! Leasehold from outside: against real servers, over real sockets.

mod servers;
mod store;
