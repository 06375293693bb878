//! What a JSON parser finds wrong, in words that do not come from the program's code.

use crate::query::fields::closest;

/// What the parser calls a type, and what people call it.
const NAMES: [(&str, &str); 12] = [
    ("a sequence", "a list"),
    ("sequence", "a list"),
    ("a map", "an object"),
    ("map", "an object"),
    ("unit", "null"),
    ("boolean ", ""),
    ("integer ", "the number "),
    ("floating point ", "the number "),
    ("string ", "the text "),
    ("a string", "a text"),
    ("path string", "a text"),
    ("a boolean", "true or false"),
];

/// Returns the parser's message without its position, in plain words.
pub(super) fn plain(said: &str) -> String {
    let what = said.rsplit_once(" at line ").map_or(said, |(what, _)| what);
    if let Some(unknown) = what.strip_prefix("unknown field ").or_else(|| what.strip_prefix("unknown variant ")) {
        let kind = if what.starts_with("unknown field") { "unknown field" } else { "unknown value" };
        return unknown_word(kind, unknown);
    }
    let wrong = ["invalid type: ", "invalid value: "].iter().find_map(|start| what.strip_prefix(start));
    if let Some((found, expected)) = wrong.and_then(|rest| rest.rsplit_once(", expected ")) {
        return format!("expected {}, not {}", name_of(expected), name_of(found));
    }
    match what {
        "expected value" | "expected ident" | "key must be a string" => "this is not JSON".to_owned(),
        "trailing characters" => "the JSON ends here, and more follows".to_owned(),
        what if what.starts_with("EOF while parsing") => "the JSON ends too early".to_owned(),
        what => what.to_owned(),
    }
}

/// Returns the parser's name for a type or a value as people say it.
fn name_of(name: &str) -> String {
    let is_whole = |digits: &str| !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit());
    if name.strip_prefix('i').is_some_and(is_whole) {
        return "a whole number".to_owned();
    }
    if name.strip_prefix('u').is_some_and(is_whole) {
        return "a whole number from 0 on".to_owned();
    }
    if name.strip_prefix('f').is_some_and(is_whole) {
        return "a number".to_owned();
    }
    if name.starts_with("struct ") {
        return "an object".to_owned();
    }
    let spoken = NAMES.iter().find_map(|(code, people)| {
        let rest = name.strip_prefix(code)?;
        (rest.is_empty() || code.ends_with(' ')).then(|| format!("{people}{rest}"))
    });
    spoken.unwrap_or_else(|| name.to_owned())
}

/// Names an unknown word, and the known one that is meant; all known ones if none is close and they are few.
fn unknown_word(kind: &str, message: &str) -> String {
    const FEW: usize = 6;
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let [word, known @ ..] = words.as_slice() else { return format!("{kind} {message}") };
    match closest(word, known.iter().copied()) {
        Some(close) => format!("{kind} `{word}`; is `{close}` meant?"),
        None if !known.is_empty() && known.len() <= FEW => {
            format!("{kind} `{word}`; it is one of {}", known.join(", "))
        }
        None => format!("{kind} `{word}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_speak_of_json_and_not_of_code() {
        for (said, plainly) in [
            ("invalid type: sequence, expected an object at line 1 column 1", "expected an object, not a list"),
            (
                "invalid type: string \"x, expected\", expected i64",
                "expected a whole number, not the text \"x, expected\"",
            ),
            ("invalid value: integer `-1`, expected u64", "expected a whole number from 0 on, not the number `-1`"),
            ("invalid type: unit value, expected struct Line", "expected an object, not unit value"),
            ("invalid type: null, expected a sequence", "expected a list, not null"),
            ("unknown field `comand`, expected one of `command`, `cwd`", "unknown field `comand`; is `command` meant?"),
            (
                "unknown variant `zz`, expected one of `refuse`, `existing`",
                "unknown value `zz`; it is one of refuse, existing",
            ),
            ("unknown field `a`, there are no fields", "unknown field `a`"),
            ("EOF while parsing a value at line 1 column 11", "the JSON ends too early"),
            ("a command is a list", "a command is a list"),
        ] {
            assert_eq!(plain(said), plainly);
        }
    }
}
