//! The checks of a server's health: what each found, and what to do about it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::job::words;
use crate::manager::{Insights, SurveyState};

/// A median delay of starts above this is a warning.
const LATE: Duration = Duration::from_secs(60);
/// A due job that waits longer than this, with no claim granted meanwhile, is a warning.
const UNASKED: Duration = Duration::from_secs(60);
/// A share of claims that lose a race above this, of at least so many claims, is a warning.
const MANY_CONFLICTS: f64 = 0.5;
const ENOUGH_CLAIMS: u64 = 100;
/// A share of attempts that fail above this, of at least so many attempts, is a warning.
const MANY_FAILURES: f64 = 0.5;
const ENOUGH_ATTEMPTS: u64 = 20;

/// Whether a server has a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// The server has no known problem.
    Ok,
    /// The server works, but an operator should read the reasons.
    Warn,
    /// The store takes no more writes, is out of order, or does not let its jobs be counted.
    Error,
}

/// What is known of the store, and of the other managers on it, without asking them.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreHealth {
    /// Why it takes no more writes until the process is started again, and what can be done.
    pub(crate) stopped: Option<String>,
    /// What of it has not gone on, and for how long.
    pub(crate) hangs: Option<String>,
    /// Which of its parts are out of order, and what can be done.
    pub(crate) out_of_order: Option<String>,
    /// The number of documents that cannot be read.
    pub(crate) unreadable: usize,
    /// What shows that its documents cannot be read, or differ between its members.
    pub(crate) unequal: Option<String>,
    /// What was left behind and dropped when it was opened.
    pub(crate) dropped: Option<String>,
    /// How far its clock and this machine's differ, when they differ too far, and what is not done meanwhile.
    pub(crate) clock_is_off: Option<String>,
    /// What is wrong with clocks, and keeps this manager from nothing.
    pub(crate) doubtful_times: Option<String>,
    /// What is wrong between this manager and the others, each as a sentence.
    pub(crate) peer_troubles: Vec<String>,
    /// Which scans of this process's monitor fail, each as a sentence.
    pub(crate) scan_troubles: Vec<String>,
    /// Which months of the archive cannot be read, each as a sentence.
    pub(crate) unread_months: Vec<String>,
    /// That no monitor acts, as a sentence.
    pub(crate) monitor_is_gone: Option<String>,
}

/// What one check of a server's health found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthCheck {
    /// What was checked. Of `months`, `managers` and `scans` there is one for each trouble.
    pub name: HealthCheckName,
    /// Whether it is as it should be.
    pub status: HealthStatus,
    /// What is wrong, as a sentence; null when the status is `ok`.
    pub found: Option<String>,
    /// What to do about it; null when the status is `ok`.
    #[schema(example = "Start a worker for its queue: `leasehold worker --queue QUEUE`.")]
    pub advice: Option<String>,
}

words! {
    /// What is checked of a server's health.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum HealthCheckName: "a check of a server's health", "checks" {
        /// Whether the store takes writes.
        Writes = "writes",
        /// Whether every part of the store is in order.
        Store = "store",
        /// Whether the store lets its jobs be counted.
        Counts = "counts",
        /// Whether the clocks of this machine and of the store agree, or those of a cluster's members.
        Clock = "clock",
        /// Whether every document of the store can be read.
        Documents = "documents",
        /// Whether documents can be read at rest, and are the same at all members of a cluster.
        Equality = "equality",
        /// Whether the store was whole when it was opened.
        Opening = "opening",
        /// Whether every month of the archive can be read.
        Months = "months",
        /// Whether a monitor acts, as a server sees it that runs none.
        Monitor = "monitor",
        /// Whether the managers can tell each other of jobs.
        Managers = "managers",
        /// Whether the scans of the monitor in this process succeed.
        Scans = "scans",
        /// Whether workers take the jobs that wait.
        Waiting = "waiting",
        /// Whether jobs start when they are due.
        Starts = "starts",
        /// Whether claims get the jobs that they reach for.
        Claims = "claims",
        /// Whether attempts end well.
        Attempts = "attempts",
    }
}

