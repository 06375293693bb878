//! Queues, workers and explanations on the command line, and the live view.

use nix::sys::signal::Signal;

use super::Bed;
use crate::program::{Started, leasehold, until};
use crate::screen::{Colour, Terminal};

#[test]
fn a_queue_is_paused_explained_and_resumed() {
    let bed = Bed::start();
    let paused = bed.run(&["queue", "pause", "default", "--reason", "the printer burns"]).expect(0).stdout();
    assert_eq!(paused.trim(), "default: paused");
    let _worker = bed.worker(&[]);
    let id = bed.submit(&[], "echo done");
    until("the worker asks", || bed.run(&["workers", "--json"]).expect(0).stdout().contains("\"waiting\":true"));
    let said = bed.run(&["explain", &id]).expect(0).stdout();
    assert!(said.contains(&format!("{id}: available")) && said.contains("is paused by anonymous since"), "{said}");
    assert!(said.contains("the printer burns"), "{said}");
    let list = bed.run(&["queue", "list"]).expect(0).stdout();
    assert!(list.contains("default") && list.contains("the printer burns"), "{list}");
    let show = bed.run(&["queue", "show", "default"]).expect(0).stdout();
    assert!(show.contains("by anonymous: the printer burns") && show.contains("last 15 min"), "{show}");

    assert_eq!(bed.run(&["queue", "resume", "default"]).expect(0).stdout().trim(), "default: not paused");
    bed.run(&["wait", &id]).expect(0);
    let said = bed.run(&["explain", &id]).expect(0).stdout();
    assert!(said.contains("It was completed at"), "{said}");
    let set = bed.run(&["queue", "set", "default", "--orphan-policy", "flag"]).expect(0).stdout();
    assert_eq!(set.trim(), "default: not paused, orphans: flag");
    let turns = ["queue", "set", "default", "--fairness", "owner", "--weight", "team-a=3", "--weight", "b=2"];
    let set = bed.run(&turns).expect(0).stdout();
    assert!(set.contains("owners take turns (b 2, team-a 3)"), "{set}");
    let shown = bed.run(&["queue", "show", "default"]).expect(0).stdout();
    assert!(shown.contains("owners take turns (b 2, team-a 3)") && shown.contains("flag"), "{shown}");
    let shortest = ["queue", "set", "default", "--fairness", "owner_runtime", "--no-weights", "--order", "shortest"];
    let said = bed.run(&shortest).expect(0).stdout();
    assert!(said.contains("owners take turns by expected runtime, shorter jobs go first"), "{said}");
    bed.run(&["queue", "set", "default", "--order", "longest"]).expect(2);
    bed.run(&["queue", "set", "default", "--weight", "team-a"]).expect(2);
    bed.run(&["queue", "set", "default"]).expect(2);
    assert_eq!(bed.run(&["explain", "no-such-job"]).code(), Some(1));
}

#[test]
fn a_worker_takes_no_job_that_needs_more_than_it_offers() {
    let bed = Bed::start();
    let _worker = bed.worker(&["--resource", "memory_mib=1024"]);
    let job = |id: &str, memory: u64| {
        format!("{{\"id\": \"{id}\", \"command\": [\"true\"], \"resources\": {{\"memory_mib\": {memory}}}}}\n")
    };
    let mut command = leasehold(bed.path(), ["submit", "--file", "-"]);
    let lines = job("large", 4096) + &job("small", 512);
    Started::with_input(command.env("LEASEHOLD_SERVER", bed.server.url()), &lines).end().expect(0);
    bed.run(&["wait", "small"]).expect(0);
    let said = "4096 of memory_mib, where the most that any offers is 1024";
    until("the worker offers all it has again", || bed.run(&["explain", "large"]).expect(0).stdout().contains(said));
    let workers = bed.run(&["workers"]).expect(0).stdout();
    assert!(workers.contains("memory_mib=1024"), "{workers}");
}

