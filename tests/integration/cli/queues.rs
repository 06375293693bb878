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
