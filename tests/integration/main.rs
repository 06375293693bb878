//! Leasehold from outside: against real servers, over real sockets.

mod api;
mod servers;
