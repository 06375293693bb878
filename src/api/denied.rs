//! Calls that are denied, since no token, a wrong one or one without the right was shown, and items of calls that are:
//! a line in the log and a count.
//!
//! Whoever has no rights writes nothing to the store by that, and no more than a line a second to the log.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use axum::response::Response;
use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use super::error::{ApiError, Code};
use crate::job::Actor;

/// The least time between two lines of one caller.
const BETWEEN_LINES: Duration = Duration::from_secs(1);
/// The most callers that are told apart. The others have the lines of one.
const MAX_CALLERS: usize = 1_024;

/// A caller whose call is denied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Denied {
    /// The holder of a token that is known.
    Token(Actor),
    /// Somebody else, by the address.
    Address(IpAddr),
    /// A call without an address, or one too many to be told apart.
    Other,
}

/// The last line of a caller, and how many calls were denied since without one.
#[derive(Debug)]
struct Lines {
    last: Instant,
    without: u64,
}

/// Whose call it is, as far as that is known.
#[derive(Clone, Debug, Default)]
pub(super) struct DeniedCaller {
    /// The name of the token that it was made with.
    pub(super) token: Option<Actor>,
    /// The address of the client, as a trusted proxy says it; `None` for a call within the process.
    pub(super) address: Option<IpAddr>,
}

/// The items of a call that are denied, among others that are not: an extension of the answer.
#[derive(Clone, Debug, Default)]
pub(super) struct DeniedItems(Vec<(ApiError, u64)>);

impl DeniedItems {
    /// Adds the refusal of an item if it is denied. The first of each code is kept, and the number of them.
    pub(super) fn add(&mut self, refused: &ApiError) {
        if !is_denial(refused.code()) {
            return;
        }
        match self.0.iter_mut().find(|(first, _)| first.code() == refused.code()) {
            Some((_, count)) => *count += 1,
            None => self.0.push((refused.clone(), 1)),
        }
    }

    /// Adds the refusal among these answers to items, if one is denied.
    pub(super) fn look_at<T>(&mut self, answer: &Result<T, ApiError>) {
        if let Err(refused) = answer {
            self.add(refused);
        }
    }

    /// Returns the answer to the call, which says for the log that items are denied.
    pub(super) fn in_answer(self, answer: Result<Response, ApiError>) -> Result<Response, ApiError> {
        answer.map(|mut response: Response| {
            if !self.0.is_empty() {
                response.extensions_mut().insert(self);
            }
            response
        })
    }
}

fn is_denial(code: Code) -> bool {
    [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&code.status())
}

/// The calls that were denied of late, by caller.
#[derive(Debug, Default)]
pub(super) struct DeniedCalls(Mutex<HashMap<Denied, Lines>>);

impl DeniedCalls {
    /// Counts the refusal of a call if it was denied, and logs it if its caller may have a line.
    pub(super) fn note(&self, refused: &ApiError, by: &DeniedCaller, call: (&str, &str)) {
        if is_denial(refused.code()) {
            self.note_some(refused, None, by, call);
        }
    }

    /// Counts the items of a call that were denied, and logs each code once if their caller may have a line.
    pub(super) fn note_items(&self, DeniedItems(items): &DeniedItems, by: &DeniedCaller, call: (&str, &str)) {
        for (refused, count) in items {
            self.note_some(refused, Some(*count), by, call);
        }
    }

    fn note_some(&self, refused: &ApiError, items: Option<u64>, by: &DeniedCaller, (method, route): (&str, &str)) {
        let code = refused.code().as_str();
        metrics::counter!("leasehold_denied_calls_total", "code" => code).increment(items.unwrap_or(1));
        let token = refused.token().or(by.token.as_ref());
        let caller = match (token, by.address) {
            (Some(name), _) => Denied::Token(name.clone()),
            (None, Some(address)) => Denied::Address(address.to_canonical()),
            (None, None) => Denied::Other,
        };
        let Some(without) = self.line(caller, Instant::now()) else { return };
        let (token, address) = (token.map(Actor::as_str), by.address.map(|address| address.to_string()));
        let (what, detail) = (if items.is_some() { "items of a call" } else { "a call" }, refused.detail());
        warn!(token, address, method, route, code, items, not_logged_before = without, "denied {what}: {detail}");
    }

    /// Returns how many calls of the caller had no line since its last one, if this call may have one.
    fn line(&self, caller: Denied, now: Instant) -> Option<u64> {
        let mut callers = self.0.lock();
        let is_over = |lines: &Lines| now.duration_since(lines.last) >= BETWEEN_LINES;
        if callers.len() >= MAX_CALLERS && !callers.contains_key(&caller) {
            callers.retain(|_, lines| !is_over(lines));
        }
        let is_full = callers.len() >= MAX_CALLERS && !callers.contains_key(&caller);
        let caller = if is_full { Denied::Other } else { caller };
        let Some(lines) = callers.get_mut(&caller) else {
            callers.insert(caller, Lines { last: now, without: 0 });
            return Some(0);
        };
        if is_over(lines) {
            lines.last = now;
            return Some(std::mem::take(&mut lines.without));
        }
        lines.without += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::job::Refusal;
    use crate::manager::ManagerError;

    fn at(number: u32) -> Denied {
        Denied::Address(Ipv4Addr::from_bits(number).into())
    }

    #[test]
    fn a_caller_has_a_line_a_second_with_the_count_of_the_rest() {
        let (denied, begun) = (DeniedCalls::default(), Instant::now());
        let token = Denied::Token(Actor::system("ci"));
        for caller in [at(1), token] {
            assert_eq!(denied.line(caller.clone(), begun), Some(0));
            for _ in 0..7 {
                assert_eq!(denied.line(caller.clone(), begun + BETWEEN_LINES / 2), None);
            }
            assert_eq!(denied.line(caller.clone(), begun + BETWEEN_LINES), Some(7));
            assert_eq!(denied.line(caller.clone(), begun + BETWEEN_LINES), None);
            assert_eq!(denied.line(caller, begun + 3 * BETWEEN_LINES), Some(1));
        }
    }

    #[test]
    fn of_the_items_that_are_denied_each_code_is_there_once_with_their_number() {
        let mut items = DeniedItems::default();
        let refused = |refusal: Refusal| ApiError::from(ManagerError::from(refusal));
        for _ in 0..1_000 {
            for refusal in [Refusal::ForeignLease, Refusal::Held, Refusal::NotOwn] {
                items.add(&refused(refusal));
            }
        }
        let found: Vec<_> = items.0.iter().map(|(refused, count)| (refused.code(), *count)).collect();
        assert_eq!(found, [(Code::ForeignLease, 1_000), (Code::Forbidden, 1_000)]);
    }

    #[test]
    fn however_many_addresses_call_few_are_remembered_and_the_others_share_the_lines_of_one() {
        let (denied, begun) = (DeniedCalls::default(), Instant::now());
        let lines = (0..50_000).filter_map(|number| denied.line(at(number), begun)).count();
        assert!((MAX_CALLERS..=MAX_CALLERS + 1).contains(&lines), "{lines}");
        assert!(denied.0.lock().len() <= MAX_CALLERS + 1);
        assert_eq!(denied.line(at(100_000), begun + BETWEEN_LINES), Some(0), "there is room again");
    }
}