#[test]
fn a_limit_is_set_shown_explained_and_removed() {
    let bed = Bed::start();
    assert_eq!(bed.run(&["limit", "list"]).expect(0).stdout().trim(), "no limit is set");
    assert_eq!(bed.run(&["limit", "set", "key:db", "1"]).expect(0).stdout().trim(), "key:db: 0 run, at most 1 at once");
    let _worker = bed.worker(&["--slots", "4"]);
    let keyed = ["--concurrency-key", "db", "--max-concurrent", "5"];
    let (first, second) = (bed.submit(&keyed, "sleep 60"), bed.submit(&keyed, "echo done"));
    let running = |id: &str| bed.run(&["limit", "show", "key:db"]).expect(0).stdout().contains(id);
    until("the first runs", || running(&first));
    let said = format!("The limit `key:db` lets 1 run at once, and so many do: {first}.");
    until("the other one waits", || bed.run(&["explain", &second]).expect(0).stdout().contains(&said));
    let list = bed.run(&["limit", "list"]).expect(0).stdout();
    assert!(list.contains("key:db") && list.contains("anonymous"), "{list}");

    assert_eq!(bed.run(&["limit", "remove", "key:db"]).expect(0).stdout().trim(), "key:db: removed");
    bed.run(&["wait", &second]).expect(0);
    let urgent = ["limit", "set", "queue:q", "10", "--urgent-places", "2", "--urgent-priority", "50"];
    let said = bed.run(&urgent).expect(0).stdout();
    assert_eq!(said.trim(), "queue:q: 0 run, at most 10 at once, 2 of them for priorities from 50 on");
    bed.run(&["limit", "set", "queue:q", "2", "--urgent-places", "2", "--urgent-priority", "50"]).expect(2);
    bed.run(&["limit", "set", "queue:q", "2", "--urgent-places", "1"]).expect(2);
    let small = bed.run(&["limit", "set", "kind:mail", "--rate", "50/1s", "--burst", "4"]);
    assert!(small.stderr().contains("a tenth of a second's worth of the rate (5)"), "{}", small.stderr());
    for burst in ["5", "50"] {
        let set = bed.run(&["limit", "set", "kind:mail", "--rate", "50/1s", "--burst", burst]);
        assert_eq!((set.code(), set.stderr().as_str()), (Some(0), ""));
    }
    bed.run(&["limit", "remove", "kind:mail"]).expect(0);
    for wrong in [["limit", "set", "db", "1"], ["limit", "set", "place:db", "1"], ["limit", "set", "key:db", "0"]] {
        bed.run(&wrong).expect(2);
    }
}

#[test]
fn a_worker_takes_a_job_that_requires_a_label_only_if_it_offers_it() {
    let bed = Bed::start();
    let _any = bed.worker(&[]);
    let id = bed.submit(&["--requires", "hw=fpga", "--requires", "build>=42"], "echo done");
    let said = "offers hw = fpga; build >= 42.";
    until("the other worker asks", || bed.run(&["explain", &id]).expect(0).stdout().contains(said));
    bed.run(&["wait", &bed.submit(&[], "echo overtakes")]).expect(0);
    let page = bed.run(&["get", &id]).expect(0).stdout();
    assert!(page.contains("available") && page.contains("hw = fpga; build >= 42"), "{page}");
    let settings = bed.path().join("fpga.toml");
    std::fs::write(&settings, "[worker]\nlabels = { hw = \"fpga\", build = \"43\" }\n").expect("written");
    let _fpga = bed.worker(&["--config", settings.to_str().expect("a path")]);
    bed.run(&["wait", &id]).expect(0);
    let workers = bed.run(&["workers"]).expect(0).stdout();
    assert!(workers.contains("build=43 hw=fpga"), "{workers}");
    let _gpu = bed.worker(&["--label", "hw=gpu"]);
    bed.run(&["wait", &bed.submit(&["--requires", "hw = gpu"], "echo done")]).expect(0);
    let refused = bed.run(&["submit", "--requires", "hw is gpu", "--", "true"]);
    assert_eq!(refused.code(), Some(2));
    assert!(refused.stderr().contains("requires[0]: `=`, `!=`"), "{}", refused.stderr());
}

