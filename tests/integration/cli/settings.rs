//! Flags over environment over file, and tokens.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::program::{DEADLINE, Engine, Server, Started, leasehold, run, until};
use crate::servers;

#[test]
fn a_flag_goes_over_the_environment_and_that_over_the_file() {
    let place = tempfile::tempdir().expect("a directory");
    let server = Server::in_place(place.path());
    let file = place.path().join("settings.toml");
    let list = |file_says: &str, environment: Option<&str>, flag: Option<&str>| {
        fs::write(&file, format!("[client]\nserver = \"{file_says}\"\n")).expect("written");
        let mut command = leasehold(place.path(), ["--config", "settings.toml", "list"]);
        command.envs(environment.map(|url| ("LEASEHOLD_SERVER", url)));
        command.args(flag.map(|url| format!("--server={url}")));
        Started::of(&mut command).end().code()
    };
    // An address that cannot be meant, so that whoever uses it is told so at once.
    let wrong = "ftp://nowhere";
    assert_eq!(list(&server.url(), None, None), Some(0));
    assert_eq!(list(&server.url(), Some(wrong), None), Some(2));
    assert_eq!(list(wrong, Some(&server.url()), None), Some(0));
    assert_eq!(list(wrong, Some(wrong), Some(&server.url())), Some(0));
    assert_eq!(list(&server.url(), Some(&server.url()), Some(wrong)), Some(2));
}

#[test]
fn a_data_directory_that_is_open_to_others_is_warned_of() {
    for (mode, is_open) in [(0o700, false), (0o750, true), (0o755, true)] {
        let place = tempfile::tempdir().expect("a directory");
        let data = place.path().join("data");
        fs::create_dir(&data).expect("created");
        fs::set_permissions(&data, fs::Permissions::from_mode(mode)).expect("changed");
        let log = Server::in_place(place.path()).log();
        assert_eq!(log.contains("chmod 700"), is_open, "{mode:o}: {log}");
    }
}

#[test]
fn a_settings_file_that_others_can_write_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("s.toml");
    fs::write(&file, "[client]\nserver = \"ftp://nowhere\"\n").expect("written");
    for (mode, is_refused) in [(0o600, false), (0o644, false), (0o664, false), (0o666, true), (0o602, true)] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("changed");
        let said = run(place.path(), ["--config", "s.toml", "list"]).expect(2).stderr();
        assert_eq!(said.contains("chmod go-w"), is_refused, "{mode:o}: {said}");
    }
    if nix::unistd::geteuid().is_root() {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).expect("changed");
        std::os::unix::fs::chown(&file, None, Some(54_321)).expect("given to another group");
        let said = run(place.path(), ["--config", "s.toml", "list"]).expect(2).stderr();
        assert!(said.contains("another group"), "{said}");
    }
}

#[test]
fn a_server_without_tokens_says_who_may_do_what() {
    let place = tempfile::tempdir().expect("a directory");
    let log = Server::in_place(place.path()).log();
    assert!(log.contains("there are no tokens: everybody who reaches this server"), "{log}");
}

#[test]
fn a_worker_says_what_gives_others_more_rights_than_they_need() {
    let place = tempfile::tempdir().expect("a directory");
    let server = Server::in_place(place.path());
    let said = |options: &[&str], variable: &str| {
        let of_server = ["worker", "--exit-when-empty", "--server", &server.url()].map(str::to_owned);
        let options = of_server.into_iter().chain(options.iter().map(|&option| option.to_owned()));
        let mut worker = leasehold(place.path(), options);
        Started::of(worker.env(variable, "lh_secret")).end().expect(0).said()
    };
    for option in [&["--token", "lh_secret"][..], &["--token=lh_secret"]] {
        let said = said(option, "NOTHING");
        assert!(said.contains("the token is among the arguments") && !said.contains("lh_secret"), "{said}");
    }
    let said = said(&[], "LEASEHOLD_TOKEN");
    assert!(!said.contains("among the arguments"), "{said}");
    assert_eq!(said.contains("the worker runs as root"), nix::unistd::geteuid().is_root(), "{said}");
}

#[test]
fn a_misspelt_setting_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("s.toml"), "lisetn = \"127.0.0.1:0\"\n").expect("written");
    let said = run(place.path(), ["serve", "--config", "s.toml"]).expect(2).stderr();
    assert!(said.contains("lisetn"), "{said}");
}

#[test]
fn a_server_open_to_the_world_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let said = run(place.path(), ["serve", "--listen", "0.0.0.0:0"]).expect(2).stderr();
    assert!(said.contains("--insecure"), "{said}");
    assert!(!place.path().join("leasehold-data").exists());
}

