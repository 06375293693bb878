//! How a [`Record`] of the store lies on disk: a format byte, then what it says in postcard, as a job does
//! ([`super::record`]). Its key is the number of its kind and then its name, so that those of one kind lie together, in
//! the order of their names.

use serde::{Deserialize, Serialize};

use super::Corrupt;
use super::record::{decode_as, encode_as};
use crate::job::{Json, RecordName};
use crate::store::{Place, Record, RecordKey, RecordKind, Version};

const FORMAT_V1: u8 = 1;

#[derive(Serialize, Deserialize)]
struct StoredV1<'a> {
    primary_term: u64,
    seq_no: u64,
    body: &'a str,
}

/// The key of a record.
pub(super) fn key(key: &RecordKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + key.name.as_str().len());
    bytes.push(kind_code(key.kind));
    bytes.extend_from_slice(key.name.as_str().as_bytes());
    bytes
}

/// What the keys of all records of a kind start with, and no others.
pub(super) const fn key_prefix(kind: RecordKind) -> [u8; 1] {
    [kind_code(kind)]
}

/// Which record has this key.
pub(super) fn key_of(bytes: &[u8]) -> Result<RecordKey, Corrupt> {
    let broken = |why: String| Corrupt(format!("the key {:?} of a record: {why}", bytes.escape_ascii().to_string()));
    let (kind, name) = bytes.split_first().ok_or_else(|| broken("it is empty".to_owned()))?;
    let known = RecordKind::ALL.into_iter().find(|known| kind_code(*known) == *kind);
    let kind = known.ok_or_else(|| broken(format!("no kind has the number {kind}")))?;
    let name = std::str::from_utf8(name).map_err(|error| broken(error.to_string()))?;
    Ok(RecordKey::new(kind, RecordName::new(name).map_err(|error| broken(format!("its name {error}")))?))
}

/// Writes `record` over what `buffer` held.
pub(super) fn encode(record: &Record, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    let Version { primary_term, seq_no, .. } = record.version;
    encode_as(FORMAT_V1, &StoredV1 { primary_term, seq_no, body: record.body.as_str() }, buffer)
}

/// Reads the record `key`.
pub(super) fn decode(key: &RecordKey, bytes: &[u8]) -> Result<Record, Corrupt> {
    let broken = |why: String| Corrupt(format!("the record `{key}`: {why}"));
    let stored: StoredV1<'_> = decode_as(FORMAT_V1, bytes).map_err(broken)?;
    let body = Json::parse(stored.body.to_owned()).map_err(|error| broken(error.to_string()))?;
    let version = Version { place: Place::MAIN, primary_term: stored.primary_term, seq_no: stored.seq_no };
    Ok(Record { key: key.clone(), body, version })
}

/// The number of a kind on disk.
const fn kind_code(kind: RecordKind) -> u8 {
    match kind {
        RecordKind::Lease => 0,
        RecordKind::Queue => 1,
        RecordKind::Subscription => 2,
        RecordKind::Setting => 3,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::arbitrary;
    use super::*;

    fn encoded(record: &Record) -> Vec<u8> {
        let mut buffer = b"what was there before".to_vec();
        encode(record, &mut buffer).expect("every record can be written");
        buffer
    }

    proptest! {
        #[test]
        fn every_record_is_read_as_it_was_written(record in arbitrary::record()) {
            let read = key_of(&key(&record.key)).and_then(|key| decode(&key, &encoded(&record)));
            prop_assert_eq!(read.map_err(|Corrupt(what)| TestCaseError::fail(what))?, record);
        }

        #[test]
        fn keys_of_one_kind_are_in_the_order_of_names(one in arbitrary::record(), other in arbitrary::record()) {
            let other = RecordKey::new(one.key.kind, other.key.name);
            prop_assert_eq!(key(&one.key).cmp(&key(&other)), one.key.cmp(&other));
            prop_assert!(key(&other).starts_with(&key_prefix(one.key.kind)));
        }

        #[test]
        fn a_record_cut_short_or_prolonged_is_reported(
            record in arbitrary::record(),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = encoded(&record);
            prop_assert!(decode(&record.key, &bytes[..cut.index(bytes.len())]).is_err());
            bytes.push(0);
            prop_assert!(decode(&record.key, &bytes).is_err());
        }
    }

    #[test]
    fn what_is_no_records_key_is_reported() {
        for bytes in [&b""[..], b"\x00", b"\xffname", b"\x00\xff"] {
            assert!(key_of(bytes).is_err(), "{bytes:?}");
        }
    }
}
