//! Any text is the body of a call or is refused, with the field that is wrong.

#![no_main]

use leasehold::clock::Timestamp;
use leasehold::job::{Json, strict};
use leasehold::wire::{BulkChange, ClaimJobs, PutSchedule, SubmitJob};
use leasehold::worker::shell::ShellPayload;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let bytes = text.as_bytes();
    if let Ok(job) = strict::from_slice::<SubmitJob>(bytes) {
        let _job = job.into_new_job();
    }
    if let Ok(schedule) = strict::from_slice::<PutSchedule>(bytes) {
        let _definition = schedule.into_definition();
    }
    if let Ok(change) = strict::from_slice::<BulkChange>(bytes) {
        let _selection = change.filter.into_selection(Timestamp::default());
    }
    if let Ok(claim) = strict::from_slice::<ClaimJobs>(bytes) {
        let _claim = claim.into_claim();
    }
    if let Ok(payload) = Json::parse(text.to_owned()) {
        let _payload = ShellPayload::parse(Some(&payload));
    }
});
