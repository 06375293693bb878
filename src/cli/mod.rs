//! The command line, one file per command. Beside them is what they share, in reading order: [`settings`] (flags over
//! environment over file), [`failure`] (how a command fails), [`server`] (how a server is called and its answers
//! printed), [`filter`], [`chosen`] and [`job_id`] (which jobs a command is about), [`output`], [`layout`], [`look`],
//! [`clean`], [`statistics`] and [`meter`] (what is printed, and how it looks), [`signals`], [`renewal`] (of tokens
//! while a server runs), [`host`] (what `serve` and `monitor` have in common), [`managing`] (what they do beside
//! answering calls), [`leading`] (when a member of a group does), [`cluster`] and [`members`] (how such processes call
//! each other) and [`engine`] (which store is opened).

mod accept_copy;
mod audit;
mod bench;
mod change;
mod chosen;
mod clean;
mod cluster;
mod cluster_status;
mod complete;
mod context;
mod count;
mod demo;
mod describe;
mod doctor;
mod duration;
mod edit_fields;
mod engine;
mod events;
mod executor;
mod explain;
mod export;
mod failure;
mod filter;
mod force_alone;
mod get;
mod help;
mod host;
mod job_id;
mod job_row;
mod jobs;
mod json_words;
mod kibana;
mod layout;
mod leading;
mod limit;
mod limits;
mod list;
mod log;
mod logs;
mod look;
mod managing;
mod many;
mod member_name;
mod members;
mod memory;
mod meter;
mod migrate;
mod monitor;
mod notify;
mod orphans;
mod output;
mod peer_secret;
mod performing;
mod permissions;
mod queue;
mod renewal;
mod run;
mod schedule;
mod serve;
mod server;
mod settings;
mod settled_file;
mod signals;
mod size;
mod statistics;
mod stats;
mod status;
mod submit;
mod subscription;
mod token;
mod top;
mod verify;
mod wait;
mod watch;
mod when;
mod worker;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::{ArgValueCompleter, CompleteEnv};

use failure::{EXIT_CODES, Failure};
use settings::Settings;

/// A batch job manager whose lock is a conditional write.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, max_term_width = 100, disable_help_subcommand = true, after_help = EXIT_CODES)]
struct Cli {
    /// Read settings from this TOML file
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Call the servers of this context, which `leasehold login` has kept [default: the current one]
    #[arg(long, global = true, value_name = "NAME", add = ArgValueCompleter::new(complete::contexts))]
    context: Option<String>,
    /// Trust the authorities in this PEM file too, beside those of the system
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Call servers and Kibana on other machines by this HTTP proxy, such as http://proxy.example:3128 [default: none,
    /// whatever HTTP_PROXY says]
    #[arg(long, global = true, value_name = "URL")]
    proxy: Option<String>,
    #[command(flatten)]
    look: look::LookArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Demo(demo::DemoArgs),
    Serve(serve::ServeArgs),
    Monitor(monitor::MonitorArgs),
    Executor(executor::ExecutorArgs),
    Worker(worker::WorkerArgs),
    #[command(hide = true)]
    Warden(worker::warden::WardenArgs),
    Submit(submit::SubmitArgs),
    Get(get::GetArgs),
    Describe(describe::DescribeArgs),
    List(list::ListArgs),
    Count(count::CountArgs),
    Stats(stats::StatsArgs),
    Export(export::ExportArgs),
    Wait(wait::WaitArgs),
    Watch(watch::WatchArgs),
    Logs(logs::LogsArgs),
    Cancel(change::CancelArgs),
    Retry(change::RetryArgs),
    Hold(change::HoldArgs),
    Unhold(change::UnholdArgs),
    Edit(change::EditArgs),
    RunNow(change::RunNowArgs),
    Rerun(change::RerunArgs),
    Delete(change::DeleteArgs),
    Orphans(orphans::OrphansArgs),
    Release(change::ReleaseArgs),
    Subscription(subscription::SubscriptionArgs),
    Explain(explain::ExplainArgs),
    Queue(queue::QueueArgs),
    Limit(limit::LimitArgs),
    Cluster(cluster_status::ClusterCommand),
    Workers(workers::WorkersArgs),
    Schedule(schedule::ScheduleArgs),
    Status(status::StatusArgs),
    Doctor(doctor::DoctorArgs),
    Top(top::TopArgs),
    Events(events::EventsArgs),
    Audit(audit::AuditArgs),
    Migrate(migrate::MigrateArgs),
    Verify(verify::VerifyArgs),
    Kibana(kibana::KibanaArgs),
    Token(token::TokenArgs),
    Bench(bench::BenchArgs),
    Login(context::LoginArgs),
    Context(context::ContextArgs),
    Completions(complete::CompletionsArgs),
    Man(help::ManArgs),
    Help(help::HelpArgs),
}

