//! What each answer says to browsers, and what they keep.

use leasehold::api::Limits;
use leasehold::api::access::OwnNames;
use reqwest::header::{HeaderMap, ORIGIN, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::access::{CALLS, of_each_role};
use super::members::{NOWHERE, pair_for};
use super::server::{Server, Setup};

const DEPLOYING: &str = include_str!("../../../docs/deploying.md");

/// What an answer of the API may be to a browser: nothing that it guesses, runs or shows within another page.
const POLICY: &str = "default-src 'none'; frame-ancestors 'none'";
/// The paths of pages, and one that is nobody's.
const PAGES: [&str; 14] = [
    "/",
    "/jobs",
    "/jobs/x",
    "/workers",
    "/queues",
    "/schedules",
    "/schedules/x",
    "/events",
    "/audit",
    "/health",
    "/reference",
    "/sign-in",
    "/assets/page.css",
    "/nowhere",
];

fn client() -> Client {
    Client::builder().redirect(Policy::none()).build().expect("a client")
}

async fn get(url: &str, token: Option<&str>) -> Response {
    make("GET", url, token).await
}

async fn make(method: &str, url: &str, token: Option<&str>) -> Response {
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    let request = client().request(method, url);
    let request = token.into_iter().fold(request, |request, token| request.bearer_auth(token));
    request.send().await.expect("an answer")
}

fn said<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().expect("text")).collect()
}

fn assert_guarded(headers: &HeaderMap, what: &str) {
    assert_eq!(said(headers, "x-content-type-options"), ["nosniff"], "{what}");
    assert_eq!(said(headers, "content-security-policy"), [POLICY], "{what}");
    let kept = said(headers, "cache-control");
    assert!(kept == ["no-store"] || kept == ["no-cache"], "{what}: {kept:?}");
    for absent in ["strict-transport-security", "access-control-allow-origin"] {
        assert_eq!(said(headers, absent), [""; 0], "{what}");
    }
}

#[tokio::test]
async fn no_answer_of_the_api_is_guessed_at_kept_or_run() {
    let server = Server::start_with(Setup { access: of_each_role(), ..Setup::default() }).await;
    let [leader, follower] = pair_for(NOWHERE, &of_each_role()).await;
    let _manager = leader.take_office();
    leader.sees(1, Some(1));
    follower.sees(1, Some(1));
    let bases = [("the server", server.url("")), ("the leader", leader.url("")), ("the follower", follower.url(""))];
    for (who, base) in bases {
        let calls = CALLS.iter().filter_map(|(call, _)| call.split_once(' ')).filter(|(_, path)| *path != "/v1/events");
        for (method, path) in calls {
            let url = format!("{base}{}", path.replace(['{', '}'], ""));
            for token in [None, Some("secret-admin")] {
                let answer = make(method, &url, token).await;
                let what = format!("{method} {path} at {who} with {token:?}: {}", answer.status());
                assert_guarded(answer.headers(), &what);
            }
        }
        for (method, path) in [("GET", "/v1/events"), ("OPTIONS", "/v1/jobs"), ("GET", "/v1/nowhere"), ("POST", "/")] {
            let answer = make(method, &format!("{base}{path}"), Some("secret-admin")).await;
            assert_guarded(answer.headers(), &format!("{method} {path} at {who}"));
        }
    }
}

#[tokio::test]
async fn a_page_has_a_policy_of_its_own() {
    let server = Server::start_with(Setup { access: of_each_role(), ..Setup::default() }).await;
    for path in PAGES {
        for token in [None, Some("secret-admin")] {
            let answer = get(&server.url(path), token).await;
            let (is_page, headers) =
                (said(answer.headers(), "content-type").concat().starts_with("text/html"), answer.headers());
            let policy = said(headers, "content-security-policy");
            assert!(policy.len() == 1 && policy[0].contains("default-src 'none'"), "{path}: {policy:?}");
            assert!(policy[0].contains("frame-ancestors 'none'"), "{path}: {policy:?}");
            assert_eq!(policy[0].contains("script-src 'self'"), is_page, "{path}: {policy:?}");
            assert_eq!(said(headers, "x-content-type-options"), ["nosniff"], "{path}");
            assert_eq!(said(headers, "cache-control").len(), 1, "{path}");
        }
    }
    let first = get(&server.url("/assets/page.css"), None).await;
    let tag = first.headers()["etag"].clone();
    let again = client().get(server.url("/assets/page.css")).header("if-none-match", tag).send().await;
    let again = again.expect("an answer");
    assert_eq!((again.status().as_u16(), said(again.headers(), "cache-control")), (304, vec!["no-cache"]));
}

