//! Any text is a requirement or is refused, and the normal form of one reads as it was.

#![no_main]

use leasehold::job::Requirement;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(requirement) = text.parse::<Requirement>() {
        let printed = requirement.to_string();
        let again = printed.parse::<Requirement>();
        assert_eq!(again.expect(&printed).to_string(), printed);
    }
});
