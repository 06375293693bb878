//! Splits texts into words as Elasticsearch's standard analyzer does: at the boundaries of Unicode's annex 29, in lower
//! case.

use unicode_segmentation::UnicodeSegmentation;

use super::pattern::Pattern;

/// The longest word, in UTF-16 units; longer words are split.
const MAX_WORD: usize = 255;

/// Returns the words of a text in order, in lower case.
#[must_use]
pub fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut run_ends_at = None;
    for (at, segment) in text.split_word_bound_indices() {
        if !segment.chars().any(is_word) {
            continue;
        }
        let segment_ends_at = at + segment.len();
        let in_run = segment.chars().all(is_complex);
        match words.last_mut() {
            // Scripts without spaces between words, which the annex leaves to dictionaries, stay whole.
            Some(last) if in_run && run_ends_at == Some(at) => last.extend(segment.chars().map(small)),
            _ => words.extend(cut(&segment.chars().map(small).collect::<String>())),
        }
        run_ends_at = in_run.then_some(segment_ends_at);
    }
    words
}

/// Returns the text in lower case, with one character for each of the original.
#[must_use]
pub fn small_letters(text: &str) -> String {
    text.chars().map(small).collect()
}

fn small(character: char) -> char {
    let mut small = character.to_lowercase();
    // Only the dotted capital I becomes two characters, of which the first is kept.
    small.next().unwrap_or(character)
}

fn is_word(character: char) -> bool {
    character.is_alphabetic() || is_digit(character) || is_complex(character) || is_pictograph(character)
}

/// Returns whether the character is a digit; fractions, superscripts and numbers in circles are signs.
fn is_digit(character: char) -> bool {
    let sign = matches!(character,
        '\u{b2}'..='\u{be}' | '\u{2070}'..='\u{218f}' | '\u{2460}'..='\u{24ff}' | '\u{2776}'..='\u{2793}'
        | '\u{3192}'..='\u{3195}' | '\u{3220}'..='\u{32ff}');
    character.is_numeric() && !sign
}

/// Returns whether the character is Thai, Lao, Myanmar or Khmer.
fn is_complex(character: char) -> bool {
    matches!(character,
        '\u{e01}'..='\u{e3a}' | '\u{e40}'..='\u{e4e}' | '\u{e81}'..='\u{ecd}' | '\u{1000}'..='\u{103e}'
        | '\u{1050}'..='\u{108f}' | '\u{1780}'..='\u{17d3}')
}

fn is_pictograph(character: char) -> bool {
    matches!(character,
        '\u{a9}' | '\u{ae}' | '\u{203c}' | '\u{2049}' | '\u{2122}' | '\u{2600}'..='\u{26ff}'
        | '\u{2702}' | '\u{2705}' | '\u{2708}'..='\u{270d}' | '\u{270f}' | '\u{2714}' | '\u{2716}'
        | '\u{1f1e6}'..='\u{1f1ff}' | '\u{1f300}'..='\u{1f64f}' | '\u{1f680}'..='\u{1f6ff}' | '\u{1f900}'..='\u{1faff}')
}

fn cut(word: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut length = 0;
    for character in word.chars() {
        if length + character.len_utf16() > MAX_WORD {
            parts.push(String::new());
            length = 0;
        }
        length += character.len_utf16();
        if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    parts
}

/// A part of a value with wildcards, in a field that is not a keyword. One matching part is enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Consecutive words without wildcards, separated by one space.
    Words(String),
    /// A single word with wildcards.
    Pattern(Pattern),
}

/// Splits a pattern at its white space.
#[must_use]
pub fn parts(pattern: &Pattern) -> Vec<Part> {
    let mut parts = Vec::new();
    // The pieces of the word that is being put together, and the words before it.
    let (mut pieces, mut plain): (Vec<String>, Vec<String>) = (vec![String::new()], Vec::new());
    for (number, piece) in pattern.pieces().iter().enumerate() {
        if number > 0 {
            pieces.push(String::new());
        }
        for (number, word) in piece.split(is_between_words).enumerate() {
            if number > 0 {
                finish(&mut parts, &mut plain, std::mem::replace(&mut pieces, vec![String::new()]));
            }
            if let Some(last) = pieces.last_mut() {
                last.push_str(word);
            }
        }
    }
    finish(&mut parts, &mut plain, pieces);
    flush(&mut parts, &mut plain);
    parts
}

/// Returns whether the character is white space in Lucene's query language.
fn is_between_words(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r' | '\u{3000}')
}

fn finish(parts: &mut Vec<Part>, plain: &mut Vec<String>, mut pieces: Vec<String>) {
    if pieces.len() == 1 {
        plain.extend(pieces.pop().filter(|word| !word.is_empty()));
    } else if let Some(pattern) = Pattern::new(pieces) {
        flush(parts, plain);
        parts.push(Part::Pattern(pattern));
    }
}

fn flush(parts: &mut Vec<Part>, plain: &mut Vec<String>) {
    if !plain.is_empty() {
        parts.push(Part::Words(plain.join(" ")));
        plain.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_taken_apart_as_the_standard_analyzer_does_it() {
        let cases: &[(&str, &[&str])] = &[
            ("Foo-bar Exit 5", &["foo", "bar", "exit", "5"]),
            ("crab_s it's x.y 3.14 a:b 1,000 a,b", &["crab_s", "it's", "x.y", "3.14", "a:b", "1,000", "a", "b"]),
            ("foo.com/x?y=1 C++", &["foo.com", "x", "y", "1", "c"]),
            ("漢字 カタカナ ひら 한국어", &["漢", "字", "カタカナ", "ひ", "ら", "한국어"]),
            ("ภาษาไทย ภาษา", &["ภาษาไทย", "ภาษา"]),
            ("İstanbul ΣΊΣΥΦΟΣ", &["istanbul", "σίσυφοσ"]),
            ("½ ² ⑦ Ⅷ 1½ a½b", &["ⅷ", "1", "a", "b"]),
            ("☃ 🦀 🇩🇪🇫🇷", &["☃", "🦀", "🇩🇪", "🇫🇷"]),
            ("!!! --", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(words(text), *expected, "{text}");
        }
        assert_eq!(words(&"x".repeat(300)).iter().map(String::len).collect::<Vec<_>>(), [255, 45]);
    }

    #[test]
    fn a_pattern_of_several_words_is_taken_apart() {
        let pattern = |text: &str| Pattern::new(text.split('*').map(str::to_owned).collect()).expect("a wildcard");
        let words = |text: &str| Part::Words(text.to_owned());
        assert_eq!(parts(&pattern("a*")), [Part::Pattern(pattern("a*"))]);
        assert_eq!(parts(&pattern("x  y a*b z")), [words("x y"), Part::Pattern(pattern("a*b")), words("z")]);
        assert_eq!(parts(&pattern("x *")), [words("x"), Part::Pattern(Pattern::any())]);
    }
}
