//! `leasehold migrate`: what it says, and that it can be said again.

use crate::program::run;
use crate::servers;
use crate::store::archive::migrated::{MAPPINGS, make_former};

#[tokio::test(flavor = "multi_thread")]
async fn indices_are_brought_up_to_date_once() {
    let indices = servers::elasticsearch().await.own_indices("migrate");
    let (url, prefix) = (indices.url().to_owned(), indices.prefix().to_owned());
    for (name, definition) in MAPPINGS {
        let mut definition = serde_json::from_str(definition).expect("JSON");
        make_former(&mut definition, &format!("{prefix}{name}"));
        let request = reqwest::Client::new().put(format!("{url}/{prefix}{name}-000001")).json(&definition);
        let answer = request.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap_or_default());
    }
    let migrate = move |more: &[&str]| {
        let place = tempfile::tempdir().expect("a directory");
        let named = ["migrate", "--elasticsearch-url", &url, "--index-prefix", &prefix];
        run(place.path(), named.iter().chain(more).copied()).expect(0).stdout()
    };
    let told = move || (migrate(&["--dry-run"]), migrate(&[]), migrate(&[]), migrate(&["--dry-run"]));
    let (planned, done, again, nothing) = tokio::task::spawn_blocking(told).await.expect("it ran");
    let steps = |text: &str, before: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix(before)).map(str::to_owned).collect()
    };
    assert!(steps(&planned, "  ").len() >= MAPPINGS.len(), "{planned}");
    assert_eq!(steps(&planned, "  "), steps(&done, "done: "), "what is said is what is done");
    assert!(again.contains("nothing to do") && nothing == again, "{again}{nothing}");
}

#[test]
fn without_a_server_nothing_is_pretended() {
    let place = tempfile::tempdir().expect("a directory");
    let said = run(place.path(), ["migrate"]).expect(2).stderr();
    assert!(said.contains("--elasticsearch-url"), "{said}");
}
