use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn no_bytes_make_reading_panic(key in any::<Vec<u8>>(), value in any::<Vec<u8>>()) {
        drop(decode(&key, &value));
    }
}
