//! Reads JSON strictly: where a type has named fields, only an object will do.
//!
//! Serde's derived code also takes an array for such a type, its values in the order of the fields, so that a list of
//! values would pass for a job and `[]` for any object whose fields may all be missing. [`Strict`] stands between a
//! parser and a type and passes everything on but that. Its errors also say what was expected in JSON's words, not by
//! the names of our types.

use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// Reads one JSON value. Where a text in it has half of a character, as programs leave it that cut texts by units of
/// UTF-16, U+FFFD stands for that half: a worker that reports how a job ended cannot say it better a second time.
///
/// # Errors
/// Returns the parser's error when the text is not JSON, or not of this type.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    read(text).or_else(|error| read(&without_halves(text).ok_or(error)?))
}

/// Replaces the escapes of surrogates that are no pairs. Returns `None` where there are none.
pub(crate) fn without_halves(text: &[u8]) -> Option<Vec<u8>> {
    let unit = |at: usize| match text.get(at..at + 6)? {
        [b'\\', b'u', digits @ ..] => u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok(),
        _ => None,
    };
    let next = |at: usize| Some(at + text.get(at..)?.iter().position(|byte| *byte == b'\\')?);
    let (mut whole, mut at) = (None, 0);
    while let Some(found) = next(at) {
        at = match unit(found) {
            Some(0xd800..=0xdbff) if matches!(unit(found + 6), Some(0xdc00..=0xdfff)) => found + 12,
            Some(0xd800..=0xdfff) => {
                whole.get_or_insert_with(|| text.to_vec())[found..found + 6].copy_from_slice(br"\ufffd");
                found + 6
            }
            _ => found + 2,
        };
    }
    whole
}

fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = T::deserialize(Strict(&mut json))?;
    json.end()?;
    Ok(value)
}

/// A deserializer that gives objects, and no arrays, to types with named fields.
pub struct Strict<D>(pub D);

/// A visitor, a seed or an access of a [`Strict`] deserializer: what it hands on is strict again.
struct Within<T>(T);

/// The visitor of a type with named fields.
struct Fields<V>(V);

macro_rules! pass_on {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method(Within(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    pass_on! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string deserialize_bytes
        deserialize_byte_buf deserialize_option deserialize_unit deserialize_seq deserialize_map
        deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, Within(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, Within(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(len, Within(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, len, Within(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, Fields(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, Within(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident($value:ty))*) => {$(
        fn $method<E: Error>(self, value: $value) -> Result<V::Value, E> {
            self.0.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Within<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit! {
        visit_bool(bool) visit_i64(i64) visit_i128(i128) visit_u64(u64) visit_u128(u128) visit_f64(f64)
        visit_str(&str) visit_borrowed_str(&'de str) visit_string(String)
        visit_bytes(&[u8]) visit_borrowed_bytes(&'de [u8]) visit_byte_buf(Vec<u8>)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Strict(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Strict(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Within(access))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Within(access))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Within(access))
    }
}

/// Everything but an object is an error, which is what the default methods return.
impl<'de, V: Visitor<'de>> Visitor<'de> for Fields<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Within(access))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Within<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Within<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Within(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Within<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(Within(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Within(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Within<A> {
    type Error = A::Error;
    type Variant = Within<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        self.0.variant_seed(Within(seed)).map(|(value, variant)| (value, Within(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Within<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Within(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, Within(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, Fields(visitor))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::job::Json;

    #[test]
    fn half_a_character_is_read_as_the_sign_for_it_and_a_whole_one_as_it_is() {
        for (text, read) in [
            (r#""a\ud83d""#, "a\u{fffd}"),
            (r#""\ud83d\ude00 \uD83D\n""#, "\u{1f600} \u{fffd}\n"),
            (r#""\ude00\ud83d""#, "\u{fffd}\u{fffd}"),
            (r#""\\ud83d \ud83d\\ude00""#, "\\ud83d \u{fffd}\\ude00"),
            (r#""\ud83d\u0041""#, "\u{fffd}A"),
        ] {
            assert_eq!(super::from_slice::<String>(text.as_bytes()).expect(text), read);
        }
        for wrong in [r#""\ud83d"#, r#""\ud8"#, r#""\"#, r#""\ud83d" x"#] {
            assert!(super::from_slice::<String>(wrong.as_bytes()).is_err(), "{wrong}");
        }
        // What is kept as it was sent is not touched.
        let json = super::from_slice::<Json>(br#"["\ud83d"]"#).expect("JSON");
        assert_eq!(json.as_str(), r#"["\ud83d"]"#);
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        #[serde(default)]
        number: Option<u8>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    enum Choice {
        Plain,
        Named { inner: Inner },
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        name: String,
        inner: Option<Inner>,
        #[serde(default)]
        list: Vec<Inner>,
        #[serde(default)]
        by_name: BTreeMap<String, Inner>,
        choice: Option<Choice>,
        json: Option<Json>,
    }

    fn read(text: &str) -> Result<Outer, String> {
        from_slice(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn whatever_an_object_may_hold_is_read() {
        let text = r#"{"name": "n\n", "inner": {"number": 1}, "list": [{}, {"number": null}], "by_name": {"a": {}},
                       "choice": {"Named": {"inner": {}}}, "json": [1, {"a":[]}]}"#;
        let empty = || Inner { number: None };
        let read = read(text).expect("an object");
        assert_eq!((read.name.as_str(), read.inner), ("n\n", Some(Inner { number: Some(1) })));
        assert_eq!((read.list, read.by_name), (vec![empty(), empty()], [("a".to_owned(), empty())].into()));
        assert_eq!(read.choice, Some(Choice::Named { inner: empty() }));
        assert_eq!(read.json.expect("JSON").as_str(), r#"[1, {"a":[]}]"#);
        assert_eq!(super::from_slice::<Choice>(b"\"Plain\"").expect("a word"), Choice::Plain);
    }

    #[test]
    fn an_array_is_no_object_at_any_depth() {
        for text in [
            r#"["n", null, [], {}, null, null]"#,
            r#"{"name": "n", "inner": []}"#,
            r#"{"name": "n", "inner": [1]}"#,
            r#"{"name": "n", "list": [[]]}"#,
            r#"{"name": "n", "by_name": {"a": []}}"#,
            r#"{"name": "n", "choice": {"Named": [[]]}}"#,
            r#"{"name": "n", "choice": {"Named": {"inner": []}}}"#,
        ] {
            let said = read(text).expect_err(text);
            assert!(said.contains("invalid type: sequence, expected an object"), "{text}: {said}");
        }
    }

    #[test]
    fn what_follows_the_value_is_an_error() {
        assert!(read(r#"{"name": "n"} {}"#).is_err());
    }
}