impl Command {
    /// Returns whether the command calls a server that a context may name.
    const fn calls_a_server(&self) -> bool {
        !matches!(
            self,
            Self::Run(_)
                | Self::Demo(_)
                | Self::Serve(_)
                | Self::Monitor(_)
                | Self::Executor(_)
                | Self::Warden(_)
                | Self::Migrate(_)
                | Self::Verify(_)
                | Self::Token(_)
                | Self::Bench(_)
                | Self::Login(_)
                | Self::Context(_)
                | Self::Completions(_)
                | Self::Man(_)
                | Self::Help(_)
        )
    }
}

/// Runs the program and returns its exit status.
#[must_use]
pub fn main() -> ExitCode {
    // Prints completions and ends the process when the shell requests them.
    CompleteEnv::with_factory(command).var(complete::VARIABLE).complete();
    let matches = command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match look::choose(&cli.look, &matches).and_then(|()| start(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Returns the command line, on which every flag with a value can be set in the environment as well.
fn command() -> clap::Command {
    with_environment(Cli::command())
}

fn with_environment(command: clap::Command) -> clap::Command {
    command.mut_args(or_environment).mut_subcommands(with_environment)
}

/// Lets a flag with a value be set by the variable `LEASEHOLD_` and its name, unless it names another.
fn or_environment(flag: Arg) -> Arg {
    // The filter of a bulk change, and new values of jobs, are given on the command line only.
    let selects_many = [many::HEADING, edit_fields::HEADING].map(Some).contains(&flag.get_help_heading());
    let is_exempt = selects_many || flag.get_env().is_some() || !flag.get_action().takes_values();
    match flag.get_long().map(variable) {
        Some(variable) if !is_exempt => flag.env(variable),
        _ => flag,
    }
}

fn variable(flag: &str) -> String {
    format!("LEASEHOLD_{}", flag.replace('-', "_").to_uppercase())
}

fn start(cli: Cli) -> Result<(), Failure> {
    let mut settings = Settings::read(cli.config.as_deref())?;
    if let Some(file) = cli.ca.as_deref().or(settings.ca.as_deref()) {
        settings::trust_also(file)?;
    }
    if let Some(proxy) = cli.proxy.as_deref().or(settings.proxy.as_deref()) {
        settings::call_by(proxy)?;
    }
    if cli.command.calls_a_server() {
        settings.client = context::apply(settings.client, cli.context.as_deref())?;
    }
    match cli.command {
        Command::Serve(args) => block_on(serve::run(args, settings)),
        Command::Monitor(args) => block_on(monitor::run(args, settings)),
        Command::Executor(args) => block_on(executor::run(args, settings)),
        Command::Worker(args) => block_on(worker::run(args, settings)),
        Command::Warden(args) => block_on(worker::warden::run(args)),
        Command::Run(args) => block_on(run::run(args)),
        Command::Demo(args) => block_on(demo::run(args)),
        Command::Submit(args) => block_on(submit::run(args, settings)),
        Command::Get(args) => block_on(get::run(args, settings)),
        Command::Describe(args) => block_on(describe::run(args, settings)),
        Command::Kibana(args) => block_on(kibana::run(args, settings)),
        Command::List(args) => block_on(list::run(args, settings)),
        Command::Count(args) => block_on(count::run(args, settings)),
        Command::Stats(args) => block_on(stats::run(args, settings)),
        Command::Export(args) => block_on(export::run(args, settings)),
        Command::Wait(args) => block_on(wait::run(args, settings)),
        Command::Watch(args) => block_on(watch::run(args, settings)),
        Command::Logs(args) => block_on(logs::run(args, settings)),
        Command::Cancel(args) => block_on(change::cancel(args, settings)),
        Command::Retry(args) => block_on(change::retry(args, settings)),
        Command::Hold(args) => block_on(change::hold(args, settings)),
        Command::Unhold(args) => block_on(change::unhold(args, settings)),
        Command::Edit(args) => block_on(change::edit(args, settings)),
        Command::RunNow(args) => block_on(change::run_now(args, settings)),
        Command::Rerun(args) => block_on(change::rerun(args, settings)),
        Command::Delete(args) => block_on(change::delete(args, settings)),
        Command::Orphans(args) => block_on(orphans::run(args, settings)),
        Command::Release(args) => block_on(change::release(args, settings)),
        Command::Subscription(args) => block_on(subscription::run(args, settings)),
        Command::Explain(args) => block_on(explain::run(args, settings)),
        Command::Limit(args) => block_on(limit::run(args, settings)),
        Command::Cluster(args) => block_on(cluster_status::run(args, settings)),
        Command::Queue(args) => block_on(queue::run(args, settings)),
        Command::Workers(args) => block_on(workers::run(args, settings)),
        Command::Schedule(args) => block_on(schedule::run(args, settings)),
        Command::Status(args) => block_on(status::run(args, settings)),
        Command::Doctor(args) => block_on(doctor::run(args, settings)),
        Command::Top(args) => block_on(top::run(args, settings)),
        Command::Events(args) => block_on(events::run(args, settings)),
        Command::Audit(args) => block_on(audit::run(args, settings)),
        Command::Migrate(args) => block_on(migrate::run(args, settings)),
        Command::Verify(args) => verify::run(args, settings),
        Command::Token(args) => token::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::Login(args) => block_on(context::login(args)),
        Command::Context(args) => context::run(args),
        Command::Completions(args) => complete::run(&args),
        Command::Man(args) => help::man(args, command()),
        Command::Help(args) => help::run(&args, command()),
    }
}

fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(command);
    // A thread that still blocks, such as on a read of standard input, must not delay the exit.
    runtime.shutdown_background();
    outcome
}

/// What recurses over what users give, for the test of all recursions.
#[cfg(test)]
pub(crate) mod recursion {
    pub(crate) const MAX_CELL_DEPTH: usize = super::list::MAX_CELL_DEPTH;
    pub(crate) const MAX_FOLDERS: usize = super::run::MAX_FOLDERS;

    pub(crate) fn cell(json: &str, field: &str) -> String {
        super::list::cell(json, field)
    }

    pub(crate) fn find(pattern: &str) -> Result<(), String> {
        super::run::find_none(pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_flag_with_a_value_has_its_environment_variable() {
        for command in command().get_subcommands().filter(|command| command.get_name() != "help") {
            for flag in command.get_arguments().filter(|flag| flag.get_long().is_some()) {
                let long = flag.get_long().expect("filtered");
                let named = flag.get_env().and_then(|name| name.to_str()).unwrap_or_default();
                // The filter of a bulk change is given on the command line only.
                let chooses = ["Many at once", "New values"].map(Some).contains(&flag.get_help_heading());
                // It is a file, where other commands have a format.
                let chooses = chooses || (command.get_name(), long) == ("export", "output");
                let exempt = ["help", "version"].contains(&long) || !flag.get_action().takes_values() || chooses;
                let expected = format!("LEASEHOLD_{}", long.replace('-', "_").to_uppercase());
                assert!(exempt || named == expected, "--{long} of {}: {named:?}", command.get_name());
            }
        }
    }
}
