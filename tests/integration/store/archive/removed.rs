//! The removal of the empty index of a month long past: wherever it ends and however late it comes, no job goes with it
//! and none is kept from its place; and months with settings that nobody here gave them.

use std::sync::Arc;

use leasehold::clock::Timestamp;
use leasehold::job::Job;
use leasehold::store::Store;
use reqwest::Method;
use serde_json::{Value, json};

use super::interrupted::{Deaths, REQUESTS_OF_A_MOVE};
use super::{HOUR, STEP, Site, end, id, is_moved, on_both, plain_spec, submit};

on_both!(
    a_removal_that_comes_late_takes_no_job_along,
    [every_night_on_opensearch] a_job_of_a_month_is_moved_wherever_the_removal_of_the_months_index_ended,
    [every_night_on_opensearch] a_job_whose_move_was_interrupted_for_months_is_there_once,
    a_month_that_acknowledges_before_the_disk_does_is_put_right,
    a_month_that_takes_no_writes_is_named_with_what_lifts_its_block,
);

impl Site {
    /// Makes the index of a month of a year long past, without a job, and returns its name.
    async fn make_month_of(&self, year: u64) -> String {
        let index = format!("{{prefix}}archive-{year}.01");
        self.do_at(Method::PUT, &index, None).await;
        index
    }

    async fn settings(&self, index: &str) -> Value {
        let answer = self.ask(&format!("{index}/_settings?flat_settings=true")).await;
        answer.as_object().and_then(|indices| indices.values().next()).map_or(Value::Null, |of| of["settings"].clone())
    }
}

/// A job that ended in that month.
fn ended_in(year: u64, name: &str) -> Arc<Job> {
    let then = Timestamp::parse_rfc3339(&format!("{year}-01-15T00:00:00Z")).expect("a time");
    end(&submit(name, plain_spec(), then, then), then)
}

async fn a_removal_that_comes_late_takes_no_job_along(site: Site) {
    let site = Arc::new(site);
    let index = site.make_month_of(2020).await;
    let held = site.proxy.hold("DELETE ");
    let removing = tokio::spawn({
        let site = Arc::clone(&site);
        async move { site.mortal.archive(site.now.plus(HOUR), STEP).await }
    });
    held.any().await;

    // Another process removes the index, and then moves a job that ended in that month.
    site.archive(1).await;
    assert_eq!(site.ask(&index).await["status"], 404);
    let job = ended_in(2020, "a");
    site.create(&job).await;
    assert_eq!(site.archive(1).await.moved, 1);
    held.release().await;

    let _removed_or_gone = removing.await.expect("it does not panic");
    site.holds(&[&job]).await;
    assert!(site.get(&job.id).await.is_some_and(|found| is_moved(&found)));
}

async fn a_job_of_a_month_is_moved_wherever_the_removal_of_the_months_index_ended(site: Site) {
    let mut jobs: Vec<Arc<Job>> = Vec::new();
    let mut deaths = Deaths::default();
    while let Some(requests) = deaths.next() {
        // A month of its own each time, since one with jobs is not removed.
        let year = 1980 + requests;
        let index = site.make_month_of(year).await;
        deaths.note(site.move_until(requests, 1).await);
        let job = ended_in(year, &format!("after {requests}"));
        site.create(&job).await;
        jobs.push(job);

        let archived = site.archive(1).await;
        assert_eq!((archived.moved, &archived.obstacle), (1, &None), "after {requests} requests");
        site.holds(&jobs.iter().collect::<Vec<_>>()).await;
        assert!(site.whole().await.values().all(is_moved));
        assert_eq!(site.ask(&index).await["status"], 404, "after {requests} requests");
    }
    assert!(deaths.interrupted >= REQUESTS_OF_A_MOVE, "{deaths:?}");
}

async fn a_job_whose_move_was_interrupted_for_months_is_there_once(site: Site) {
    // Copied to the month of its end, whose index is still to be written to then.
    let mut jobs: Vec<Arc<Job>> = Vec::new();
    let mut deaths = Deaths::default();
    while let Some(requests) = deaths.next() {
        let job = site.ended(&format!("after {requests}"));
        site.create(&job).await;
        deaths.note(site.move_until(requests, 1).await);
        jobs.push(job);
        // A hundred days later a job of that month belongs elsewhere.
        for hours in [24 * 100, 24 * 100 + 2] {
            site.archive(hours).await;
        }
        site.holds(&jobs.iter().collect::<Vec<_>>()).await;
        site.counts(jobs.len() as u64).await;
        assert!(site.whole().await.values().all(is_moved));
    }
    assert!(deaths.interrupted >= REQUESTS_OF_A_MOVE, "{deaths:?}");
    assert_eq!((site.documents("jobs").await, site.documents("archive-*").await), (0, jobs.len() as u64));
}

async fn a_month_that_acknowledges_before_the_disk_does_is_put_right(site: Site) {
    site.create(&site.ended("a")).await;
    site.archive(1).await;
    let month = site.month();
    let durability = "index.translog.durability";
    for restart in [false, true] {
        let settings = json!({ durability: "async" });
        site.do_at(Method::PUT, &format!("{month}/_settings"), Some(settings)).await;
        if restart {
            drop(site.mortal().await);
        } else {
            site.archive(1).await;
        }
        assert_ne!(site.settings(&month).await[durability], "async", "restart: {restart}");
    }
}

async fn a_month_that_takes_no_writes_is_named_with_what_lifts_its_block(site: Site) {
    site.create(&site.ended("a")).await;
    site.archive(1).await;
    let month = site.month();
    for block in ["write", "read_only", "read_only_allow_delete"] {
        let name = format!("index.blocks.{block}");
        site.do_at(Method::PUT, &format!("{month}/_settings"), Some(json!({ name.as_str(): true }))).await;
        site.create(&site.ended(block)).await;

        let archived = site.archive(1).await;
        let obstacle = archived.obstacle.unwrap_or_default();
        let index = month.replace("{prefix}", &site.prefix);
        assert!(obstacle.contains(&name) && obstacle.contains(&format!("PUT /{index}/_settings")), "{obstacle}");
        drop(site.mortal().await);

        site.do_at(Method::PUT, &format!("{month}/_settings"), Some(json!({ name: null }))).await;
        assert_eq!(site.archive(1).await.moved, 1);
        assert!(site.get(&id(block)).await.is_some_and(|found| is_moved(&found)));
    }
}
