//! What an action is aimed at: the parts by which people find schedules. Nothing of it is a secret, as the rest of an
//! action may be.

use std::borrow::Cow;

use serde::Deserialize;

use super::definition::Action;

/// The names in a job that an action submits; empty where there is none.
#[derive(Default, Deserialize)]
#[serde(default)]
struct JobNames<'a> {
    #[serde(borrow)]
    queue: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

impl Action {
    /// Returns the URL that the action calls, without what may be a secret: user and password, query and fragment.
    #[must_use]
    pub fn searchable_url(&self) -> Option<Cow<'_, str>> {
        let url = self.url.as_deref()?;
        let url = &url[..url.find(['?', '#']).unwrap_or(url.len())];
        let host_at = url.find("://").map_or(0, |at| at + "://".len());
        let path_at = url[host_at..].find('/').map_or(url.len(), |at| host_at + at);
        Some(match url[host_at..path_at].rfind('@') {
            Some(at) => Cow::Owned([&url[..host_at], &url[host_at + at + 1..]].concat()),
            None => Cow::Borrowed(url),
        })
    }

    /// Returns the queue of the job that the action submits.
    #[must_use]
    pub fn job_queue(&self) -> Option<Cow<'_, str>> {
        self.job_names().map(|names| names.queue).filter(|queue| !queue.is_empty())
    }

    /// Returns the kind of the job that the action submits.
    #[must_use]
    pub fn job_kind(&self) -> Option<Cow<'_, str>> {
        self.job_names().map(|names| names.kind).filter(|kind| !kind.is_empty())
    }

    fn job_names(&self) -> Option<JobNames<'_>> {
        serde_json::from_str(self.job.as_ref()?.as_str()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Json;
    use crate::schedule::ActionType;

    #[test]
    fn a_url_is_found_by_what_is_no_secret_in_it() {
        for (url, found) in [
            ("https://example.org/ping", "https://example.org/ping"),
            ("https://example.org:8443/a/b?token=secret&x=/@", "https://example.org:8443/a/b"),
            ("https://example.org?token=secret", "https://example.org"),
            ("https://example.org/#secret", "https://example.org/"),
            ("https://user:secret@example.org/a@b", "https://example.org/a@b"),
            ("https://a@secret@example.org?x", "https://example.org"),
        ] {
            let action = Action { url: Some(url.to_owned()), ..Action::of(ActionType::Http) };
            assert_eq!(action.searchable_url().as_deref(), Some(found), "{url}");
        }
        assert_eq!(Action::of(ActionType::Job).searchable_url(), None);
    }

    #[test]
    fn a_job_is_found_by_its_queue_and_kind() {
        let names = |job: &str| {
            let job = Some(Json::parse(job.to_owned()).expect("JSON"));
            let action = Action { job, ..Action::of(ActionType::Job) };
            let text = |name: Option<Cow<'_, str>>| name.map(Cow::into_owned);
            (text(action.job_queue()), text(action.job_kind()))
        };
        let some = |queue: &str, kind: &str| (Some(queue.to_owned()), Some(kind.to_owned()));
        assert_eq!(names(r#"{"payload": {"queue": 1e999}, "kind": "k", "queue": "q"}"#), some("q", "k"));
        assert_eq!(names(r#"{"queue": "gr\u00f6\u00dfe", "kind": "k \" k"}"#), some("größe", "k \" k"));
        assert_eq!(names("[]"), (None, None));
        assert_eq!(names(r#"{"queue": 7}"#), (None, None));
    }
}
