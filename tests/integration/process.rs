//! `leasehold serve` and `leasehold monitor` as processes of their own, to be killed and started again.

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
    command: &'static str,
    options: Vec<String>,
    engine: Engine,
    port: u16,
    log: PathBuf,
}

impl Server {
    /// Starts a server on a free port and waits until it is ready. Its log is written to `log`.
    pub(crate) async fn start(engine: Engine, log: &Path) -> Self {
        let mut server = Self::begin(engine, log);
        server.ready().await;
        server
    }

    /// Starts a server and does not wait for it.
    pub(crate) fn begin(engine: Engine, log: &Path) -> Self {
        Self::begin_as("serve", &[], engine, log)
    }

    /// Starts a process that serves, such as a monitor, with options, and waits until it is ready.
    pub(crate) async fn start_as(command: &'static str, options: &[&str], engine: Engine, log: &Path) -> Self {
        let mut server = Self::begin_as(command, options, engine, log);
        server.ready().await;
        server
    }

    fn begin_as(command: &'static str, options: &[&str], engine: Engine, log: &Path) -> Self {
        let port = servers::ports::free();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let child = spawn(command, &options, &engine, port, log);
        Self { child, command, options, engine, port, log: log.to_owned() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// `kill -9`, and the same server again.
    pub(crate) async fn kill_and_restart(&mut self) {
        self.kill();
        self.child = spawn(self.command, &self.options, &self.engine, self.port, &self.log);
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

fn spawn(subcommand: &str, options: &[String], engine: &Engine, port: u16, log: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).expect("the log can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.arg(subcommand).args(options).arg("--listen").arg(format!("127.0.0.1:{port}"));
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
    let errors = log.try_clone().expect("a second handle");
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    command.spawn().expect("the program starts")
}
