//! The command line of `leasehold run`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nix::sys::resource::{Resource, getrlimit};

use super::halt::Halt;
use crate::cli::duration;
use crate::cli::size::SizeSetting;

const HOW_IT_WORKS: &str = "\
JOBS is a file, or `-` for standard input. Without a command each of its lines is one, for `sh -c`; a line that begins \
with a brace is JSON: {\"command\": [\"program\", \"argument\"]}, with \"env\", \"cwd\", \"timeout_ms\", \"priority\" \
and the like beside it, or a whole job as the HTTP API takes it. Blank lines and lines that begin with # are skipped. \
With one bad line nothing is run.

With a command after `--` each line of JOBS is an argument. Arguments also follow the command: `::: a b` are values, \
`:::: file` the lines of files. Several sources make every combination; `:::+` and `::::+` link one with the source \
before. --each takes the names of files.

In the command, {} is the argument, {.} the argument without extension, {/} its last part, {//} its directory, {/.} \
its last part without extension; {1}, {2}, {2/}, … are those of one source; {#} is the job's number, {%} that of its \
slot. A command without any of them gets the arguments at its end. No shell sees the command unless --shell is given. \
Then an argument comes as a variable, so that nothing in it is ever run: {} stands for \"$EACH\", and $EACH_STEM, \
$EACH_NAME, $EACH_DIR and $EACH_NAME_STEM are the others ($EACH1, $EACH2_STEM, … with several sources). Places must \
not stand in quotes; the variables may, in double ones.

State is kept in the data directory. A run has ended once each of its jobs is completed or has failed for good. The \
same command started again after that begins a new run, in which every job runs again. Before that it goes on where \
it was, even after kill -9 or a loss of power: what was completed is not run again, what was running runs again from \
its beginning, and what failed stays failed unless --retry-failed is given. A job is known by its line or command: \
of a changed file only new and changed lines run then, and jobs whose lines are gone are cancelled. --resume goes on \
also with a run that has ended, --fresh with none. In a job of Leasehold's own it goes on for another attempt of the \
same job only. What each attempt writes is in DIR/N/output, where N is the number of the run.

After the first Ctrl-C or SIGTERM no job starts and the running ones end; the second ends them at once. A terminal \
that is closed (SIGHUP) is as the first; under nohup the run goes on. Whatever ended it, the same command goes on \
later.

Output is passed on whole, as jobs end: what waits for its reader, or with -k for jobs before it, lies in the data \
directory, and a slow reader slows the jobs. What cannot be written is said with its job and bytes, and the exit \
status is 1. --output-limit is about the copy that is kept.

Examples:
  leasehold run jobs.txt
  generate-jobs | leasehold run - --jobs 8
  seq 3 | leasehold run - -- echo {}
  leasehold run --tag -- ping -c 1 ::: alpha beta
  leasehold run --dry-run -- convert {1} -resize {2} {1.}-{2}.webp ::: a.png b.png ::: 50% 25%
  leasehold run --each 'photos/*.png' -- convert {} {.}.webp
  leasehold run --each '*.log' --shell -- 'gzip -c {} > {}.gz'
  leasehold run --each '*.log' --shell -- 'gzip -c {} > \"/backup/$EACH_NAME.gz\"'
  leasehold run --halt now,fail=1 --retries 3 --timeout 10m jobs.txt";

/// Run a list of commands here, in parallel; the same command started again goes on where it was
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_WORKS, override_usage = "leasehold run [OPTIONS] [JOBS] [-- COMMAND... [::: VALUE...]]")]
pub(crate) struct RunArgs {
    /// A file of commands, jobs as JSON, or arguments for the command after `--`; `-` for standard input
    #[arg(value_name = "JOBS", conflicts_with = "each")]
    pub(super) source: Option<PathBuf>,
    /// Make a job for each file that matches this pattern (repeatable)
    #[arg(long, value_name = "PATTERN", requires = "command")]
    pub(super) each: Vec<String>,
    /// Run the command with `sh -c`
    #[arg(long, requires = "command")]
    pub(super) shell: bool,
    /// Arguments in files and standard input end with a NUL instead of a line's end, as `find -print0` writes them
    #[arg(long, short = '0', requires = "command")]
    pub(super) null: bool,
    /// How many jobs run at the same time: a number, `50%` of the cores, `+2` or `-1` beside them, or `0` for as many
    /// as possible [default: the number of cores]
    #[arg(long, short = 'j', visible_alias = "slots", value_name = "N", allow_hyphen_values = true)]
    pub(super) jobs: Option<Jobs>,
    /// Print the commands and run nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// The directory that keeps the state of the run [default: ./leasehold-data/run-<a hash of where the jobs come
    /// from>]
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,
    /// Run jobs of the last run again that failed
    #[arg(long, visible_alias = "resume-failed")]
    pub(super) retry_failed: bool,
    /// Go on with the last run also when it has ended, so that only new and changed lines run
    #[arg(long)]
    pub(super) resume: bool,
    /// Begin a new run also when the last one has not ended
    #[arg(long, conflicts_with_all = ["resume", "retry_failed"])]
    pub(super) fresh: bool,
    /// How many runs are kept, with what their jobs wrote; a new one removes the oldest
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) keep_runs: u64,
    /// How many attempts a job gets in all that does not say so itself
    #[arg(long, visible_alias = "retries", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) attempts: u64,
    /// The time limit of an attempt of a job that does not set one itself [default: none]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(super) timeout: Option<Duration>,
    /// When to end early: `now,fail=1` ends the running jobs at the first failure, `soon,fail=3` lets them end;
    /// `fail`, `success` or `done`, a number or a share of the jobs (`soon,fail=10%`)
    #[arg(long, value_name = "WHEN", default_value = "never")]
    pub(super) halt: Halt,
    /// Start the jobs in random order
    #[arg(long)]
    pub(super) shuf: bool,
    /// How nice the jobs are to other processes, from -20 to 19
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i8).range(-20..=19))]
    pub(super) nice: Option<i8>,
    /// Whose output is shown, whole, as jobs end [default: all, or none with --json]
    #[arg(long, value_enum, value_name = "WHICH", conflicts_with = "json")]
    pub(super) output: Option<Shown>,
    /// Show output in the order of the list, not in that in which jobs end
    #[arg(long, short = 'k')]
    pub(super) keep_order: bool,
    /// Begin each line of output with the arguments of its job
    #[arg(long)]
    pub(super) tag: bool,
    /// Write the output of each job to DIR/1/<argument>/stdout and stderr
    #[arg(long, value_name = "DIR")]
    pub(super) results: Option<PathBuf>,
    /// How much is kept of each stream that an attempt writes, also when all of it was shown; of more the middle is
    /// left out
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    pub(super) output_limit: SizeSetting,
    /// How long running jobs may go on after the first Ctrl-C, SIGTERM or SIGHUP [default: until they end]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(super) drain_timeout: Option<Duration>,
    /// How long a command has between SIGTERM and SIGKILL
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "5s")]
    pub(super) grace: Duration,
    /// Print a line of JSON for each job that ends, and one with the summary
    #[arg(long)]
    pub(super) json: bool,
    /// The command for each argument, and further arguments after `:::` or `::::`
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

