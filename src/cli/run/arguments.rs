//! The arguments of a run's jobs: from files, standard input, the command line, or the names of files here.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::find::find;
use super::template::Argument;
use crate::cli::failure::Failure;
use crate::cli::jobs;

/// How many jobs arguments make at most.
const MAX_JOBS: usize = 1_000_000;

/// A list of arguments.
#[derive(Clone, Debug)]
pub(super) enum List {
    /// The files that match patterns.
    Each(Vec<String>),
    /// The lines of a file.
    File(PathBuf),
    /// The lines of standard input, read to its end.
    Input(String),
    /// The values of the command line.
    Values(Vec<String>),
}

/// A list, and how it goes together with the one before.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) list: List,
    /// Whether each argument goes with the one at the same place of the list before, instead of with every one.
    pub(super) linked: bool,
}

impl List {
    /// Opens a file of arguments; `-` is standard input.
    pub(super) fn open(file: &Path) -> Result<Self, Failure> {
        match file == Path::new("-") {
            true => Ok(Self::Input(jobs::read_text(file)?)),
            false => Ok(Self::File(file.to_owned())),
        }
    }

    /// Returns what identifies the list from one start to the next.
    pub(super) fn identity(&self) -> Result<String, Failure> {
        Ok(match self {
            Self::Each(patterns) => format!("each {patterns:?}"),
            Self::File(file) => format!("lines of {}", place_of(file)?.display()),
            Self::Input(text) => format!("input {}", hash(&[text.as_bytes()])),
            Self::Values(values) => {
                let values: Vec<&[u8]> = values.iter().map(String::as_bytes).collect();
                format!("values {}", hash(&values))
            }
        })
    }

    fn arguments(&self, end: char) -> Result<Vec<Argument>, Failure> {
        let file = |text: String| Argument { text: text.into(), is_file: true };
        Ok(match self {
            Self::Each(patterns) => files(patterns)?.into_iter().map(file).collect(),
            Self::File(path) => entries(&jobs::read_text(path)?, end),
            Self::Input(text) => entries(text, end),
            Self::Values(values) => values.iter().map(|value| argument(value)).collect(),
        })
    }
}

fn argument(text: &str) -> Argument {
    Argument { text: text.into(), is_file: false }
}

/// Splits a text into its entries, of which each has this character at its end.
fn entries(text: &str, end: char) -> Vec<Argument> {
    // Some editors end a line with both characters.
    let entries = text.split_terminator(end);
    entries.map(|entry| argument(entry.strip_suffix('\r').filter(|_| end == '\n').unwrap_or(entry))).collect()
}

/// Separates a command from the sources that follow it: `:::` and values, `::::` and files, each with a `+` at its end
/// to link it with the source before.
pub(super) fn separate(words: &[String]) -> Result<(Vec<String>, Vec<Input>), Failure> {
    let is_sign = |word: &String| ["::::", "::::+", ":::", ":::+"].contains(&word.as_str());
    let first = words.iter().position(is_sign).unwrap_or(words.len());
    let (command, mut rest) = words.split_at(first);
    let mut inputs = Vec::new();
    while let Some((sign, after)) = rest.split_first() {
        let next = after.iter().position(is_sign).unwrap_or(after.len());
        let (values, following) = after.split_at(next);
        let linked = sign.ends_with('+');
        match sign.starts_with("::::") {
            true if values.is_empty() => return Err(Failure::Usage(format!("no file follows {sign}"))),
            true => {
                for file in values {
                    inputs.push(Input { list: List::open(Path::new(file))?, linked });
                }
            }
            false => inputs.push(Input { list: List::Values(values.to_vec()), linked }),
        }
        rest = following;
    }
    Ok((command.to_vec(), inputs))
}

/// Returns the arguments of each job: every combination of the sources' arguments, of which those of the last source
/// change fastest. `end` is what ends an argument in a file.
pub(super) fn combinations(inputs: &[Input], end: char) -> Result<Vec<Vec<Argument>>, Failure> {
    let mut rows: Vec<Vec<Argument>> = vec![Vec::new()];
    let mut groups: Vec<Vec<Vec<Argument>>> = Vec::new();
    for Input { list, linked } in inputs {
        let arguments = list.arguments(end)?;
        match groups.last_mut().filter(|_| *linked) {
            Some(group) => link(group, &arguments),
            None => groups.push(arguments.into_iter().map(|argument| vec![argument]).collect()),
        }
    }
    for group in &groups {
        if rows.len().saturating_mul(group.len()) > MAX_JOBS {
            return Err(Failure::Usage(format!("the arguments make more than {MAX_JOBS} jobs")));
        }
        rows = rows.iter().flat_map(|row| group.iter().map(|more| [&row[..], more].concat())).collect();
    }
    Ok(rows)
}

/// Adds an argument to each row. The shorter of the two begins again at its end, as it does for GNU parallel.
fn link(rows: &mut Vec<Vec<Argument>>, arguments: &[Argument]) {
    if rows.is_empty() || arguments.is_empty() {
        return rows.clear();
    }
    let length = rows.len().max(arguments.len());
    let linked = (0..length).map(|at| {
        let mut row = rows[at % rows.len()].clone();
        row.push(arguments[at % arguments.len()].clone());
        row
    });
    *rows = linked.collect();
}

/// Returns the files that match, each once, in the order of the patterns and then of their names.
fn files(patterns: &[String]) -> Result<Vec<String>, Failure> {
    let mut files: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    for pattern in patterns {
        find(pattern, &mut |path| {
            if seen.insert(path.clone()) {
                files.push(as_text(path)?);
            }
            match files.len() > MAX_JOBS {
                true => Err(Failure::Usage(format!("more than {MAX_JOBS} files match"))),
                false => Ok(()),
            }
        })?;
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

/// Returns where a file is, whatever the current directory.
pub(super) fn place_of(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| Failure::Usage(format!("cannot read {}: {error}", path.display())))
}

/// Returns a hash of the parts, separated from each other, in hexadecimal.
pub(super) fn hash(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.len().to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(words: &str) -> Vec<String> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let (command, inputs) = separate(&words).expect("good");
        assert_eq!(command, ["x"]);
        let rows = combinations(&inputs, '\n').expect("few");
        rows.iter().map(|row| row.iter().map(|argument| argument.text.as_ref()).collect()).collect()
    }

    #[test]
    fn several_sources_make_every_combination_and_linked_ones_go_side_by_side() {
        assert_eq!(rows("x ::: a b ::: c d"), ["ac", "ad", "bc", "bd"]);
        assert_eq!(rows("x ::: a b c :::+ d e f"), ["ad", "be", "cf"]);
        assert_eq!(rows("x ::: a b c :::+ d"), ["ad", "bd", "cd"]);
        assert_eq!(rows("x ::: a b :::+ c d ::: e f"), ["ace", "acf", "bde", "bdf"]);
        assert_eq!(rows("x :::").len() + rows("x ::: a :::").len(), 0);
    }

    #[test]
    fn an_empty_line_is_an_argument_and_the_end_of_a_text_is_none() {
        let texts = |text: &str, end| entries(text, end).iter().map(|entry| entry.text.to_string()).collect::<Vec<_>>();
        assert_eq!(texts("a\n\n b\n", '\n'), ["a", "", " b"]);
        assert_eq!(texts("a\nb\0c", '\0'), ["a\nb", "c"]);
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
