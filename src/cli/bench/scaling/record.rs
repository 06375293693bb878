//! What a measurement leaves: its rows, a plot, and how they were obtained.

use std::fs;
use std::path::Path;

use super::plot;
use super::row::Row;
use crate::cli::failure::Failure;
use crate::clock::{Clock, SystemClock};
use crate::job::shell::quote;

/// Writes everything to a directory, which is made if it is not there.
pub(super) fn write(directory: &Path, rows: &[Row], table: &str, elasticsearch: &str) -> Result<(), Failure> {
    let lines: Vec<String> = rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    let cannot = |error| Failure::Failed(format!("cannot write to {}: {error}", directory.display()));
    let write = |name: &str, text: String| fs::write(directory.join(name), text).map_err(cannot);
    fs::create_dir_all(directory).map_err(cannot)?;
    write("scaling.jsonl", lines.join("\n") + "\n")?;
    write("scaling.svg", plot::svg(rows))?;
    write("scaling.txt", format!("{}\n\n{table}\n", how(elasticsearch)))
}

/// Says how the rows were obtained.
fn how(elasticsearch: &str) -> String {
    let arguments: Vec<String> = std::env::args().skip(1).map(|argument| without_password(&argument)).collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |path: &str, name: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':'));
        line.map_or_else(|| "unknown".to_owned(), |value| value.trim().to_owned())
    };
    let facts = [
        ("command", format!("leasehold {}", arguments.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" "))),
        ("date", SystemClock::default().now().to_rfc3339()),
        ("version", format!("leasehold {}, Elasticsearch {elasticsearch}", env!("CARGO_PKG_VERSION"))),
        ("build", if cfg!(debug_assertions) { "without optimisation" } else { "release" }.to_owned()),
        ("processor", format!("{cores} × {}, for all processes", read("/proc/cpuinfo", "model name"))),
        ("memory", read("/proc/meminfo", "MemTotal")),
        ("load", fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned() + ", at the end"),
    ];
    facts.map(|(name, value)| format!("{name:<12}{value}")).join("\n")
}

/// Leaves out user and password of an argument's URLs.
fn without_password(argument: &str) -> String {
    let without = |url: &str| match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    };
    argument.split(',').map(without).collect::<Vec<_>>().join(",")
}

#[test]
fn what_is_written_down_has_no_password() {
    let arguments = ["--elasticsearch-url=https://elastic:s3cret@es-1:9200,http://es-2", "a@b", "--naive"];
    let written = ["--elasticsearch-url=https://es-1:9200,http://es-2", "a@b", "--naive"];
    assert_eq!(arguments.map(without_password), written);
}
