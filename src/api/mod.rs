//! HTTP in, domain out.

pub mod wire;
