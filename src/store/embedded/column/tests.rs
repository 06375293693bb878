use proptest::option;
use proptest::prelude::*;

use super::super::arbitrary;
use super::*;

fn any_number() -> impl Strategy<Value = i64> {
    prop_oneof![0..3_i64, -200..200_i64, 0..70_000_i64, any::<i64>()]
}

proptest! {
    #[test]
    fn numbers_are_read_as_they_were_written(values in prop::collection::vec(any_number(), 0..40)) {
        let mut bytes = b"before".to_vec();
        Ints::encode(values.iter().copied(), &mut bytes);
        let column = Ints::read(Slice::from(bytes), 6, values.len());
        let column = column.map_err(|Corrupt(what)| TestCaseError::fail(what))?;
        prop_assert_eq!((0..values.len()).map(|row| column.get(row)).collect::<Vec<_>>(), values);
    }

    #[test]
    fn names_are_read_as_they_were_written(values in prop::collection::vec(option::of("[a-c]{0,2}|\\PC{1,9}"), 0..40)) {
        let mut bytes = b"before".to_vec();
        Names::encode(values.iter().map(Option::as_deref), &mut bytes);
        let column = Names::read(Slice::from(bytes), values.len()).map_err(|Corrupt(what)| TestCaseError::fail(what))?;
        for (row, value) in values.iter().enumerate() {
            let name = column.get(row).map_err(|Corrupt(what)| TestCaseError::fail(what))?;
            prop_assert_eq!(name, value.as_deref());
            prop_assert_eq!(column.all().nth(column.code(row)), Some(value.as_deref()));
        }
    }

    #[test]
    fn ids_are_read_as_they_were_written(
        jobs in prop::collection::vec(arbitrary::job(), 0..6),
        uuids in prop::collection::vec(any::<u128>(), 0..6),
        only_uuids in any::<bool>(),
    ) {
        let made = uuids.into_iter().map(|uuid| JobId::of_uuid(Uuid::from_u128(uuid)));
        let ids: Vec<JobId> = jobs.into_iter().map(|job| job.id).filter(|_| !only_uuids).chain(made).collect();
        let (texts, mut bytes) = (ids.iter().map(JobId::as_str).collect::<Vec<_>>(), Vec::new());
        Ids::encode(&texts, &mut bytes);
        let column = Ids::read(Slice::from(bytes), ids.len()).map_err(|Corrupt(what)| TestCaseError::fail(what))?;
        for (row, id) in ids.iter().enumerate() {
            let found = column.get(row).map_err(|Corrupt(what)| TestCaseError::fail(what))?;
            prop_assert_eq!(&found, id);
            for other in &ids {
                prop_assert_eq!(column.is(row, other.as_str()), id == other);
            }
        }
    }

    #[test]
    fn no_bytes_make_reading_panic(bytes in any::<Vec<u8>>(), rows in 0..9_usize) {
        let slice = || Slice::from(bytes.clone());
        for row in 0..10 {
            drop(Ints::read(slice(), 0, rows).map(|column| column.get(row)));
            drop(Names::read(slice(), rows).map(|column| column.get(row).map(|name| name.map(str::to_owned))));
            drop(Ids::read(slice(), rows).map(|column| (column.get(row), column.is(row, "x"))));
        }
    }
}

#[test]
fn equal_numbers_take_no_room() {
    let mut bytes = Vec::new();
    Ints::encode(std::iter::repeat_n(1_795_262_400_000, 4_096), &mut bytes);
    assert_eq!(bytes.len(), Ints::HEAD);
}
