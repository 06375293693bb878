//! Makes a job for each file that matches a pattern, in the manner of GNU parallel.

use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;
use crate::worker::shell::CommandLine;

/// How many files one run takes at most.
const MAX_FILES: usize = 1_000_000;

/// A command with placeholders for a file's name.
#[derive(Clone, Debug)]
pub(super) struct Template {
    words: Vec<String>,
    shell: bool,
}

impl Template {
    /// Creates a command; one without a placeholder gets the file at its end. With `shell`, the words together are a
    /// line for `sh -c`.
    pub(super) fn new(mut words: Vec<String>, shell: bool) -> Self {
        if !words.iter().any(|word| has_place(word)) {
            words.push("{}".to_owned());
        }
        Self { words, shell }
    }

    /// Returns the command for the file with this number, from 1.
    pub(super) fn fill(&self, file: &str, number: usize) -> CommandLine {
        if self.shell {
            let line = self.words.join(" ");
            return CommandLine::Line(replace(&line, |place| value(place, file, number).map(|value| quote(&value))));
        }
        let fill = |word: &String| {
            let filled = replace(word, |place| value(place, file, number));
            // A file called `-f` must not become a flag.
            if filled.starts_with('-') && !word.starts_with('-') { format!("./{filled}") } else { filled }
        };
        CommandLine::Arguments(self.words.iter().map(fill).collect())
    }
}

/// Returns the files that match, each once, in the order of the patterns and then of their names.
pub(super) fn files(patterns: &[String]) -> Result<Vec<String>, Failure> {
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::new() };
    let mut files: Vec<String> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for pattern in patterns {
        let paths = glob::glob_with(pattern, options)
            .map_err(|error| Failure::Usage(format!("the pattern {pattern:?}: {error}")))?;
        for path in paths {
            let path =
                path.map_err(|error| Failure::Usage(format!("cannot read {}: {error}", error.path().display())))?;
            if path.is_file() && seen.insert(path.clone()) {
                files.push(as_text(path)?);
            }
            if files.len() > MAX_FILES {
                return Err(Failure::Usage(format!("more than {MAX_FILES} files match")));
            }
        }
    }
    if files.is_empty() {
        let patterns = patterns.join("`, `");
        return Err(Failure::Usage(format!(
            "no file matches `{patterns}`; put the pattern in quotes, so that it reaches this program and not the shell"
        )));
    }
    Ok(files)
}

fn as_text(path: PathBuf) -> Result<String, Failure> {
    path.into_os_string().into_string().map_err(|name| {
        Failure::Usage(format!("the name {} is not UTF-8, which a job cannot carry", name.to_string_lossy()))
    })
}

const PLACES: [&str; 6] = ["{}", "{.}", "{/}", "{//}", "{/.}", "{#}"];

fn has_place(word: &str) -> bool {
    PLACES.iter().any(|place| word.contains(place))
}

/// Returns the value of a placeholder.
fn value(place: &str, file: &str, number: usize) -> Option<String> {
    let path = Path::new(file);
    let name = || path.file_name().and_then(|name| name.to_str()).unwrap_or(file);
    match place {
        "{}" => Some(file.to_owned()),
        "{.}" => Some(without_extension(file, name()).to_owned()),
        "{/}" => Some(name().to_owned()),
        "{//}" => {
            let parent = path.parent().and_then(Path::to_str).filter(|parent| !parent.is_empty());
            Some(parent.unwrap_or(".").to_owned())
        }
        "{/.}" => Some(without_extension(name(), name()).to_owned()),
        "{#}" => Some(number.to_string()),
        _ => None,
    }
}

/// Returns `path` without the extension of the file's `name` at its end; a name that only begins with a dot has none.
fn without_extension<'a>(path: &'a str, name: &str) -> &'a str {
    match name.rfind('.') {
        Some(dot) if dot > 0 => &path[..path.len() - (name.len() - dot)],
        _ => path,
    }
}

/// Replaces the placeholders in one pass: values are not searched for placeholders.
fn replace(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        filled.push_str(&rest[..open]);
        rest = &rest[open..];
        let place = rest.find('}').map(|close| &rest[..=close]);
        match place.and_then(|place| value(place).map(|value| (place.len(), value))) {
            Some((length, value)) => {
                filled.push_str(&value);
                rest = &rest[length..];
            }
            None => {
                filled.push('{');
                rest = &rest[1..];
            }
        }
    }
    filled + rest
}

/// Quotes a word for the shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(template: &[&str], file: &str) -> Vec<String> {
        let template = Template::new(template.iter().map(|word| (*word).to_owned()).collect(), false);
        match template.fill(file, 7) {
            CommandLine::Arguments(words) => words,
            CommandLine::Line(line) => panic!("a line: {line}"),
        }
    }

    #[test]
    fn every_place_gets_its_part_of_the_name() {
        let places = ["{}", "{.}", "{/}", "{//}", "{/.}", "{#}"];
        assert_eq!(
            words(&places, "a/b.c/d.tar.gz"),
            ["a/b.c/d.tar.gz", "a/b.c/d.tar", "d.tar.gz", "a/b.c", "d.tar", "7"]
        );
        assert_eq!(words(&places, "plain"), ["plain", "plain", "plain", ".", "plain", "7"]);
        assert_eq!(words(&["{.}", "{/.}"], "a.b/.hidden"), ["a.b/.hidden", ".hidden"]);
    }

    #[test]
    fn places_stand_inside_words_and_other_braces_stay() {
        assert_eq!(words(&["x{}y{.}z", "{a}", "{", "{{}}"], "f.g"), ["xf.gyfz", "{a}", "{", "{f.g}"]);
    }

    #[test]
    fn a_command_without_a_place_gets_the_file_at_its_end() {
        assert_eq!(words(&["wc", "-l"], "f"), ["wc", "-l", "f"]);
    }

    #[test]
    fn what_a_name_holds_is_never_taken_for_a_place_a_flag_or_shell_code() {
        assert_eq!(words(&["rm", "{}", "--name={}"], "-rf"), ["rm", "./-rf", "--name=-rf"]);
        assert_eq!(words(&["cat", "{}"], "{#} $(x).png"), ["cat", "{#} $(x).png"]);
        let template = Template::new(vec!["wc <".to_owned(), "{}".to_owned(), "> {.}.n".to_owned()], true);
        let line = template.fill("it's; rm -rf .x", 1);
        assert_eq!(line, CommandLine::Line(r"wc < 'it'\''s; rm -rf .x' > 'it'\''s; rm -rf '.n".to_owned()));
    }

    #[test]
    fn files_are_found_in_order_and_no_match_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["b.png", "a.png", "c.txt", ".hidden.png"] {
            std::fs::write(directory.path().join(name), "").expect("written");
        }
        std::fs::create_dir(directory.path().join("d.png")).expect("made");
        let pattern = |name: &str| directory.path().join(name).to_str().expect("text").to_owned();
        let found = files(&[pattern("*.png"), pattern("a*")]).expect("found");
        assert_eq!(found, [pattern("a.png"), pattern("b.png")]);
        assert!(matches!(files(&[pattern("*.gif")]), Err(Failure::Usage(said)) if said.contains("no file matches")));
    }
}