impl HealthCheckName {
    /// Says what holds when the check finds nothing.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Writes => "The store takes writes.",
            Self::Store => "Every part of the store is in order.",
            Self::Counts => "The store lets its jobs be counted.",
            Self::Clock => "The clocks of this machine and of the store agree, and those of the members.",
            Self::Documents => "Every document of the store that was met can be read.",
            Self::Equality => "Documents can be read at rest, and are the same at all members of a cluster.",
            Self::Opening => "The store was whole when it was opened.",
            Self::Months => "Every month of the archive can be read.",
            Self::Monitor => "A monitor acts on the store.",
            Self::Managers => "The managers on this store can tell each other of jobs.",
            Self::Scans => "The scans of the monitor in this process succeed.",
            Self::Waiting => "No job waits long without a worker that takes any.",
            Self::Starts => "Half of the jobs or more start within a minute of being due.",
            Self::Claims => "Half of the claims or more get the jobs that they reach for.",
            Self::Attempts => "Half of the attempts or more end well.",
        }
    }

    /// Says what to do when the check finds something. A name in quotes is a section of `docs/operating.md`.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Writes => {
                "Free space on the disk of the data directory, or mend what the sentence names, and restart the \
                 server: nothing acknowledged is lost (docs/operating.md, “A full disk” and “A store that hangs”)."
            }
            Self::Store => {
                "Do what the sentence says; the server goes on by itself unless it names a restart (docs/operating.md, \
                 “When an index is out of order”, “A full disk” and “Memory”)."
            }
            Self::Counts => {
                "See whether the store answers (`/readyz` asks it); where only the counting is too slow, give it \
                 longer by `--query-time` (docs/operating.md, “LeaseholdJobsAreNotCounted”)."
            }
            Self::Clock => {
                "Set the clock that is wrong right by NTP (`timedatectl` shows whether it follows one), on this \
                 machine or on the store's nodes (docs/operating.md, “LeaseholdClockIsOff”)."
            }
            Self::Documents => {
                "Look into this server's log for their names, and bring all servers to the latest version; without a \
                 later version, somebody changed them by hand (docs/operating.md, “Moving ended jobs”)."
            }
            Self::Equality => {
                "`leasehold cluster status` names the members that differ, and `leasehold cluster replace` replaces \
                 one. Where it is not certain which are right, or documents cannot be read, replace none: see \
                 docs/operating.md (“LeaseholdStatesDiffer”)."
            }
            Self::Opening => {
                "Nothing has to be done: what was dropped was never acknowledged. This ends with the next restart of \
                 the server (docs/operating.md, “Damage”)."
            }
            Self::Managers => {
                "Start every server and monitor with `--advertise` and an address that the others reach, and with the \
                 same `--cluster-secret` (docs/operating.md, “Several managers”)."
            }
            Self::Months => {
                "Until the index can be read, lists, counts and the retention of ended jobs are refused, and so is \
                 each id or key under which a job may lie there; all else goes on. Open it, or bring its shards back \
                 (docs/deploying.md, “A month that cannot be read”)."
            }
            Self::Monitor => {
                "Start `leasehold monitor` again, or one `leasehold serve` without `--no-monitor` \
                 (docs/operating.md, “LeaseholdMonitorIsGone”)."
            }
            Self::Scans => {
                "Do what the sentence says of the store: the next run of the scan makes up for those that failed. What \
                 Elasticsearch forbids is a matter of the role that it gives this process (docs/operating.md, \
                 “LeaseholdScansAreStale”)."
            }
            Self::Waiting => {
                "`leasehold list --state available --sort run_at` shows it and `leasehold explain ID` says why it \
                 waits; most often its queue is paused or needs a worker: `leasehold worker --queue QUEUE`."
            }
            Self::Starts => {
                "Start more workers, or give each more places: `leasehold worker --queue QUEUE --slots N`. \
                 `capacity.workers_needed` of `/v1/health` says how many are enough (docs/operating.md, \
                 “LeaseholdJobsWaitTooLong”)."
            }
            Self::Claims => {
                "It costs writes and no job. See that all managers know each other (`--advertise`), which have their \
                 own shares of a queue then (docs/operating.md, “LeaseholdManyConflicts”)."
            }
            Self::Attempts => {
                "`leasehold list --state failed --sort -finished_at` shows the errors. When the cause is mended, \
                 `leasehold retry --state failed --reason REASON` starts the jobs again."
            }
        }
    }
}

