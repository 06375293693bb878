//! The indices themselves: aliases of numbered ones, which are never made by an accident, nor with another mapping.

use leasehold::store::elasticsearch::ElasticsearchStore;
use leasehold::store::{RecordKind, Store, Write, WriteError};
use reqwest::Method;
use serde_json::json;

use super::{Site, id, on_both};
use crate::store::elasticsearch::connect;
use crate::store::records;

on_both!(
    the_live_index_is_an_alias_of_one_numbered_index,
    a_write_does_not_make_a_lost_index_anew,
    a_start_does_not_make_a_lost_index_anew_while_the_archive_has_jobs,
    a_start_does_not_make_a_lost_index_anew_while_there_are_records,
    a_first_start_that_ended_half_way_is_taken_up,
    a_closed_index_is_refused,
    an_index_made_by_another_hand_has_the_mapping_and_is_refused_in_the_aliass_place,
    an_alias_of_two_indices_is_refused,
);

impl Site {
    async fn refusal(&self) -> String {
        let refused = ElasticsearchStore::connect(self.options.clone()).await;
        let refused = refused.expect_err("it is refused");
        assert!(!refused.is_transient(), "{refused}");
        refused.to_string()
    }
}

async fn the_live_index_is_an_alias_of_one_numbered_index(site: Site) {
    for name in ["jobs", "bodies", "records", "schedules"] {
        let found = site.ask(&format!("{{prefix}}{name}")).await;
        let names: Vec<&String> = found.as_object().expect("indices").keys().collect();
        assert_eq!(names, [&format!("{}{name}-000001", site.prefix)]);
    }
}

async fn a_write_does_not_make_a_lost_index_anew(site: Site) {
    site.do_at(Method::DELETE, "{prefix}jobs-000001", None).await;
    let write = Write::Create { job: site.ended("a"), bodies: vec![] };
    let refused = site.write(write).await.expect_err("there is nothing to write to");
    assert!(matches!(&refused, WriteError::Refused(_)), "{refused:?}");
    assert_eq!(site.ask("{prefix}jobs").await["status"], 404);
}

async fn a_start_does_not_make_a_lost_index_anew_while_the_archive_has_jobs(site: Site) {
    let job = site.ended("a");
    site.create(&job).await;
    site.archive(1).await;
    site.archive(3).await;
    site.do_at(Method::DELETE, "{prefix}jobs-000001", None).await;
    let refusal = site.refusal().await;
    assert!(refusal.contains("is not there") && refusal.contains("archive"), "{refusal}");
    assert_eq!(site.ask("{prefix}jobs").await["status"], 404);

    // What the refusal says, for whom the live jobs are lost for good.
    let (index, alias) = (format!("{}jobs-000001", site.prefix), format!("{}jobs", site.prefix));
    assert!(refusal.contains(&format!("PUT /{index} {{\"aliases\":{{\"{alias}\":{{}}}}}}")), "{refusal}");
    site.do_at(Method::PUT, &index, Some(json!({ "aliases": { alias: {} } }))).await;
    let store = connect(site.options.clone()).await;
    let found = store.get(&[id("a")]).await.expect("the store can be read").remove(0);
    assert_eq!(found.map(|found| found.job), Some(job));
}

async fn a_start_does_not_make_a_lost_index_anew_while_there_are_records(site: Site) {
    let key = records::key(RecordKind::Setting, "a");
    records::create(&site.mortal, &key, &records::number(1)).await.expect("created");
    site.do_at(Method::DELETE, "{prefix}jobs-000001", None).await;
    let refusal = site.refusal().await;
    assert!(refusal.contains("is not there") && refusal.contains("records"), "{refusal}");
}

async fn a_first_start_that_ended_half_way_is_taken_up(site: Site) {
    site.do_at(Method::DELETE, "{prefix}jobs-000001", None).await;
    let store = connect(site.options.clone()).await;
    let write = Write::Create { job: site.ended("a"), bodies: vec![] };
    store.write(vec![write]).await.remove(0).expect("it is made");
}

async fn a_closed_index_is_refused(site: Site) {
    site.do_at(Method::POST, "{prefix}bodies-000001/_close", None).await;
    let refusal = site.refusal().await;
    assert!(refusal.contains("bodies-000001` is closed"), "{refusal}");
}

async fn an_index_made_by_another_hand_has_the_mapping_and_is_refused_in_the_aliass_place(site: Site) {
    site.do_at(Method::DELETE, "{prefix}jobs-000001", None).await;
    site.do_at(Method::PUT, "{prefix}jobs", None).await;
    let name = format!("{}jobs", site.prefix);
    assert_eq!(site.ask("{prefix}jobs").await[&name]["mappings"]["dynamic"], "strict");
    let refusal = site.refusal().await;
    assert!(refusal.contains(&format!("`{name}` is an index, and has to be an alias")), "{refusal}");
}

async fn an_alias_of_two_indices_is_refused(site: Site) {
    site.do_at(Method::PUT, "{prefix}jobs-000002", None).await;
    site.do_at(Method::PUT, "{prefix}jobs-000002/_alias/{prefix}jobs", None).await;
    let refusal = site.refusal().await;
    assert!(refusal.contains("jobs-000001") && refusal.contains("jobs-000002"), "{refusal}");
}
