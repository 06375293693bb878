//! Any text is a query or is refused, and a query that is printed reads as it was.

#![no_main]

use leasehold::clock::Timestamp;
use leasehold::query::kql::Expression;
use leasehold::store::elasticsearch::kql::compile;

libfuzzer_sys::fuzz_target!(|text: &str| {
    match Expression::parse(text) {
        Ok(expression) => {
            let printed = expression.node().to_string();
            // Escapes make a query longer, perhaps longer than it may be.
            if let Ok(again) = Expression::parse(&printed) {
                assert_eq!(again.node(), expression.node(), "{printed}");
            } else {
                assert!(printed.len() > text.len(), "{printed}");
            }
            let _bounds = expression.bounds(Timestamp::default());
            let _dsl = compile(&expression);
        }
        Err(error) => assert!(error.position <= text.chars().count()),
    }
});
