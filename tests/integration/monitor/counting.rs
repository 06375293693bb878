//! What a scan did, as metrics tell it; and a scan that finds more than one run reads.

use leasehold::job::Body;
use leasehold::store::Write;
use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;
use crate::engines;

/// More than one run of a scan reads.
const MORE_THAN_A_RUN: usize = 20_000;

#[tokio::test]
async fn everything_that_a_scan_did_is_counted() {
    let site = Site::on(engines::embedded().await).await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let counted = |series: &str| {
        let text = recorder.handle().render();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<usize>().ok());
        value.unwrap_or_default()
    };
    let scans = site.scans(&config());
    for policy in OrphanPolicy::ALL {
        site.submit_and_claim(with_policy(policy)).await;
    }
    site.submit_and_claim(NewJob::of(JobSpec { expected_runtime: Some(LEASE / 2), ..spec() })).await;
    let limited = site.submit_and_claim(NewJob::of(JobSpec { timeout: Some(LEASE), ..spec() })).await;
    let deadline = site.clock.now().plus(LEASE);
    site.submit(NewJob { expires_at: Some(deadline), ..new_job() }).await;

    // Metrics are recorded for this test's own thread, which is the only one that scans here.
    let _recording = metrics::set_default_local_recorder(&recorder);
    let mut told = Report::default();
    for passes in [LEASE / 2, LEASE / 2, GRACE] {
        site.clock.advance(passes);
        site.beat(&limited).await;
        let report = site.scan(&scans, Scan::Watch).await;
        told.overdue += report.overdue;
        told.flagged += report.flagged;
        told.requeued += report.requeued;
        told.failed += report.failed;
        told.held += report.held;
        told.timed_out += report.timed_out;
        told.expired += report.expired;
    }
    let expected = [
        ("leasehold_overdue_total", told.overdue, 1),
        ("leasehold_orphans_flagged_total", told.flagged, 4),
        ("leasehold_recoveries_total{policy=\"requeue\"}", told.requeued, 2),
        ("leasehold_recoveries_total{policy=\"fail\"}", told.failed, 1),
        ("leasehold_recoveries_total{policy=\"flag\"}", told.held, 1),
        ("leasehold_timeouts_total", told.timed_out, 1),
        ("leasehold_expired_total", told.expired, 1),
    ];
    for (series, told, happened) in expected {
        assert_eq!((told, counted(series)), (happened, happened), "{series}: {}", recorder.handle().render());
    }
}

/// Ended jobs whose notices wait come first in every scan, and nothing is done about them.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_goes_on_where_the_run_before_it_had_to_stop() {
    let site = Site::on(engines::embedded().await).await;
    let scans = site.scans(&config());
    let ended = |number: usize| {
        let id = JobId::new(format!("ended-{number}")).expect("a name");
        let now = site.clock.now();
        let job = Job::submit(id, Arc::new(spec()), Body::Empty, (now, None), &caller().name, now);
        let Ok(leasehold::job::Change::To(mut ended)) = job.cancel(&caller().name, None, now) else {
            panic!("not ended")
        };
        ended.announce(&job, |_| true);
        assert!(!ended.is_settled());
        Write::Create { job: Arc::from(ended), bodies: vec![] }
    };
    let numbers: Vec<usize> = (0..MORE_THAN_A_RUN).collect();
    for some in numbers.chunks(2_000) {
        let written = site.store.write(some.iter().map(|number| ended(*number)).collect()).await;
        assert!(written.iter().all(Result::is_ok));
    }
    let lost = site.submit_and_claim(new_job()).await;
    site.clock.advance(LEASE + GRACE);
    let first = site.scan(&scans, Scan::Watch).await;
    assert_eq!((first.looked_at, first.unfinished, first.requeued), (MORE_THAN_A_RUN, true, 0));
    assert!(first.behind_since.is_some_and(|since| since < site.clock.now()), "{first:?}");
    let second = site.scan(&scans, Scan::Watch).await;
    assert_eq!((second.unfinished, second.requeued), (false, 1));
    assert_eq!(site.job(&lost.job.id).await.state.name(), JobState::Available);
    // And then from the first again.
    assert_eq!(site.scan(&scans, Scan::Watch).await.looked_at, MORE_THAN_A_RUN);
}
