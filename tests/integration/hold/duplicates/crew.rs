//! The processes of a run, which are killed and frozen, and their journals.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures::future::join_all;
use nix::sys::signal::Signal;

use super::journal::{self, Journal, Line, What};
use super::worker::{ORDERS, Orders, Role};
use crate::program::Started;

/// A process, and those that took its place.
pub(super) struct Process {
    started: Started,
    test: &'static str,
    first: Orders,
    lives: u64,
}

impl Process {
    /// Starts this program anew, for the test of this name to carry the orders out.
    pub(super) fn start(test: &'static str, first: Orders) -> Self {
        Self { started: spawn(test, &first), test, first, lives: 1 }
    }

    /// `kill -9`, and another one in its place.
    pub(super) fn kill_and_restart(&mut self) {
        self.started.kill();
        Journal::open(&self.orders().journal).write(What::Killed, "", 0, None);
        self.lives += 1;
        self.started = spawn(self.test, &self.orders());
    }

    /// Stands still for some time.
    pub(super) async fn freeze(&mut self, lasts: Duration) {
        self.started.signal(Signal::SIGSTOP);
        tokio::time::sleep(lasts).await;
        self.started.signal(Signal::SIGCONT);
    }

    /// The orders of the present life.
    fn orders(&self) -> Orders {
        if self.lives == 1 {
            return self.first.clone();
        }
        let name = format!("{}.{}", self.first.name, self.lives);
        let journal = self.first.journal.with_file_name(&name);
        Orders { name, journal, seed: self.first.seed.wrapping_add(self.lives), ..self.first.clone() }
    }

    /// Tells it to end after what it is at.
    pub(super) fn stop(&mut self) {
        drop(self.started.child().stdin.take());
    }

    /// Waits for its end.
    pub(super) fn end(self) {
        self.started.end().expect(0);
    }
}

fn spawn(test: &str, orders: &Orders) -> Started {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test program"));
    command.args(["--include-ignored", "--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(ORDERS, serde_json::to_string(orders).expect("orders are JSON"));
    Started::of(command.stdin(Stdio::piped()).stdout(Stdio::null()))
}

/// Workers, on several machines that can stand still.
pub(super) struct Crew(Vec<Process>);

impl Crew {
    /// The number of workers, and of the machines that they would run on.
    const WORKERS: usize = 12;
    const MACHINES: usize = 3;

    /// Starts workers, each of which calls the servers in another order.
    pub(super) fn start(
        test: &'static str,
        role: &Role,
        urls: &[String],
        place: &Path,
        batch: usize,
        seed: u64,
    ) -> Self {
        std::fs::create_dir(place.join("journals")).expect("a directory can be made");
        let worker = |number: usize| {
            let mut urls = urls.to_vec();
            let first = number % urls.len();
            urls.rotate_left(first);
            let name = format!("worker-{number}");
            let journal = place.join("journals").join(&name);
            let seed = seed.wrapping_add(1_000 * number as u64);
            Process::start(test, Orders { role: role.clone(), name, urls, journal, batch, seed })
        };
        Self((0..Self::WORKERS).map(worker).collect())
    }

    pub(super) fn kill_one(&mut self, victim: usize) {
        self.0[victim % Self::WORKERS].kill_and_restart();
    }

    /// A machine stands still, and all workers on it.
    pub(super) async fn freeze_machine(&mut self, victim: usize, lasts: Duration) {
        let (machine, workers) = (victim % Self::MACHINES, self.0.iter_mut().enumerate());
        let on_it = workers.filter(|(number, _)| number % Self::MACHINES == machine);
        join_all(on_it.map(|(_, worker)| worker.freeze(lasts))).await;
    }

    /// Lets all end what they are at; returns what they wrote down in all their lives, by their names.
    pub(super) fn end(mut self, place: &Path) -> Vec<(String, Vec<Line>)> {
        self.0.iter_mut().for_each(Process::stop);
        self.0.into_iter().for_each(Process::end);
        let entries = std::fs::read_dir(place.join("journals")).expect("the journals");
        let journals = entries.map(|entry| entry.expect("a journal"));
        journals.map(|file| (file.file_name().into_string().expect("text"), journal::read(&file.path()))).collect()
    }
}
