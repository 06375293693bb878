//! Messages for Slack's incoming webhooks, which others (Mattermost, Rocket.Chat) take too.

use serde::Serialize;

use super::event::{Event, EventData, JobEvent, Origin, ScheduleEvent};

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
pub(super) fn message(event: &Event, origin: &Origin) -> SlackMessage {
    let subject = event.subject();
    let (id, short) = (shown(subject.id), subject.short);
    let Told { what, about, more, context } = match &event.data {
        EventData::Job(data) => of_job(data),
        EventData::Schedule(data) => of_schedule(data),
    };
    let linked = match origin.page_of(&subject) {
        // A `|` would end the address.
        Some(page) => format!("<{}|{id}>", escape(&page.as_str().replace('|', "%7C"))),
        None => id.clone(),
    };
    let in_brackets = about.as_ref().map(|about| format!(" ({about})")).unwrap_or_default();
    let below = about.map(|about| format!("\n{about}")).unwrap_or_default();
    let mut blocks = vec![section(format!("*{what} {short}*: {linked}{below}"))];
    blocks.extend(more.into_iter().map(section));
    let owner = subject.owner.map(|owner| format!(", owner {}", shown(owner.as_str()))).unwrap_or_default();
    blocks.push(Block::Context { elements: vec![mrkdwn(format!("{} by {context}{owner}", event.at))] });
    SlackMessage { text: format!("{what} {short}: {id}{in_brackets}"), blocks }
}

/// What a message says, with the texts of others escaped.
struct Told {
    what: &'static str,
    /// What is known of the job or schedule at a glance.
    about: Option<String>,
    /// What there is to read besides.
    more: Vec<String>,
    context: String,
}

fn of_job(JobEvent { actor, reason, job, .. }: &JobEvent) -> Told {
    let error = job.error.as_ref().map(|error| format!("{}: {}", shown(&error.code), shown(&error.message)));
    Told {
        what: "Job",
        about: Some(format!("{} in {}", shown(job.kind.as_str()), shown(job.queue.as_str()))),
        more: reason.as_deref().map(shown).into_iter().chain(error).collect(),
        context: format!("{}, attempt {}, now {}", shown(actor.as_str()), job.attempt.get(), job.state),
    }
}

fn of_schedule(ScheduleEvent { actor, reason, missed, schedule, .. }: &ScheduleEvent) -> Told {
    let next = schedule.next_due_at.filter(|_| schedule.paused.is_none());
    let next = next.map(|next| format!(", due next at {next}")).unwrap_or_default();
    Told {
        what: "Schedule",
        about: missed.as_ref().map(ToString::to_string),
        more: reason.as_deref().map(shown).into_iter().collect(),
        context: format!("{}{next}", shown(actor.as_str())),
    }
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