/// Makes every check, in the order of what is worst for the jobs.
pub(super) fn judge(insights: &Insights, survey: &SurveyState, store: StoreHealth, now: Timestamp) -> Vec<HealthCheck> {
    use HealthCheckName::*;
    use HealthStatus::{Error, Warn};

    let StoreHealth {
        stopped, hangs, out_of_order, unreadable, unequal, dropped, clock_is_off, doubtful_times, ..
    } = store;
    let unwritten = stopped.map(|why| format!("the store takes no more writes: {why}"));
    let unwritten = unwritten.or_else(|| hangs.map(|why| format!("the store hangs: {why}")));
    let count = survey.failing_since.map(|since| format!("the store has not let its jobs be counted since {since}"));
    let what = "a later version wrote them, or somebody changed them; the log names them";
    let unreadable =
        (unreadable > 0).then(|| format!("documents of the store that cannot be read: {unreadable} ({what})"));
    let mut checks = vec![
        check(Writes, Error, unwritten),
        check(Store, Error, out_of_order),
        check(Counts, Error, count),
        match clock_is_off {
            None => check(Clock, Warn, doubtful_times),
            is_off => check(Clock, Error, is_off),
        },
        check(Documents, Warn, unreadable),
        check(Equality, Warn, unequal),
        check(Opening, Warn, dropped),
    ];
    let gone: Vec<String> = store.monitor_is_gone.into_iter().collect();
    let lists =
        [(Months, store.unread_months), (Monitor, gone), (Managers, store.peer_troubles), (Scans, store.scan_troubles)];
    for (name, troubles) in lists {
        if troubles.is_empty() {
            checks.push(check(name, Warn, None));
        }
        checks.extend(troubles.into_iter().map(|trouble| check(name, Warn, Some(trouble))));
    }
    checks.extend([
        check(Waiting, Warn, untaken(insights, survey, now)),
        check(Starts, Warn, late(insights)),
        check(Claims, Warn, conflicts(insights)),
        check(Attempts, Warn, failures(insights)),
    ]);
    checks
}

/// Returns what is wrong with the store of a member that does not lead.
pub(super) fn of_member(member: u64, store: StoreHealth) -> impl Iterator<Item = HealthCheck> {
    let StoreHealth { stopped, hangs, out_of_order, .. } = store;
    let at = format!("at member {member}");
    let stopped = stopped.map(|why| (HealthCheckName::Writes, format!("{at}, the store takes no more writes: {why}")));
    let hangs = hangs.map(|why| (HealthCheckName::Writes, format!("{at}, the store hangs: {why}")));
    let out_of_order = out_of_order.map(|why| (HealthCheckName::Store, format!("{at}, {why}")));
    let found = [stopped, hangs, out_of_order].into_iter().flatten();
    found.map(|(name, found)| check(name, HealthStatus::Error, Some(found)))
}

/// Returns a check that has this status when it found something.
fn check(name: HealthCheckName, status: HealthStatus, found: Option<String>) -> HealthCheck {
    let status = if found.is_some() { status } else { HealthStatus::Ok };
    HealthCheck { name, status, advice: found.is_some().then(|| name.advice().to_owned()), found }
}

fn untaken(insights: &Insights, survey: &SurveyState, now: Timestamp) -> Option<String> {
    let oldest = survey.latest.as_ref().and_then(|survey| survey.oldest_waiting_since);
    let oldest = oldest.filter(|oldest| now.since(*oldest) > UNASKED && insights.tally.claimed == 0)?;
    Some(format!("a job has waited since {oldest}, and no worker has taken one lately"))
}

fn late(insights: &Insights) -> Option<String> {
    let is_late = insights.drift.count > 0 && insights.drift.p50 > LATE;
    is_late.then(|| format!("half of the jobs start {} s or more after they are due", insights.drift.p50.as_secs()))
}

fn conflicts(insights: &Insights) -> Option<String> {
    let tries = insights.tally.claimed + insights.tally.conflicts;
    let lost = share(insights.tally.conflicts, tries);
    let are_many = tries >= ENOUGH_CLAIMS && lost > MANY_CONFLICTS;
    are_many.then(|| format!("{:.0} % of the claims lose a race", 100.0 * lost))
}

fn failures(insights: &Insights) -> Option<String> {
    let counts = insights.kinds.iter().map(|(_, counts)| counts).chain([&insights.other_kinds]);
    let (ended, failed) = counts
        .fold((0, 0), |(ended, failed), counts| (ended + counts.completed + counts.failed, failed + counts.failed));
    let bad = share(failed, ended);
    (ended >= ENOUGH_ATTEMPTS && bad > MANY_FAILURES).then(|| format!("{:.0} % of the attempts end badly", 100.0 * bad))
}

