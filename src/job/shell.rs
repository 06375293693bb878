//! Lines for a POSIX shell, as people paste them: names of users are words in them, whatever these hold, and no code.

use std::borrow::Cow;
use std::fmt;

use itertools::Itertools as _;

/// Returns whether a character acts on a terminal, or is not seen on it, or turns round what stands beside it. (Those
/// that join letters or emoji are left as they are: the text would not be the same to its reader.)
#[must_use]
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns a text as one word for a POSIX shell. Characters that are hidden are spelled out, but for the end of a line,
/// so that who pastes the word sees what it holds.
#[must_use]
pub fn quote(text: &str) -> Cow<'_, str> {
    // A backtick would end the sentence's own, within which a command stands.
    let is_spelled = |character: char| character != '\n' && (is_hidden(character) || character == '`');
    if !text.contains(is_spelled) {
        return plain(text);
    }
    let mut word = String::new();
    for (spelled, run) in &text.chars().chunk_by(|character| is_spelled(*character)) {
        let run: String = run.collect();
        if spelled {
            word.push_str("\"$(printf '");
            // No word can hold a NUL.
            run.bytes().filter(|byte| *byte != 0).for_each(|byte| word.push_str(&format!("\\{byte:03o}")));
            word.push_str("')\"");
        } else {
            word.push_str(&plain(&run));
        }
    }
    Cow::Owned(word)
}

fn plain(text: &str) -> Cow<'_, str> {
    shlex::try_quote(text).unwrap_or_else(|_| Cow::Owned(format!("'{}'", text.replace(['\0', '\''], "?"))))
}

/// Begins a command of this program with its words and flags.
#[must_use]
pub fn leasehold(words: &'static str) -> ShownCommand {
    ShownCommand { words: format!("leasehold {words}"), operands: String::new(), is_flag: false }
}

/// A command of this program, as a line to paste.
#[derive(Clone, Debug)]
pub struct ShownCommand {
    words: String,
    operands: String,
    /// Whether an operand looks like a flag.
    is_flag: bool,
}

impl ShownCommand {
    /// Adds an option and its value.
    #[must_use]
    pub fn option(mut self, name: &'static str, value: &str) -> Self {
        let between = if value.starts_with('-') { '=' } else { ' ' };
        self.words.push_str(&format!(" {name}{between}{}", quote(value)));
        self
    }

    /// Adds what the command is about.
    #[must_use]
    pub fn operand(mut self, value: &str) -> Self {
        self.is_flag |= value.starts_with('-');
        self.operands.push_str(&format!(" {}", quote(value)));
        self
    }
}

impl fmt::Display for ShownCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.words, if self.is_flag { " --" } else { "" }, self.operands)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Names that somebody could give to have others do something.
    const HOSTILE: [&str; 18] = [
        "abc$(touch F)",
        "`touch F`",
        "a; touch F",
        "a\ntouch F",
        "'; touch F; '",
        "\"; touch F; \"",
        "a'b`touch F`",
        "-rf",
        "--",
        "$HOME",
        "~",
        "*",
        "!!",
        "a\\",
        "x\u{202e}y",
        "\u{61c}",
        "a\u{200b}\u{9b}31m",
        "a b",
    ];

    /// Returns the words that a shell makes of a line.
    fn words(shell: &str, line: &str) -> Vec<String> {
        let place = tempfile::tempdir().expect("a directory");
        let program = r#"leasehold() { for word; do printf '%s\0' "$word"; done; }"#;
        let output = Command::new(shell).args(["-c", &format!("{program}\n{line}")]).current_dir(&place).output();
        let output = output.expect("a shell");
        assert!(output.status.success() && output.stderr.is_empty(), "{line}: {output:?}");
        assert!(!place.path().join("F").exists(), "{line}");
        let said = String::from_utf8(output.stdout).expect("text");
        said.split_terminator('\0').map(str::to_owned).collect()
    }

    #[test]
    fn a_name_is_one_word_of_a_shown_command_and_runs_nothing() {
        for shell in ["sh", "bash"] {
            for name in HOSTILE {
                let quoted = quote(name);
                assert!(!quoted.contains(|character| is_hidden(character) && character != '\n'), "{quoted:?}");
                let line = leasehold("logs --follow").operand(name).to_string();
                let expected = if name.starts_with('-') {
                    vec!["logs", "--follow", "--", name]
                } else {
                    vec!["logs", "--follow", name]
                };
                assert_eq!(words(shell, &line), expected, "{line}");
                let line = leasehold("events").option("--job", name).option("--since", "1d").to_string();
                let expected = if name.starts_with('-') {
                    vec!["events".to_owned(), format!("--job={name}"), "--since".to_owned(), "1d".to_owned()]
                } else {
                    ["events", "--job", name, "--since", "1d"].map(str::to_owned).to_vec()
                };
                assert_eq!(words(shell, &line), expected, "{line}");
            }
        }
    }

    #[test]
    fn a_plain_name_stands_as_it_is() {
        assert_eq!(
            leasehold("describe").operand("0197b2f0-6c1e-7c57").to_string(),
            "leasehold describe 0197b2f0-6c1e-7c57"
        );
        assert_eq!(quote(""), "''");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("a\u{202e}b"), "a\"$(printf '\\342\\200\\256')\"b");
    }
}
