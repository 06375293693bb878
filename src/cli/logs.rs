//! `leasehold logs`: shows what an attempt of a job wrote.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::complete;
use super::failure::{ExitStatus, Failure};
use super::job_id;
use super::output::{clean, complain, print_json};
use super::server::ClientArgs;
use super::settings::Settings;
use super::signals::Signals;
use crate::client::{Client, OutputQuery};
use crate::store::Stream;
use crate::store::output::left_out;
use crate::wire::{AttemptOutput, Job, OutputStream};
use crate::worker::Stop;

/// How long one call waits for more; the server allows a minute.
const ONE_CALL: Duration = Duration::from_secs(20);
/// The time between two looks at a job that has not been started yet.
const NOT_STARTED: Duration = Duration::from_secs(1);
/// How long one call waits for the next attempt of a job, or for its end.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

/// Show what an attempt of a job wrote
///
/// What the job wrote to standard output goes to standard output, and what it wrote to standard error goes there. Of
/// each, the first 64 KiB and the last 192 KiB are kept; a line says how much is left out between the two.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold logs my-job
  leasehold logs my-job --follow
  leasehold logs my-job --attempt 1 2>/dev/null")]
pub(super) struct LogsArgs {
    /// The id of the job
    #[arg(value_name = "ID", add = ArgValueCompleter::new(complete::job_ids))]
    id: String,
    /// The number of the attempt [default: the latest one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,
    /// The fence of the attempt, in the place of its number
    #[arg(long, value_name = "FENCE", conflicts_with = "attempt")]
    fence: Option<u64>,
    /// Show what comes until the attempt is over, and wait for a job that has not been started
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    answer: ClientArgs,
}

/// Prints the output of an attempt.
pub(super) async fn run(mut args: LogsArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    args.id = job_id::resolve(&client, &args.id).await?;
    let query = OutputQuery { attempt: args.attempt, fence: args.fence, ..OutputQuery::default() };
    let json = args.answer.json();
    if !args.follow {
        let output = client.output(&args.id, &query).await?;
        if args.answer.json() {
            return print_json(&output);
        }
        let mut printer = Printer::new();
        printer.print(&output)?;
        printer.close(&output);
        return Ok(());
    }
    let signals = Signals::listen(|_| {})?;
    let mut stopped = signals.stop().listen();
    tokio::select! {
        followed = follow(&client, &args.id, query, json) => followed.map(drop),
        () = stopped.reached(Stop::Drain) => {
            Err(Failure::Reported(signals.status().unwrap_or(ExitStatus::Interrupted)))
        }
    }
}

/// Prints what a job writes, attempt after attempt, until the job has ended, and returns the job.
pub(super) async fn follow_job(client: &Client, id: &str) -> Result<Job, Failure> {
    let mut followed = 0;
    // Ends with the job.
    loop {
        let output = client.output(id, &OutputQuery::default()).await?;
        if output.fence > followed {
            let query = OutputQuery { fence: Some(output.fence), ..OutputQuery::default() };
            followed = follow(client, id, query, false).await?;
        }
        let job = client.wait(id, BETWEEN_ATTEMPTS).await?;
        if job.state.is_final() && job.fence == followed {
            return Ok(job);
        }
    }
}

/// Prints output as it comes until the attempt is over, and returns the attempt's fence.
async fn follow(client: &Client, id: &str, mut query: OutputQuery, json: bool) -> Result<u64, Failure> {
    let mut printer = Printer::new();
    let mut has_said_why = false;
    loop {
        let output = client.output(id, &query).await?;
        query.wait = ONE_CALL;
        if output.fence == 0 {
            if !has_said_why {
                complain("leasehold: the job has not been started yet");
                has_said_why = true;
            }
            if client.job(id).await?.state.is_final() {
                return Ok(0);
            }
            tokio::time::sleep(NOT_STARTED).await;
            continue;
        }
        // The same attempt to its end, also when the job is started again meanwhile.
        (query.attempt, query.fence) = (None, Some(output.fence));
        if json {
            print_json(&output)?;
        } else {
            printer.print(&output)?;
        }
        for stream in &output.streams {
            match stream.stream {
                Stream::Stdout => query.stdout_from = stream.bytes.max(query.stdout_from),
                Stream::Stderr => query.stderr_from = stream.bytes.max(query.stderr_from),
            }
        }
        if !output.running {
            if !json {
                printer.close(&output);
            }
            return Ok(output.fence);
        }
    }
}

/// Writes the streams of an attempt to this process's own.
struct Printer {
    /// How far standard output and standard error have been printed, in bytes.
    printed: [u64; 2],
    /// Whether each is a terminal, which untrusted output must not control.
    is_terminal: [bool; 2],
}

impl Printer {
    fn new() -> Self {
        let is_terminal = [std::io::stdout().is_terminal(), std::io::stderr().is_terminal()];
        Self { printed: [0; 2], is_terminal }
    }

    fn print(&mut self, output: &AttemptOutput) -> Result<(), Failure> {
        for stream in &output.streams {
            match stream.stream {
                Stream::Stdout => self.print_stream(stream, &mut std::io::stdout().lock())?,
                Stream::Stderr => self.print_stream(stream, &mut std::io::stderr().lock())?,
            }
        }
        Ok(())
    }

    fn print_stream(&mut self, stream: &OutputStream, out: &mut impl Write) -> Result<(), Failure> {
        let is_terminal = self.is_terminal[stream.stream as usize];
        let printed = &mut self.printed[stream.stream as usize];
        for part in &stream.parts {
            let bytes = part.bytes();
            if part.offset > *printed {
                out.write_all(left_out(part.offset - *printed).as_bytes())?;
            }
            *printed = part.offset + bytes.len() as u64;
            if is_terminal {
                out.write_all(for_terminal(&String::from_utf8_lossy(&bytes)).as_bytes())?;
            } else {
                out.write_all(&bytes)?;
            }
        }
        Ok(out.flush()?)
    }

    /// Says what is missing at the end.
    fn close(&self, output: &AttemptOutput) {
        for stream in &output.streams {
            let printed = self.printed[stream.stream as usize];
            if stream.bytes > printed {
                complain(&format!(
                    "leasehold: the last {} bytes of {} are left out",
                    stream.bytes - printed,
                    stream.stream
                ));
            }
        }
        let is_cut = |stream: &&OutputStream| stream.bytes > 0 && !stream.ended;
        if !output.running && output.streams.iter().any(|stream| is_cut(&stream)) {
            complain("leasehold: the attempt's end was not heard; the last seconds of its output may be missing");
        }
        if output.fence > 0 && !output.running && output.streams.iter().all(|stream| stream.bytes == 0) {
            complain(&format!("leasehold: attempt {} wrote nothing, or nothing of it is kept", output.attempt));
        }
        if output.fence == 0 {
            complain("leasehold: the job has not been started yet");
        }
    }
}

/// Returns output as a terminal may show it: without what could control the terminal.
fn for_terminal(text: &str) -> String {
    clean(&text.replace("\r\n", "\n").replace('\r', "\n"))
}
