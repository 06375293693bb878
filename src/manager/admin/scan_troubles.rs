//! The scans of the monitor that fail, as the server's health tells of them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Timestamp;
use crate::manager::Manager;
use crate::manager::request::ManagerError;
use crate::store::StoreError;

/// How long a scan has to fail before that is told, unless its failure is one that lasts.
const PATIENCE: Duration = Duration::from_secs(60);

/// The scans that fail, by name.
#[derive(Default)]
pub(in crate::manager) struct ScanTroubles(Mutex<BTreeMap<&'static str, Trouble>>);

struct Trouble {
    since: Timestamp,
    /// What is wrong, where it lasts until somebody does something, in words for everybody.
    lasts: Option<String>,
}

impl Trouble {
    fn of(since: Timestamp, error: &ManagerError) -> Self {
        let lasts = match error {
            ManagerError::Store(StoreError::OutOfOrder(what)) => Some(what.clone()),
            _ => None,
        };
        Self { since, lasts }
    }

    /// Returns what is told of a scan at this time.
    fn told(&self, scan: &str, now: Timestamp) -> Option<String> {
        let what = match &self.lasts {
            Some(what) => what,
            None if now.since(self.since) >= PATIENCE => "the log says why",
            None => return None,
        };
        Some(format!("the monitor's work `{scan}` has failed since {}: {what}", self.since))
    }
}

impl Manager {
    /// Notes how the last run of a scan of the monitor ended: with an error, or well, or that this process does not
    /// run it.
    pub fn scan_ended(&self, scan: &'static str, error: Option<&ManagerError>) {
        let mut troubles = self.shared.scan_troubles.0.lock();
        let Some(error) = error else {
            troubles.remove(scan);
            return;
        };
        let since = troubles.get(scan).map_or_else(|| self.now(), |trouble| trouble.since);
        troubles.insert(scan, Trouble::of(since, error));
    }

    /// Returns which scans of the monitor fail, and why as far as that is for everybody, each as a sentence.
    #[must_use]
    pub fn scan_troubles(&self) -> Vec<String> {
        let now = self.now();
        let troubles = self.shared.scan_troubles.0.lock();
        troubles.iter().filter_map(|(scan, trouble)| trouble.told(scan, now)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_lasts_is_told_at_once_and_another_when_it_has_lasted() {
        let at = |seconds: i64| Timestamp::from_millis(1_000 * seconds);
        let of = |error: StoreError| Trouble::of(at(0), &error.into());
        let refused = of(StoreError::OutOfOrder("a privilege is missing".to_owned()));
        assert!(refused.told("audit", at(0)).is_some_and(|told| told.ends_with(": a privilege is missing")));
        let away = of(StoreError::Unavailable("http://es-1 does not answer".to_owned()));
        assert_eq!(away.told("audit", at(59)), None);
        assert!(away.told("audit", at(60)).is_some_and(|told| told.ends_with(": the log says why")));
    }
}
