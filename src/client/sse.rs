//! A parser of Server-Sent Events (WHATWG HTML, section 9.2.6). Lines end with a line feed, before which a carriage
//! return may stand; the server writes nothing else.
//!
//! Unlike the crates for it, it bounds a message, and a message without data moves the id to go on after: the server's
//! keep-alives do so.

use std::time::Duration;

/// The longest message, in bytes: far more than an event has, whose longest parts are names.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// A message of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    /// The message's type; empty when not given.
    pub(super) event: String,
    /// The message's data.
    pub(super) data: String,
}

/// Takes in bytes as they come and returns the messages that are complete.
#[derive(Debug, Default)]
pub(super) struct Parser {
    /// The beginning of a line.
    rest: Vec<u8>,
    /// The beginning of a message.
    message: Message,
    has_data: bool,
    next_id: Option<String>,
    /// The id to go on after when the connection breaks.
    last_id: Option<String>,
    /// How long to wait before reconnecting.
    retry: Option<Duration>,
}

/// The error for a message longer than any that the server writes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Parser {
    /// Takes in bytes. Returns each complete message with the id to go on after it.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<(Message, Option<String>)>, TooLong> {
        let mut messages = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.rest.len() + part.len() + self.message.data.len() > MAX_MESSAGE_BYTES {
                return Err(TooLong);
            }
            self.rest.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.rest);
                messages.extend(self.line(&String::from_utf8_lossy(&line)));
            }
        }
        Ok(messages)
    }

    /// Returns the id of the latest message. A message without data moves it as well.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// Returns how long the server wants clients to wait before they reconnect.
    pub(super) const fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Forgets the incomplete message when the connection has ended.
    pub(super) fn cut_off(&mut self) {
        let (last_id, retry) = (self.last_id.take(), self.retry);
        *self = Self { last_id, retry, ..Self::default() };
    }

    fn line(&mut self, line: &str) -> Option<(Message, Option<String>)> {
        let line = line.trim_end_matches('\n').trim_end_matches('\r');
        if line.is_empty() {
            return self.end();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.message.event),
            "data" => {
                if self.has_data {
                    self.message.data.push('\n');
                }
                self.has_data = true;
                self.message.data.push_str(value);
            }
            "id" if !value.contains('\0') => self.next_id = Some(value.to_owned()),
            "retry" => self.retry = value.parse().ok().map(Duration::from_millis).or(self.retry),
            _ => {}
        }
        None
    }

    fn end(&mut self) -> Option<(Message, Option<String>)> {
        if let Some(id) = self.next_id.take() {
            self.last_id = Some(id);
        }
        let message = std::mem::take(&mut self.message);
        std::mem::take(&mut self.has_data).then(|| (message, self.last_id.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str =
        "retry: 1000\n\n: hello\n\nid: 1\nevent: a\ndata: {\ndata: }\n\nid: 2\n: still here\n\ndata:x\n\n";

    fn message(event: &str, data: &str) -> Message {
        Message { event: event.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn messages_are_found_however_they_are_cut() {
        for (size, stream) in [(1, STREAM.to_owned()), (7, STREAM.to_owned()), (1000, STREAM.replace('\n', "\r\n"))] {
            let mut parser = Parser::default();
            let found: Vec<_> =
                stream.as_bytes().chunks(size).flat_map(|part| parser.feed(part).expect("short")).collect();
            let expected = [(message("a", "{\n}"), Some("1".to_owned())), (message("", "x"), Some("2".to_owned()))];
            assert_eq!(found, expected, "{size}");
            assert_eq!((parser.last_id(), parser.retry()), (Some("2"), Some(Duration::from_secs(1))));
        }
    }

    #[test]
    fn a_message_that_was_cut_off_is_none_and_moves_nothing() {
        let mut parser = Parser::default();
        assert_eq!(parser.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n").expect("short").len(), 1);
        parser.cut_off();
        assert_eq!(parser.last_id(), Some("1"));
        assert_eq!(parser.feed(b"\n").expect("short"), []);
    }

    #[test]
    fn a_message_without_end_is_refused() {
        let mut parser = Parser::default();
        let fed: Result<Vec<_>, TooLong> = (0..10).map(|_| parser.feed(&[b'x'; 1024 * 1024])).collect();
        assert_eq!(fed, Err(TooLong));
    }
}
