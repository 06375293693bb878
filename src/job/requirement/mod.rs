//! Requirements: what a job asks of the labels that a worker offers, such as `hw = fpga` or `build >= 42`.
//!
//! In reading order: `offered` (the labels), `definition` (what a requirement asks, and its normal form), `number`
//! (decimal numbers), `parse` (how a requirement is read), and `schema` (what the API's description says of both).

mod definition;
mod number;
mod offered;
mod parse;
mod schema;

pub use definition::Requirement;
pub use offered::{
    MAX_OFFERED, MAX_OFFERED_NAME, MAX_OFFERED_VALUE, OFFERED_NAME_PATTERN, Offers, is_offered_name, is_offered_value,
};
pub use parse::{InvalidRequirement, MAX_REQUIREMENT_BYTES};
pub(crate) use schema::OfferedLabels;

#[cfg(test)]
mod tests;
