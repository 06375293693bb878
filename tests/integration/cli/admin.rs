//! Orders over many jobs, and jobs that look abandoned.

use leasehold::client::Client;
use leasehold::wire::ClaimJobs;

use super::Bed;
use crate::program::{Started, leasehold};

#[test]
fn many_jobs_are_shown_before_they_are_changed_and_changed_only_on_a_word() {
    let bed = Bed::start();
    let ids: Vec<String> = (0..3).map(|_| bed.submit(&["--queue", "night"], "true")).collect();
    let other = bed.submit(&["--queue", "day"], "true");
    let seen = bed.run(&["cancel", "--queue", "night", "--dry-run"]).expect(0).stdout();
    assert!(seen.starts_with("3 jobs to cancel:") && ids.iter().all(|id| seen.contains(&id[28..])), "{seen}");
    assert!(!seen.contains(&other[28..]), "{seen}");

    let order = ["cancel", "--queue", "night", "--reason", "wrong month"];
    let said = bed.run(&order).expect(2).stderr();
    assert!(said.contains("--yes"), "nobody at a terminal can agree: {said}");
    assert_eq!(bed.job(&ids[0])["state"], "available");
    let said = bed.run(&["cancel", "--queue", "night", "--yes"]).expect(2).stderr();
    assert!(said.contains("--reason"), "{said}");

    let done = bed.run(&[&order[..], &["--yes"]].concat()).expect(0).stdout();
    assert!(done.ends_with("3 changed, 0 left alone, 0 failed\n"), "{done}");
    let entry = bed.job(&ids[0])["history"].as_array().expect("a history").last().expect("an entry").clone();
    assert_eq!((&entry["event"], &entry["reason"]), (&"cancelled".into(), &"wrong month".into()));
    assert_eq!(bed.job(&other)["state"], "available");
    let none = bed.run(&[&order[..], &["--yes"]].concat()).expect(0).stdout();
    assert_eq!(none.trim(), "0 jobs to cancel");

    let answers = bed.run(&["retry", "--state", "cancelled", "--reason", "right after all", "--yes", "--json"]);
    let answers = answers.expect(0).stdout();
    let changed: Vec<serde_json::Value> =
        answers.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&changed[0]["dry_run"], &changed[1]["changed"]), (&true.into(), &3.into()));
}

#[test]
fn jobs_are_named_or_filtered_and_never_both_nor_by_a_variable_set_for_a_worker() {
    let bed = Bed::start();
    let id = bed.submit(&[], "true");
    for wrong in [
        &["cancel"][..],
        &["cancel", &id, "--queue", "default"],
        &["cancel", &id, "--dry-run"],
        &["retry", "--all", "--queue", "default", "--dry-run"],
        &["release", "--worker", "w"],
        &["release", "--worker", "w", "--reason", "r", "--expected-fence", "1"],
    ] {
        let said = bed.run(wrong).expect(2).stderr();
        assert!(said.contains("error:"), "{wrong:?}: {said}");
    }
    let mut cancel = leasehold(bed.path(), ["cancel", &id]);
    cancel.env("LEASEHOLD_SERVER", bed.server.url()).env("LEASEHOLD_QUEUE", "elsewhere");
    Started::of(&mut cancel).end().expect(0);
    assert_eq!(bed.job(&id)["state"], "cancelled");
    let again = bed.run(&["retry", &id, "--reason", "after all"]).expect(0).stdout();
    assert_eq!(again.trim(), format!("{id}: available"));
}

#[test]
fn a_job_is_taken_from_the_claim_that_was_looked_at_and_from_no_newer_one() {
    let bed = Bed::start();
    let id = bed.submit(&[], "true");
    let client = Client::new(&bed.server.url(), None).expect("a client");
    let claim = ClaimJobs { worker_id: "w".to_owned(), queues: vec!["default".to_owned()], ..ClaimJobs::default() };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    assert_eq!(runtime.block_on(client.claim(&claim)).expect("claimed").jobs[0].id, id);
    let said = bed.run(&["release", &id, "--reason", "gone", "--expected-fence", "2"]).expect(1).stderr();
    assert!(said.contains("fence_moved"), "{said}");
    assert_eq!(bed.job(&id)["state"], "running");
    let done = bed.run(&["release", &id, "--reason", "gone", "--expected-fence", "1", "--then", "fail"]).expect(0);
    assert_eq!(done.stdout().trim(), format!("{id}: failed"));
    assert_eq!(bed.run(&["orphans"]).expect(0).stdout().trim(), "no job looks abandoned");
    assert!(bed.run(&["orphans", "--json"]).expect(0).stdout().is_empty());
}
