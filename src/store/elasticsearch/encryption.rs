//! What is secret in documents is encrypted with keys that lie outside the indices, so that nobody reads it who reads
//! the indices.
//!
//! An encrypted text stands in the place of a text that is JSON, and begins as no JSON does. So what was written before
//! there were keys is read as it is, and a program or a process that has not the key reads nothing and overwrites
//! nothing: the document cannot be read.
//!
//! Each text is encrypted with a key of its own (AES-256-GCM), which is derived from one of the process's keys and a
//! random salt; a random nonce alone would repeat itself once there are some billions. The document and the field are
//! authenticated with it, so that what is encrypted for one document is refused in another.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use sha2::{Digest, Sha256};

/// What an encrypted text begins with.
const MARK: &str = "encrypted:1:";
/// The length of a key in bytes.
const KEY_BYTES: usize = 32;
/// The length of the salt from which the key of a text is derived.
const SALT_BYTES: usize = 16;
/// How many digits name a key.
const ID_DIGITS: usize = 8;
/// What a line begins with that names a key which is lost.
const LOST: &str = "lost ";
/// The most keys of one process.
const MAX_KEYS: usize = 16;

/// Why a text has no keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEncryptionKeys {
    /// A line is no key.
    #[error("line {0} must be what `openssl rand -base64 32` prints, or `lost` and the 8 digits that name a lost key")]
    Line(usize),
    /// There is no key.
    #[error("it has no key: make one with `openssl rand -base64 32`")]
    None,
    /// There are more than [`MAX_KEYS`] keys.
    #[error("it has more than {MAX_KEYS} keys")]
    TooMany,
}

/// The keys with which a process encrypts what is secret: the first encrypts, and all decrypt. `Debug` never prints
/// them.
#[derive(Clone, Default)]
pub struct EncryptionKeys {
    keys: Vec<Key>,
    /// The names of keys that nobody has any more.
    lost: BTreeSet<String>,
}

#[derive(Clone)]
struct Key {
    id: String,
    derives: hmac::Key,
}

impl fmt::Debug for EncryptionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EncryptionKeys").field(&self.ids().collect::<Vec<_>>()).finish()
    }
}

/// A field of a document that is encrypted.
#[derive(Clone, Copy, Debug)]
pub(super) struct SecretField<'a> {
    /// What the document is.
    pub(super) kind: &'static str,
    /// The id of the document in its index.
    pub(super) id: &'a str,
    /// The name of the field in the document.
    pub(super) name: &'static str,
}

impl SecretField<'_> {
    /// Returns what is authenticated of the field. No word of a kind or field has the byte in between.
    fn bytes(self) -> Vec<u8> {
        [self.kind, self.name, self.id].join("\0").into_bytes()
    }
}

impl EncryptionKeys {
    /// Reads keys, each on a line: 32 bytes in base64. Lines that are empty or begin with `#` are left out.
    ///
    /// # Errors
    /// [`InvalidEncryptionKeys`] names the line that is wrong, and never its text.
    pub fn parse(text: &str) -> Result<Self, InvalidEncryptionKeys> {
        let mut parsed = Self::default();
        for (number, line) in (1..).zip(text.lines()).map(|(number, line)| (number, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = InvalidEncryptionKeys::Line(number);
            if let Some(id) = line.strip_prefix(LOST).map(str::trim) {
                let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                parsed.lost.insert(is_id.then(|| id.to_owned()).ok_or(wrong)?);
                continue;
            }
            let bytes = STANDARD.decode(line).ok().and_then(|bytes| <[u8; KEY_BYTES]>::try_from(bytes).ok());
            parsed.keys.push(Key::of(&bytes.ok_or(wrong)?));
        }
        match parsed.keys.len() {
            0 => Err(InvalidEncryptionKeys::None),
            1..=MAX_KEYS => Ok(parsed),
            _ => Err(InvalidEncryptionKeys::TooMany),
        }
    }

    /// Returns whether there are no keys, and nothing is encrypted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the names of the keys, each 8 hexadecimal digits; that of the one that encrypts is the first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| &*key.id)
    }

    /// Returns whether this process has the key of this name, or it is said that nobody has it any more.
    pub(super) fn accounts_for(&self, id: &str) -> bool {
        self.lost.contains(id) || self.ids().any(|own| own == id)
    }

