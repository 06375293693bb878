//! `leasehold serve` as a process of its own, to be killed and started again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::servers;

/// How long a server may take until it is ready.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Where a server keeps its jobs.
#[derive(Clone, Debug)]
pub(crate) enum Engine {
    /// In a data directory.
    Embedded(PathBuf),
    /// In Elasticsearch, under an index prefix.
    Elasticsearch { urls: Vec<String>, prefix: String },
}

/// A server, killed when dropped.
pub(crate) struct Server {
    child: Child,
    engine: Engine,
    port: u16,
    log: PathBuf,
    flags: Vec<String>,
}

impl Server {
    /// Starts a server on a free port and waits until it is ready. Its log is written to `log`.
    pub(crate) async fn start(engine: Engine, log: &Path) -> Self {
        Self::start_with(engine, log, &[]).await
    }

    /// The same with more flags.
    pub(crate) async fn start_with(engine: Engine, log: &Path, flags: &[&str]) -> Self {
        let mut server = Self::begin_with(engine, log, flags);
        server.ready().await;
        server
    }

    /// Starts a server and does not wait for it.
    pub(crate) fn begin(engine: Engine, log: &Path) -> Self {
        Self::begin_with(engine, log, &[])
    }

    fn begin_with(engine: Engine, log: &Path, flags: &[&str]) -> Self {
        let port = servers::ports::free();
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let child = spawn(&engine, port, log, &flags);
        Self { child, engine, port, log: log.to_owned(), flags }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// `kill -9`, and the same server again.
    pub(crate) async fn kill_and_restart(&mut self) {
        self.kill();
        self.child = spawn(&self.engine, self.port, &self.log, &self.flags);
        self.ready().await;
    }

    /// Ends the process at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the server's process can be killed");
        self.child.wait().expect("the server's process can be waited for");
    }

    /// What the server has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the server's log can be read")
    }

    /// The sum of a counter's series on `/metrics`.
    pub(crate) async fn counter(&self, name: &str) -> f64 {
        let answer = reqwest::get(format!("{}/metrics", self.url())).await.expect("the server answers");
        let text = answer.text().await.expect("text");
        text.lines()
            .filter(|line| line.starts_with(name))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }

    /// Waits until the server is ready.
    pub(crate) async fn ready(&mut self) {
        let deadline = Instant::now() + READY_WITHIN;
        let url = format!("{}/readyz", self.url());
        loop {
            if reqwest::get(&url).await.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            let ended = self.child.try_wait().expect("the server's process can be looked at");
            assert!(ended.is_none(), "the server ended with {ended:?}; its log:\n{}", self.log());
            assert!(Instant::now() < deadline, "the server was not ready in time; its log:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn spawn(engine: &Engine, port: u16, log: &Path, flags: &[String]) -> Child {
    let log = File::options().create(true).append(true).open(log).expect("the log can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.arg("serve").arg("--listen").arg(format!("127.0.0.1:{port}"));
    match engine {
        Engine::Embedded(directory) => {
            command.arg("--data-dir").arg(directory);
        }
        Engine::Elasticsearch { urls, prefix } => {
            command.args(["--store", "elasticsearch", "--index-prefix", prefix]);
            for url in urls {
                command.args(["--elasticsearch-url", url]);
            }
        }
    }
    command.args(flags);
    let errors = log.try_clone().expect("a second handle");
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    command.spawn().expect("the program starts")
}