#[test]
fn a_worker_takes_from_its_queues_in_the_order_that_it_says() {
    let bed = Bed::start();
    let ran = bed.path().join("ran");
    for queue in ["b", "a", "b", "a", "b", "b"] {
        bed.submit(&["--queue", queue, "--priority", "9"], &format!("echo {queue} >> {}", ran.display()));
    }
    let lines = || std::fs::read_to_string(&ran).unwrap_or_default().split_whitespace().collect::<String>();
    {
        let _strict = bed.worker(&["--queue", "a,b", "--queue-order", "strict", "--slots", "1"]);
        until("all ran", || lines().len() == 6);
        // A job whose end the server has not heard of when the worker is killed would run again.
        until("all have ended", || bed.run(&["count", "state: completed"]).expect(0).stdout().trim() == "6");
    }
    assert_eq!(lines(), "aabbbb");

    let settings = bed.path().join("turns.toml");
    let turns = "queues = [\"b\", \"a\"]\nqueue_order = \"weighted\"\nqueue_weights = { a = 2 }";
    std::fs::write(&settings, format!("[worker]\nslots = 1\n{turns}\n")).expect("written");
    for queue in ["a", "a", "a", "a", "b", "b"] {
        bed.submit(&["--queue", queue], &format!("echo {queue} >> {}", ran.display()));
    }
    let _turns = bed.worker(&["--config", settings.to_str().expect("a path")]);
    until("all ran", || lines().len() == 12);
    assert_eq!(&lines()[6..], "abaaba");
    for wrong in [
        ["--queue-weight", "default=3"].as_slice(),
        &["--queue-order", "fair"],
        &["--queue-order", "weighted", "--queue-weight", "other=3"],
        &["--queue", "a,a", "--queue-order", "strict"],
    ] {
        bed.run(&[&["worker"], wrong].concat()).expect(2);
    }
}

#[test]
fn a_second_job_of_a_unique_key_is_refused_or_answered_with_the_first() {
    let bed = Bed::start();
    let id = bed.submit(&["--unique-key", "report 7"], "echo done");
    let refused = bed.run(&["submit", "--unique-key", "report 7", "--", "true"]);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr().contains(&id), "{}", refused.stderr());
    assert_eq!(bed.submit(&["--unique-key", "report 7", "--on-duplicate", "existing"], "echo again"), id);
    let replace = ["--unique-key", "report 7", "--on-duplicate", "replace", "--longest-wait", "5m"];
    assert_eq!(bed.submit(&replace, "echo new"), id);
    assert!(bed.run(&["get", &id]).expect(0).stdout().contains("report 7"));
    let lines = bed.path().join("jobs.jsonl");
    let line = format!(r#"{{"command": ["true"], "unique_key": "{}", "on_duplicate": "existing"}}"#, "report 7");
    std::fs::write(&lines, format!("{line}\n{line}\n")).expect("written");
    let ids = bed.run(&["submit", "--file", lines.to_str().expect("a path")]).expect(0).stdout();
    assert_eq!(ids.lines().collect::<Vec<_>>(), [&*id, &*id]);
    let without = bed.run(&["submit", "--on-duplicate", "existing", "--", "true"]);
    assert_eq!(without.code(), Some(2));
    let _worker = bed.worker(&[]);
    bed.run(&["wait", &id]).expect(0);
    assert_ne!(bed.submit(&["--unique-key", "report 7"], "echo done"), id);
}

#[test]
fn the_live_view_prints_one_frame_where_there_is_no_terminal() {
    let mut bed = Bed::start();
    let _worker = bed.worker(&[]);
    let id = bed.submit(&["--id", "long-job"], "sleep 600");
    until("the job runs", || bed.job(&id)["state"] == "running");
    for arguments in [&["top", "--once"][..], &["top"]] {
        let frame = bed.run(arguments).expect(0).stdout();
        for part in ["queues: 1", "default", "running: 1", "long-job", "workers: 1"] {
            assert!(frame.contains(part), "no {part}: {frame}");
        }
        assert!(!frame.contains('\u{1b}'), "{frame}");
    }
    bed.run(&["cancel", &id]).expect(0);
    until("the job's end", || bed.job(&id)["state"] == "cancelled");
    bed.server.kill();
    bed.run(&["top", "--once"]).expect(3);
}

