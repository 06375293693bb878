//! What happened to jobs, also to those that are not there any more: the audit, searched by a form and page by page.
//! Its address is its state.

use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use http::Uri;
use serde::Deserialize;

use super::ask::{Asker, Refused};
use super::frame::{self, Frame};
use super::shown;
use crate::manager::AuditEventName;
use crate::wire::{AuditAnswer, AuditEvent};

/// How many events a page has.
const ON_A_PAGE: &str = "50";
/// How often the page asks on where nothing was found in what was read.
const MAX_ASKED: usize = 4;

/// What is wanted of the audit, as the form has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    job: String,
    queue: String,
    kind: String,
    owner: String,
    event: String,
    actor: String,
    from: String,
    to: String,
    cursor: String,
}

impl Wanted {
    /// Returns what the form has that is not empty.
    fn parts(&self) -> Vec<(&'static str, String)> {
        let parts = [
            ("job", &self.job),
            ("queue", &self.queue),
            ("kind", &self.kind),
            ("owner", &self.owner),
            ("event", &self.event),
            ("actor", &self.actor),
            ("from", &self.from),
            ("to", &self.to),
        ];
        let parts = parts.into_iter().map(|(name, value)| (name, value.trim().to_owned()));
        parts.filter(|(_, value)| !value.is_empty()).collect()
    }

    /// Returns the address of the page that begins at this cursor.
    fn link(&self, cursor: &str) -> String {
        let parts = self.parts();
        let pairs = parts.iter().map(|(name, value)| (*name, value.as_str())).chain([("cursor", cursor)]);
        shown::address("/audit", pairs)
    }
}

#[derive(Template)]
#[template(path = "audit.html")]
struct Audit {
    frame: Frame,
    wanted: Wanted,
    events: Vec<AuditEvent>,
    /// The address of the next page.
    next: Option<String>,
    is_kept: bool,
    fault: Option<String>,
}

impl Audit {
    /// Returns the names of all events, each with whether it is the one that is wanted.
    fn names(&self) -> impl Iterator<Item = (AuditEventName, bool)> {
        AuditEventName::all().map(|event| (event, event.as_str() == self.wanted.event))
    }

    /// Returns whether everything is wanted.
    fn is_of_all(&self) -> bool {
        self.wanted.parts().is_empty()
    }
}

pub(super) async fn page(asker: Asker, Query(wanted): Query<Wanted>, uri: Uri) -> Response {
    frame::answer(audit(&asker, wanted).await, &uri)
}

async fn audit(asker: &Asker, wanted: Wanted) -> Result<Audit, Refused> {
    let frame = Frame::of(asker, "/events", "Audit").await?;
    let (answer, fault) = match read(asker, &wanted).await {
        Ok(answer) => (answer, None),
        Err(refused) if !refused.fields.is_empty() && !refused.is_of("cursor") => {
            let said = refused.fields.iter().map(|(field, message)| format!("{field}: {message}"));
            let none = AuditAnswer { items: Vec::new(), next_cursor: None, kept: true };
            (none, Some(said.collect::<Vec<_>>().join("\n")))
        }
        Err(refused) => return Err(refused),
    };
    let AuditAnswer { items: events, next_cursor, kept: is_kept } = answer;
    let next = next_cursor.map(|cursor| wanted.link(&cursor));
    Ok(Audit { frame, wanted, events, next, is_kept, fault })
}

/// Reads a page of the audit. Of one that is large and has little of what is wanted, some pages may be empty.
async fn read(asker: &Asker, wanted: &Wanted) -> Result<AuditAnswer, Refused> {
    let mut parts = wanted.parts();
    for (name, value) in &mut parts {
        match *name {
            "from" => *value = moment(value, "00:00:00.000"),
            "to" => *value = moment(value, "23:59:59.999"),
            _ => {}
        }
    }
    let mut cursor = Some(wanted.cursor.clone()).filter(|cursor| !cursor.is_empty());
    for asked in 1.. {
        let mut pairs = vec![("limit", ON_A_PAGE)];
        pairs.extend(parts.iter().map(|(name, value)| (*name, value.as_str())));
        pairs.extend(cursor.iter().map(|cursor| ("cursor", cursor.as_str())));
        let answer: AuditAnswer = asker.get("/v1/audit", &pairs).await?;
        if !answer.items.is_empty() || answer.next_cursor.is_none() || asked == MAX_ASKED {
            return Ok(answer);
        }
        cursor = answer.next_cursor;
    }
    Err(Refused::unreadable(&"it has no end"))
}

/// Returns a time in UTC as people write it, with or without what stands between its parts and after them, in the form
/// that the API takes; a day alone means this time of it. Anything else stays as it is, and is refused there.
fn moment(text: &str, of_day: &str) -> String {
    let text = text.trim().replace(' ', "T");
    match text.len() {
        10 => format!("{text}T{of_day}Z"),
        16 => format!("{text}:00Z"),
        19 => format!("{text}Z"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_may_be_a_day_or_have_seconds_or_not() {
        for (text, expected) in [
            ("2030-01-31", "2030-01-31T00:00:00.000Z"),
            ("2030-01-31 08:00", "2030-01-31T08:00:00Z"),
            ("2030-01-31T08:00:30", "2030-01-31T08:00:30Z"),
            ("2030-01-31T08:00:30+02:00", "2030-01-31T08:00:30+02:00"),
            ("soon", "soon"),
        ] {
            assert_eq!(moment(text, "00:00:00.000"), expected);
        }
    }

    #[test]
    fn the_address_of_the_next_page_has_what_is_wanted() {
        let wanted = Wanted { job: "a&b".to_owned(), event: " claimed ".to_owned(), ..Wanted::default() };
        assert_eq!(wanted.link("next"), "/audit?job=a%26b&event=claimed&cursor=next");
    }
}
