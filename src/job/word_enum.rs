//! Enums whose values are words: in the API, in the index and on the command line.

/// Defines an enum with `ALL` (every value in the order of the declaration), `as_str`, `Display`, and `FromStr`, whose
/// error lists all words. `what` and `plural` complete that error: "`x` is not {what}; the {plural} are …".
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident: $what:literal, $plural:literal {
            $($(#[$value_meta:meta])* $value:ident = $word:literal,)*
        }
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$value_meta])* $value,)*
        }

        impl $name {
            /// Every value, in the order of the declaration.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$value),*];

            /// Returns the word for this value, in the API and the index.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.into_iter().find(|value| value.as_str() == text).ok_or_else(|| {
                    let words = Self::ALL.map(Self::as_str).join(", ");
                    format!("`{text}` is not {}; the {} are {words}", $what, $plural)
                })
            }
        }
    };
}

pub(crate) use words;
