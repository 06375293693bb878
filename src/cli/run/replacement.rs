//! Replacement strings, as GNU parallel has them: the places in a command for an argument or a part of one.
//!
//! `{}` is the argument, `{.}` the argument without its extension, `{/}` its last part, `{//}` its directory, `{/.}`
//! its last part without extension; `{2}`, `{2.}`, … are those of the second source; `{#}` is the job's number and
//! `{%}` the number of the slot that it runs in.

use std::path::Path;

/// A part of an argument, with what stands for it in braces, and the end of the variable that carries it to a shell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    sign: &'static str,
    variable: &'static str,
    value: fn(&str) -> &str,
}

/// The parts. One whose sign begins like that of another stands before it.
pub(super) const PARTS: [Part; 5] = [
    Part { sign: "//", variable: "_DIR", value: folder },
    Part { sign: "/.", variable: "_NAME_STEM", value: |argument| without_extension(name(argument)) },
    Part { sign: "/", variable: "_NAME", value: name },
    Part { sign: ".", variable: "_STEM", value: without_extension },
    Part { sign: "", variable: "", value: |argument| argument },
];

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.sign == other.sign
    }
}

impl Eq for Part {}

impl Part {
    /// Returns this part of an argument.
    pub(super) fn of(self, argument: &str) -> &str {
        (self.value)(argument)
    }

    /// Returns the variable that carries this part of the argument of a source, or of the only one, to a shell.
    pub(super) fn variable(self, source: Option<usize>) -> String {
        let source = source.map(|source| source.to_string()).unwrap_or_default();
        format!("EACH{source}{}", self.variable)
    }
}

/// What a replacement string is replaced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A part of the argument of the source with this number, from 1; of every source where there is none.
    Argument(Part, Option<usize>),
    /// The job's number, from 1.
    Number,
    /// The number of the slot in which the job runs, from 1.
    Slot,
}

/// A replacement string in a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// The byte at which it begins.
    pub(super) at: usize,
    /// The byte after it.
    pub(super) end: usize,
    pub(super) place: Place,
}

/// Returns the replacement strings of a text, in their order.
pub(super) fn places(text: &str) -> impl Iterator<Item = Found> {
    text.match_indices('{').filter_map(|(at, _)| {
        let inside = &text[at + 1..];
        let (place, length) = parse(inside)?;
        Some(Found { at, end: at + 1 + length + 1, place })
    })
}

/// Parses what follows a brace. Returns the place and the length of what stands in the braces.
fn parse(inside: &str) -> Option<(Place, usize)> {
    for (sign, place) in [("#}", Place::Number), ("%}", Place::Slot)] {
        if inside.starts_with(sign) {
            return Some((place, 1));
        }
    }
    let digits = inside.find(|c: char| !c.is_ascii_digit())?;
    let source = if digits == 0 { None } else { Some(inside[..digits].parse().ok().filter(|source| *source > 0)?) };
    let rest = &inside[digits..];
    let part = PARTS.iter().find(|part| rest.strip_prefix(part.sign).is_some_and(|rest| rest.starts_with('}')))?;
    Some((Place::Argument(*part, source), digits + part.sign.len()))
}

/// Returns the last part of a path.
pub(super) fn name(path: &str) -> &str {
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path)
}

fn folder(path: &str) -> &str {
    let parent = Path::new(path).parent().and_then(Path::to_str).filter(|parent| !parent.is_empty());
    parent.unwrap_or(".")
}

/// Returns a path without its extension; a name that only begins with a dot has none.
fn without_extension(path: &str) -> &str {
    let name = name(path);
    match name.rfind('.') {
        Some(dot) if dot > 0 && path.ends_with(name) => &path[..path.len() - (name.len() - dot)],
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(&str, Place)> {
        places(text).map(|found| (&text[found.at..found.end], found.place)).collect()
    }

    #[test]
    fn every_part_of_an_argument_has_its_sign() {
        let parts = |argument| PARTS.map(|part| (part.sign, part.of(argument)));
        assert_eq!(
            parts("a/b.c/d.tar.gz"),
            [("//", "a/b.c"), ("/.", "d.tar"), ("/", "d.tar.gz"), (".", "a/b.c/d.tar"), ("", "a/b.c/d.tar.gz")]
        );
        assert_eq!(parts("plain").map(|(_, value)| value), [".", "plain", "plain", "plain", "plain"]);
        assert_eq!(parts("a.b/.hidden").map(|(_, value)| value)[1..4], [".hidden", ".hidden", "a.b/.hidden"]);
        assert_eq!(parts("a.b/").map(|(_, value)| value)[3], "a.b/");
        assert_eq!(parts(""), PARTS.map(|part| (part.sign, if part.sign == "//" { "." } else { "" })));
    }

    #[test]
    fn replacement_strings_are_found_and_other_braces_are_not() {
        let signs: Vec<_> =
            found("{} x{.}y {/}{//} {/.} {#}{%} {2} {10/.}").into_iter().map(|(sign, _)| sign).collect();
        assert_eq!(signs, ["{}", "{.}", "{/}", "{//}", "{/.}", "{#}", "{%}", "{2}", "{10/.}"]);
        assert_eq!(found("{a} { {0} {..} {/#} {1 } ${x} {3,4}").len(), 0);
        let [(_, Place::Argument(part, Some(3)))] = found("{3//}")[..] else { panic!("no place") };
        assert_eq!(part.variable(Some(3)), "EACH3_DIR");
    }
}
