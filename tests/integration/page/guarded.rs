//! Who may see the page and act by it.

use reqwest::header::{COOKIE, LOCATION, ORIGIN, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};

use super::DESK;
use super::browser::Browser;
use crate::cli::Bed;
use crate::program::{Engine, Server, eventually};

pub(super) const OPERATOR: &str = "the-token-of-an-operator-0123456789";
const READER: &str = "the-token-of-a-reader-0123456789abc";

/// A server that asks for tokens.
pub(super) async fn with_tokens(place: &std::path::Path) -> Server {
    let token = |name: &str, roles: &str, token: &str| {
        let hash = leasehold::api::access::token_hash(token);
        format!("[[tokens]]\nname = \"{name}\"\nroles = [{roles}]\nsha256 = \"{hash}\"\n")
    };
    let settings = token("operator", "\"admin\"", OPERATOR) + &token("reader", "\"read\"", READER);
    let file = place.join("settings.toml");
    std::fs::write(&file, settings).expect("written");
    let flag = file.to_str().expect("a path").to_owned();
    let engine = Engine::Embedded(place.join("data"));
    Server::start_as("serve", &["--config", &flag], engine, &place.join("server.log")).await
}

pub(super) fn client() -> Client {
    Client::builder().redirect(Policy::none()).build().expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_in_a_cookie_reads_and_changes_only_by_the_pages_own_script() {
    let place = tempfile::tempdir().expect("a directory");
    let server = with_tokens(place.path()).await;
    let (client, base) = (client(), server.url());
    let page = client.get(format!("{base}/jobs?state=failed")).send().await.expect("an answer");
    assert_eq!(page.status(), StatusCode::SEE_OTHER);
    assert_eq!(page.headers()[LOCATION], "/sign-in?back=%2Fjobs%3Fstate%3Dfailed");

    let sign_in = async |token: &str, origin: &str| {
        let form = format!("token={token}&back=%2Fjobs");
        let request =
            client.post(format!("{base}/sign-in")).header("content-type", "application/x-www-form-urlencoded");
        request.header(ORIGIN, origin).body(form).send().await.expect("an answer")
    };
    assert_eq!(sign_in(OPERATOR, "https://evil.example").await.status(), StatusCode::FORBIDDEN);
    let wrong = sign_in("wrong", &base).await;
    assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
    assert!(wrong.headers().get(SET_COOKIE).is_none());
    let signed_in = sign_in(OPERATOR, &base).await;
    assert_eq!(
        (signed_in.status(), &signed_in.headers()[LOCATION]),
        (StatusCode::SEE_OTHER, &"/jobs".parse().expect("it"))
    );
    let cookie = signed_in.headers()[SET_COOKIE].to_str().expect("text").to_owned();
    assert!(cookie.contains("HttpOnly; SameSite=Strict") && !cookie.contains("Secure"), "{cookie}");
    assert!(!cookie.contains(OPERATOR), "the token is nowhere in {cookie}");
    let cookie = cookie.split(';').next().expect("a pair").to_owned();

    let read = client.get(format!("{base}/jobs")).header(COOKIE, &cookie).send().await.expect("an answer");
    assert_eq!(read.status(), StatusCode::OK);
    let policy = read.headers()["content-security-policy"].to_str().expect("text").to_owned();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let pause = |origin: Option<&str>, by_page: bool| {
        let mut request = client.post(format!("{base}/v1/queues/night/pause")).header(COOKIE, &cookie);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        if by_page {
            request = request.header("x-leasehold-page", "1");
        }
        async move { request.send().await.expect("an answer").status() }
    };
    assert_eq!(pause(Some(&base), false).await, StatusCode::UNAUTHORIZED);
    assert_eq!(pause(Some("https://evil.example"), true).await, StatusCode::FORBIDDEN);
    assert_eq!(pause(None, true).await, StatusCode::FORBIDDEN);
    assert_eq!(pause(Some(&base), true).await, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_signs_in_sees_no_buttons_and_signs_out() {
    let place = tempfile::tempdir().expect("a directory");
    let server = with_tokens(place.path()).await;
    let job = serde_json::json!({"id": "one", "queue": "night", "kind": "k"});
    let submit = client().post(format!("{}/v1/jobs", server.url())).bearer_auth(OPERATOR).json(&job);
    assert_eq!(submit.send().await.expect("an answer").status(), StatusCode::CREATED);
    let limit = client().put(format!("{}/v1/limits/queue/night", server.url())).bearer_auth(OPERATOR);
    let limit = limit.json(&serde_json::json!({"max_concurrent": 7})).send().await.expect("an answer");
    assert_eq!(limit.status(), StatusCode::OK);
    let Some(browser) = Browser::open(&server.url(), DESK).await else { return };
    browser.go("/jobs/one").await;
    browser.type_into("input[name=token]", "wrong").await;
    browser.enter().await;
    browser.read("the token is not known").await;
    browser.type_into("input[name=token]", READER).await;
    browser.enter().await;
    browser.see("h1.job-title").await;
    assert_eq!(browser.place().await, "/jobs/one");
    for path in ["/jobs/one", "/jobs", "/queues"] {
        browser.go(path).await;
        browser.see("main h1").await;
        assert_eq!(browser.run("return document.querySelectorAll('.acts button').length").await, 0, "{path}");
    }
    assert_eq!(browser.run("return document.cookie").await, "", "no script reads the session");
    browser.click("form[action='/sign-out'] button").await;
    browser.see("input[name=token]").await;
    browser.go("/jobs").await;
    browser.see("input[name=token]").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_has_the_page_too_and_serves_jobs_to_nobody_else() {
    let place = tempfile::tempdir().expect("a directory");
    let engine = Engine::elasticsearch().await;
    let server = Server::start(engine.clone(), &place.path().join("server.log")).await;
    let monitor = Server::start_as("monitor", &[], engine.clone(), &place.path().join("monitor.log")).await;
    let job = serde_json::json!({"id": "one", "queue": "night", "kind": "k", "labels": {"month": "2030-01"}});
    let submitted = client().post(format!("{}/v1/jobs", server.url())).json(&job).send().await.expect("an answer");
    assert_eq!(submitted.status(), StatusCode::CREATED);
    let get = async |path: &str| client().get(format!("{}{path}", monitor.url())).send().await.expect("an answer");
    let page = get("/jobs/one").await;
    assert_eq!(page.status(), StatusCode::OK);
    assert!(page.text().await.expect("text").contains("<code class=\"id\">one</code>"));
    assert_eq!(get("/v1/jobs/one").await.status(), StatusCode::NOT_FOUND);
    let schedule = serde_json::json!({
        "id": "nightly", "period": {"cron": "0 2 * * *"},
        "action": {"type": "job", "job": {"queue": "night", "kind": "k"}},
    });
    let stored = client().post(format!("{}/v1/schedules", server.url())).json(&schedule).send().await;
    assert_eq!(stored.expect("an answer").status(), StatusCode::CREATED);
    // A search may be behind by the index's refresh.
    eventually("each place of the monitor's page shows what there is", async || {
        let shown = async |path: &str| {
            let page = get(path).await;
            assert_eq!(page.status(), StatusCode::OK, "{path}");
            page.text().await.expect("text")
        };
        let places = [("/", "night"), ("/jobs", ">one<"), ("/queues", "night"), ("/events", "submitted")];
        let rest = [("/schedules", "nightly"), ("/schedules/nightly", "0 2 * * *"), ("/workers", ""), ("/health", "")];
        // A job leads to those that have something in common with it.
        let siblings = "/jobs?kql=labels.month%3A+%222030-01%22";
        let related = [("/jobs/one", siblings), (siblings, ">one<")];
        for (path, word) in places.into_iter().chain(rest).chain(related) {
            if !shown(path).await.contains(word) {
                return false;
            }
        }
        true
    })
    .await;
    let run = client().post(format!("{}/v1/schedules/nightly/run", monitor.url())).header("x-leasehold-page", "1");
    assert!(run.send().await.expect("an answer").status().is_success());
    let cancel = client().post(format!("{}/v1/jobs/one/cancel", monitor.url())).header("x-leasehold-page", "1");
    assert_eq!(cancel.send().await.expect("an answer").status(), StatusCode::OK);
}

#[test]
fn the_whole_page_is_small() {
    let night = Bed::start();
    let mut bytes = 0;
    let fetch = |path: &str| {
        let mut command = std::process::Command::new("curl");
        let output =
            command.args(["-s", "-H", "accept-encoding: gzip", &format!("{}{path}", night.server.url())]).output();
        output.map(|output| output.stdout)
    };
    let Ok(page) = fetch("/") else { return eprintln!("there is no curl") };
    bytes += page.len();
    let assets = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page/assets");
    let mut folders = vec![assets.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ["js", "css", "svg"].iter().any(|known| ending == *known)) {
                let name = path.strip_prefix(&assets).expect("below it").to_str().expect("text").to_owned();
                bytes += fetch(&format!("/assets/{name}")).expect("curl is there").len();
            }
        }
    }
    assert!((10_000..150_000).contains(&bytes), "{bytes} bytes compressed");
}
