//! That somebody has signed in to the page or out of it: what the page's answer says within the process, so that the
//! API writes it to the audit before the answer leaves.

use crate::job::Actor;

/// Who has signed in or out, by the name of the token; an extension of the answer. The page says it with one line:
/// `response.extensions_mut().insert(Signed::In(name))`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signed {
    /// Somebody has signed in.
    In(Actor),
    /// Somebody has signed out.
    Out(Actor),
}
