//! Makes a job for each file that matches a pattern, in the manner of GNU parallel.
//!
//! What a file is called never becomes code: without `--shell` a name is a word or a part of one, and with it the line
//! is the same for all files and a name comes in a variable of the command's environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::find::find;
use crate::cli::failure::Failure;
use crate::worker::shell::{CommandLine, ShellPayload};

/// How many files one run takes at most.
const MAX_FILES: usize = 1_000_000;
/// The shells whose option `-c` takes code.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ksh", "zsh", "busybox"];
/// The place of a file's number.
const NUMBER: &str = "{#}";

/// A place in a command for a part of a file's name, and the variable that carries that part to a shell.
struct Place {
    sign: &'static str,
    variable: &'static str,
    value: fn(&str) -> String,
}

const PLACES: [Place; 5] = [
    Place { sign: "{}", variable: "EACH", value: str::to_owned },
    Place { sign: "{.}", variable: "EACH_STEM", value: |file| without_extension(file).to_owned() },
    Place { sign: "{/}", variable: "EACH_NAME", value: |file| name(file).to_owned() },
    Place { sign: "{//}", variable: "EACH_DIR", value: folder },
    Place { sign: "{/.}", variable: "EACH_NAME_STEM", value: |file| without_extension(name(file)).to_owned() },
];

/// A command with places for a file's name.
#[derive(Clone, Debug)]
pub(super) enum Template {
    /// A program and its arguments.
    Words(Vec<String>),
    /// A line for `sh -c`.
    Line(String),
}

impl Template {
    /// Creates a command; one without a place gets the file at its end. With `shell`, the words together are a line for
    /// `sh -c`.
    pub(super) fn new(mut words: Vec<String>, shell: bool) -> Result<Self, Failure> {
        if !words.iter().any(|word| word.contains(NUMBER) || PLACES.iter().any(|place| word.contains(place.sign))) {
            words.push("{}".to_owned());
        }
        if !shell {
            return match code_of_a_shell(&words).and_then(first_place) {
                None => Ok(Self::Words(words)),
                Some(place) => Err(Failure::Usage(format!(
                    "`{sign}` stands in code for a shell, which would run what a file is called: leave the shell to \
                     --shell",
                    sign = place.sign
                ))),
            };
        }
        let line = words.join(" ");
        match quoted_place(&line) {
            None => Ok(Self::Line(line)),
            Some(Place { sign, variable, .. }) => Err(Failure::Usage(format!(
                "`{sign}` stands in quotes or behind a backslash in the command for --shell: write {sign} without, \
                 since it is quoted already, or \"${variable}\", which may stand in double quotes"
            ))),
        }
    }

    /// Returns the payload of the job for the file with this number, from 1.
    pub(super) fn fill(&self, file: &str, number: usize) -> ShellPayload {
        let (command, env) = match self {
            Self::Words(words) => {
                let fill = |word: &String| replace(word, number, |place, at| shown(place, file, at == 0));
                (CommandLine::Arguments(words.iter().map(fill).collect()), BTreeMap::new())
            }
            Self::Line(line) => {
                // A variable that the line names itself counts as one that begins a word.
                let begins = |place: &Place| {
                    let mut there = places(line).filter(|(_, sign)| *sign == place.sign).peekable();
                    there.peek().is_none() || there.any(|(at, _)| begins_word(line, at))
                };
                let filled = replace(line, number, |place, _| format!("\"${}\"", place.variable));
                let used = PLACES.iter().filter(|place| filled.contains(place.variable));
                let env = used.map(|place| (place.variable.to_owned(), shown(place, file, begins(place)))).collect();
                (CommandLine::Line(filled), env)
            }
        };
        ShellPayload { command, env, cwd: None }
    }

    /// Returns the command for a file as people read it.
    pub(super) fn describe(&self, file: &str, number: usize) -> String {
        let fill = |text: &str| replace(text, number, |place, at| shown(place, file, begins_word(text, at)));
        match self {
            Self::Words(words) => words.iter().map(|word| fill(word)).collect::<Vec<_>>().join(" "),
            Self::Line(line) => fill(line),
        }
    }
}

