//! How often each thing has happened in a simulated group.

/// Declares how often each of these has happened, so that none is left out where all are looked at.
macro_rules! counts {
    ($($name:ident),*) => {
        /// How often each thing has happened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(super) struct Counts {
            $(pub(super) $name: u64),*
        }

        impl Counts {
            pub(super) fn add(&mut self, more: Self) {
                $(self.$name += more.$name;)*
            }

            /// Returns whether everything has happened at least once.
            pub(super) fn have_all(&self) -> bool {
                $(self.$name > 0)&&*
            }
        }
    };
}

counts!(
    committed,
    terms,
    crashes,
    partitions,
    stalls,
    slow_disks,
    lost,
    doubled,
    replaced_entries,
    installed,
    handed_over,
    large,
    confirmed,
    answered,
    directories_lost,
    went_back,
    added,
    given_votes,
    removed,
    replaced,
    identified,
    compared
);
