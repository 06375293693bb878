//! Why a store cannot be opened or migrated.

/// Why a store could not be opened or migrated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The store cannot be reached or cannot serve yet. Trying again may help.
    #[error("{0}")]
    NotYet(String),
    /// The store refuses to open until the configuration or the server has been changed.
    #[error("{what}; {mend}")]
    Refused {
        /// A description of what is wrong.
        what: String,
        /// A description of how to fix it.
        mend: String,
    },
}

impl ConnectError {
    /// Returns whether the same attempt may succeed later without a change of the configuration or the index.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::NotYet(_))
    }

    pub(super) fn refused(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), mend: mend.into() }
    }
}
