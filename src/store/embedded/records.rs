//! How a [`Record`] of the store lies on disk: as a job does ([`super::stored`]), with its body as content. Its key is
//! the number of its kind and then its name, so that those of one kind lie together, in the order of their names.

use super::error::Corrupt;
use super::stored::{decode_as, encode_as};
use crate::job::{Json, RecordName};
use crate::store::{Record, RecordKey, RecordKind};

/// Returns the key of a record.
pub(super) fn key(key: &RecordKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + key.name.as_str().len());
    bytes.push(key.kind as u8);
    bytes.extend_from_slice(key.name.as_str().as_bytes());
    bytes
}

/// Returns which record has this key.
pub(super) fn key_of(bytes: &[u8]) -> Result<RecordKey, Corrupt> {
    let broken = |why: String| Corrupt(format!("the key {:?} of a record: {why}", bytes.escape_ascii().to_string()));
    let (kind, name) = bytes.split_first().ok_or_else(|| broken("it is empty".to_owned()))?;
    let known = RecordKind::ALL.get(usize::from(*kind)).copied();
    let kind = known.ok_or_else(|| broken(format!("no kind has the number {kind}")))?;
    let name = std::str::from_utf8(name).map_err(|error| broken(error.to_string()))?;
    Ok(RecordKey::new(kind, RecordName::new(name).map_err(|error| broken(format!("its name {error}")))?))
}

/// Writes `record` over what `buffer` held.
pub(super) fn encode(record: &Record, buffer: &mut Vec<u8>) -> Result<(), Corrupt> {
    encode_as(record.version, record.body.as_str(), buffer)
}

/// Reads the record `key`.
pub(super) fn decode(key: &RecordKey, bytes: &[u8]) -> Result<Record, Corrupt> {
    let broken = |why: String| Corrupt(format!("the record `{key}`: {why}"));
    let (version, body) = decode_as::<String>(bytes).map_err(broken)?;
    let body = Json::parse(body).map_err(|error| broken(error.to_string()))?;
    Ok(Record { key: key.clone(), body, version })
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
    fn each_kind_has_a_number_of_its_own_for_good() {
        use RecordKind::{Lease, Queue, Setting, Subscription};
        for (code, kind) in [Lease, Queue, Subscription, Setting].into_iter().enumerate() {
            assert_eq!(key_of(&[code as u8, b'n']).map(|key| key.kind).ok(), Some(kind));
        }
    }

    #[test]
    fn what_is_no_records_key_is_reported() {
        for bytes in [&b""[..], b"\x00", b"\xffname", b"\x00\xff"] {
            assert!(key_of(bytes).is_err(), "{bytes:?}");
        }
    }
}
