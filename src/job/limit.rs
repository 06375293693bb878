//! Limits: what the jobs have in common of which only so many run at once.

use std::fmt;
use std::str::FromStr;

use serde_with::{DeserializeFromStr, SerializeDisplay};

use super::names::ConcurrencyKey;
use super::{Job, words};

/// The most jobs that a limit can let run at once. The jobs that run under a limit are named by one document.
pub const MAX_CONCURRENT: u32 = 1_000;

words! {
    /// What the jobs under a limit have in common.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, utoipa::ToSchema)]
    #[schema(rename_all = "snake_case")]
    pub enum LimitScope: "a scope of a limit", "scopes" {
        /// The jobs are in one queue.
        Queue = "queue",
        /// The jobs are of one kind.
        Kind = "kind",
        /// The jobs have one owner, and are not the system's own.
        Owner = "owner",
        /// The jobs name one key (`concurrency_key`), and are not the system's own.
        Key = "key",
    }
}

impl LimitScope {
    /// Returns whether the system's own jobs are under such limits.
    #[must_use]
    pub const fn has_system_jobs(self) -> bool {
        matches!(self, Self::Queue | Self::Kind)
    }

    /// Returns the name of the field of a job that has what its jobs have in common.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Kind => "kind",
            Self::Owner => "owner",
            Self::Key => "concurrency_key",
        }
    }
}

/// The jobs that a limit is about: those of one queue, kind, owner or key. Written as `key:db-7`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeDisplay, DeserializeFromStr)]
pub struct LimitName {
    /// What the jobs have in common.
    pub scope: LimitScope,
    /// The name of the queue, kind, owner or key.
    pub of: ConcurrencyKey,
}

impl LimitName {
    /// Makes the name of the limit of one queue, kind, owner or key.
    #[must_use]
    pub fn new(scope: LimitScope, of: impl Into<ConcurrencyKey>) -> Self {
        Self { scope, of: of.into() }
    }
}

impl Job {
    /// Returns the limits that can be about the job: those of its queue, its kind, its owner and its key. The system's
    /// own jobs, as triggers of schedules, have an owner whose limits they are not under: a job of that owner may be
    /// what they are to end, or wait for them.
    pub fn limit_names(&self) -> impl Iterator<Item = LimitName> + '_ {
        let spec = &self.spec;
        let owner = spec.owner.as_ref().map(|owner| LimitName::new(LimitScope::Owner, owner));
        let key = spec.concurrency().map(|concurrency| LimitName::new(LimitScope::Key, concurrency.key.clone()));
        let named = [LimitName::new(LimitScope::Queue, &spec.queue), LimitName::new(LimitScope::Kind, &spec.kind)];
        let is_of_system = spec.queue.is_internal();
        named.into_iter().chain(owner).chain(key).filter(move |name| !is_of_system || name.scope.has_system_jobs())
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scope, self.of)
    }
}

impl FromStr for LimitName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scope, of) = text.split_once(':').ok_or_else(|| format!("`{text}` names no limit, as `key:db-7` does"))?;
        let of = ConcurrencyKey::new(of).map_err(|error| format!("the name after `{scope}:` {error}"))?;
        Ok(Self { scope: scope.parse()?, of })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_as_it_is_written() {
        for text in ["queue:night", "kind:a:b", "owner:team x", "key:db-7"] {
            assert_eq!(text.parse::<LimitName>().map(|name| name.to_string()), Ok(text.to_owned()));
        }
        for wrong in ["night", "key:", "place:x", ":x", "key: x"] {
            assert!(wrong.parse::<LimitName>().is_err(), "{wrong}");
        }
    }
}
