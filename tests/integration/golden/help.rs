//! The help of each command, the long one and the short one.

use std::path::Path;

use super::{Files, check};
use crate::program::leasehold;

/// Commands that the help of the one above them leaves out.
const HIDDEN: [&str; 1] = ["warden"];

#[test]
fn the_help_of_each_command_is_as_recorded() {
    let place = tempfile::tempdir().expect("a directory");
    let mut files = Files::new();
    add(place.path(), &[], &mut files);
    for hidden in HIDDEN {
        add(place.path(), &[hidden.to_owned()], &mut files);
    }
    check("help", &files);
}

/// Adds the help of a command and of all below it.
fn add(place: &Path, words: &[String], files: &mut Files) {
    let long = help(place, words, "--help");
    for name in commands(&long) {
        add(place, &[words, &[name]].concat(), files);
    }
    let name = [&["leasehold".to_owned()], words].concat().join("-");
    files.insert(format!("{name}.txt"), long);
    files.insert(format!("{name}.short.txt"), help(place, words, "-h"));
}

/// What a command says when it is asked by this flag.
fn help(place: &Path, words: &[String], flag: &str) -> String {
    let mut command = leasehold(place, words);
    command.arg(flag).env_clear().envs([("COLUMNS", "100"), ("TZ", "UTC")]).env("HOME", place);
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The commands that a help lists.
fn commands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    names.map(str::to_owned).collect()
}
