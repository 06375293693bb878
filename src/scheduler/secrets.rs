//! What of an action is nobody's business, taken out of what its receiver answered.
//!
//! The values of headers and the body of a call are shown to administrators alone, and the answer to it to everybody
//! who may read triggers. A receiver that repeats what it was sent would undo the one by the other.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::trigger::Trigger;
use crate::schedule::Action;
use crate::wire::hidden::HIDDEN;

/// The fewest characters of a value that is hidden: shorter ones are in every text by chance.
const SHORTEST: usize = 6;
/// How many characters of an answer are looked through. What comes after them is not shown.
const LOOKED_THROUGH: usize = 2_000;

/// Returns the text of an answer to the call of an action, without the values of the action's headers and without
/// what its body says: the values as a whole, and each word of them. Of a long text the beginning is returned.
pub(super) fn without_secrets(text: &str, action: &Action, trigger: &Trigger) -> String {
    let mut text = beginning(text).to_owned();
    let mut secrets = secrets(action, trigger);
    secrets.retain(|secret| text.contains(secret.as_str()));
    let mut secrets = Vec::from_iter(secrets);
    // A word of a value is not taken out of it before the whole of it is.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    for secret in secrets {
        text = text.replace(&secret, HIDDEN);
    }
    text
}

/// Returns the beginning of a text, up to the end of a word: what is left of one that is cut would not be recognised.
fn beginning(text: &str) -> &str {
    match text.char_indices().nth(LOOKED_THROUGH) {
        None => text,
        Some((end, _)) => text[..end].rfind(|letter| !is_of_word(letter)).map_or("", |last| &text[..last]),
    }
}

/// Returns the values that are hidden.
fn secrets(action: &Action, trigger: &Trigger) -> BTreeSet<String> {
    let mut secrets = BTreeSet::new();
    for value in action.headers.iter().flatten().map(|(_, value)| value) {
        add(value, &mut secrets);
    }
    if let Some(body) = &action.body {
        // The words of a JSON text are those of its values, and the names of its fields.
        add(body.as_str(), &mut secrets);
        if let Ok(text) = serde_json::from_str::<Cow<'_, str>>(body.as_str()) {
            add(&text, &mut secrets);
        }
    }
    // What stands for these is in the action, and they are in every answer about the trigger.
    let known = [trigger.due_at.to_rfc3339(), trigger.schedule_id.to_string()];
    secrets.retain(|secret| !known.contains(secret));
    secrets
}

fn add(value: &str, secrets: &mut BTreeSet<String>) {
    let parts = value.split(|letter| !is_of_word(letter)).chain([value]);
    let long = parts.filter(|part| part.chars().nth(SHORTEST - 1).is_some() && !part.contains("{{"));
    secrets.extend(long.map(str::to_owned));
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || "-_.+/~@".contains(letter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::job::{Json, ScheduleId};
    use crate::schedule::ActionType;

    fn shown(headers: &[(&str, &str)], body: Option<&str>, text: &str) -> String {
        let named = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let action = Action {
            headers: Some(headers.iter().map(named).collect()),
            body: body.and_then(|body| Json::parse(body.to_owned()).ok()),
            ..Action::of(ActionType::Http)
        };
        let due_at = Timestamp::from_millis(1_900_000_000_000);
        let schedule_id = ScheduleId::new("nightly-report").expect("an id");
        without_secrets(text, &action, &Trigger::example(schedule_id, due_at))
    }

    #[test]
    fn what_a_header_says_is_hidden_as_a_whole_and_word_by_word() {
        let headers = [("authorization", "Bearer s3cr.et/tok+en=="), ("x-short", "abc"), ("x-pair", "ab cd ef")];
        for (text, expected) in [
            ("no Bearer s3cr.et/tok+en== here", "no *** here"),
            ("token s3cr.et/tok+en is unknown", "token *** is unknown"),
            (r#"{"got":"s3cr.et/tok+en=="}"#, r#"{"got":"***=="}"#),
            ("xs3cr.et/tok+enx", "x***x"),
            ("abc is no value of ab cd ef", "abc is no value of ***"),
            ("ab and cd", "ab and cd"),
        ] {
            assert_eq!(shown(&headers, None, text), expected, "{text}");
        }
    }

    #[test]
    fn what_a_body_says_is_hidden_however_it_is_repeated() {
        let json = r#"{"user": "ann", "password": "pass phrase-9", "pin": 471147, "quoted": "with\"quote"}"#;
        for (text, expected) in
            [("ann, phrase-9 is wrong", "ann, *** is wrong"), ("pin 471147", "pin ***"), (json, "***")]
        {
            assert_eq!(shown(&[], Some(json), text), expected, "{text}");
        }
        let form = r#""user=ann&token=abc\"def-ghi\nx""#;
        assert_eq!(shown(&[], Some(form), "bad def-ghi of ann"), "bad *** of ann");
        assert_eq!(shown(&[], Some(form), "you sent user=ann&token=abc\"def-ghi\nx"), "you sent ***");
    }

    #[test]
    fn what_everybody_knows_is_shown() {
        let body = r#"{"due": "{{due_at}}", "of": "{{schedule_id}}", "named": "nightly-report"}"#;
        let text = "nightly-report of 2030-03-17T17:46:40.000Z is done";
        assert_eq!(shown(&[], Some(body), text), text);
    }

    #[test]
    fn of_a_long_text_no_part_of_a_value_is_left_at_the_end() {
        let secret = "s".repeat(3_000);
        let headers = [("x-key", secret.as_str())];
        assert_eq!(shown(&headers, None, &secret), "");
        let short = "0123456789".repeat(10);
        for before in 1_880..=2_000 {
            let text = format!("{} {short}", ".".repeat(before));
            let shown = shown(&[("x-key", &short)], None, &text);
            assert!(!shown.contains("0123"), "{before}: {shown}");
        }
    }
}
