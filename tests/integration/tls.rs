//! Calls by TLS of servers whose certificates come from an authority that nobody else knows.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::task::AbortOnDropHandle;

use crate::program::{Server, Started, leasehold, until};
use crate::servers::ports;

/// An authority that nobody knows.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The file with its certificate.
    file: PathBuf,
}

impl Authority {
    fn new(place: &Path) -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let own = parameters.self_signed(&key).expect("a certificate");
        let file = place.join("authority.pem");
        std::fs::write(&file, own.pem()).expect("written");
        Self { issuer: Issuer::new(parameters, key), file }
    }

    fn path(&self) -> &str {
        self.file.to_str().expect("a path")
    }

    /// Has what comes to a new port by TLS reach a server without, until this is dropped.
    async fn in_front_of(&self, server: SocketAddr) -> Terminator {
        let key = KeyPair::generate().expect("a key");
        let parameters = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
        let config = config.with_single_cert(vec![CertificateDer::from(certificate.der().to_vec())], key);
        let acceptor = TlsAcceptor::from(Arc::new(config.expect("a certificate and its key")));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let task = tokio::spawn(async move {
            loop {
                let (outer, _) = listener.accept().await.expect("a connection");
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that does not trust the certificate ends the connection.
                    let Ok(mut outer) = acceptor.accept(outer).await else { return };
                    let Ok(mut inner) = TcpStream::connect(server).await else { return };
                    let _ended = copy_bidirectional(&mut outer, &mut inner).await;
                });
            }
        });
        Terminator { url: format!("https://localhost:{port}"), _task: AbortOnDropHandle::new(task) }
    }
}

/// What ends TLS in front of a server.
struct Terminator {
    url: String,
    _task: AbortOnDropHandle<()>,
}

fn address(url: &str) -> SocketAddr {
    url.strip_prefix("http://").expect("a URL").parse().expect("an address")
}

/// Runs a command to its end, beside what the test itself has under way.
fn ended(command: &mut Command) -> crate::program::Ended {
    tokio::task::block_in_place(|| Started::of(command).end())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_and_a_worker_trust_the_authorities_that_they_are_given_and_no_others() {
    let place = tempfile::tempdir().expect("a directory");
    let server = tokio::task::block_in_place(|| Server::in_place(place.path()));
    let authority = Authority::new(place.path());
    let tls = authority.in_front_of(address(&server.url())).await;
    std::fs::write(place.path().join("settings.toml"), format!("ca = \"{}\"\n", authority.path())).expect("written");

    let list = || leasehold(place.path(), ["list", "--server", &tls.url]);
    let refused = ended(&mut list());
    assert_ne!(refused.code(), Some(0));
    assert!(refused.stderr().contains("certificate"), "{}", refused.stderr());
    assert_eq!(ended(list().args(["--ca", authority.path()])).code(), Some(0));
    assert_eq!(ended(list().args(["--config", "settings.toml"])).code(), Some(0));
    assert_eq!(ended(list().env("LEASEHOLD_CA", authority.path())).code(), Some(0));
    assert_eq!(ended(list().env("SSL_CERT_FILE", authority.path())).code(), Some(0), "as one of the system");
    for wrong in ["settings.toml", "nowhere.pem"] {
        let said = ended(list().args(["--ca", wrong])).expect(2).stderr();
        assert!(said.contains("--ca") && said.contains(wrong), "{said}");
    }

    let of_tls = ["--server", &tls.url, "--ca", authority.path()];
    let submit = leasehold(place.path(), ["submit"].into_iter().chain(of_tls).chain(["--", "true"]));
    let id = ended(&mut { submit }).expect(0).stdout().trim().to_owned();
    let worker = leasehold(place.path(), ["worker", "--exit-when-empty"].into_iter().chain(of_tls));
    ended(&mut { worker }).expect(0);
    let job = ended(&mut leasehold(place.path(), ["get", "--json", &id].into_iter().chain(of_tls))).json(0);
    assert_eq!(job["state"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_schedule_reaches_a_server_of_a_private_authority() {
    let place = tempfile::tempdir().expect("a directory");
    let [called, caller] = ["called", "caller"].map(|name| place.path().join(name));
    [&called, &caller].into_iter().for_each(|place| std::fs::create_dir(place).expect("created"));
    let authority = Authority::new(place.path());
    let called = tokio::task::block_in_place(|| Server::in_place(&called));
    let options = ["--ca", authority.path(), "--allow-private-targets"];
    let caller = tokio::task::block_in_place(|| Server::in_place_with(&caller, &options));
    let tls = authority.in_front_of(address(&called.url())).await;
    let http = reqwest::Client::new();
    let post = async |path: &str, body: serde_json::Value| {
        let answer = http.post(format!("{}{path}", caller.url())).json(&body).send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap_or_default());
    };
    let job = json!({"id": "by-schedule", "queue": "q", "kind": "k"});
    let url = format!("{}/v1/jobs", tls.url);
    let action = json!({"type": "http", "url": url, "method": "POST", "body": job});
    post("/v1/schedules", json!({"id": "calls", "period": {"every_ms": 86_400_000}, "action": action})).await;
    post("/v1/schedules/calls/run", json!({})).await;
    let there = async || {
        let job = http.get(format!("{}/v1/jobs/by-schedule", called.url())).send().await.expect("an answer");
        job.status() == 200
    };
    crate::program::eventually("the call of the schedule has come", there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_call_each_other_by_tls_of_a_private_authority() {
    let place = tempfile::tempdir().expect("a directory");
    let authority = Authority::new(place.path());
    let listening = [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], ports::free())));
    let mut terminators = Vec::new();
    for address in listening {
        terminators.push(authority.in_front_of(address).await);
    }
    let peers = (1..).zip(&terminators).map(|(number, tls)| format!("{number}={}", tls.url));
    let peers = peers.collect::<Vec<_>>().join(",");
    let start = |number: usize| {
        let (own, address) = (number.to_string(), listening[number - 1].to_string());
        let arguments = ["serve", "--cluster-name", "tls", "--member", &own, "--peers", &peers, "--listen", &address];
        let data = format!("data-{own}");
        let mut command = leasehold(place.path(), arguments.into_iter().chain(["--data-dir", &data]));
        command.env("LEASEHOLD_CLUSTER_SECRET", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=");
        let log = std::fs::File::create(place.path().join(format!("{own}.log"))).expect("a log");
        Started::of(command.env("LEASEHOLD_CA", authority.path()).stdout(Stdio::null()).stderr(log))
    };
    let _members = [1, 2, 3].map(start);
    // Each answers, two of them by the third, which leads.
    for address in listening {
        let server = format!("http://{address}");
        tokio::task::block_in_place(|| {
            until("the member has its calls answered", || {
                let mut list = leasehold(place.path(), ["list", "--server", &server]);
                Started::of(&mut list).end().code() == Some(0)
            });
        });
    }
}

#[test]
fn no_client_is_made_that_trusts_others_or_calls_by_a_proxy_of_the_environment() {
    let found = crate::architecture::sources().into_iter().filter(|source| {
        let shipped = source.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let makes = ["Client::builder()", "reqwest::Client::new()", "reqwest::get("].iter();
        let path = source.path.to_string_lossy();
        let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
        let may = path.ends_with("outgoing.rs") || is_test;
        !may && makes.clone().any(|made| shipped.contains(made))
    });
    let found: Vec<PathBuf> = found.map(|source| source.path).collect();
    assert!(found.is_empty(), "these begin with `outgoing::client()` or `direct()` instead: {found:?}");
}
