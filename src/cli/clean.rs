//! Texts of users, as they are safe to print.

/// Replaces the characters with which a text from outside could control the terminal, or turn round what is shown. All
/// that is printed of names, messages and other texts of users comes through here.
pub(super) fn clean(text: &str) -> String {
    let is_harmful = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_harmful(c) { '\u{fffd}' } else { c }).collect()
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
    }
}
