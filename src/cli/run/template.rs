//! A command with places for arguments.
//!
//! What an argument holds never becomes code: without `--shell` an argument is a word or a part of one, and with it the
//! line is the same for all jobs and an argument comes in a variable of the command's environment.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::replacement::{Found, PARTS, Part, Place, name, places};
use crate::cli::failure::Failure;
use crate::job::shell::quote;
use crate::worker::shell::{CommandLine, ShellPayload};

/// The shells whose option `-c` takes code.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ksh", "zsh", "busybox"];
/// The variable that carries the number of a job's slot.
pub(super) const SLOT_VARIABLE: &str = "LEASEHOLD_SLOT";

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Argument {
    pub(super) text: Arc<str>,
    /// Whether it is the name of a file that was found here. Where such a name begins a word it must not become a flag.
    pub(super) is_file: bool,
}

impl Argument {
    /// Returns a part of the argument; `begins` says whether it begins a word.
    fn part(&self, part: Part, begins: bool) -> String {
        let value = part.of(&self.text);
        if begins && self.is_file && value.starts_with('-') { format!("./{value}") } else { value.to_owned() }
    }
}

/// A command with places for arguments.
#[derive(Clone, Debug)]
pub(super) struct Template {
    form: Form,
    /// How many arguments each job has.
    sources: usize,
}

#[derive(Clone, Debug)]
enum Form {
    /// A program and its arguments.
    Words(Vec<String>),
    /// A line for `sh -c`.
    Line(String),
}

/// A word of a command, as it is and as a shell would read it.
#[derive(Default)]
struct Word {
    text: String,
    code: String,
}

impl Word {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        if !text.is_empty() {
            self.code.push_str(&quote(text));
        }
    }

    fn into_code(self) -> String {
        if self.code.is_empty() { quote("").into_owned() } else { self.code }
    }
}

impl Template {
    /// Creates a command for jobs with this number of arguments; one without a place gets them at its end. With
    /// `shell`, the words together are a line for `sh -c`.
    pub(super) fn new(mut words: Vec<String>, shell: bool, sources: usize) -> Result<Self, Failure> {
        if let ([line], false) = (words.as_slice(), shell)
            && line.trim().contains(char::is_whitespace)
            && !std::path::Path::new(line).exists()
        {
            return Err(Failure::Usage(format!(
                "{line:?} is one word, and no program is called so: write it without quotes, or as a line for a shell \
                 with --shell"
            )));
        }
        let beyond = words.iter().flat_map(|word| places(word)).find_map(|found| match found.place {
            Place::Argument(_, Some(source)) if source > sources => Some(source),
            _ => None,
        });
        if let Some(source) = beyond {
            return Err(Failure::Usage(format!("{{{source}}} names a source, and there are {sources} only")));
        }
        if words.iter().all(|word| places(word).next().is_none()) {
            words.push("{}".to_owned());
        }
        if !shell {
            return match code_of_a_shell(&words).and_then(|code| Some((code, argument_place(places(code))?))) {
                None => Ok(Self { form: Form::Words(words), sources }),
                Some((code, found)) => Err(Failure::Usage(format!(
                    "`{}` stands in code for a shell, which would run what an argument holds: leave the shell to \
                     --shell",
                    &code[found.at..found.end]
                ))),
            };
        }
        let line = words.join(" ");
        match quoted_place(&line) {
            None => Ok(Self { form: Form::Line(line), sources }),
            Some(found) => {
                let (sign, variable) = (&line[found.at..found.end], variable(found.place));
                Err(Failure::Usage(format!(
                    "`{sign}` stands in quotes or behind a backslash in the command for --shell: write {sign} \
                     without, since it is quoted already, or \"${variable}\", which may stand in double quotes"
                )))
            }
        }
    }

