//! Leasehold from outside: against real servers, over real sockets, on real disks.

mod api;
mod architecture;
mod cli;
mod deployment;
mod durability;
mod engines;
mod golden;
mod hold;
mod interference;
mod kibana;
mod kql;
mod load;
mod machine;
mod manager;
mod monitor;
mod notify;
mod page;
mod pages;
mod program;
mod proxy;
mod run;
mod scheduler;
mod screen;
mod seed;
mod servers;
mod store;
