//! Bodies to which no job refers, as a process leaves them behind that dies between a body and its job.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::job::{Body, BodyRef, Job, NewBody};
use leasehold::store::Write;
use reqwest::Method;
use serde_json::json;

use super::interrupted::Deaths;
use super::{HOUR, Site, on_both};
use crate::store::sample::json as text;

on_both!(
    a_body_whose_job_was_never_written_goes_after_a_day_and_no_other,
    bodies_are_looked_at_page_by_page_and_none_is_left_out,
);

impl Site {
    /// A job that has ended, with a payload in a document of its own.
    fn with_body(&self, name: &str) -> (Arc<Job>, NewBody) {
        let (payload, body) = Body::place(Some(text("\"a payload\"")), 0);
        let job = Job { payload, ..(*self.ended(name)).clone() };
        (Arc::new(job), body.expect("longer than nothing"))
    }

    async fn create_with_body(&self, name: &str) -> (Arc<Job>, BodyRef) {
        let (job, body) = self.with_body(name);
        let reference = body.reference;
        self.write(Write::Create { job: Arc::clone(&job), bodies: vec![body] }).await.expect("a new job is created");
        (job, reference)
    }

    async fn has_body(&self, reference: BodyRef) -> bool {
        self.store.bodies(&[reference]).await.expect("the store can be read")[0].is_some()
    }

    /// Looks at up to `limit` bodies so many hours after the jobs have ended. Returns how many were removed.
    async fn sweep(&self, hours: u32, limit: usize) -> usize {
        self.do_at(Method::POST, "{prefix}bodies/_refresh", None).await;
        let archived = self.store.archive(self.now.plus(hours * HOUR), limit).await.expect("the store archives");
        assert_eq!(archived.obstacle, None);
        archived.bodies
    }
}

async fn a_body_whose_job_was_never_written_goes_after_a_day_and_no_other(site: Site) {
    let (mut deaths, mut written) = (Deaths::default(), BTreeMap::new());
    while let Some(requests) = deaths.next() {
        let (job, body) = site.with_body(&format!("after-{requests}"));
        written.insert(job.id.clone(), body.reference);
        let answer = site.write_until(requests, Write::Create { job, bodies: vec![body] }).await;
        deaths.note(answer.is_some_and(|answer| answer.is_ok()));
    }
    let (removed, reference) = site.create_with_body("removed").await;
    let found = site.get(&removed.id).await.expect("it is there");
    site.write(Write::Remove { job: removed, expected: found.version }).await.expect("it is removed");
    let mut left = 0;
    for (id, reference) in &written {
        left += usize::from(site.has_body(*reference).await && site.get(id).await.is_none());
    }
    assert!(left > 0, "no process died between a body and its job");

    assert_eq!(site.sweep(2, 100).await, 0, "they were not there before");
    assert_eq!(site.sweep(25, 100).await, 0, "a write may be under way for long");
    assert_eq!(site.sweep(27, 100).await, left);
    assert!(!site.has_body(reference).await, "it went with its job");
    for (id, reference) in &written {
        assert_eq!(site.has_body(*reference).await, site.get(id).await.is_some(), "{id}");
    }
    assert_eq!(site.sweep(60, 100).await, 0, "nothing is left");
}

async fn bodies_are_looked_at_page_by_page_and_none_is_left_out(site: Site) {
    let mut kept = Vec::new();
    for number in 0..7 {
        kept.push(site.create_with_body(&format!("job-{number}")).await.1);
    }
    // Beside a job's own one, in the middle of the others and behind them, and more than a page of one job.
    let left = [("job-3", 1), ("job-33", 5), ("z", 2)];
    for (job, count) in left {
        for number in 0..count {
            let place = format!("{{prefix}}bodies/_doc/{}", uuid::Uuid::from_u128(number + 16 * job.len() as u128));
            site.do_at(Method::PUT, &place, Some(json!({ "job_id": job, "json": "1" }))).await;
        }
    }
    let mut removed = 0;
    for hours in 1..200 {
        removed += site.sweep(hours, 3).await;
        if removed == 8 {
            break;
        }
    }
    assert_eq!(removed, 8, "each of them goes");
    for reference in kept {
        assert!(site.has_body(reference).await, "a job refers to it");
    }
}
