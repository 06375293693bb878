//! `leasehold export`: any number of jobs, one per line.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use tempfile::NamedTempFile;

use super::failure::Failure;
use super::filter::ListingArgs;
use super::output::complain;
use super::server::ServerArgs;
use super::settings::Settings;
use crate::client::Export;

/// Export all jobs that match, one per line of JSON
///
/// A file gets its name once the export is complete: after a failure there is none. On standard output, the exit status
/// tells whether the export is complete. Ordered by a field that does not change meanwhile, each job comes once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold export 'finished_at >= now-1d/d' -o yesterday.ndjson
  leasehold export 'state: failed' --fields id,error.code,labels.team")]
pub(super) struct ExportArgs {
    #[command(flatten)]
    jobs: ListingArgs,
    /// Export the values of `env` and the addresses too, which needs the role `admin`; the audit keeps who asked
    #[arg(long)]
    reveal: bool,
    /// Write to this file, which appears once the export is complete
    #[arg(long, short, value_name = "FILE", env = "LEASEHOLD_EXPORT_FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Exports the jobs.
pub(super) async fn run(args: ExportArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.server.connect(&settings.client)?;
    let (query, fields) = (args.jobs.query(), &args.jobs.fields);
    let export = match args.reveal {
        true => client.revealed_export(&query, fields).await?,
        false => client.export(&query, fields).await?,
    };
    let Some(path) = args.output else {
        copy(export, &mut io::stdout().lock()).await?;
        return Ok(());
    };
    let failed = |error: io::Error| Failure::Failed(format!("cannot write {}: {error}", path.display()));
    let mut file = beside(&path).map_err(failed)?;
    let jobs = copy(export, file.as_file_mut()).await.map_err(|error| match error {
        Failure::OutputClosed => failed(io::ErrorKind::BrokenPipe.into()),
        other => other,
    })?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(&path).map_err(|error| failed(error.error))?;
    // So that the name outlives a power cut as well.
    File::open(directory_of(&path)).and_then(|directory| directory.sync_all()).map_err(failed)?;
    complain(&format!("{jobs} jobs in {}", path.display()));
    Ok(())
}

/// Creates a temporary file in the directory of this one, whose name it can be given.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let permissions = Permissions::from_mode(0o666);
    tempfile::Builder::new().prefix(".leasehold-export-").permissions(permissions).tempfile_in(directory_of(path))
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Writes all jobs. Returns the number of lines.
async fn copy(mut export: Export, out: &mut impl Write) -> Result<usize, Failure> {
    let mut lines = 0;
    while let Some(bytes) = export.next().await? {
        out.write_all(&bytes)?;
        lines += bytes.iter().filter(|byte| **byte == b'\n').count();
    }
    out.flush()?;
    Ok(lines)
}
