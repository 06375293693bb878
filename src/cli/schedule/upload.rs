//! Stores a file of schedules as a stream: the file is read while its lines are sent and their answers come, so that it
//! may be of any length, and so that standard input may be a pipe whose other end is still writing.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, stream};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64;

use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::output::{complain, print, print_json};
use crate::client::{Client, ClientError, StoredSchedules};
use crate::wire::SubmitItem;

/// After how many bytes lines that were read are sent.
const PART_BYTES: usize = 64 * 1024;
/// How many such parts are read ahead.
const PARTS_AHEAD: usize = 8;
/// After how long without a line an empty one is sent, so that the server knows that there is somebody.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The silence about lines that were sent after which the call counts as failed.
const SILENCE: Duration = Duration::from_secs(120);
/// How many refusals are printed one by one.
const MAX_SHOWN: usize = 20;
/// What some editors put before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The numbers of the lines that were read and are not answered yet.
type Unanswered = Arc<Mutex<VecDeque<usize>>>;

/// Stores the schedules of a file, from the line with this number on.
pub(super) async fn put_file(client: &Client, file: &Path, from_line: usize, json: bool) -> Result<(), Failure> {
    let cannot_read = |error: io::Error| Failure::Usage(format!("cannot read {}: {error}", file.display()));
    let input: Box<dyn Read + Send> = match file == Path::new("-") {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(file).map_err(cannot_read)?),
    };
    let (parts, mut read) = mpsc::channel(PARTS_AHEAD);
    let unanswered = Unanswered::default();
    let numbers = Arc::clone(&unanswered);
    let reading = tokio::task::spawn_blocking(move || read_lines(BufReader::new(input), from_line, &numbers, &parts));
    let mut upload = Upload { name: file.display().to_string(), unanswered, last: from_line - 1, refused: 0, json };
    // The call begins with the first line, which may be long in coming.
    if let Some(first) = read.recv().await {
        let stored = match client.store_schedules(body(first, read)).await {
            Ok(answers) => upload.take_all(answers).await,
            Err(error) => Err(error.into()),
        };
        stored.inspect_err(|_| upload.say_how_to_go_on())?;
    }
    reading.await.map_err(Failure::failed)?.map_err(|error| {
        upload.say_how_to_go_on();
        Failure::Failed(format!("cannot read {}: {error}", file.display()))
    })?;
    match upload.refused {
        0 => Ok(()),
        refused => {
            complain(&format!("{refused} schedules were refused"));
            Err(Failure::Reported(ExitStatus::Failed))
        }
    }
}

/// Reads lines and hands them on, until there are no more or nobody wants them.
fn read_lines(
    mut input: BufReader<impl Read>,
    from_line: usize,
    numbers: &Mutex<VecDeque<usize>>,
    parts: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    let (mut part, mut line) = (Vec::new(), Vec::new());
    for number in 1.. {
        line.clear();
        let is_end = input.read_until(b'\n', &mut line)? == 0;
        let text = if number == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&line) } else { &line[..] };
        let text = text.trim_ascii();
        if number >= from_line && !text.is_empty() {
            numbers.lock().push_back(number);
            part.extend_from_slice(&with_id(text));
            part.push(b'\n');
        }
        // What is there is sent before the next line is waited for.
        if !part.is_empty() && (is_end || part.len() >= PART_BYTES || input.buffer().is_empty()) {
            let part = std::mem::take(&mut part);
            if parts.blocking_send(part.into()).is_err() {
                return Ok(());
            }
        }
        if is_end {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the line of a schedule with an id: one that follows from the line where it has none, so that the same line
/// again is the same schedule. A line that is no schedule is left as it is, for the server to say what is wrong.
fn with_id(line: &[u8]) -> Cow<'_, [u8]> {
    let fields = serde_json::from_slice::<BTreeMap<Cow<'_, str>, &RawValue>>(line);
    match line.strip_prefix(b"{") {
        Some(rest) if fields.is_ok_and(|fields| !fields.is_empty() && !fields.contains_key("id")) => {
            let named = format!("{{\"id\":\"line-{:016x}\",", xxh3_64(line));
            Cow::Owned([named.as_bytes(), rest].concat())
        }
        _ => Cow::Borrowed(line),
    }
}

/// Returns the body of the call: its first part, and the others as they are read.
fn body(first: Bytes, read: mpsc::Receiver<Bytes>) -> impl Stream<Item = Bytes> + Send {
    stream::unfold((Some(first), read), |(first, mut read)| async move {
        let part = match first {
            Some(first) => first,
            None => match timeout(KEEP_ALIVE, read.recv()).await {
                Ok(part) => part?,
                Err(_) => Bytes::from_static(b"\n"),
            },
        };
        Some((part, (None, read)))
    })
}

