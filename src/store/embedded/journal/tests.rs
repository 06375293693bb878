use super::*;

/// A batch with one item.
fn batch(number: u64, seq_no: u64, filling: usize) -> Vec<u8> {
    let mut items = Vec::new();
    for (keyspace, key, value) in
        [(1_u64, &b"job"[..], "x".repeat(filling).into_bytes()), (7, SEQ_NO, seq_no.to_be_bytes().to_vec())]
    {
        items.extend([2, 0, 0]);
        items.extend(keyspace.to_le_bytes());
        items.extend((key.len() as u16).to_le_bytes());
        items.extend((value.len() as u32).to_le_bytes());
        items.extend((value.len() as u32).to_le_bytes());
        items.extend(key);
        items.extend(value);
    }
    let mut batch = vec![1];
    batch.extend(2_u32.to_le_bytes());
    batch.extend(number.to_le_bytes());
    batch.extend(&items);
    batch.push(3);
    batch.extend(xxh3_64(&items).to_le_bytes());
    batch.extend(MAGIC);
    batch
}

const FILLING: usize = 100;
const ROOM: usize = 1_000;

/// Makes a batch longer than two sectors.
const LONG: usize = 2_000;

fn journal(batches: u64) -> Vec<u8> {
    (1..=batches).flat_map(|number| batch(number, 10 * number, FILLING)).collect()
}

fn with_room(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len() + ROOM, 0);
    bytes
}

#[test]
fn a_journal_says_what_is_in_it() {
    for (bytes, length) in [(journal(3), journal(3).len()), (with_room(journal(3)), journal(3).len())] {
        let found = Journal::parse(&bytes, true).expect("whole");
        assert_eq!(found.length, length as u64);
        assert_eq!((found.batches, found.seq_no, found.is_torn), (Some((1, 3)), Some(30), false));
        assert_eq!(found.keyspaces, BTreeMap::from([(1, 3), (7, 3)]));
    }
    assert_eq!(Journal::parse(&[], true).map(|found| found.batches), Ok(None));
    assert_eq!(Journal::parse(&[0; 100], true).map(|found| found.batches), Ok(None));
}

#[test]
fn every_flipped_bit_of_any_batch_is_found_also_of_the_last_one() {
    let whole = with_room(journal(3));
    let length = journal(3).len();
    let in_the_last = length - batch(3, 30, FILLING).len();
    for at in 0..length {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let found = Journal::parse(&bytes, true);
            // A lower number of the first batch or a higher one of the last is no contradiction, and changes nothing.
            let is_number = [0, in_the_last].iter().any(|batch| (batch + 5..batch + 13).contains(&at));
            assert!(found.is_err() || is_number, "bit {bit} of byte {at}: {found:?}");
        }
    }
}

#[test]
fn any_beginning_of_the_last_batch_is_torn_and_of_an_earlier_journal_damage() {
    let (before, last) = (journal(2), batch(3, 30, FILLING));
    for length in 1..last.len() {
        for room in [0, ROOM] {
            let mut bytes = [&before, &last[..length]].concat();
            bytes.resize(bytes.len() + room, 0);
            let found = Journal::parse(&bytes, true).unwrap_or_else(|what| panic!("{length} bytes: {what}"));
            assert_eq!((found.length, found.is_torn), (before.len() as u64, true), "{length} bytes");
            assert!(Journal::parse(&bytes, false).is_err(), "{length} bytes");
        }
    }
}

#[test]
fn a_last_batch_without_a_sector_is_torn_and_an_earlier_one_is_damaged() {
    let long = |number: u64| batch(number, 10 * number, LONG);
    let (before, last) = ([long(1), long(2)].concat(), long(3));
    let without_a_sector = |bytes: &[u8], after: usize| {
        let mut bytes = bytes.to_vec();
        let hole = after.next_multiple_of(SECTOR) + SECTOR;
        bytes[hole..hole + SECTOR].fill(0);
        bytes
    };
    let torn = Journal::parse(&without_a_sector(&[&before[..], &last].concat(), before.len()), true);
    assert_eq!(torn.map(|found| found.is_torn), Ok(true));
    assert!(Journal::parse(&without_a_sector(&[before, last].concat(), 0), true).is_err());
}

#[test]
fn batches_whose_numbers_do_not_rise_are_damage() {
    for (first, second) in [(5, 5), (5, 4), (5, 6 + MAX_STEP)] {
        let bytes = [batch(first, 1, 1), batch(second, 2, 1)].concat();
        assert!(Journal::parse(&bytes, true).is_err_and(|what| what.contains("number")), "{first}, {second}");
    }
}
