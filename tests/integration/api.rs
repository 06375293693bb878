//! The HTTP API over real sockets: each server runs in the test's own process, on a loopback port, over an embedded
//! store in a directory of its own.

mod access;
mod addresses;
mod admin;
mod asking;
mod attribution;
mod browsers;
mod budgets;
mod calling;
mod clocks;
mod cluster_changes;
mod connections;
mod delivered;
mod denied;
mod deputies;
pub(crate) mod description;
mod encrypted;
mod events;
mod exactness;
mod failures;
mod forwarded;
mod heads;
mod lives;
mod members;
mod messages;
mod observed;
mod output;
mod peers;
mod queues;
mod reading;
mod refusals;
mod rights;
mod schedules;
pub(crate) mod server;
mod sessions;