    /// Returns the text as it is written: encrypted, if there is a key.
    ///
    /// # Errors
    /// The text cannot be encrypted.
    pub(super) fn encrypt<'t>(&self, field: SecretField<'_>, text: &'t str) -> Result<Cow<'t, str>, String> {
        let Some(key) = self.keys.first() else { return Ok(text.into()) };
        let (salt, nonce): ([u8; SALT_BYTES], [u8; NONCE_LEN]) = (rand::random(), rand::random());
        let mut encrypted = [&salt[..], &nonce].concat();
        let mut content = text.as_bytes().to_vec();
        let of_text = key.of_text(&salt).ok_or_else(|| format!("the key `{}` is of no use", key.id))?;
        of_text
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(field.bytes()), &mut content)
            .map_err(|_| format!("{} bytes cannot be encrypted", text.len()))?;
        encrypted.append(&mut content);
        Ok(format!("{MARK}{}:{}", key.id, URL_SAFE_NO_PAD.encode(encrypted)).into())
    }

    /// Returns whether a text is encrypted with the key that encrypts now.
    pub(super) fn is_by_first(&self, text: &str) -> bool {
        let id = text.strip_prefix(MARK).and_then(|encrypted| encrypted.split_once(':')).map(|(id, _)| id);
        id.is_some() && id == self.ids().next()
    }

    /// Returns a text as it was before it was encrypted, if it was.
    ///
    /// # Errors
    /// What is wrong: the key is not there, or the text was changed or encrypted for another place.
    pub(super) fn decrypt<'t>(&self, field: SecretField<'_>, text: Cow<'t, str>) -> Result<Cow<'t, str>, String> {
        let Some(encrypted) = text.strip_prefix(MARK) else { return Ok(text) };
        let (id, encrypted) = encrypted.split_once(':').ok_or("what is encrypted in it is cut short")?;
        let mut own = self.keys.iter().filter(|key| key.id == id).peekable();
        if own.peek().is_none() {
            return Err(format!(
                "it is encrypted with the key `{id}`, which this process does not have (--secrets-key-file)"
            ));
        }
        let damaged =
            || format!("what is encrypted in it by the key `{id}` was changed, or belongs to another document");
        let bytes = URL_SAFE_NO_PAD.decode(encrypted).map_err(|_| damaged())?;
        // Two keys of one name are as unlikely as they are harmless.
        let decrypted = own.find_map(|key| key.decrypt(field, bytes.clone()));
        decrypted.map(Cow::Owned).ok_or_else(damaged)
    }
}