/// The status of a call that has these lines in its head.
fn answered(address: &str, head: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    let request = format!("GET /v1/jobs HTTP/1.1\r\n{head}\r\nconnection: close\r\n\r\n");
    std::io::Write::write_all(&mut stream, request.as_bytes()).expect("sent");
    let answer = std::io::read_to_string(stream).expect("an answer");
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn a_server_without_tokens_answers_to_its_own_names_only_wherever_it_listens() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("s.toml"), "allow_host = [\"jobs.internal\", \"jobs.lan\"]\n").expect("written");
    let port = servers::ports::free();
    let listen = format!("0.0.0.0:{port}");
    let public = ["--public-url", "https://jobs.example/leasehold"];
    let own = nix::unistd::gethostname().expect("a name").into_string().expect("text");
    let options = [&["serve", "--config", "s.toml", "--insecure", "--listen", &listen][..], &public].concat();
    let mut serve = Started::of(leasehold(place.path(), options).stderr(std::process::Stdio::null()));
    let mut output = std::io::BufReader::new(serve.child().stdout.take().expect("its output"));
    std::io::BufRead::read_line(&mut output, &mut String::new()).expect("it says where it listens");
    let address = format!("127.0.0.1:{port}");
    for host in [&address, "leasehold", &own, "jobs.internal", "jobs.lan:80", "jobs.example", "10.1.2.3"] {
        assert_eq!(answered(&address, &format!("host: {host}")), "200", "{host}");
    }
    for host in ["evil.example", "jobs.internal.evil.example", "10.1.2.3.evil.example"] {
        assert_eq!(answered(&address, &format!("host: {host}")), "403", "{host}");
    }
    let from = |origin: &str| answered(&address, &format!("host: jobs.internal\r\norigin: {origin}"));
    assert_eq!([from("http://jobs.internal"), from("https://jobs.example")], ["200", "200"]);
    assert_eq!([from("http://evil.example"), from("null")], ["403", "403"]);
    let image = "host: leasehold\r\nsec-fetch-site: cross-site\r\nsec-fetch-dest: image\r\nsec-fetch-mode: no-cors";
    assert_eq!(answered(&address, image), "403");
}

#[test]
fn what_is_no_name_of_a_host_is_refused_with_the_setting() {
    let place = tempfile::tempdir().expect("a directory");
    for wrong in ["http://jobs.internal", "jobs.internal:7400", "*.internal", "a b", ""] {
        let said = run(place.path(), ["serve", &format!("--allow-host={wrong}")]).expect(2).stderr();
        assert!(said.contains("--allow-host"), "{wrong}: {said}");
    }
}

#[test]
fn a_monitor_of_its_own_on_the_embedded_store_is_refused_and_told_where_it_is() {
    let place = tempfile::tempdir().expect("a directory");
    let said = run(place.path(), ["monitor"]).expect(2).stderr();
    assert!(said.contains("belongs to one process"), "{said}");
}

#[test]
fn a_monitor_with_a_schedule_that_is_none_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--monitor-cron", "now and then"];
    let said = run(place.path(), arguments).expect(2).stderr();
    assert!(said.contains("now and then"), "{said}");
}

#[test]
fn a_new_token_opens_the_server_that_has_its_hash_and_no_other_does() {
    let place = tempfile::tempdir().expect("a directory");
    let token = run(place.path(), ["token", "--name", "me", "--role", "read", "--json"]).json(0);
    let text = |field: &str| token[field].as_str().expect("text").to_owned();
    let lines = run(place.path(), ["token"]).expect(0).stdout();
    let (_, other) = lines.split_once("[[tokens]]").expect("lines for the settings file");
    let mine = format!("[[tokens]]\nname = \"me too\"\nroles = [\"read\"]\nsha256 = \"{}\"\n", text("sha256"));
    fs::write(place.path().join("s.toml"), format!("[[tokens]]{other}\n{mine}")).expect("written");

    let mut serve = leasehold(place.path(), ["serve", "--config", "s.toml", "--listen", "127.0.0.1:0"]);
    let mut serve = Started::of(serve.stderr(std::process::Stdio::inherit()).env("LEASEHOLD_LOG", "error"));
    let mut line = String::new();
    let mut output = std::io::BufReader::new(serve.child().stdout.take().expect("its output"));
    std::io::BufRead::read_line(&mut output, &mut line).expect("it says where it listens");
    let url = line.trim().strip_prefix("listening on ").expect("it listens").to_owned();
    let list = |token: &str| run(place.path(), ["list", "--server", &url, "--token", token]).code();
    assert_eq!(list(&text("token")), Some(0));
    assert_eq!(list("lh_0000"), Some(1));
    let submit = ["submit", "--server", &url, "--token", &text("token"), "--", "true"];
    assert_eq!(run(place.path(), submit).code(), Some(1), "a token that may only read submitted a job");
}

