//! Finds the files that a pattern matches, as a shell does: `*`, `?` and `[…]` within a name, `**` for any folders.
//!
//! A name that is not UTF-8 is matched too, with its odd bytes replaced, so that it can be refused where a job would
//! need it and disturbs nobody where none does. (The matching of a single name is the `glob` crate's; its search of
//! folders panics beside such a name.)

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use glob::Pattern;

use crate::cli::failure::Failure;

/// How many folders deep files are looked for, and how many parts a pattern has at most: both are recursed over.
pub(super) const MAX_FOLDERS: usize = 256;

/// One part of a pattern, between two slashes.
enum Part {
    /// Exactly this name, or `.` or `..`.
    Name(String),
    /// Any name that matches. One that begins with a dot matches only a pattern that does.
    Match(Pattern),
    /// Any number of folders, also none.
    Folders,
}

/// Passes the files that match to `found`, each folder's in the order of their names, until it fails.
pub(super) fn find(pattern: &str, found: &mut dyn FnMut(PathBuf) -> Result<(), Failure>) -> Result<(), Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::Usage(format!("the pattern {pattern:?}: {error}"));
    let mut parts = Vec::new();
    for text in pattern.split('/').filter(|text| !text.is_empty()) {
        match text {
            "**" if matches!(parts.last(), Some(Part::Folders)) => {}
            "**" => parts.push(Part::Folders),
            _ if text.contains(['*', '?', '[']) => {
                parts.push(Part::Match(Pattern::new(text).map_err(|error| wrong(&error))?));
            }
            _ => parts.push(Part::Name(text.to_owned())),
        }
    }
    let root = if pattern.starts_with('/') { Path::new("/") } else { Path::new("") };
    descend(root, &parts, MAX_FOLDERS, found)
}

/// Finds what `parts` match below `folder`, at most so many folders `deep`.
fn descend(
    folder: &Path,
    parts: &[Part],
    deep: usize,
    found: &mut dyn FnMut(PathBuf) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some((first, rest)) = parts.split_first() else {
        return if folder.is_file() { found(folder.to_owned()) } else { Ok(()) };
    };
    let Some(deep) = deep.checked_sub(1) else {
        let what = format!("a pattern leads through more than {MAX_FOLDERS} folders: name some of them beside it");
        return Err(Failure::Usage(what));
    };
    match first {
        Part::Name(name) => descend(&folder.join(name), rest, deep, found)?,
        Part::Match(pattern) => {
            for name in names(folder)?.iter().filter(|name| matches(pattern, name)) {
                descend(&folder.join(name), rest, deep, found)?;
            }
        }
        Part::Folders => {
            for name in names(folder)? {
                let path = folder.join(&name);
                match rest {
                    [Part::Match(pattern), rest @ ..] if matches(pattern, &name) => descend(&path, rest, deep, found)?,
                    [Part::Name(wanted), rest @ ..] if name == wanted.as_str() => descend(&path, rest, deep, found)?,
                    _ => {}
                }
                if !is_hidden(&name) && path.is_dir() {
                    descend(&path, parts, deep, found)?;
                }
            }
        }
    }
    Ok(())
}

fn matches(pattern: &Pattern, name: &OsStr) -> bool {
    (pattern.as_str().starts_with('.') || !is_hidden(name)) && pattern.matches(&name.to_string_lossy())
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Returns the names in a folder, in order; none when it is no folder.
fn names(folder: &Path) -> Result<Vec<OsString>, Failure> {
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let read = || here.read_dir()?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<OsString>>>();
    match read() {
        Ok(mut names) => {
            names.sort();
            Ok(names)
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(Failure::Usage(format!("cannot read {}: {error}", here.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &str) -> Vec<String> {
        let mut paths = Vec::new();
        let mut keep = |path: PathBuf| {
            paths.push(path.to_string_lossy().into_owned());
            Ok(())
        };
        find(pattern, &mut keep).expect("found");
        paths
    }

    #[test]
    fn folders_and_names_match_as_in_a_shell() {
        let place = tempfile::tempdir().expect("a directory");
        for file in ["a.png", "b/c.png", "b/d/e.png", "b/d/f.txt", "g.png", ".h/i.png", ".j.png", "b/.k.png"] {
            let path = place.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, "").expect("written");
        }
        let base = place.path().to_str().expect("text");
        let below = |pattern: &str| -> Vec<String> {
            let all = found(&format!("{base}/{pattern}"));
            all.iter().map(|path| path[base.len() + 1..].to_owned()).collect()
        };
        assert_eq!(below("*.png"), ["a.png", "g.png"]);
        assert_eq!(below("**/*.png"), ["a.png", "b/c.png", "b/d/e.png", "g.png"]);
        assert_eq!(below("b/**/**/[ef].*"), ["b/d/e.png", "b/d/f.txt"]);
        assert_eq!(below("**/e.png"), ["b/d/e.png"]);
        assert_eq!(below("?/*/e.png"), ["b/d/e.png"]);
        assert_eq!(below(".*"), [".j.png"]);
        assert_eq!(below(".h/*.png"), [".h/i.png"]);
        assert_eq!(below("b/../a.png"), ["b/../a.png"]);
        assert_eq!(below("a.png/*").len() + below("nothing/*").len() + below("**").len() + below("b").len(), 0);
    }
}
