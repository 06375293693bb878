//! The `leasehold` program. All it does is in [`leasehold::cli`].

use std::process::ExitCode;

/// Many small allocations on many threads are what a server of small jobs does all day. It asks for no huge pages
/// (`no_thp`): of the two buffers that each connection has, most is never touched, and then takes no memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    leasehold::cli::main()
}
