//! Tests of the parts together, each with the real thing: real stores, real processes, real disks.

mod durability;
mod store;