impl Key {
    fn of(bytes: &[u8; KEY_BYTES]) -> Self {
        let named = Sha256::new().chain_update(b"leasehold encryption key").chain_update(bytes).finalize();
        let id: String = named.iter().take(ID_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
        Self { id, derives: hmac::Key::new(hmac::HMAC_SHA256, bytes) }
    }

    /// Returns the key of the text that has this salt.
    fn of_text(&self, salt: &[u8]) -> Option<LessSafeKey> {
        let derived = hmac::sign(&self.derives, &[b"leasehold encrypted text 1", salt].concat());
        UnboundKey::new(&AES_256_GCM, derived.as_ref()).ok().map(LessSafeKey::new)
    }

    fn decrypt(&self, field: SecretField<'_>, mut encrypted: Vec<u8>) -> Option<String> {
        let (salt, rest) = encrypted.split_at_mut_checked(SALT_BYTES)?;
        let (nonce, content) = rest.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let decrypted = self.of_text(salt)?.open_in_place(nonce, Aad::from(field.bytes()), content).ok()?;
        String::from_utf8(decrypted.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ONE: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    const OTHER: &str = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=";

    fn keys(lines: &[&str]) -> EncryptionKeys {
        EncryptionKeys::parse(&lines.join("\n")).expect("keys")
    }

    fn field(id: &str) -> SecretField<'_> {
        SecretField { kind: "job", id, name: "payload" }
    }

    fn encrypt(keys: &EncryptionKeys, text: &str) -> String {
        keys.encrypt(field("a"), text).expect("encrypted").into_owned()
    }

    fn decrypt(keys: &EncryptionKeys, encrypted: &str) -> Result<String, String> {
        keys.decrypt(field("a"), encrypted.into()).map(Cow::into_owned)
    }

    #[test]
    fn the_first_key_encrypts_and_all_decrypt() {
        let (old, rotated, new) = (keys(&[ONE]), keys(&["# new", OTHER, "", ONE]), keys(&[OTHER]));
        let ids: Vec<&str> = rotated.ids().collect();
        assert_eq!(ids, [new.ids().next().expect("one"), old.ids().next().expect("one")]);
        let [before, since] = [encrypt(&old, "s3cret"), encrypt(&rotated, "s3cret")];
        assert_eq!(
            [decrypt(&rotated, &before), decrypt(&rotated, &since)],
            [Ok("s3cret".to_owned()), Ok("s3cret".to_owned())]
        );
        assert_eq!(decrypt(&new, &since), Ok("s3cret".to_owned()));
        assert_eq!([&before, &since, "[1]"].map(|text| rotated.is_by_first(text)), [false, true, false]);
        for (keys, encrypted, of) in [(&old, &since, ids[0]), (&new, &before, ids[1])] {
            let why = decrypt(keys, encrypted).expect_err("another key");
            assert!(why.contains(of) && why.contains("--secrets-key-file") && !why.contains("s3cret"), "{why}");
        }
        assert!(decrypt(&EncryptionKeys::default(), &since).is_err(), "nor does one without keys hand it out");
    }

    #[test]
    fn without_keys_everything_stays_as_it_is() {
        let none = EncryptionKeys::default();
        assert!(none.is_empty());
        assert_eq!((encrypt(&none, "[1]"), decrypt(&none, "[1]")), ("[1]".to_owned(), Ok("[1]".to_owned())));
        assert_eq!(decrypt(&keys(&[ONE]), "[1]"), Ok("[1]".to_owned()), "it was written before there were keys");
        assert!(serde_json::from_str::<serde_json::Value>(MARK).is_err(), "no JSON begins like that");
    }

    #[test]
    fn what_is_encrypted_for_one_place_is_refused_in_another() {
        let keys = keys(&[ONE]);
        let text = encrypt(&keys, "s3cret");
        for other in
            [field("b"), SecretField { kind: "record", ..field("a") }, SecretField { name: "notify", ..field("a") }]
        {
            assert!(keys.decrypt(other, (&*text).into()).is_err(), "{other:?}");
        }
    }

    #[test]
    fn a_text_without_keys_is_refused_and_never_shown() {
        let lines = |text: &str| EncryptionKeys::parse(text).expect_err("no keys");
        for (text, wrong) in [
            ("", InvalidEncryptionKeys::None),
            ("# nothing\n", InvalidEncryptionKeys::None),
            ("lost 0a1b2c3d", InvalidEncryptionKeys::None),
            ("c2hvcnQ=", InvalidEncryptionKeys::Line(1)),
            (&format!("{ONE}\nlost 0A1b2c3d"), InvalidEncryptionKeys::Line(2)),
            (&[ONE; MAX_KEYS + 1].join("\n"), InvalidEncryptionKeys::TooMany),
        ] {
            assert_eq!(lines(text), wrong, "{text}");
        }
        assert!(!format!("{:?}", keys(&[ONE])).contains(ONE));
        let with_lost = keys(&[ONE, "lost 0a1b2c3d"]);
        let own = with_lost.ids().next().expect("one");
        let accounted = [own, "0a1b2c3d", "0a1b2c3e"].map(|id| with_lost.accounts_for(id));
        assert_eq!(accounted, [true, true, false]);
    }

    proptest! {
        #[test]
        fn every_text_comes_back_and_no_changed_one_does(
            text in ".{0,200}",
            at in any::<prop::sample::Index>(),
            to in "[A-Za-z0-9_-]",
        ) {
            let keys = keys(&[ONE]);
            let whole = encrypt(&keys, &text);
            prop_assert_eq!(decrypt(&keys, &whole), Ok(text.clone()));
            prop_assert_ne!(encrypt(&keys, &text), whole.clone(), "by another salt");
            let begin = MARK.len() + ID_DIGITS + 1;
            let at = begin + at.index(whole.len() - begin);
            let changed = format!("{}{to}{}", &whole[..at], &whole[at + 1..]);
            prop_assert!(changed == whole || decrypt(&keys, &changed).is_err());
            prop_assert!(decrypt(&keys, &whole[..at]).is_err());
        }
    }
}
