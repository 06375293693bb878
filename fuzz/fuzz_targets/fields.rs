//! Any paths select fields of any answer or are refused, and what is selected of JSON is JSON.

#![no_main]

use leasehold::api::selected;

libfuzzer_sys::fuzz_target!(|text: &str| {
    // The last line is the answer, the lines before are paths.
    let (paths, answer) = text.rsplit_once('\n').unwrap_or(("", text));
    let paths: Vec<&str> = paths.lines().collect();
    if let Ok(trimmed) = selected(&paths, answer)
        && serde_json::from_str::<serde_json::Value>(answer).is_ok()
    {
        assert!(serde_json::from_str::<serde_json::Value>(&trimmed).is_ok(), "{paths:?}: {trimmed}");
    }
});
