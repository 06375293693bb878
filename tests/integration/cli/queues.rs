//! Queues, workers and explanations on the command line, and the live view.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};

use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::Signal;

use super::Bed;
use crate::program::{Started, leasehold, until};

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

/// The program on a terminal of its own, and what it has written there.
struct OnTerminal {
    process: Started,
    keyboard: File,
    written: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    fn start(bed: &Bed, arguments: &[&str]) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(Some(&size), None).expect("a terminal");
        let mut command = leasehold(bed.path(), arguments);
        command.env("LEASEHOLD_SERVER", bed.server.url()).env("TERM", "xterm");
        command.stdin(slave.try_clone().expect("another handle")).stdout(slave);
        let process = Started::of(&mut command);
        // The command holds the terminal's other end; without it, reading here would never end.
        drop(command);
        let keyboard = File::from(master);
        let mut screen = keyboard.try_clone().expect("another handle");
        let written = Arc::new(Mutex::new(Vec::new()));
        let shown = Arc::clone(&written);
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut part) {
                shown.lock().expect("no panic").extend_from_slice(&part[..read]);
            }
        });
        Self { process, keyboard, written }
    }

    /// All that was written to it, steering and all.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().expect("no panic")).into_owned()
    }

    /// What was written since the frame before.
    fn last_frame(&self) -> String {
        self.text().rsplit("leasehold top").next().unwrap_or_default().to_owned()
    }
}

#[test]
fn the_live_view_outlives_its_server_and_gives_the_terminal_back_at_the_end() {
    let mut bed = Bed::start();
    bed.submit(&["--id", "waiting-job"], "true");
    let mut top = OnTerminal::start(&bed, &["top", "--interval", "200ms"]);
    until("a first view", || top.last_frame().contains("queues: 1"));
    assert!(top.text().contains("\u{1b}[?1049h"), "it takes another screen");
    bed.server.kill();
    until("word that the server is away", || top.last_frame().contains("asking until there is one"));
    assert!(top.text().contains("queues: 1"), "the last view stays");
    bed.server.restart();
    let is_back = |frame: &str| frame.contains("workers: 0") && !frame.contains("asking until there");
    until("a view of the server that is back", || is_back(&top.last_frame()));
    top.keyboard.write_all(b"q").expect("typed");
    let OnTerminal { process, written, .. } = top;
    process.end().expect(0);
    let ends_with = |what: &str| {
        let text = String::from_utf8_lossy(&written.lock().expect("no panic")).into_owned();
        text.contains(what)
    };
    for given_back in ["\u{1b}[?1049l", "\u{1b}[?25h", "\u{1b}[?7h"] {
        until("the terminal is given back", || ends_with(given_back));
    }
}

#[test]
fn the_live_view_ends_with_a_signal_and_with_what_a_terminal_sends_for_one() {
    let bed = Bed::start();
    let mut top = OnTerminal::start(&bed, &["top"]);
    until("a first view", || top.last_frame().contains("workers: 0"));
    top.keyboard.write_all(&[3]).expect("typed");
    let OnTerminal { process, keyboard, .. } = top;
    process.end().expect(130);
    drop(keyboard);
    let mut top = OnTerminal::start(&bed, &["top"]);
    until("a first view", || top.last_frame().contains("workers: 0"));
    top.process.signal(Signal::SIGTERM);
    let OnTerminal { process, written, keyboard } = top;
    process.end().expect(143);
    until("the terminal is given back", || {
        String::from_utf8_lossy(&written.lock().expect("no panic")).contains("\u{1b}[?1049l")
    });
    drop(keyboard);
}
