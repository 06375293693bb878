//! Machines whose clocks do not agree: one writes leases and deadlines, another judges them.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, ManualClock};
use leasehold::job::{JobSpec, JobState};
use leasehold::manager::NewJob;
use leasehold::monitor::{MonitorConfig, Report, Scan, Scans};

use super::{LEASE, Site, cases, config, manager, new_job, spec};

/// How far the clocks are apart, and how far they may be.
const APART: Duration = Duration::from_secs(4);
const MARGIN: Duration = Duration::from_secs(5);

const DEADLINE: Duration = Duration::from_secs(30);

cases! {
    a_monitor_whose_clock_is_ahead_takes_nothing_away_early_and_without_the_margin_it_would,
    a_monitor_whose_clock_is_behind_takes_nothing_away_early_and_all_of_it_in_the_end,
}

/// A monitor on another machine.
struct Other<'a> {
    site: &'a Site,
    clock: Arc<ManualClock>,
    careful: Scans,
    careless: Scans,
}

impl<'a> Other<'a> {
    fn beside(site: &'a Site, clock: ManualClock) -> Self {
        let clock = Arc::new(clock);
        let careless = MonitorConfig { orphan_grace: Duration::ZERO, ..config() };
        let careful = MonitorConfig { clock_skew: Some(MARGIN), ..careless.clone() };
        let scans = |config| Scans::new(manager(&site.store, &clock), config, false);
        let (careful, careless) = (scans(&careful), scans(&careless));
        Self { site, clock, careful, careless }
    }

    /// So much time passes on every machine.
    fn advance(&self, by: Duration) {
        self.site.clock.advance(by);
        self.clock.advance(by);
    }

    async fn look(&self, scans: &Scans) -> Report {
        self.site.engine.settle().await;
        let report = scans.run_once(Scan::Watch, self.clock.now()).await.expect("the scan runs");
        assert!(report.fault.is_none(), "what failed was not left alone for the margin's sake: {report:?}");
        report
    }
}

fn took_away(report: &Report) -> (usize, usize, usize) {
    (report.recovered(), report.timed_out, report.expired)
}

async fn a_monitor_whose_clock_is_ahead_takes_nothing_away_early_and_without_the_margin_it_would(site: Site) {
    let monitor = Other::beside(&site, ManualClock::at(site.clock.now().plus(APART)));
    let claimed = site.submit_and_claim(NewJob::of(JobSpec { timeout: Some(2 * LEASE), ..spec() })).await;
    let expires_at = Some(site.clock.now().plus(DEADLINE));
    let waiting = site.submit(NewJob { expires_at, ..new_job() }).await;

    // A second before the deadline, which is over by the other machine's clock.
    monitor.advance(DEADLINE - Duration::from_secs(1));
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    assert_eq!(took_away(&monitor.look(&monitor.careless).await), (0, 0, 1));
    assert_eq!(site.job(&waiting).await.state.name(), JobState::Expired);

    monitor.advance(DEADLINE);
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    site.beat(&claimed).await;
    monitor.advance(LEASE - Duration::from_secs(1));
    site.beat(&claimed).await;
    monitor.advance(Duration::from_secs(1));
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    assert_eq!(took_away(&monitor.look(&monitor.careless).await), (0, 1, 0));

    site.submit_and_claim(new_job()).await;
    monitor.advance(LEASE - Duration::from_secs(1));
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    assert_eq!(took_away(&monitor.look(&monitor.careless).await), (1, 0, 0));
}

async fn a_monitor_whose_clock_is_behind_takes_nothing_away_early_and_all_of_it_in_the_end(site: Site) {
    let monitor = Other::beside(&site, ManualClock::at(site.clock.now().minus(APART)));
    let claimed = site.submit_and_claim(new_job()).await;
    let expires_at = Some(site.clock.now().plus(LEASE));
    site.submit(NewJob { expires_at, ..new_job() }).await;
    monitor.advance(LEASE - Duration::from_millis(1));
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    assert_eq!(took_away(&monitor.look(&monitor.careless).await), (0, 0, 0));
    monitor.advance(APART + MARGIN);
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (0, 0, 0));
    monitor.advance(Duration::from_millis(1));
    assert_eq!(took_away(&monitor.look(&monitor.careful).await), (1, 0, 1));
    assert_eq!(site.job(&claimed.job.id).await.state.name(), JobState::Available);
}
