//! How the pages look: to those who see little, on small screens, in both colour schemes, and with what nobody meant
//! to be shown.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::DESK;
use super::browser::Browser;
use crate::cli::Bed;
use crate::program::DEADLINE;
use crate::servers;

/// Where a phone ends.
const PHONE: (u32, u32) = (360, 740);

/// A night on which much has happened.
fn eventful() -> (Bed, Vec<crate::program::Started>, String) {
    let night = Bed::audited();
    let failed = night.submit(&["--queue", "reports", "--max-attempts", "1", "--label", "team=blue"], "echo x; exit 3");
    for _ in 0..5 {
        night.submit(&["--queue", "night"], "echo done");
    }
    night.submit(&["--queue", "later", "--in", "2h"], "true");
    let held = night.submit(&["--queue", "later"], "true");
    night.run(&["hold", &held, "--reason", "not yet"]).expect(0);
    let running = night.submit(&["--queue", "night"], "echo begun; sleep 600");
    night.run(&["schedule", "add", "nightly", "0 2 * * *", "--queue", "night", "--", "date"]).expect(0);
    night.run(&["queue", "pause", "later", "--reason", "repairs"]).expect(0);
    night.run(&["limit", "set", "queue:reports", "7"]).expect(0);
    let worker = night.patient_worker(&["--queue", "reports", "--queue", "night", "--slots", "4"]);
    night.until(&failed, "failed");
    night.until(&running, "running");
    night.until_audited(&failed, "failed");
    (night, vec![worker], failed)
}

fn places(job: &str) -> [String; 12] {
    [
        "/".to_owned(),
        "/jobs".to_owned(),
        "/jobs?kql=stat%3A+x".to_owned(),
        format!("/jobs/{job}"),
        "/queues".to_owned(),
        "/workers".to_owned(),
        "/schedules".to_owned(),
        "/schedules/nightly".to_owned(),
        "/events".to_owned(),
        "/audit".to_owned(),
        "/audit?from=soon".to_owned(),
        "/health".to_owned(),
    ]
}