#[test]
fn a_setting_of_the_store_that_is_not_chosen_is_refused_wherever_it_is_given() {
    let place = tempfile::tempdir().expect("a directory");
    let refused = |arguments: &[&str], variable: Option<(&str, &str)>, words: &[&str]| {
        let mut command = leasehold(place.path(), ["--config", "s.toml"].iter().chain(arguments));
        let said = Started::of(command.envs(variable)).end().expect(2).stderr();
        assert!(words.iter().all(|word| said.contains(word)) && said.lines().count() == 1, "{arguments:?}: {said}");
        assert!(!place.path().join("leasehold-data").exists(), "a store was opened");
    };
    fs::write(place.path().join("s.toml"), "").expect("written");
    let node = "http://127.0.0.1:9";
    let add = "add `--store elasticsearch`";
    refused(&["serve", "--elasticsearch-url", node], None, &["--elasticsearch-url", add]);
    refused(&["serve"], Some(("LEASEHOLD_ELASTICSEARCH_API_KEY", "k")), &["LEASEHOLD_ELASTICSEARCH_API_KEY", add]);
    refused(&["serve", "--index-prefix", "x-"], None, &["index_prefix", "no store is chosen"]);
    refused(&["serve", "--store", "embedded", "--archive-after", "1m"], None, &["archive_after", "`embedded`"]);
    refused(&["serve", "--elasticsearch-shards", "2"], None, &["elasticsearch_shards", add]);
    refused(&["serve"], Some(("LEASEHOLD_ELASTICSEARCH_REPLICAS", "1")), &["elasticsearch_replicas", add]);
    refused(&["serve", "--advertise", "http://a:1"], None, &["--advertise", add]);
    refused(&["monitor"], Some(("LEASEHOLD_CLUSTER_SECRET", "s")), &["LEASEHOLD_CLUSTER_SECRET", add]);
    refused(&["bench", "--elasticsearch-shards", "2"], None, &["--elasticsearch-shards", "--store embedded"]);
    let elasticsearch = ["serve", "--store", "elasticsearch", "--elasticsearch-url", node];
    refused(&[&elasticsearch[..], &["--data-dir", "d"]].concat(), None, &["data_dir", "add `--store embedded`"]);
    refused(&["bench", "--elasticsearch-url", node], None, &["--elasticsearch-url", "--store embedded"]);
    let halves =
        [("--advertise", "http://a:1", "LEASEHOLD_CLUSTER_SECRET"), ("--cluster-secret", "s", "--advertise URL")];
    for (flag, value, other) in halves {
        refused(&[&elasticsearch[..], &[flag, value]].concat(), None, &[other]);
    }
    fs::write(place.path().join("s.toml"), "elasticsearch_ca = \"ca.pem\"\n").expect("written");
    refused(&["serve"], None, &["elasticsearch_ca", add]);
    refused(&["monitor"], None, &["elasticsearch_ca", add]);
}

#[test]
fn a_time_in_which_no_query_can_be_answered_is_refused_wherever_it_is_given() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("s.toml"), "query_time = \"0\"\n").expect("written");
    let flag: &[&str] = &["serve", "--query-time", "99ms"];
    for (arguments, variable) in
        [(flag, None), (&["serve"], Some(("LEASEHOLD_QUERY_TIME", "0s"))), (&["serve", "--config", "s.toml"], None)]
    {
        let said = Started::of(leasehold(place.path(), arguments).envs(variable)).end().expect(2).stderr();
        assert!(said.contains("query_time") && said.contains("100ms"), "{said}");
    }
}

