//! The indices themselves: aliases of numbered ones, which are never made by an accident, nor with another mapping.

use leasehold::store::elasticsearch::ElasticsearchStore;
use leasehold::store::{Write, WriteError};

use super::{Site, on_both, options};

on_both!(
    the_live_index_is_an_alias_of_one_numbered_index,
    a_write_does_not_make_a_lost_index_anew,
    an_index_made_by_another_hand_has_the_mapping_and_is_refused_in_the_aliass_place,
    an_alias_of_two_indices_is_refused,
);

impl Site {
    async fn refusal(&self) -> String {
        let refused = ElasticsearchStore::connect(options(&self.url, &self.prefix)).await;
        let refused = refused.expect_err("it is refused");
        assert!(!refused.is_transient(), "{refused}");
        refused.to_string()
    }
}

async fn the_live_index_is_an_alias_of_one_numbered_index(site: Site) {
    for name in ["jobs", "bodies", "records"] {
        let found = site.ask(&format!("{{prefix}}{name}")).await;
        let names: Vec<&String> = found.as_object().expect("indices").keys().collect();
        assert_eq!(names, [&format!("{}{name}-000001", site.prefix)]);
    }
}

async fn a_write_does_not_make_a_lost_index_anew(site: Site) {
    site.do_at(reqwest::Method::DELETE, "{prefix}jobs-000001", None).await;
    let write = Write::Create { job: site.ended("a"), bodies: vec![] };
    let refused = site.write(write).await.expect_err("there is nothing to write to");
    assert!(matches!(&refused, WriteError::Refused(_)), "{refused:?}");
    assert_eq!(site.ask("{prefix}jobs").await["status"], 404);
}

async fn an_index_made_by_another_hand_has_the_mapping_and_is_refused_in_the_aliass_place(site: Site) {
    site.do_at(reqwest::Method::DELETE, "{prefix}jobs-000001", None).await;
    site.do_at(reqwest::Method::PUT, "{prefix}jobs", None).await;
    let name = format!("{}jobs", site.prefix);
    assert_eq!(site.ask("{prefix}jobs").await[&name]["mappings"]["dynamic"], "strict");
    let refusal = site.refusal().await;
    assert!(refusal.contains(&format!("`{name}` is an index, and has to be an alias")), "{refusal}");
}

async fn an_alias_of_two_indices_is_refused(site: Site) {
    site.do_at(reqwest::Method::PUT, "{prefix}jobs-000002", None).await;
    site.do_at(reqwest::Method::PUT, "{prefix}jobs-000002/_alias/{prefix}jobs", None).await;
    let refusal = site.refusal().await;
    assert!(refusal.contains("jobs-000001") && refusal.contains("jobs-000002"), "{refusal}");
}
