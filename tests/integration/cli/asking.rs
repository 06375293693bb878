//! Asking a server for jobs from the command line.

use serde_json::Value;

use super::Bed;
use crate::program::{Started, leasehold, until};

pub(super) fn completions(bed: &Bed, words: &[&str]) -> Vec<String> {
    let mut command = leasehold(bed.path(), [&["--", "leasehold"], words].concat());
    command.env("COMPLETE", "fish").env("LEASEHOLD_SERVER", bed.server.url());
    let said = Started::of(&mut command).end().expect(0).stdout();
    said.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn secrets_are_shown_where_they_are_asked_for() {
    const SECRET: &str = "s3cret";
    let bed = Bed::start();
    let env = format!("TOKEN={SECRET}");
    let id = bed.submit(&["--env", &env], "true");
    let call = ["--call", "https://jobs.example/", "--header", &format!("Authorization=Bearer {SECRET}")];
    bed.run(&[&["schedule", "add", "nightly", "--every", "1d"][..], &call].concat()).expect(0);
    for command in [&["get", &id][..], &["get", &id, "--json"], &["export"], &["schedule", "show", "nightly", "--json"]]
    {
        let hidden = bed.run(command).expect(0).stdout();
        assert!(hidden.contains("***") && !hidden.contains(SECRET), "{command:?}: {hidden}");
        let shown = bed.run(&[command, &["--reveal"]].concat()).expect(0).stdout();
        assert!(shown.contains(SECRET) && !shown.contains("***"), "{command:?}: {shown}");
    }
}

#[test]
fn jobs_are_counted_reckoned_and_listed_by_field() {
    let bed = Bed::start();
    for (queue, priority) in [("day", "1"), ("day", "2"), ("night", "1")] {
        bed.submit(&["--queue", queue, "--priority", priority, "--label", "team=blue"], "true");
    }
    assert_eq!(bed.run(&["count", "queue: day"]).expect(0).stdout().trim(), "2");
    let table = bed.run(&["count", "--by", "queue,priority"]).expect(0).stdout();
    assert!(table.contains("night") && table.contains("in all") && table.lines().count() == 6, "{table}");
    let counted = bed.run(&["count", "--by", "labels.team", "--json"]).json(0);
    assert_eq!(counted["groups"][0]["by"]["labels.team"], "blue");

    let stats = bed.run(&["stats", "--by", "queue", "--interval", "1d", "--percentiles", "50,90"]).expect(0).stdout();
    assert!(stats.contains("wait p90") && stats.contains("run max") && stats.contains("night"), "{stats}");
    let stats = bed.run(&["stats", "queue: day", "--json"]).json(0);
    assert_eq!((&stats["total"]["count"], &stats["rows"]), (&2.into(), &Value::Array(Vec::new())));
    let said = bed.run(&["stats", "--interval", "1y"]).expect(1).stderr();
    assert!(said.contains("interval") && said.lines().count() == 1, "{said}");

    let list = bed.run(&["list", "--sort", "-priority", "--fields", "queue,labels.team,lease.worker_id"]);
    let list = list.expect(0).stdout();
    assert!(
        list.trim_start().starts_with("queue") && list.lines().nth(2).is_some_and(|row| row.contains("day")),
        "{list}"
    );
    let one = bed.run(&["list", "priority: 2", "--fields", "queue,labels.team", "--json"]).expect(0).stdout();
    assert_eq!(one.trim(), r#"{"queue":"day","labels":{"team":"blue"}}"#);
    let said = bed.run(&["list", "--fields", "labls"]).expect(1).stderr();
    assert!(said.contains("is `labels` meant?"), "{said}");
    let said = bed.run(&["cancel", "--kql", "priority: 2", "--reason", "r", "--yes"]).expect(0).stdout();
    assert!(said.ends_with("1 changed, 0 left alone, 0 failed\n"), "{said}");
}

#[test]
fn what_is_found_is_shown_and_what_is_not_is_named() {
    let bed = Bed::start();
    assert_eq!(bed.run(&["list"]).expect(0).stdout(), "no jobs match\n");
    let ids: Vec<String> = (0..2).map(|_| bed.submit(&[], "true")).collect();
    let got = bed.run(&["get", &ids[0], "nobody", &ids[1], "nowhere"]).expect(1);
    assert!(ids.iter().all(|id| got.stdout().contains(id)), "{}", got.stdout());
    let said = got.stderr();
    assert!(said.lines().count() == 2 && said.contains("nobody") && said.contains("nowhere"), "{said}");
    let wrong = bed.run(&["list", "state: (available or"]).expect(2).stderr();
    assert!(wrong.contains("kql"), "{wrong}");
    let host = bed.server.url().replace("http://", "");
    assert_eq!(bed.run(&["count", "--server", &host]).expect(0).stdout(), "2\n");
}

#[test]
fn an_export_has_its_name_only_once_it_is_whole() {
    let bed = Bed::start();
    let ids: Vec<String> = (0..3).map(|_| bed.submit(&[], "true")).collect();
    let out = bed.run(&["export", "--fields", "id,payload.command"]).expect(0).stdout();
    assert!(out.lines().count() == 3 && ids.iter().all(|id| out.contains(id)), "{out}");

    let path = bed.path().join("jobs.ndjson");
    let name = path.to_str().expect("a path");
    std::fs::write(&path, "before").expect("written");
    let said = bed.run(&["export", "-o", name, "state: (available or"]).expect(2).stderr();
    assert!(said.contains("kql"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).expect("read"), "before");
    bed.run(&["export", "-o", name, "--fields", "id", "state: available"]).expect(0);
    assert_eq!(std::fs::read_to_string(&path).expect("read").lines().count(), 3);
    let left: Vec<_> = std::fs::read_dir(bed.path()).expect("a directory").flatten().collect();
    assert!(left.iter().all(|entry| !entry.file_name().to_string_lossy().starts_with(".leasehold-export")));
    let said = bed.run(&["export", "-o", "/nowhere/jobs"]).expect(1).stderr();
    assert!(said.contains("/nowhere/jobs"), "{said}");
}

#[test]
fn the_shell_completes_fields_values_and_queues() {
    let bed = Bed::start();
    bed.submit(&["--queue", "nightly"], "true");
    assert_eq!(completions(&bed, &["list", "state:ru"]), ["state:running"]);
    assert_eq!(completions(&bed, &["count", "not lease.wo"]), ["not lease.worker_id:"]);
    // A server that does not answer at once is not waited for: nobody wants a shell that hangs.
    until("the queue's name", || completions(&bed, &["list", "--queue", "nig"]) == ["nightly"]);
    until("the queue's name in a query", || completions(&bed, &["list", "queue: nig"]) == ["queue: nightly"]);
    assert_eq!(completions(&bed, &["stats", "--by", "queue,err"]), ["queue,error.code"]);
    assert_eq!(completions(&bed, &["list", "--sort", "finis"]), ["finished_at"]);
    assert!(completions(&bed, &["comp"]).contains(&"completions".to_owned()));
    for shell in ["bash", "zsh", "fish"] {
        let script = bed.run(&["completions", shell]).expect(0).stdout();
        assert!(script.contains("COMPLETE") && script.contains("leasehold"), "{script}");
    }
    let mut alone = leasehold(bed.path(), ["--", "leasehold", "list", "--queue", "nig"]);
    alone.env("COMPLETE", "fish").env("LEASEHOLD_SERVER", "http://127.0.0.1:9");
    let ended = Started::of(&mut alone).end();
    assert_eq!((ended.stdout().trim(), ended.stderr().as_str()), ("", ""), "silent where there is no server");
}

#[test]
fn a_receiver_that_will_never_be_called_is_refused_with_its_job() {
    let bed = Bed::start();
    let submit = |url: &str| {
        let job = serde_json::json!({"command": ["true"], "notify": [{"url": url}]}).to_string();
        let mut command = leasehold(bed.path(), ["submit", "--file", "-"]);
        Started::with_input(command.env("LEASEHOLD_SERVER", bed.server.url()), &job).end()
    };
    for url in ["http://169.254.169.254/latest/meta-data", "http://metadata.google.internal/", "http://10.0.0.1/"] {
        let said = submit(url).expect(1).stderr();
        assert!(said.contains("notify[0].url"), "{url}: {said}");
    }
    submit("https://example.org/hook").expect(0);
}