/// How far an upload has come.
struct Upload {
    /// The name of the file.
    name: String,
    unanswered: Unanswered,
    /// The number of the last line that was answered.
    last: usize,
    refused: usize,
    json: bool,
}

impl Upload {
    /// Prints the answers to all lines, until the server has sent the last.
    async fn take_all(&mut self, mut answers: StoredSchedules) -> Result<(), Failure> {
        // Ends: with the answers, or with the server's silence.
        loop {
            match timeout(SILENCE, answers.next()).await {
                Ok(Ok(Some(items))) => self.take(&items)?,
                Ok(Ok(None)) => break,
                Ok(Err(error)) => return Err(error.into()),
                // Nothing was sent.
                Err(_) if self.unanswered.lock().is_empty() => {}
                Err(_) => {
                    return Err(ClientError::Timeout(format!("no answer for {} s", SILENCE.as_secs())).into());
                }
            }
        }
        match self.unanswered.lock().len() {
            0 => Ok(()),
            lines => Err(Failure::Failed(format!("the server has not answered {lines} lines"))),
        }
    }

    fn take(&mut self, items: &[SubmitItem]) -> Result<(), Failure> {
        for item in items {
            let number = self.unanswered.lock().pop_front();
            let Some(number) = number else {
                return Err(Failure::Failed("the server has answered more lines than were sent".to_owned()));
            };
            self.refused += report(&format!("{}:{number}", self.name), item, self.json, self.refused)?;
            self.last = number;
        }
        Ok(())
    }

    /// Says how far it came, and with which line to go on.
    fn say_how_to_go_on(&self) {
        let Self { name, last, .. } = self;
        let stored =
            if *last == 0 { "nothing is known to be stored".to_owned() } else { format!("stored up to line {last}") };
        complain(&format!("{name}: {stored}; the same command with --from-line {} goes on", last + 1));
    }
}

/// Prints what became of one schedule of many; returns how many were refused, 0 or 1.
pub(super) fn report(place: &str, item: &SubmitItem, json: bool, refused: usize) -> Result<usize, Failure> {
    match &item.error {
        _ if json => print_json(item)?,
        None => print(item.id.as_deref().unwrap_or_default())?,
        Some(_) => {}
    }
    let Some(error) = &item.error else { return Ok(0) };
    if refused < MAX_SHOWN {
        let field = error.field.as_ref().map(|field| format!("{field}: ")).unwrap_or_default();
        complain(&format!("{place}: {field}{} ({})", error.message, error.code));
    }
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that are sent of a text, and their numbers.
    fn sent(text: &str, from_line: usize) -> (String, Vec<usize>) {
        let (parts, mut read) = mpsc::channel(100);
        let numbers = Mutex::default();
        read_lines(BufReader::with_capacity(7, text.as_bytes()), from_line, &numbers, &parts).expect("it is read");
        drop(parts);
        let mut all = Vec::new();
        while let Some(part) = read.blocking_recv() {
            assert!(part.ends_with(b"\n"), "a part is whole lines");
            all.extend_from_slice(&part);
        }
        (String::from_utf8(all).expect("text"), numbers.into_inner().into())
    }

    #[test]
    fn lines_are_sent_with_their_numbers_from_the_one_that_is_asked_for() {
        let text = "\u{feff}{\"id\":\"a\"}\n\n  {\"id\":\"b\"} \r\nno json\n{\"id\":\"c\"}";
        assert_eq!(
            sent(text, 1),
            ("{\"id\":\"a\"}\n{\"id\":\"b\"}\nno json\n{\"id\":\"c\"}\n".to_owned(), vec![1, 3, 4, 5])
        );
        assert_eq!(sent(text, 4), ("no json\n{\"id\":\"c\"}\n".to_owned(), vec![4, 5]));
        assert_eq!(sent(text, 6), (String::new(), Vec::new()));
    }

    #[test]
    fn a_line_without_an_id_is_given_the_same_one_each_time() {
        let named = with_id(b"{\"owner\": \"a\"}").into_owned();
        assert!(named.starts_with(b"{\"id\":\"line-") && named.ends_with(b"\",\"owner\": \"a\"}"));
        assert_eq!(with_id(b"{\"owner\": \"a\"}"), named);
        assert_ne!(with_id(b"{\"owner\": \"b\"}"), named);
        for line in ["{\"owner\": \"a\", \"id\": null}", "{}", "[]", "{\"id\": 7}", "{\"owner\"", ""] {
            assert_eq!(with_id(line.as_bytes()), line.as_bytes(), "{line}");
        }
    }
}
