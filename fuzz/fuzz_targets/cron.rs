//! Any text is a cron expression or is refused, and any is a crontab, whose lines are understood or named.

#![no_main]

use leasehold::schedule::{Cron, Crontab, CrontabKind};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _cron = text.parse::<Cron>();
    for kind in [CrontabKind::User, CrontabKind::System] {
        let crontab = Crontab::parse(text, kind, chrono_tz::UTC);
        assert!(crontab.entries.len() + crontab.not_understood.len() <= text.lines().count());
    }
});
