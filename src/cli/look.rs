//! How answers look to people: the width and the colours of tables, and how times are written.

use std::io::{IsTerminal as _, stdout};
use std::sync::OnceLock;

use anstream::AutoStream;
use clap::{ArgMatches, Args, ColorChoice, ValueEnum};

use super::failure::Failure;
use crate::clock::{Clock as _, SystemClock, Timestamp, relative};
use crate::query::kql::Zone;
use crate::schedule::parse_zone;

/// The width that is assumed of a terminal that does not know its own.
const USUAL_WIDTH: usize = 80;

/// The options of what is printed, which every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct LookArgs {
    /// Show times in tables as distances from now, or as dates
    #[arg(long, global = true, value_enum, default_value_t = Times::Relative, hide_possible_values = true)]
    time: Times,
    /// The time zone of the times that are shown, and of those in a query that name none, such as Europe/Berlin or
    /// +02:00 [default: UTC]
    #[arg(long, global = true, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Color the states of jobs: auto, always or never. Auto looks at the terminal, NO_COLOR and CLICOLOR_FORCE
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto, hide_possible_values = true)]
    color: ColorChoice,
}

/// How times are shown in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Times {
    /// As the distance from now: `3m ago`, `in 2h`
    Relative,
    /// As a date and time
    Absolute,
}

/// What an answer is printed as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// A table or a page for people
    #[default]
    Table,
    /// A table with all columns, whole ids and whole texts
    Wide,
    /// JSON, one line per item
    Json,
    /// YAML, one document per item
    Yaml,
    /// The ids or names, one per line
    Name,
}

/// The id of the option that chooses the [`Output`] of a command.
pub(super) const OUTPUT: &str = "output_format";

/// How an answer looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// The number of columns of the terminal; `None` where there is none.
    pub(super) width: Option<usize>,
    /// Whether words are coloured.
    pub(super) colors: bool,
    /// Whether all columns are shown as wide as they are.
    pub(super) wide: bool,
    /// How times are shown in tables.
    pub(super) times: Times,
    /// The zone of the times that are shown.
    pub(super) zone: Zone,
    /// The time from which distances count.
    pub(super) now: Timestamp,
}

/// How this process prints, as its command line says.
static CHOSEN: OnceLock<Look> = OnceLock::new();

/// Keeps what the command line says for all that is printed.
pub(super) fn choose(args: &LookArgs, matches: &ArgMatches) -> Result<(), Failure> {
    let zone = match &args.time_zone {
        Some(text) => zone_of(text)?,
        None => Zone::default(),
    };
    match args.color {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
    let look = Look { times: args.time, zone, wide: output_of(matches) == Output::Wide, ..Look::of_output() };
    // Chosen once; a second choice would be a mistake of the program and changes nothing.
    let _ = CHOSEN.set(look);
    Ok(())
}

/// Parses a zone as queries and schedules take it, so that what either refuses is refused with its words.
fn zone_of(text: &str) -> Result<Zone, Failure> {
    let place = || parse_zone(text).map(Zone::of);
    Zone::parse(text).map_or_else(place, Ok).map_err(|why| Failure::Usage(format!("--time-zone: `{text}` {why}")))
}

/// Returns the output that the innermost command was given.
fn output_of(matches: &ArgMatches) -> Output {
    match matches.subcommand() {
        Some((_, inner)) => output_of(inner),
        None => matches.try_get_one(OUTPUT).ok().flatten().copied().unwrap_or_default(),
    }
}

impl Look {
    /// Returns how standard output looks: as the command line says, at the present width of the terminal.
    pub(super) fn get() -> Self {
        let now = SystemClock::default().now();
        CHOSEN.get().map_or_else(Self::of_output, |look| Self { now, width: width(), ..*look })
    }

    fn of_output() -> Self {
        Self {
            width: width(),
            colors: AutoStream::choice(&stdout()) != anstream::ColorChoice::Never,
            wide: false,
            times: Times::Relative,
            zone: Zone::default(),
            now: SystemClock::default().now(),
        }
    }

    /// Formats a time for a table.
    pub(super) fn time(&self, at: Timestamp) -> String {
        match self.times {
            Times::Relative => relative(at, self.now),
            Times::Absolute => self.zone.write(at),
        }
    }
}

/// Formats a time for a table, as the command line says.
pub(super) fn time(at: Timestamp) -> String {
    Look::get().time(at)
}

/// Formats a date and time, in the zone that the command line names.
pub(super) fn date(at: Timestamp) -> String {
    CHOSEN.get().map_or_else(|| at.to_rfc3339(), |look| look.zone.write(at))
}

fn width() -> Option<usize> {
    if !stdout().is_terminal() {
        return None;
    }
    let said = crossterm::terminal::size().map_or(0, |(columns, _)| usize::from(columns));
    Some(if said == 0 { USUAL_WIDTH } else { said })
}

#[cfg(test)]
impl Look {
    /// A look for tests.
    pub(super) fn plain(width: Option<usize>) -> Self {
        let now = Timestamp::from_millis(10_000_000_000);
        Self { width, colors: false, wide: false, times: Times::Relative, zone: Zone::default(), now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_by_its_distance_or_in_a_zone() {
        let look = Look::plain(None);
        let at = |seconds: i64| Timestamp::from_millis(look.now.as_millis() + seconds * 1000);
        let shown: Vec<String> =
            [0, -3, -119, -180, 7_199, -86_400, 400_000, -100_000_000].map(|seconds| look.time(at(seconds))).to_vec();
        assert_eq!(shown, ["0s ago", "3s ago", "119s ago", "3m ago", "in 2h", "24h ago", "in 5d", "3y ago"]);
        let zone = Zone::parse("Europe/Berlin").expect("a zone");
        let look = Look { times: Times::Absolute, zone, ..look };
        assert_eq!(look.time(at(0)), "1970-04-26T18:46:40.000+01:00");
        assert_eq!(Look { zone: Zone::default(), ..look }.time(at(0)), "1970-04-26T17:46:40.000Z");
    }
}
