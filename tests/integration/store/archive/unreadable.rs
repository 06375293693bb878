//! A document that this version cannot read, written by a later one or by hand: it fails nothing but itself.

use leasehold::job::JobId;
use leasehold::query::{Direction, Filter, Search, Sort, SortField};
use leasehold::store::{Write, WriteError};
use reqwest::Method;

use super::{Site, id, is_moved, on_both, retried};

on_both!(
    what_cannot_be_read_hides_no_other_job,
    what_cannot_be_read_keeps_no_other_job_from_being_moved,
    a_copy_or_a_tombstone_that_cannot_be_read_stops_neither_moves_nor_clearing,
);

impl Site {
    /// Writes the job `from` under another id, with an event that nobody knows.
    async fn put_unreadable(&self, from: &str, id: &str) {
        let mut document = self.ask(&format!("{{prefix}}jobs/_doc/{from}")).await["_source"].clone();
        document["id"] = id.into();
        document["history"][0]["event"] = "teleported".into();
        self.do_at(Method::PUT, &format!("{{prefix}}jobs/_doc/{id}?refresh=true"), Some(document)).await;
    }
}

async fn what_cannot_be_read_hides_no_other_job(site: Site) {
    for name in ["a", "e", "f"] {
        site.create(&site.ended(name)).await;
    }
    for name in ["b", "c", "d"] {
        site.put_unreadable("a", name).await;
    }
    site.refresh().await;

    let ids = |found: Vec<leasehold::store::Versioned>| found.into_iter().map(|found| found.job.id.clone());
    assert_eq!(ids(site.search(Filter::default()).await).count(), 3);
    // A page is full as long as there are jobs for it, so that nobody takes it for the last one.
    let sort = Sort::By(SortField::CreatedAt, Direction::Ascending);
    let mut search = Search { filter: Filter::default(), sort, after: None, limit: 1 };
    let mut found: Vec<JobId> = Vec::new();
    for _ in 0..3 {
        let page = site.store.search(&search).await.expect("searchable");
        assert_eq!(page.len(), 1);
        search.after = page.last().map(|last| sort.key(&last.job));
        found.extend(ids(page));
    }
    assert_eq!(found, ["a", "e", "f"].map(id));
    assert_eq!(site.store.search(&search).await.expect("searchable"), []);
    // What is asked for by its id is not said to be missing.
    site.store.get(&[id("b")]).await.expect_err("it cannot be read");
    assert!(site.get(&id("a")).await.is_some());
}

async fn what_cannot_be_read_keeps_no_other_job_from_being_moved(site: Site) {
    for name in ["a", "c"] {
        site.create(&site.ended(name)).await;
    }
    site.put_unreadable("a", "b").await;
    assert_eq!(site.archive(1).await.moved, 2);
    assert!(site.get(&id("c")).await.is_some_and(|found| is_moved(&found)));
}

async fn a_copy_or_a_tombstone_that_cannot_be_read_stops_neither_moves_nor_clearing(site: Site) {
    for name in ["a", "b", "c"] {
        site.create(&site.ended(name)).await;
    }
    assert_eq!(site.archive(1).await.moved, 3);
    // Another's hand: the copy of `a`, and the tombstone of `b`.
    let month = site.month();
    let mut copy = site.ask(&format!("{month}/_doc/a")).await["_source"].clone();
    copy["history"][0]["event"] = "teleported".into();
    site.do_at(Method::PUT, &format!("{month}/_doc/a?refresh=true"), Some(copy)).await;
    let mut tombstone = site.ask("{prefix}jobs/_doc/b").await["_source"].clone();
    tombstone["write_id"] = "unreadable".into();
    site.do_at(Method::PUT, "{prefix}jobs/_doc/b?refresh=true", Some(tombstone)).await;

    // A job that came back, whose copies are looked for together with those of `a`.
    let found = site.get(&id("c")).await.expect("the job");
    let again = retried(&found.job, site.now);
    site.write(Write::Replace { job: again, expected: found.version, bodies: vec![] }).await.expect("written");
    let refused = site.store.get(&[id("a")]).await.map(|_| ());
    refused.expect_err("the copy cannot be read");

    assert_eq!(site.archive(3).await.cleared, 1, "the tombstone of `a`");
    let again = Write::Create { job: site.ended("a"), bodies: vec![] };
    assert!(matches!(site.write(again).await, Err(WriteError::Refused(_))), "its id stays taken");
}
