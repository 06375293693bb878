//! bench
use super::failure::Failure;
/// Measure
#[derive(Debug, clap::Args)]
pub(super) struct BenchArgs {}
pub(super) fn run(_args: BenchArgs) -> Result<(), Failure> {
    Ok(())
}