    /// Returns the payload of the job with this number, from 1, and these arguments.
    pub(super) fn fill(&self, arguments: &[Argument], number: usize) -> ShellPayload {
        let (command, env) = match &self.form {
            Form::Words(words) => {
                let filled = words.iter().flat_map(|word| words_of(word, arguments, number));
                // Which slot a job gets is known only when it runs, and a shell can put it in then.
                let command = match words.iter().any(|word| places(word).any(|found| found.place == Place::Slot)) {
                    false => CommandLine::Arguments(filled.map(|word| word.text).collect()),
                    true => {
                        let code: Vec<String> = filled.map(Word::into_code).collect();
                        CommandLine::Line(format!("exec {}", code.join(" ")))
                    }
                };
                (command, BTreeMap::new())
            }
            Form::Line(line) => {
                let filled = replace(line, |found| match found.place {
                    Place::Argument(part, None) if self.sources > 1 => {
                        let all = (1..=self.sources).map(|source| format!("\"${}\"", part.variable(Some(source))));
                        all.collect::<Vec<_>>().join(" ")
                    }
                    Place::Number => number.to_string(),
                    place => format!("\"${}\"", variable(place)),
                });
                let env = self.variables(line, &filled, arguments);
                (CommandLine::Line(filled), env)
            }
        };
        ShellPayload { command, env, cwd: None }
    }

    /// Returns the command of a job as a shell would read it.
    pub(super) fn describe(&self, arguments: &[Argument], number: usize) -> String {
        match &self.form {
            Form::Words(words) => {
                let filled = words.iter().flat_map(|word| words_of(word, arguments, number));
                filled.map(Word::into_code).collect::<Vec<_>>().join(" ")
            }
            Form::Line(line) => replace(line, |found| match found.place {
                Place::Argument(part, source) => {
                    let begins = begins_word(line, found.at);
                    let values = of_source(arguments, source).map(|argument| argument.part(part, begins));
                    values.map(|value| quote(&value).into_owned()).collect::<Vec<_>>().join(" ")
                }
                Place::Number => number.to_string(),
                Place::Slot => format!("\"${SLOT_VARIABLE}\""),
            }),
        }
    }

    /// Returns the variables that a line for a shell, once filled, refers to.
    fn variables(&self, line: &str, filled: &str, arguments: &[Argument]) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        for (index, argument) in arguments.iter().enumerate() {
            let only = self.sources == 1;
            for source in [Some(index + 1), None].into_iter().filter(|source| source.is_some() || only) {
                for part in PARTS {
                    let variable = part.variable(source);
                    if filled.contains(&variable) {
                        let is_there = |found: &Found| match found.place {
                            Place::Argument(of, from) => of == part && (from == source || from.is_none() && !only),
                            Place::Number | Place::Slot => false,
                        };
                        // A variable that the line names itself counts as one that begins a word.
                        let mut there = places(line).filter(is_there).peekable();
                        let begins = there.peek().is_none() || there.any(|found| begins_word(line, found.at));
                        variables.insert(variable, argument.part(part, begins));
                    }
                }
            }
        }
        variables
    }
}

/// Returns the variable of a place in a line for a shell.
fn variable(place: Place) -> String {
    match place {
        Place::Argument(part, source) => part.variable(source),
        Place::Number | Place::Slot => SLOT_VARIABLE.to_owned(),
    }
}

fn of_source(arguments: &[Argument], source: Option<usize>) -> impl Iterator<Item = &Argument> {
    arguments
        .iter()
        .enumerate()
        .filter(move |(index, _)| source.is_none_or(|source| source == index + 1))
        .map(|(_, a)| a)
}

/// Fills a word of a command. Where a place stands for the arguments of several sources it becomes several words, as it
/// does for GNU parallel.
fn words_of(word: &str, arguments: &[Argument], number: usize) -> Vec<Word> {
    let mut words = vec![Word::default()];
    let mut end = 0;
    for found in places(word) {
        let mut last = words.pop().unwrap_or_default();
        last.push(&word[end..found.at]);
        match found.place {
            Place::Argument(part, source) => {
                for (index, argument) in of_source(arguments, source).enumerate() {
                    if index > 0 {
                        words.push(std::mem::take(&mut last));
                    }
                    let begins = last.text.is_empty();
                    last.push(&argument.part(part, begins));
                }
            }
            Place::Number => last.push(&number.to_string()),
            Place::Slot => {
                last.text.push_str("{%}");
                last.code.push_str(&format!("\"${SLOT_VARIABLE}\""));
            }
        }
        words.push(last);
        end = found.end;
    }
    if let Some(last) = words.last_mut() {
        last.push(&word[end..]);
    }
    words
}