/// Returns how much of the whole a part is.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::job::JobState;
    use crate::manager::{KindCounts, Quantiles, Survey, Tally};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_000 * seconds)
    }

    pub(in crate::wire) fn calm() -> Insights {
        Insights {
            window: Duration::from_secs(100),
            claim_wait: Quantiles::default(),
            drift: Quantiles::default(),
            run_time: Quantiles::default(),
            tally: Tally::default(),
            kinds: Vec::new(),
            other_kinds: KindCounts::default(),
            workers: 0,
        }
    }

    fn counted(running: u64, oldest: Option<Timestamp>) -> SurveyState {
        let by_state = [(JobState::Running, running)].into();
        let latest = Some(Survey { at: at(0), by_state, oldest_waiting_since: oldest });
        SurveyState { latest, failing_since: None }
    }

    fn status(insights: &Insights, survey: &SurveyState) -> HealthStatus {
        worst(judge(insights, survey, StoreHealth::default(), at(1_000))).0
    }

    /// Returns the worst status, and what was found.
    fn worst(checks: Vec<HealthCheck>) -> (HealthStatus, Vec<String>) {
        for HealthCheck { name, status, found, advice } in &checks {
            let is_ok = *status == HealthStatus::Ok;
            assert_eq!((found.is_none(), advice.is_none()), (is_ok, is_ok), "{name}");
        }
        let status = checks.iter().map(|check| check.status).max().expect("checks");
        (status, checks.into_iter().filter_map(|check| check.found).collect())
    }

    fn of_store(store: StoreHealth) -> (HealthStatus, Vec<String>) {
        worst(judge(&calm(), &SurveyState::default(), store, at(1_000)))
    }

    #[test]
    fn a_server_with_nothing_to_do_is_well() {
        assert_eq!(status(&calm(), &SurveyState::default()), HealthStatus::Ok);
        assert_eq!(status(&calm(), &counted(0, None)), HealthStatus::Ok);
    }

    #[test]
    fn a_store_that_does_not_answer_is_an_error_whatever_else_is() {
        let failing = SurveyState { failing_since: Some(at(900)), ..counted(0, Some(at(0))) };
        assert_eq!(status(&calm(), &failing), HealthStatus::Error);
    }

    #[test]
    fn a_store_that_takes_no_more_writes_is_an_error_with_its_reason() {
        let store = StoreHealth { stopped: Some("the disk is full".to_owned()), ..StoreHealth::default() };
        let (status, reasons) = of_store(store);
        assert_eq!(status, HealthStatus::Error);
        assert!(reasons[0].contains("the disk is full"), "{reasons:?}");
    }

    #[test]
    fn a_store_that_hangs_is_an_error_unless_it_has_stopped() {
        let hangs = StoreHealth { hangs: Some("no write for 12 s".to_owned()), ..StoreHealth::default() };
        assert_eq!(
            of_store(hangs.clone()),
            (HealthStatus::Error, vec!["the store hangs: no write for 12 s".to_owned()])
        );
        let (_, reasons) = of_store(StoreHealth { stopped: Some("the disk is full".to_owned()), ..hangs });
        assert_eq!(reasons, ["the store takes no more writes: the disk is full"]);
    }

    #[test]
    fn a_store_that_is_out_of_order_is_an_error_in_its_own_words() {
        let store = StoreHealth { out_of_order: Some("an index is gone".to_owned()), ..StoreHealth::default() };
        let judged = of_store(store);
        assert_eq!(judged, (HealthStatus::Error, vec!["an index is gone".to_owned()]));
    }

    #[test]
    fn documents_that_cannot_be_read_are_a_warning() {
        let store = StoreHealth { unreadable: 3, ..StoreHealth::default() };
        let (status, reasons) = of_store(store);
        assert_eq!(status, HealthStatus::Warn);
        assert!(reasons[0].contains("cannot be read: 3"), "{reasons:?}");
    }

    #[test]
    fn what_a_crash_has_cut_short_is_a_warning_in_its_own_words() {
        let store = StoreHealth { doubtful_times: Some("a year ahead".to_owned()), ..StoreHealth::default() };
        let (health, reasons) = of_store(store.clone());
        assert_eq!((health, &*reasons), (HealthStatus::Warn, &["a year ahead".to_owned()][..]));
        let (health, reasons) = of_store(StoreHealth { clock_is_off: Some("it is off".to_owned()), ..store });
        assert_eq!((health, &*reasons), (HealthStatus::Error, &["it is off".to_owned()][..]));
        let store = StoreHealth { dropped: Some("9 bytes were dropped".to_owned()), ..StoreHealth::default() };
        let judged = of_store(store);
        assert_eq!(judged, (HealthStatus::Warn, vec!["9 bytes were dropped".to_owned()]));
    }

    #[test]
    fn what_is_wrong_between_managers_is_a_warning_in_its_own_words() {
        let store = StoreHealth { peer_troubles: vec!["b cannot be told".to_owned()], ..StoreHealth::default() };
        let judged = of_store(store);
        assert_eq!(judged, (HealthStatus::Warn, vec!["b cannot be told".to_owned()]));
    }

    #[test]
    fn a_job_that_waits_is_a_warning_only_while_nobody_takes_any() {
        assert_eq!(status(&calm(), &counted(0, Some(at(900)))), HealthStatus::Warn);
        assert_eq!(status(&calm(), &counted(0, Some(at(999)))), HealthStatus::Ok);
        let busy = Insights { tally: Tally { claimed: 1, ..Tally::default() }, ..calm() };
        assert_eq!(status(&busy, &counted(0, Some(at(900)))), HealthStatus::Ok);
    }

    #[test]
    fn late_starts_lost_races_and_failures_are_warnings_once_there_are_enough() {
        let late = Quantiles { count: 1, p50: Duration::from_secs(61), ..Quantiles::default() };
        assert_eq!(status(&Insights { drift: late, ..calm() }, &counted(0, None)), HealthStatus::Warn);
        for (conflicts, expected) in [(60, HealthStatus::Warn), (40, HealthStatus::Ok)] {
            let tally = Tally { claimed: 100 - conflicts, conflicts, ..Tally::default() };
            assert_eq!(status(&Insights { tally, ..calm() }, &counted(0, None)), expected);
        }
        for (failed, expected) in [(19, HealthStatus::Ok), (20, HealthStatus::Warn)] {
            let other_kinds = KindCounts { failed, ..KindCounts::default() };
            assert_eq!(status(&Insights { other_kinds, ..calm() }, &counted(0, None)), expected);
        }
    }

    #[test]
    fn every_check_is_told_of_in_the_order_of_what_is_worst_with_advice_where_it_found_something() {
        let names = |store: StoreHealth| -> Vec<HealthCheckName> {
            judge(&calm(), &SurveyState::default(), store, at(1_000)).into_iter().map(|check| check.name).collect()
        };
        assert_eq!(names(StoreHealth::default()), HealthCheckName::ALL);
        let two = StoreHealth { peer_troubles: vec!["b".to_owned(), "c".to_owned()], ..StoreHealth::default() };
        let of_managers =
            |names: Vec<HealthCheckName>| names.iter().filter(|name| **name == HealthCheckName::Managers).count();
        assert_eq!(of_managers(names(two)), 2, "one for each trouble");
        let all = StoreHealth {
            stopped: Some("a".to_owned()),
            hangs: None,
            out_of_order: Some("b".to_owned()),
            unreadable: 1,
            unequal: Some("e".to_owned()),
            dropped: Some("c".to_owned()),
            clock_is_off: Some("d".to_owned()),
            doubtful_times: None,
            peer_troubles: vec!["e".to_owned()],
            scan_troubles: vec!["f".to_owned()],
            unread_months: vec!["g".to_owned()],
            monitor_is_gone: Some("h".to_owned()),
        };
        let checks = judge(&calm(), &SurveyState::default(), all, at(1_000));
        let found: Vec<_> =
            checks.iter().filter(|check| check.status != HealthStatus::Ok).map(|check| check.name).collect();
        use HealthCheckName::*;
        let all = [Writes, Store, Clock, Documents, Equality, Opening, Months, Monitor, Managers, Scans];
        assert_eq!(found, all);
        assert!(checks.iter().all(|check| check.advice.as_deref().is_none_or(|advice| advice == check.name.advice())));
    }

    #[test]
    fn advice_names_only_sections_that_the_documentation_has() {
        let page = include_str!("../../docs/operating.md");
        let pages = [page, include_str!("../../docs/deploying.md")];
        let has = |section: &str| {
            let mut lines = pages.iter().flat_map(|page| page.lines());
            lines.any(|line| line.trim_start_matches('#').trim() == section && line.starts_with('#'))
        };
        for name in HealthCheckName::ALL {
            assert!(page.contains(&format!("\n| `{name}` | ")), "{name} is in the table");
            for part in name.advice().split('“').skip(1) {
                let section = part.split('”').next().expect("its end");
                assert!(has(section), "{name}: {section}");
            }
            let advice = name.advice();
            assert!(advice.contains('`') || advice.contains("docs/"), "{name}: {advice}");
        }
    }
}
