//! Texts of users, as they are safe to print.

use std::borrow::Cow;

use crate::job::shell::is_hidden;

/// Replaces the characters with which a text from outside could control the terminal, or turn round what is shown. All
/// that is printed of names, messages and other texts of users comes through here.
pub(super) fn clean(text: &str) -> String {
    let is_harmful = |c: char| is_hidden(c) && c != '\n' && c != '\t';
    text.chars().map(|c| if is_harmful(c) { '\u{fffd}' } else { c }).collect()
}

/// Returns JSON with the escape sequence of each character that acts on a terminal or is not seen there.
pub(super) fn spelled_out(json: &str) -> Cow<'_, str> {
    // Outside of texts there is white space at most, of which the end of a line is no harm.
    let is_spelled = |c: char| is_hidden(c) && c != '\n';
    if !json.contains(is_spelled) {
        return Cow::Borrowed(json);
    }
    let mut text = String::with_capacity(json.len() + 64);
    for character in json.chars() {
        match is_spelled(character) {
            true => {
                let units = &mut [0; 2];
                character.encode_utf16(units).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
            }
            false => text.push(character),
        }
    }
    Cow::Owned(text)
}

/// Returns the text cleaned and on one line.
pub(super) fn one_line(text: &str) -> String {
    clean(text).replace(['\n', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_elsewhere_cannot_steer_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\nc\u{7}"), "a\u{fffd}[31mb\nc\u{fffd}");
        assert_eq!(one_line("a\nb\tc\u{9b}\u{202e}d"), "a b c\u{fffd}\u{fffd}d");
        assert_eq!(clean("a\u{61c}b\u{200b}c\u{feff}d\u{85}"), "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}");
        assert_eq!(clean("👩\u{200d}🚒"), "👩\u{200d}🚒", "what joins emoji is no harm");
    }

    #[test]
    fn json_on_a_terminal_is_the_same_value_without_what_cannot_be_seen() {
        let value = serde_json::json!({"a\u{202e}": ["\u{9b}31m", "\u{7f}\n", "é\u{200b}\u{e0041}"]});
        let json = value.to_string();
        let text = spelled_out(&json);
        assert!(!text.contains(is_hidden), "{text}");
        assert!(text.contains("\\u202e") && text.contains("\\udb40\\udc41") && text.contains('é'), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), value);
    }
}