fn top(bed: &Bed, columns: u16, colour: Colour) -> Terminal {
    let mut command = leasehold(bed.path(), ["top", "--interval", "200ms"]);
    Terminal::start(command.env("LEASEHOLD_SERVER", bed.server.url()), 24, columns, colour)
}

#[test]
fn the_live_view_outlives_its_server_and_gives_the_terminal_back_at_the_end() {
    let mut bed = Bed::start();
    bed.submit(&["--id", "waiting-job"], "true");
    let mut top = top(&bed, 80, Colour::Yes);
    top.until("a first view", |screen| screen.contains("2 queues 1") && screen.contains("no jobs match"));
    bed.server.kill();
    let last = top.until("word that the server is away", |screen| screen.contains("asking until there is one"));
    assert!(last.contains("2 queues 1"), "the last view stays: {last}");
    bed.server.restart();
    top.until("a view of the server that is back", |screen| !screen.contains("asking until there"));
    top.press("q");
    let shown = top.end();
    assert_eq!(shown.code, Some(0));
    for steered in ["\u{1b}[?1049h", "\u{1b}[?1049l", "\u{1b}[?25h"] {
        assert!(shown.text().contains(steered), "the terminal is taken and given back: {steered:?}");
    }
}

#[test]
fn the_live_view_ends_with_a_signal_and_with_what_a_terminal_sends_for_one() {
    let bed = Bed::start();
    let mut interrupted = top(&bed, 80, Colour::Yes);
    interrupted.until("a first view", |screen| screen.contains("3 workers 0"));
    interrupted.press("\u{3}");
    assert_eq!(interrupted.end().code, Some(130));
    let mut ended = top(&bed, 80, Colour::Yes);
    ended.until("a first view", |screen| screen.contains("3 workers 0"));
    ended.signal(Signal::SIGTERM);
    let shown = ended.end();
    assert_eq!(shown.code, Some(143));
    assert!(shown.text().contains("\u{1b}[?1049l"), "the terminal is given back");
}

#[test]
fn in_the_live_view_jobs_are_found_opened_followed_and_cancelled() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    bed.submit(&["--id", "job-that-runs"], "echo what it says; sleep 600");
    bed.submit(&["--id", "job-that-waits", "--in", "1h"], "true");
    for (columns, colour) in [(40, Colour::No), (80, Colour::Yes), (200, Colour::No)] {
        let mut top = top(&bed, columns, colour);
        let screen = top.until("the running job", |screen| screen.contains("job-that-runs"));
        assert!(!screen.contains("job-that-waits"), "{screen}");
        assert_eq!(screen.contains("progress"), columns > 60, "a narrow terminal leaves columns out: {screen}");
        top.press("/");
        top.until("the query", |screen| screen.contains("/state: running"));
        top.press(&"\u{7f}".repeat("running".len()));
        top.press("available\r");
        top.until("the waiting job", |screen| screen.contains("job-that-waits"));
        top.press("2");
        top.until("the queues", |screen| screen.contains("waiting") && screen.contains("default"));
        top.press("q");
        let shown = top.end();
        assert_eq!(shown.code, Some(0));
        let coloured = shown.text().contains("38;5;6");
        assert_eq!(coloured, colour == Colour::Yes, "{columns} columns");
    }
    let mut top = top(&bed, 80, Colour::No);
    top.until("the running job", |screen| screen.contains("job-that-runs"));
    top.press("\r");
    top.until("its output", |screen| screen.contains("what it says") && screen.contains("phase"));
    top.press("c");
    top.until("a question", |screen| screen.contains("cancel job-that-runs? y/n"));
    top.press("y");
    until("the job is cancelled", || bed.job("job-that-runs")["state"] == "cancelled");
    top.press("q");
    assert_eq!(top.end().code, Some(0));
}