/// The jobs whose output is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Shown {
    /// That of no job
    None,
    /// That of jobs that failed
    Failed,
    /// That of every job
    All,
}

/// How many jobs run at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Jobs {
    Number(u64),
    /// So many more than there are cores, or fewer.
    Beside(i64),
    /// A share of the cores.
    Percent(f64),
    Most,
}

/// How many files a running job holds open here: its two streams, and what is kept of them.
const FILES_OF_A_JOB: u64 = 6;
/// How many files are left for everything else.
const OTHER_FILES: u64 = 128;

impl Jobs {
    /// Returns the number of jobs that run at once, at least one, where `waiting` jobs are there.
    pub(super) fn count(self, cores: usize, waiting: usize) -> usize {
        let count = match self {
            Self::Number(number) => usize::try_from(number).unwrap_or(usize::MAX),
            Self::Beside(more) => usize::try_from(cores as i64 + more).unwrap_or(0),
            Self::Percent(share) => (cores as f64 * share / 100.0).round() as usize,
            Self::Most => usize::try_from(most_by_files()).unwrap_or(usize::MAX),
        };
        count.clamp(1, waiting.max(1))
    }
}

fn most_by_files() -> u64 {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    soft.saturating_sub(OTHER_FILES) / FILES_OF_A_JOB
}

impl FromStr for Jobs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match (text.strip_suffix('%'), text.starts_with(['+', '-'])) {
            (Some(share), _) => share.parse().ok().filter(|share| *share > 0.0 && *share <= 1e6).map(Self::Percent),
            (None, true) => text.parse().ok().filter(|more| (-1_000_000..=1_000_000).contains(more)).map(Self::Beside),
            (None, false) => {
                text.parse().ok().map(|number| if number == 0 { Self::Most } else { Self::Number(number) })
            }
        };
        parsed.ok_or_else(|| "it is a number, a share of the cores such as 50%, or +2 or -1 beside them".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_at_once_are_a_number_or_go_by_the_cores() {
        for (text, count) in [("3", 3), ("50%", 4), ("+2", 10), ("-1", 7), ("-99", 1), ("1%", 1), ("200%", 16)] {
            assert_eq!(text.parse::<Jobs>().expect(text).count(8, 100), count, "{text}");
        }
        assert_eq!("0".parse::<Jobs>().expect("most").count(8, 5), 5);
        for text in ["", "x", "%", "-50%", "1.5", "nan%"] {
            assert!(text.parse::<Jobs>().is_err(), "{text:?} was taken");
        }
    }
}
