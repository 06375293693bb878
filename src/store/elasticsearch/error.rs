//! Why a store cannot be opened or migrated.

/// Why no store could be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// It cannot be reached, or cannot serve yet. Worth trying again.
    #[error("{0}")]
    NotYet(String),
    /// It will not work before somebody has changed something.
    #[error("{what}; {mend}")]
    Refused {
        /// What is wrong.
        what: String,
        /// How to mend it.
        mend: String,
    },
}

impl ConnectError {
    /// Whether the same try may succeed later, without anybody changing the configuration or the index.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::NotYet(_))
    }

    pub(super) fn refused(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), mend: mend.into() }
    }
}