/// The name of the picture that is made of a page.
fn name_of(place: &str) -> Option<&'static str> {
    match place {
        "/" => Some("overview"),
        "/jobs" => Some("jobs"),
        "/schedules/nightly" => Some("schedule"),
        job if job.starts_with("/jobs/0") => Some("job"),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_on_any_page_in_either_colour_scheme_and_nothing_is_wider_than_a_phone() {
    let (night, _workers, failed) = eventful();
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    let axe = std::fs::read_to_string(servers::axe().expect("axe")).expect("a script");
    let pictures = std::env::var_os("LEASEHOLD_PICTURES").map(PathBuf::from);
    browser.go("/sign-in").await;
    let mut found = Vec::new();
    let violations_in = async |place: &str, theme: &str| -> Vec<String> {
        browser.run(&axe).await;
        // All but the colours is the same in both.
        let rules = if theme == "light" { "" } else { "{ runOnly: { type: 'rule', values: ['color-contrast'] } }" };
        let script = format!("const done = arguments[0]; axe.run({rules}).then(done, (e) => done(String(e)))");
        let answer = browser.run_async(&script).await;
        let violations = answer["violations"].as_array().unwrap_or_else(|| panic!("{place}: {answer}"));
        let said = |violation: &Value| {
            let nodes: Vec<&Value> =
                violation["nodes"].as_array().into_iter().flatten().map(|node| &node["html"]).collect();
            format!("{place} ({theme}): {}: {nodes:?}", violation["help"])
        };
        violations.iter().map(said).collect()
    };
    for theme in ["light", "dark"] {
        browser.use_theme(theme).await;
        for place in ["/sign-in".to_owned(), "/jobs/none".to_owned()].iter().chain(&places(&failed)) {
            browser.go(place).await;
            found.extend(violations_in(place, theme).await);
            if let (Some(folder), Some(name)) = (&pictures, name_of(place)) {
                browser.screenshot(&folder.join(format!("{name}-{theme}.png"))).await;
            }
        }
        // What opens: a dialog with every sort of field and the lines to copy, and the menu of searches with one in it.
        browser.go("/queues").await;
        browser.click("#set-limit").await;
        browser.click("#ask .elsewhere summary").await;
        browser.see("#ask-curl").await;
        found.extend(violations_in("a dialog", theme).await);
        browser.go("/jobs").await;
        browser.press("s").await;
        browser.type_into("#saved input", theme).await;
        browser.enter().await;
        browser.read("Saved: ").await;
        found.extend(violations_in("the saved searches", theme).await);
    }
    assert_eq!(found, Vec::<String>::new());
    drop(browser);

    let Some(phone) = Browser::open(&night.server.url(), PHONE).await else { return };
    for place in places(&failed) {
        phone.go(&place).await;
        let wide = phone.run("return [document.documentElement.scrollWidth, window.innerWidth]").await;
        assert!(wide[0].as_u64() <= wide[1].as_u64(), "{place} is {} wide on a screen of {}", wide[0], wide[1]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reader_of_the_description_has_the_colours_of_the_page() {
    let night = Bed::start();
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    let axe = std::fs::read_to_string(servers::axe().expect("axe")).expect("a script");
    // How light the text and what lies behind it are, from 0 to 255.
    let lightness = r"
        const of = (colour) => colour.match(/\d+/g).slice(0, 3).reduce((sum, one) => sum + Number(one) / 3, 0);
        const ground = (place) => {
          const colour = getComputedStyle(place).backgroundColor;
          return /, 0\)$/.test(colour) ? ground(place.parentElement) : of(colour);
        };
        const places = ['.info .title', '.opblock-tag', '.opblock-summary-path a'].map((one) => `.swagger-ui ${one}`);
        return [...places, 'footer'].map((css) => {
          const place = document.querySelector(css);
          return [of(getComputedStyle(place).color), ground(place)];
        });";
    browser.go("/sign-in").await;
    browser.use_theme("dark").await;
    browser.go("/reference").await;
    for is_dark in [true, false] {
        browser.see(".swagger-ui .opblock-summary-path a").await;
        let is_right = |pair: &Value| {
            let (text, ground) = (pair[0].as_f64().expect("a number"), pair[1].as_f64().expect("a number"));
            if is_dark { text > ground + 90.0 && ground < 90.0 } else { text + 90.0 < ground && ground > 165.0 }
        };
        // Colours pass into each other when they change.
        let deadline = Instant::now() + DEADLINE;
        loop {
            let seen = browser.run(lightness).await;
            if seen.as_array().expect("places").iter().all(is_right) {
                break;
            }
            assert!(Instant::now() < deadline, "dark: {is_dark}; {seen}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        browser.run(&axe).await;
        let ours = "const done = arguments[0]; axe.run({exclude: [['#reference']]}).then(done, (e) => done(String(e)))";
        let answer = browser.run_async(ours).await;
        assert_eq!(answer["violations"], serde_json::json!([]), "dark: {is_dark}");
        // The switch is followed at once.
        browser.click("#theme").await;
    }
    browser.see("html.dark-mode").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_jobs_bring_is_text_and_nothing_else() {
    let night = Bed::start();
    let script = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">";
    let long = "w".repeat(300_000);
    let payload = serde_json::json!({"html": script, "rtl": "\u{202e}abc", "long": long}).to_string();
    std::fs::write(night.path().join("payload.json"), &payload).expect("written");
    let hostile = night.submit(
        &["--queue", "night", "--max-attempts", "1", "--label", &format!("l={script}")],
        &format!("printf '%s' '{}'; exit 3", script.replace('\'', "'\\''")),
    );
    let large =
        serde_json::json!({"id": "large", "queue": "night", "kind": "k", "payload": {"html": script, "long": long}});
    let url = format!("{}/v1/jobs", night.server.url());
    let answer = reqwest::Client::new().post(url).json(&large).send().await.expect("an answer");
    assert!(answer.status().is_success());
    let _worker = night.patient_worker(&["--queue", "night"]);
    tokio::task::block_in_place(|| night.until(&hostile, "failed"));
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    for place in [format!("/jobs/{hostile}"), "/jobs/large".to_owned(), "/jobs".to_owned(), "/".to_owned()] {
        browser.go(&place).await;
        browser.read("Leasehold").await;
        let title = browser.run("return document.title").await;
        assert_ne!(title, "taken", "{place}");
        let wide = browser.run("return document.documentElement.scrollWidth <= window.innerWidth").await;
        assert_eq!(wide, true, "{place} is wider than the window");
    }
    browser.go(&format!("/jobs/{hostile}")).await;
    browser.read("<script>document.title").await;
}
