//! What people come to the page for, by the page alone.

use std::time::Instant;

use super::DESK;
use super::browser::Browser;
use crate::cli::Bed;
use crate::program::{DEADLINE, until};

#[tokio::test(flavor = "multi_thread")]
async fn why_a_job_failed_is_found_and_the_job_is_retried() {
    let night = Bed::start();
    let flag = night.path().join("mended");
    let line = format!("echo looking; test -e {} || {{ echo 'no such table' >&2; exit 3; }}", flag.display());
    let id = night.submit(&["--queue", "reports", "--max-attempts", "1"], &line);
    let _worker = night.patient_worker(&["--queue", "reports"]);
    night.until(&id, "failed");
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };

    browser.go("/").await;
    browser.see(".tile.bad").await;
    browser.click(".tile.bad").await;
    browser.at("/jobs").await;
    browser.click("tbody th a").await;
    browser.read("exit status 3").await;
    browser.read("no such table").await;
    browser.read("looking").await;
    std::fs::write(&flag, "").expect("mended");
    browser.click_on(".acts button", "retry").await;
    browser.type_into("#ask input[name=reason]", "the table is there").await;
    browser.click("#ask button.main").await;
    browser.see("h1 .state.completed").await;
    browser.read("the table is there").await;
    assert_eq!(night.job(&id)["state"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_stopped_and_let_go_on() {
    let night = Bed::start();
    let id = night.submit(&["--queue", "night"], "true");
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/").await;
    browser.click_on("nav a", "Queues").await;
    browser.click_on(".acts button", "pause").await;
    browser.type_into("#ask input[name=reason]", "the disk is full").await;
    browser.click("#ask button.main").await;
    browser.read("the disk is full").await;
    let _worker = night.patient_worker(&["--queue", "night"]);
    browser.go(&format!("/jobs/{id}")).await;
    browser.read("is paused").await;
    browser.go("/queues").await;
    browser.click_on(".acts button", "resume").await;
    browser.click("#ask button.main").await;
    tokio::task::block_in_place(|| night.until(&id, "completed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_a_stuck_job_is_found_and_the_job_is_released() {
    let night = Bed::start();
    let id = night.submit(&["--queue", "night"], "sleep 600");
    let _stuck = night.patient_worker(&["--queue", "night", "--worker-id", "host-that-hangs", "--lease", "10m"]);
    night.until(&id, "running");
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/workers").await;
    browser.read("host-that-hangs").await;
    browser.go("/jobs?state=running").await;
    browser.click("tbody th a").await;
    browser.read("host-that-hangs").await;
    browser.click_on(".acts button", "release").await;
    browser.type_into("#ask input[name=reason]", "it hangs").await;
    browser.click("#ask button.danger").await;
    browser.read("it hangs").await;
    let history = night.run(&["get", "--json", &id]).json(0)["history"].to_string();
    assert!(history.contains("it hangs") && history.contains("\"released\""), "{history}");
}

#[tokio::test(flavor = "multi_thread")]
async fn running_jobs_are_failed_together_with_the_reason_in_their_histories() {
    let night = Bed::start();
    let ids: Vec<String> = (0..2).map(|_| night.submit(&["--queue", "night"], "sleep 600")).collect();
    let _worker = night.patient_worker(&["--queue", "night", "--slots", "2"]);
    ids.iter().for_each(|id| night.until(id, "running"));
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/jobs?state=running").await;
    browser.click("#all").await;
    browser.read("2 selected").await;
    browser.click_on(".acts button", "fail").await;
    browser.read("This is about 2 jobs.").await;
    browser.type_into("#ask input[name=reason]", "they wait for a host that is gone").await;
    browser.click("#ask button.danger").await;
    browser.read("2 changed, 0 failed.").await;
    for id in &ids {
        let job = night.job(id);
        assert_eq!(job["state"], "failed");
        assert!(job["history"].to_string().contains("a host that is gone"), "{job}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_at_two_tonight_is_seen() {
    let night = Bed::start();
    night.run(&["schedule", "add", "nightly-report", "0 2 * * *", "--queue", "night", "--", "date"]).expect(0);
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/").await;
    browser.click_on("nav a", "Schedules").await;
    browser.click_on("th a", "nightly-report").await;
    browser.read("T02:00:00.000Z").await;

    // A new one, whose next times are seen before it is there.
    browser.go("/schedules").await;
    browser.type_into("#new-schedule [name=id]", "yearly").await;
    browser.type_into("#new-schedule [name=cron]", "0 3 1 1 *").await;
    browser.read("-01-01 03:00:00").await;
    // What was typed stays, also when the page is renewed, which it is every two seconds.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    browser.type_into("#new-schedule [name=queue]", "night").await;
    browser.type_into("#new-schedule [name=command]", "echo \"a year\" over").await;
    browser.click("#new-schedule button").await;
    browser.read("Due next").await;
    let schedule = night.run(&["schedule", "show", "yearly", "--json"]).json(0);
    assert_eq!(schedule["action"]["job"]["payload"]["command"], serde_json::json!(["echo", "a year", "over"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_server_stands_first_with_what_to_do() {
    let night = Bed::start();
    let failing: Vec<String> =
        (0..20).map(|_| night.submit(&["--queue", "night", "--max-attempts", "1"], "exit 3")).collect();
    let _worker = night.patient_worker(&["--queue", "night", "--slots", "4"]);
    failing.iter().for_each(|id| night.until(id, "failed"));
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/health").await;
    browser.read("of the attempts end badly").await;
    browser.read("What to do: leasehold list --state failed").await;
    browser.click_on("summary h2", "What is well").await;
    browser.read("The store takes writes.").await;
    let said = night.run(&["status"]).expect(0).stdout();
    assert!(said.contains("of the attempts end badly") && said.contains("leasehold retry --state failed"), "{said}");
    let health = night.run(&["status", "--json"]).json(0);
    let found: Vec<_> = health["checks"].as_array().expect("checks").iter().map(|check| &check["found"]).collect();
    assert_eq!(found.iter().filter(|found| !found.is_null()).count(), 1, "{health}");
    assert!(found.contains(&&health["reasons"][0]), "{health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_failures_of_a_kind_are_retried_at_once_with_their_number_seen_before() {
    let night = Bed::start();
    let flag = night.path().join("mended");
    let failing: Vec<String> = (0..3)
        .map(|_| {
            let line = format!("test -e {}", flag.display());
            night.submit(&["--queue", "mail", "--kind", "shell", "--max-attempts", "1"], &line)
        })
        .collect();
    let _worker = night.patient_worker(&["--queue", "mail"]);
    failing.iter().for_each(|id| night.until(id, "failed"));
    std::fs::write(&flag, "").expect("mended");
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/jobs").await;
    browser.type_into("#kql", "kind: shell and finished_at >= now-1d").await;
    browser.click(".search button").await;
    browser.click_on(".tabs a", "failed 3").await;
    browser.click_on(".acts button", "retry").await;
    browser.read("This is about 3 jobs.").await;
    browser.type_into("#ask input[name=reason]", "the mail server is back").await;
    browser.click("#ask button.main").await;
    browser.read("3 changed, 0 failed.").await;
    browser.click("#ask button.main").await;
    tokio::task::block_in_place(|| failing.iter().for_each(|id| night.until(id, "completed")));
    browser.read("No jobs match").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_worked_through_by_the_keyboard_alone() {
    let night = Bed::start();
    let ids: Vec<String> = (0..3).map(|_| night.submit(&["--queue", "night"], "true")).collect();
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/").await;
    browser.press("gj").await;
    browser.at("/jobs").await;
    browser.see("input[name=pick]").await;
    browser.press("jx").await;
    browser.press("jx").await;
    browser.read("2 selected").await;
    browser.press("?").await;
    browser.read("next and previous row").await;
    browser.enter().await;
    // The field offers what it can be filled with.
    browser.press("/").await;
    browser.press("sta").await;
    browser.see(".offers li").await;
    browser.press("\u{e004}").await;
    browser.press("avail\u{e004}").await;
    let typed = browser.run("return document.getElementById('kql').value").await;
    assert_eq!(typed, "state: available");
    browser.enter().await;
    browser.at("kql=state%3A+available").await;
    browser.see("input[name=pick]").await;
    let newest = ids.last().expect("a job");
    browser.press("j").await;
    browser.enter().await;
    browser.see("h1.job-title").await;
    assert_eq!(browser.place().await, format!("/jobs/{newest}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_a_job_that_runs_is_followed_and_a_lost_server_is_seen_until_it_is_back() {
    let mut night = Bed::start();
    let line =
        format!("echo begun; while ! test -e {}; do sleep 0.1; done; echo gone on", night.path().join("go").display());
    let id = night.submit(&["--queue", "night"], &line);
    let _worker = night.patient_worker(&["--queue", "night"]);
    night.until(&id, "running");
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go(&format!("/jobs/{id}")).await;
    browser.read("begun").await;
    browser.read("live").await;
    night.server.kill();
    browser.see(".live.lost").await;
    night.server.restart();
    browser.see(".live:not(.lost)").await;
    std::fs::write(night.path().join("go"), "").expect("written");
    browser.read("gone on").await;
    browser.see("h1 .state.completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_was_open_for_long_does_no_harm() {
    let night = Bed::start();
    let id = night.submit(&["--queue", "night"], "sleep 600");
    let _one = night.patient_worker(&["--queue", "night", "--worker-id", "one"]);
    night.until(&id, "running");
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go(&format!("/jobs/{id}")).await;
    browser.see("h1 .state.running").await;
    // While the dialog is open the page stands still.
    browser.click_on(".acts button", "release").await;
    night.run(&["release", &id, "--reason", "by another hand"]).expect(0);
    let deadline = Instant::now() + DEADLINE;
    until("it is claimed again", || {
        let job = night.run(&["get", "--json", &id]).json(0);
        Instant::now() > deadline || (job["state"] == "running" && job["fence"].as_u64() > Some(1))
    });
    browser.type_into("#ask input[name=reason]", "it hangs").await;
    browser.click("#ask button.danger").await;
    browser.read("Nothing was changed").await;
    assert_eq!(night.job(&id)["state"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_deleted_a_job_is_found_in_the_audit() {
    let night = Bed::audited();
    let (gone, kept) = (night.submit(&["--queue", "night"], "true"), night.submit(&["--queue", "night"], "true"));
    for id in [&gone, &kept] {
        night.run(&["cancel", id, "--reason", "not needed"]).expect(0);
    }
    night.run(&["delete", &gone, "--reason", "made by mistake"]).expect(0);
    night.until_audited(&kept, "cancelled");
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go(&format!("/jobs/{gone}")).await;
    browser.click_on("a", "What the audit has of it").await;
    browser.read("made by mistake").await;
    assert_eq!(browser.place().await, format!("/audit?job={gone}"));

    browser.go("/events").await;
    browser.click_on(".tabs a", "Audit").await;
    browser.read("made by mistake").await;
    browser.type_into("[name=job]", &kept).await;
    browser.type_into("[name=from]", "2030-99-99").await;
    browser.click(".filters button").await;
    browser.read("from: ").await;
    browser.go(&format!("/audit?job={kept}&event=cancelled&actor=anonymous&from=2020-01-01")).await;
    browser.read("not needed").await;
    let rows = browser.run("return document.querySelectorAll('main tbody tr').length").await;
    assert_eq!(rows, 1);
    browser.click_on("a", "The job itself").await;
    browser.see("h1 .state.cancelled").await;
    browser.click_on("a", "In the audit").await;
    browser.read("submitted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_is_paged_and_where_there_is_none_the_page_says_how_to_keep_one() {
    let night = Bed::audited();
    let mut last = String::new();
    for _ in 0..51 {
        last = night.submit(&["--queue", "night"], "true");
    }
    night.until_audited(&last, "submitted");
    let rows = "return document.querySelectorAll('main tbody tr').length";
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/audit?queue=night&event=submitted").await;
    assert_eq!(browser.run(rows).await, 50);
    browser.click("#next").await;
    browser.see("a[rel=first]").await;
    assert_eq!(browser.run(rows).await, 1);
    assert_eq!(browser.run("return document.querySelector('[name=queue]').value").await, "night");
    drop(browser);
    let bare = Bed::start();
    let Some(browser) = Browser::open(&bare.server.url(), DESK).await else { return };
    browser.go("/audit").await;
    browser.read("No audit is kept").await;
    browser.read("--audit").await;
}
