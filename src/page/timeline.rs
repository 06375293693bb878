//! What happened to a job as bars in time: when it waited, and when an attempt ran.

use crate::clock::Timestamp;
use crate::job::JobState;
use crate::wire::HistoryEntry;

/// The width of the picture, in units of its own.
const WIDTH: f64 = 1_000.0;
/// The least width of a bar, so that a short one is seen.
const LEAST: f64 = 3.0;

/// A bar of the picture.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    /// `waiting` or `running`.
    pub(super) what: &'static str,
    /// When it begins and ends.
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    /// The attempt that ran; zero while the job waited.
    pub(super) attempt: u64,
    /// Where the bar begins, and how wide it is.
    pub(super) x: f64,
    pub(super) width: f64,
}

/// Returns the bars of a job's history, up to `now` where it has not ended. A job that is due later waits as well.
pub(super) fn spans(history: &[HistoryEntry], now: Timestamp) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (index, entry) in history.iter().enumerate() {
        let what = match entry.to {
            JobState::Available => "waiting",
            JobState::Running => "running",
            _ => continue,
        };
        let to = history.get(index + 1).map_or(now, |next| next.at).max(entry.at);
        let attempt = if entry.to == JobState::Running { entry.attempt.get().into() } else { 0 };
        match spans.last_mut() {
            // A note in the history, such as a hold, ends nothing.
            Some(last) if last.what == what && last.attempt == attempt && last.to == entry.at => last.to = to,
            _ => spans.push(Span { what, from: entry.at, to, attempt, x: 0.0, width: 0.0 }),
        }
    }
    let Some((first, last)) = spans.first().zip(spans.last()).map(|(first, last)| (first.from, last.to)) else {
        return spans;
    };
    let whole = (last.since(first).as_secs_f64()).max(0.001);
    for span in &mut spans {
        span.x = span.from.since(first).as_secs_f64() / whole * (WIDTH - LEAST);
        span.width = (span.to.since(span.from).as_secs_f64() / whole * (WIDTH - LEAST)).max(LEAST);
    }
    spans
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_waits_runs_and_waits_again() {
        let entry = |at: i64, from: Option<&str>, to: &str, attempt: u32, event: &str| -> HistoryEntry {
            let at = Timestamp::from_millis(at).to_rfc3339();
            serde_json::from_value(json!({
                "at": at, "from": from, "to": to, "fence": attempt, "attempt": attempt, "event": event, "actor": "a",
                "reason": null,
            }))
            .expect("an entry")
        };
        let history = [
            entry(0, None, "available", 0, "submitted"),
            entry(500, Some("available"), "available", 0, "held"),
            entry(1_000, Some("available"), "running", 1, "claimed"),
            entry(3_000, Some("running"), "available", 1, "failed"),
            entry(4_000, Some("available"), "running", 2, "claimed"),
        ];
        let spans = spans(&history, Timestamp::from_millis(8_000));
        let shape: Vec<_> =
            spans.iter().map(|span| (span.what, span.from.as_millis(), span.to.as_millis(), span.attempt)).collect();
        assert_eq!(
            shape,
            [
                ("waiting", 0, 1_000, 0),
                ("running", 1_000, 3_000, 1),
                ("waiting", 3_000, 4_000, 0),
                ("running", 4_000, 8_000, 2),
            ]
        );
        assert!(spans.iter().all(|span| span.x >= 0.0 && span.x + span.width <= WIDTH + 0.001), "{spans:?}");
        assert_eq!(super::spans(&[], Timestamp::from_millis(0)), []);
    }
}
