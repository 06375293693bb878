//! Messages for Slack's incoming webhooks, which others (Mattermost, Rocket.Chat) take too.

use serde::Serialize;

use super::event::{EventData, JobEvent, Origin};

/// The most characters of one text that are shown; Slack accepts 3,000 characters of escaped text in a block.
const MAX_SHOWN: usize = 400;

/// A message.
#[derive(Serialize)]
pub(super) struct SlackMessage {
    /// The text that notifications show.
    text: String,
    blocks: Vec<Block>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Section { text: Text },
    Context { elements: Vec<Text> },
}

#[derive(Serialize)]
struct Text {
    #[serde(rename = "type")]
    markup: &'static str,
    text: String,
}

fn mrkdwn(text: String) -> Text {
    Text { markup: "mrkdwn", text }
}

/// Returns the event as a Slack message.
pub(super) fn message(event: &JobEvent, origin: &Origin) -> SlackMessage {
    let EventData { event: name, actor, reason, job } = &event.data;
    let id = shown(job.id.as_str());
    let (kind, queue) = (shown(job.kind.as_str()), shown(job.queue.as_str()));
    let text = format!("Job {name}: {id} ({kind} in {queue})");
    let linked = match origin.page_of(&job.id) {
        // A `|` would end the address.
        Some(page) => format!("<{}|{id}>", escape(&page.as_str().replace('|', "%7C"))),
        None => id,
    };
    let mut blocks = vec![section(format!("*Job {name}*: {linked}\n{kind} in {queue}"))];
    if let Some(reason) = reason {
        blocks.push(section(shown(reason)));
    }
    if let Some(error) = &job.error {
        blocks.push(section(format!("{}: {}", shown(&error.code), shown(&error.message))));
    }
    let owner = job.owner.as_ref().map(|owner| format!(", owner {}", shown(owner.as_str()))).unwrap_or_default();
    let context =
        format!("{} by {}, attempt {}, now {}{owner}", event.at, shown(actor.as_str()), job.attempt.get(), job.state,);
    blocks.push(Block::Context { elements: vec![mrkdwn(context)] });
    SlackMessage { text, blocks }
}

fn section(text: String) -> Block {
    Block::Section { text: mrkdwn(text) }
}

/// Returns a user's text, cut off and escaped, so that it cannot mention anybody (`<!channel>`) or hide a link.
fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => escape(&text[..end]) + "…",
        None => escape(text),
    }
}

/// Escapes the three characters that Slack gives a meaning
/// (<https://docs.slack.dev/messaging/formatting-message-text>).
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