/// Replaces the places in one pass: values are not searched for places.
fn replace(text: &str, value: impl Fn(Found) -> String) -> String {
    let mut filled = String::new();
    let mut end = 0;
    for found in places(text) {
        filled.push_str(&text[end..found.at]);
        filled.push_str(&value(found));
        end = found.end;
    }
    filled + &text[end..]
}

fn begins_word(text: &str, at: usize) -> bool {
    text[..at].chars().next_back().is_none_or(|before| before.is_whitespace() || ";|&()<>`".contains(before))
}

/// Returns the first place of an argument.
fn argument_place(mut places: impl Iterator<Item = Found>) -> Option<Found> {
    places.find(|found| matches!(found.place, Place::Argument(..)))
}

/// Returns the code among the words of a command that starts a shell with it.
fn code_of_a_shell(words: &[String]) -> Option<&str> {
    let shell = words.first().is_some_and(|program| SHELLS.contains(&name(program)));
    let option = words.iter().position(|word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c'));
    words.get(option.filter(|_| shell)? + 1).map(String::as_str)
}

/// Returns a place in a line for the shell that stands in quotes or behind a backslash, where what is put in for it
/// would not be one word. A number may stand there.
fn quoted_place(line: &str) -> Option<Found> {
    let named: Vec<Found> = places(line).filter(|found| found.place != Place::Number).collect();
    let (mut quote, mut escaped, mut comment) = (None, false, false);
    for (at, sign) in line.char_indices() {
        if (quote.is_some() || escaped)
            && let Some(found) = named.iter().find(|found| found.at == at)
        {
            return Some(*found);
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

    fn template(words: &[&str], shell: bool, sources: usize) -> Result<Template, String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Template::new(words, shell, sources).map_err(|failure| match failure {
            Failure::Usage(said) => said,
            other => panic!("{other:?}"),
        })
    }

    fn files(names: &[&str]) -> Vec<Argument> {
        names.iter().map(|name| Argument { text: (*name).into(), is_file: true }).collect()
    }

    fn values(values: &[&str]) -> Vec<Argument> {
        values.iter().map(|value| Argument { text: (*value).into(), is_file: false }).collect()
    }

    fn filled(words: &[&str], arguments: &[Argument]) -> Vec<String> {
        match template(words, false, arguments.len()).expect("a command").fill(arguments, 7).command {
            CommandLine::Arguments(words) => words,
            CommandLine::Line(line) => panic!("a line: {line}"),
        }
    }

    #[test]
    fn places_stand_inside_words_and_other_braces_stay() {
        assert_eq!(
            filled(&["x{}y{.}z", "{a}", "{", "{{}}", "{#}"], &files(&["f.g"])),
            ["xf.gyfz", "{a}", "{", "{f.g}", "7"]
        );
    }

    #[test]
    fn a_command_without_a_place_gets_the_arguments_at_its_end() {
        assert_eq!(filled(&["wc", "-l"], &files(&["f"])), ["wc", "-l", "f"]);
        assert_eq!(filled(&["mv"], &values(&["a b", "c"])), ["mv", "a b", "c"]);
    }

    #[test]
    fn several_sources_have_numbers_and_together_are_several_words() {
        let arguments = values(&["a/b.c", "d"]);
        assert_eq!(filled(&["{2}-{1/.}", "x{}y", "{/}"], &arguments), ["d-b", "xa/b.c", "dy", "b.c", "d"]);
        assert!(template(&["{3}"], false, 2).expect_err("no source").contains("{3}"));
    }

    #[test]
    fn what_a_name_holds_is_never_taken_for_a_place_a_flag_or_shell_code() {
        assert_eq!(filled(&["rm", "{}", "--name={}"], &files(&["-rf"])), ["rm", "./-rf", "--name=-rf"]);
        assert_eq!(filled(&["gzip", "{}"], &values(&["-9"])), ["gzip", "-9"]);
        assert_eq!(filled(&["cat", "{}"], &files(&["{#} $(x).png"])), ["cat", "{#} $(x).png"]);
        let template = template(&["wc <", "{}", "> {.}.n{#}"], true, 1).expect("a line");
        let payload = template.fill(&files(&["it's; rm -rf .x"]), 1);
        assert_eq!(payload.command, CommandLine::Line(r#"wc < "$EACH" > "$EACH_STEM".n1"#.to_owned()));
        assert_eq!(payload.env["EACH"], "it's; rm -rf .x");
        assert_eq!(payload.env["EACH_STEM"], "it's; rm -rf ");
        assert_eq!(template.describe(&files(&["a.b"]), 1), "wc < a.b > a.n1");
        assert_eq!(template.describe(&files(&["a; b.c"]), 1), "wc < 'a; b.c' > 'a; b'.n1");
    }

    #[test]
    fn the_number_of_a_slot_is_left_to_a_shell_that_sees_nothing_unquoted() {
        let template = template(&["cp", "{}", "s{%}/{#}"], false, 1).expect("a command");
        let payload = template.fill(&values(&["$(x) 'y'"]), 3);
        let CommandLine::Line(line) = payload.command else { panic!("no line") };
        assert_eq!(shlex::split(&line).expect("good"), ["exec", "cp", "$(x) 'y'", "s$LEASEHOLD_SLOT/3"]);
        assert!(!line.contains("\"$("), "{line}");
    }

    #[test]
    fn several_sources_come_to_a_shell_in_numbered_variables() {
        let template = template(&["cp {} out-{2/}"], true, 2).expect("a line");
        let payload = template.fill(&values(&["a", "b/c"]), 1);
        assert_eq!(payload.command, CommandLine::Line(r#"cp "$EACH1" "$EACH2" out-"$EACH2_NAME""#.to_owned()));
        let env: Vec<_> = payload.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(env, [("EACH1", "a"), ("EACH2", "b/c"), ("EACH2_NAME", "c")]);
    }

    #[test]
    fn a_name_that_begins_a_word_of_a_line_is_no_flag() {
        let value = |line: &str| {
            template(&[line], true, 1).expect("a line").fill(&files(&["-f.x"]), 1).env["EACH_NAME"].clone()
        };
        assert_eq!(value("rm {/}"), "./-f.x");
        assert_eq!(value("rm \"$EACH_NAME\" {}"), "./-f.x");
        assert_eq!(value("rm out/{/}"), "-f.x");
    }

    #[test]
    fn a_place_in_quotes_or_in_code_for_another_shell_is_refused() {
        for line in
            ["cat '{}'", "cat \"a {.} b\"", "cat \\{}", "cat 'a' \"b'{}\"", "cat # it's\ncat '{}'", "a\"\\\"{}\""]
        {
            let said = template(&[line], true, 1).expect_err(line);
            assert!(said.contains("without") && said.contains("\"$EACH"), "{said}");
        }
        for line in ["cat {} 'a' \"b\" {}", "cat '{#}'", "cat \\' {}", "cat \"$EACH\" '{a}'", "cat {} # it's\ncat {}"] {
            assert!(template(&[line], true, 1).is_ok(), "{line}");
        }
        for code in [&["sh", "-c", "cat {}"][..], &["/bin/bash", "-e", "-uc", "cat '{/}'"]] {
            assert!(template(code, false, 1).expect_err("code").contains("--shell"));
        }
        assert!(template(&["sh", "-c", "cat \"$1\"", "sh", "{}"], false, 1).is_ok());
        assert!(template(&["cat {} | wc"], false, 1).expect_err("a line").contains("--shell"));
    }
}