/// Returns the files that match, each once, in the order of the patterns and then of their names.
pub(super) fn files(patterns: &[String]) -> Result<Vec<String>, Failure> {
    let mut files: Vec<String> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for pattern in patterns {
        find(pattern, &mut |path| {
            if seen.insert(path.clone()) {
                files.push(as_text(path)?);
            }
            match files.len() > MAX_FILES {
                true => Err(Failure::Usage(format!("more than {MAX_FILES} files match"))),
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

/// Returns the value of a place. Where it begins a word, a file called `-f` must not become a flag.
fn shown(place: &Place, file: &str, begins: bool) -> String {
    let value = (place.value)(file);
    if begins && value.starts_with('-') { format!("./{value}") } else { value }
}

fn name(file: &str) -> &str {
    Path::new(file).file_name().and_then(|name| name.to_str()).unwrap_or(file)
}

fn folder(file: &str) -> String {
    let parent = Path::new(file).parent().and_then(Path::to_str).filter(|parent| !parent.is_empty());
    parent.unwrap_or(".").to_owned()
}

/// Returns a path without its file's extension; a name that only begins with a dot has none.
fn without_extension(path: &str) -> &str {
    let name = name(path);
    match name.rfind('.') {
        Some(dot) if dot > 0 => &path[..path.len() - (name.len() - dot)],
        _ => path,
    }
}

/// Returns the places in a text, with the byte at which each begins.
fn places(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let signs = || PLACES.iter().map(|place| place.sign).chain([NUMBER]);
    text.match_indices('{').filter_map(move |(at, _)| {
        let sign = signs().find(|sign| text[at..].starts_with(sign))?;
        Some((at, sign))
    })
}

fn first_place(text: &str) -> Option<&'static Place> {
    places(text).find_map(|(_, sign)| place(sign))
}

fn place(sign: &str) -> Option<&'static Place> {
    PLACES.iter().find(|place| place.sign == sign)
}

/// Replaces the places in one pass: values are not searched for places. `value` gets a place and the byte at which it
/// begins.
fn replace(text: &str, number: usize, value: impl Fn(&Place, usize) -> String) -> String {
    let mut filled = String::new();
    let mut end = 0;
    for (at, sign) in places(text) {
        filled.push_str(&text[end..at]);
        match place(sign) {
            Some(place) => filled.push_str(&value(place, at)),
            None => filled.push_str(&number.to_string()),
        }
        end = at + sign.len();
    }
    filled + &text[end..]
}

fn begins_word(text: &str, at: usize) -> bool {
    text[..at].chars().next_back().is_none_or(|before| before.is_whitespace() || ";|&()<>`".contains(before))
}

/// Returns the code among the words of a command that starts a shell with it.
fn code_of_a_shell(words: &[String]) -> Option<&str> {
    let shell = words.first().is_some_and(|program| SHELLS.contains(&name(program)));
    let option = words.iter().position(|word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c'));
    words.get(option.filter(|_| shell)? + 1).map(String::as_str)
}

/// Returns a place of a name in a line for the shell that stands in quotes or behind a backslash, where it would not be
/// one word.
fn quoted_place(line: &str) -> Option<&'static Place> {
    let named: Vec<(usize, &str)> = places(line).filter(|(_, sign)| *sign != NUMBER).collect();
    let (mut quote, mut escaped, mut comment) = (None, false, false);
    for (at, sign) in line.char_indices() {
        if (quote.is_some() || escaped)
            && let Some((_, sign)) = named.iter().find(|(place, _)| *place == at)
        {
            return place(sign);
        }
        match (quote, sign) {
            _ if comment => comment = sign != '\n',
            _ if escaped => escaped = false,
            (None | Some('"'), '\\') => escaped = true,
            (None, '\'' | '"') => quote = Some(sign),
            (None, '#') => comment = begins_word(line, at),
            (Some(open), _) if open == sign => quote = None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(words: &[&str], shell: bool) -> Result<Template, String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Template::new(words, shell).map_err(|failure| match failure {
            Failure::Usage(said) => said,
            other => panic!("{other:?}"),
        })
    }

    fn words(words: &[&str], file: &str) -> Vec<String> {
        match template(words, false).expect("a command").fill(file, 7).command {
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
        let template = template(&["wc <", "{}", "> {.}.n{#}"], true).expect("a line");
        let payload = template.fill("it's; rm -rf .x", 1);
        assert_eq!(payload.command, CommandLine::Line(r#"wc < "$EACH" > "$EACH_STEM".n1"#.to_owned()));
        assert_eq!(payload.env["EACH"], "it's; rm -rf .x");
        assert_eq!(payload.env["EACH_STEM"], "it's; rm -rf ");
        assert_eq!(template.describe("a.b", 1), "wc < a.b > a.n1");
    }

    #[test]
    fn a_name_that_begins_a_word_of_a_line_is_no_flag() {
        let value = |line: &str| template(&[line], true).expect("a line").fill("-f.x", 1).env["EACH_NAME"].clone();
        assert_eq!(value("rm {/}"), "./-f.x");
        assert_eq!(value("rm \"$EACH_NAME\" {}"), "./-f.x");
        assert_eq!(value("rm out/{/}"), "-f.x");
    }

    #[test]
    fn a_place_in_quotes_or_in_code_for_another_shell_is_refused() {
        for line in
            ["cat '{}'", "cat \"a {.} b\"", "cat \\{}", "cat 'a' \"b'{}\"", "cat # it's\ncat '{}'", "a\"\\\"{}\""]
        {
            let said = template(&[line], true).expect_err(line);
            assert!(said.contains("without") && said.contains("\"$EACH"), "{said}");
        }
        for line in ["cat {} 'a' \"b\" {}", "cat '{#}'", "cat \\' {}", "cat \"$EACH\" '{a}'", "cat {} # it's\ncat {}"] {
            assert!(template(&[line], true).is_ok(), "{line}");
        }
        for code in [&["sh", "-c", "cat {}"][..], &["/bin/bash", "-e", "-uc", "cat '{/}'"]] {
            assert!(template(code, false).expect_err("code").contains("--shell"));
        }
        assert!(template(&["sh", "-c", "cat \"$1\"", "sh", "{}"], false).is_ok());
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