/// A query that costs much for every job, of more jobs than can be tried in the least time that can be set.
async fn a_query_may_take_as_long_as_the_setting_says(engine: Engine) {
    const JOBS: usize = 10_000;
    let place = tempfile::tempdir().expect("a directory");
    let server = Server::start_as("serve", &["--query-time", "100ms"], engine, &place.path().join("log")).await;
    // Ids so long that a server whose code is compiled by then needs several steps of its clock for them.
    let job = |number| format!("{{\"id\":\"{number:-<128}\",\"queue\":\"q\",\"kind\":\"k\"}}\n");
    let call = reqwest::Client::new().post(format!("{}/v1/jobs/bulk", server.url()));
    let jobs: String = (0..JOBS).map(job).collect();
    let submitted = call.header("content-type", "application/x-ndjson").body(jobs).send().await.expect("an answer");
    assert_eq!(submitted.status(), 200);
    let get = |path: String| {
        let url = format!("{}{path}", server.url());
        async move {
            let answer = reqwest::get(url).await.expect("an answer");
            (answer.status().as_u16(), answer.json::<serde_json::Value>().await.expect("JSON"))
        }
    };
    let deadline = std::time::Instant::now() + DEADLINE;
    while get("/v1/jobs/count?queue=q".to_owned()).await.1["total"] != JOBS {
        assert!(std::time::Instant::now() < deadline, "the jobs were not found in time");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let patterns: Vec<String> = (0..800).map(|number| format!("id:*{number}z*")).collect();
    let (status, problem) = get(format!("/v1/jobs?kql={}", patterns.join("%20or%20"))).await;
    assert_eq!((status, &problem["code"]), (422, &serde_json::json!("query_too_slow")), "{problem}");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("longer than 0.1 s")), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_a_query_may_take_as_long_as_the_setting_says() {
    let place = tempfile::tempdir().expect("a directory");
    a_query_may_take_as_long_as_the_setting_says(Engine::Embedded(place.path().join("data"))).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a query that takes long; the embedded server runs, and `store::slow` on Elasticsearch"]
async fn elasticsearch_a_query_may_take_as_long_as_the_setting_says() {
    let engine = Engine::elasticsearch().await;
    a_query_may_take_as_long_as_the_setting_says(engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_and_replicas_that_differ_from_the_settings_are_told_and_served() {
    let place = tempfile::tempdir().expect("a directory");
    let engine = Engine::on(servers::elasticsearch().await.own_indices("shards"));
    let log = async |name: &str, options: &[&str]| {
        let server = Server::start_as("serve", options, engine.clone(), &place.path().join(name)).await;
        server.log()
    };
    let made = ["--elasticsearch-shards", "2", "--elasticsearch-replicas", "0"];
    assert!(!log("made", &made).await.contains("the index has"));
    assert!(!log("unsaid", &[]).await.contains("the index has"));
    let said = log("other", &["--elasticsearch-shards", "4", "--elasticsearch-replicas", "1"]).await;
    for has in ["2 primary shards, where the settings say 4", "0 replicas, where the settings say 1"] {
        assert!(said.contains(has) && said.contains("leasehold migrate"), "{said}");
    }
}

#[test]
fn no_command_calls_by_the_proxy_of_the_environment_but_by_the_one_that_it_is_given() {
    let place = tempfile::tempdir().expect("a directory");
    let server = Server::in_place(place.path());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("it does not wait");
    let proxy = format!("http://{}", listener.local_addr().expect("an address"));
    let called = || listener.accept().is_ok();
    let by_environment = |words: &[&str]| {
        let mut command = leasehold(place.path(), words);
        for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
            command.env(name, &proxy);
        }
        command.env_remove("NO_PROXY").env_remove("no_proxy").env("LEASEHOLD_TOKEN", "lh_secret");
        Started::of(command.env("LEASEHOLD_SERVER", server.url())).end().code()
    };
    for words in [
        &["list"][..],
        &["submit", "--", "true"],
        &["worker", "--exit-when-empty"],
        &["status"],
        &["kibana", "install", "--kibana-url", "http://127.0.0.1:9"],
        &["bench", "--scenario", "scaling", "--elasticsearch-url", "http://127.0.0.1:9"],
    ] {
        by_environment(words);
        assert!(!called(), "{words:?}");
    }
    assert_eq!(by_environment(&["list"]), Some(0), "the server itself is called");

    let mut by_flag = Started::of(
        leasehold(place.path(), ["list", "--server", "http://jobs.example", "--proxy", &proxy])
            .envs([("LEASEHOLD_TOKEN", "lh_secret")]),
    );
    until("the proxy is called", called);
    by_flag.kill();
    let here = run(place.path(), ["list", "--server", &server.url(), "--proxy", "http://127.0.0.1:9"]);
    assert_eq!(here.code(), Some(0), "nothing on this machine is called by a proxy: {}", here.stderr());
    for wrong in ["proxy.example:3128", "ftp://proxy.example", "http://", "socks5://127.0.0.1:1"] {
        let said = run(place.path(), ["list", "--proxy", wrong]).expect(2).stderr();
        assert!(said.contains("--proxy") && said.contains("such as http://"), "{said}");
    }
}