#[tokio::test]
async fn a_refused_connection_says_the_same() {
    let limits = Limits { connections: 1, connections_per_address: 1, ..Limits::default() };
    let server = Server::start_with(Setup { limits, ..Setup::default() }).await;
    let mut connections = Vec::new();
    loop {
        let mut connection = TcpStream::connect(server.address()).await.expect("connected");
        let mut text = String::new();
        let said = tokio::time::timeout(std::time::Duration::from_millis(50), connection.read_to_string(&mut text));
        match said.await {
            Err(_) => connections.push(connection),
            Ok(read) => {
                read.expect("an answer");
                for line in ["x-content-type-options: nosniff", "cache-control: no-store", POLICY] {
                    assert!(text.contains(line), "{text}");
                }
                return;
            }
        }
        assert!(connections.len() < 100, "one is refused");
    }
}

/// The headers that nginx adds as the page about it has them, for a browser at this address.
fn of_nginx() -> Vec<(String, String)> {
    let settings = DEPLOYING.split("```nginx").nth(1).expect("a part about nginx").split("```").next().expect("a part");
    let added = settings.lines().filter_map(|line| line.trim().strip_prefix("proxy_set_header ")?.strip_suffix(';'));
    let values = [("$host", "jobs.example"), ("$proxy_add_x_forwarded_for", "203.0.113.9"), ("$scheme", "https")];
    let added = added.filter_map(|line| line.split_once(' ')).filter(|(_, value)| *value != "\"\"");
    let value = |value: &str| values.iter().find(|(name, _)| *name == value).expect("a value that is known").1;
    added.map(|(name, said)| (name.to_lowercase(), value(said).to_owned())).collect()
}

#[tokio::test]
async fn a_cookie_by_tls_goes_by_tls_alone_and_the_browser_comes_by_it_for_a_year() {
    let trusting = || Limits { trusted_proxies: vec!["127.0.0.1".parse().expect("a proxy")], ..Limits::default() };
    let public = |url: &str| OwnNames::default().with_public_url(&url.parse().expect("a URL"));
    let none = OwnNames::default;
    for (limits, names, is_by_tls) in [
        (trusting(), none(), true),
        (Limits::default(), none(), false),
        (Limits::default(), public("https://jobs.example"), true),
        (Limits::default(), public("http://jobs.example"), false),
    ] {
        let server =
            Server::start_with(Setup { access: of_each_role().called(names), limits, ..Setup::default() }).await;
        let through_nginx = |method: Method, path: &str| {
            let request = client().request(method, server.url(path));
            of_nginx().into_iter().fold(request, |request, (name, value)| request.header(name, value))
        };
        let sign_in =
            through_nginx(Method::POST, "/sign-in").header("content-type", "application/x-www-form-urlencoded");
        let sign_in = sign_in.header(ORIGIN, "https://jobs.example").body("token=secret-read&back=/jobs");
        let signed_in = sign_in.send().await.expect("an answer");
        assert_eq!(signed_in.status(), 303);
        let lasting = said(signed_in.headers(), "strict-transport-security");
        assert_eq!(lasting, if is_by_tls { vec!["max-age=31536000"] } else { vec![] });
        let cookie = signed_in.headers()[SET_COOKIE].to_str().expect("text").to_owned();
        assert_eq!(
            cookie.starts_with("__Host-leasehold-session=") && cookie.contains("; Secure"),
            is_by_tls,
            "{cookie}"
        );
        let (name, value) = cookie.split(';').next().expect("a pair").split_once('=').expect("a pair");
        for (name, is_known) in
            [(name, true), (if is_by_tls { "leasehold-session" } else { "__Host-leasehold-session" }, false)]
        {
            let page = through_nginx(Method::GET, "/v1/me").header("cookie", format!("{name}={value}"));
            assert_eq!(page.send().await.expect("an answer").status(), if is_known { 200 } else { 401 }, "{name}");
        }
    }
}
