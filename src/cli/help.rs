//! `leasehold help` and `leasehold man`: the command line and the documentation, as text and as manual pages.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use clap_mangen::Man;

use super::failure::{EXIT_CODES, Failure};
use super::output::print;

/// The topics beside the commands, each with its page.
const TOPICS: [(&str, &str); 11] = [
    ("exit-codes", EXIT_CODES),
    ("kql", include_str!("../../docs/kql.md")),
    ("schedules", include_str!("../../docs/schedules.md")),
    ("output", include_str!("../../docs/output.md")),
    ("limits", include_str!("../../docs/limits.md")),
    ("unique", include_str!("../../docs/unique.md")),
    ("order", include_str!("../../docs/order.md")),
    ("notifications", include_str!("../../docs/notifications.md")),
    ("members", include_str!("../../docs/members.md")),
    ("operating", include_str!("../../docs/operating.md")),
    ("safety", include_str!("../../docs/safety.md")),
];

/// Show the help of a command, or a page about a topic
///
/// Topics: exit-codes, kql, schedules, output, limits, unique, order, notifications, members, operating, safety.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold help submit
  leasehold help schedule add
  leasehold help kql | less")]
pub(super) struct HelpArgs {
    /// A command, with the commands below it, or a topic
    #[arg(value_name = "COMMAND|TOPIC")]
    words: Vec<String>,
}

/// Prints the help of a part of the program's command line.
pub(super) fn run(args: &HelpArgs, program: clap::Command) -> Result<(), Failure> {
    if let [topic] = &args.words[..]
        && let Some((_, page)) = TOPICS.iter().find(|(name, _)| name == topic)
    {
        return print(without_comments(page).trim_end());
    }
    let mut found = built(program);
    for word in &args.words {
        let below = found.get_subcommands().find(|below| below.get_name() == word).cloned();
        found = below.ok_or_else(|| {
            let topics: Vec<&str> = TOPICS.iter().map(|(name, _)| *name).collect();
            Failure::Usage(format!(
                "there is no command `{}`, and no topic of that name: the topics are {}",
                args.words.join(" "),
                topics.join(", ")
            ))
        })?;
    }
    Ok(found.print_long_help()?)
}

/// Returns a page without its comments, which are for tests, and the empty line after each.
fn without_comments(page: &str) -> String {
    let mut kept = String::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("<!--") {
            lines.next_if(|next| next.is_empty());
        } else {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Write manual pages
///
/// Prints the manual page of the program, or writes that of every command into a folder.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold man | man -l -
  leasehold man --dir ~/.local/share/man/man1")]
pub(super) struct ManArgs {
    /// The folder for the pages, `leasehold.1`, `leasehold-submit.1` and so on; created where there is none
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

/// Prints or writes the pages of the program.
pub(super) fn man(args: ManArgs, program: clap::Command) -> Result<(), Failure> {
    let program = built(program);
    let Some(dir) = args.dir else {
        let mut page = Vec::new();
        Man::new(program).render(&mut page)?;
        return print(String::from_utf8_lossy(&page).trim_end());
    };
    fs::create_dir_all(&dir)
        .and_then(|()| write_pages(&program, &dir))
        .map_err(|error| Failure::Failed(format!("cannot write the manual pages to {}: {error}", dir.display())))
}

fn write_pages(command: &clap::Command, dir: &Path) -> std::io::Result<()> {
    Man::new(command.clone()).generate_to(dir)?;
    let below = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    below.into_iter().try_for_each(|below| write_pages(below, dir))
}

/// Returns the command line, in which every command knows its whole name.
fn built(mut program: clap::Command) -> clap::Command {
    program.build();
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    #[test]
    fn every_topic_is_named_in_the_help_and_is_no_command() {
        let program = command();
        let help = program.find_subcommand("help").expect("there").clone().render_long_help().to_string();
        for (topic, page) in TOPICS {
            assert!(help.contains(topic), "{topic}");
            assert!(program.find_subcommand(topic).is_none(), "{topic} is a command");
            assert!(!page.is_empty());
        }
    }

    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::tempdir().expect("a folder");
        write_pages(&built(command()), dir.path()).expect("written");
        for name in ["leasehold.1", "leasehold-submit.1", "leasehold-schedule-add.1"] {
            let page = fs::read_to_string(dir.path().join(name)).expect("a page");
            assert!(page.contains("leasehold"), "{name}: {page}");
        }
    }
}
