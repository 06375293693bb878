//! The program as a process: run to its end with a deadline, or serving until it is killed. Ended when dropped, and when
//! the test process ends in any other way ([`reaper`]).

mod reaper;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::servers::{self, IndexSet};

use reaper::Reaped;

/// Longer than anything here takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The program, with arguments, in a directory, and with no settings but those given.
pub(crate) fn leasehold<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> Command {
    with_program(PROGRAM, directory, arguments)
}

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// The same with another build of the program, or one that starts it.
fn with_program<S: AsRef<OsStr>>(program: &str, directory: &Path, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LEASEHOLD_")) {
        command.env_remove(name);
    }
    // The contexts of whoever runs the tests are not theirs.
    command.env("XDG_CONFIG_HOME", directory.join("config"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The same, to which SIGHUP comes as it does in a terminal, also where the tests ignore it, as under `nohup`.
pub(crate) fn leasehold_in_a_terminal<S: AsRef<OsStr>>(
    directory: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let is_ignored =
        ignored.is_some_and(|signals| u64::from_str_radix(signals.trim(), 16).is_ok_and(|set| set & 1 == 1));
    if !is_ignored {
        return leasehold(directory, arguments);
    }
    let words = ["--default-signal=HUP", PROGRAM].map(OsString::from).into_iter();
    with_program("env", directory, words.chain(arguments.into_iter().map(|word| word.as_ref().to_owned())))
}

/// Runs it to its end.
pub(crate) fn run<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> Ended {
    Started::of(&mut leasehold(directory, arguments)).end()
}

/// A running process, killed when dropped.
#[derive(Default)]
pub(crate) struct Started {
    /// `None` once it is waited for elsewhere.
    child: Option<Child>,
    /// `None` once it has ended.
    reaped: Option<Reaped>,
}

impl Started {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::new(command.spawn().expect("the program starts"))
    }

    /// Writes all of its input.
    pub(crate) fn with_input(command: &mut Command, input: &str) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("an input");
        let started = Self::new(child);
        stdin.write_all(input.as_bytes()).expect("it reads");
        started
    }

    fn new(child: Child) -> Self {
        Self { reaped: Some(Reaped::new(&child)), child: Some(child) }
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("not ended yet")
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        let pid = i32::try_from(self.child().id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("it is there to be signalled");
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.child().kill().expect("the process can be killed");
        self.child().wait().expect("the process can be waited for");
        self.reaped = None;
    }

    /// Waits for its end, which must come in time.
    pub(crate) fn end(self) -> Ended {
        self.end_within(DEADLINE)
    }

    /// Waits for the end of what may take longer than most.
    pub(crate) fn end_within(mut self, deadline: Duration) -> Ended {
        let child = self.child.take().expect("not ended yet");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait_with_output()));
        match receiver.recv_timeout(deadline) {
            Ok(output) => Ended(output.expect("it can be waited for")),
            Err(_) => {
                let _ = kill(pid, Signal::SIGKILL);
                let output = receiver.recv().expect("an answer").expect("it can be waited for");
                panic!("it did not end in time; it had said: {}", Ended(output).said());
            }
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What an ended process left.
pub(crate) struct Ended(Output);

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.0.status.code()
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    pub(crate) fn said(&self) -> String {
        format!("{:?}\n{}\n{}", self.0.status, self.stdout(), self.stderr())
    }

    /// Its output as JSON, after an end with this status.
    pub(crate) fn json(&self, code: i32) -> Value {
        assert_eq!(self.code(), Some(code), "{}", self.said());
        serde_json::from_str(&self.stdout()).unwrap_or_else(|error| panic!("{error}: {}", self.said()))
    }

    /// The last line of its output as JSON, after an end with this status.
    pub(crate) fn last_json(&self, code: i32) -> Value {
        assert_eq!(self.code(), Some(code), "{}", self.said());
        let stdout = self.stdout();
        let last = stdout.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {}", self.said()))
    }

    /// Checks the status.
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), Some(code), "{}", self.said());
        self
    }
}

/// Where a server keeps its jobs.
#[derive(Clone, Debug)]
pub(crate) enum Engine {
    /// In a data directory.
    Embedded(PathBuf),
    /// In these indices of Elasticsearch, reached at these addresses.
    Elasticsearch { urls: Vec<String>, indices: Arc<IndexSet> },
}

impl Engine {
    /// In the tests' Elasticsearch, on a set of indices for itself.
    pub(crate) async fn elasticsearch() -> Self {
        Self::on(servers::elasticsearch().await.index_set().await)
    }

    /// In these indices.
    pub(crate) fn on(indices: IndexSet) -> Self {
        Self::Elasticsearch { urls: vec![indices.url().to_owned()], indices: Arc::new(indices) }
    }
}

/// `leasehold serve` or `leasehold monitor` on a port of its own, to be killed and started again. Killed when dropped.
pub(crate) struct Server {
    /// The program, or a command that runs it.
    program: Vec<String>,
    process: Started,
    arguments: Vec<String>,
    log: PathBuf,
    url: String,
    /// Its indices are given back when nobody writes to them any more.
    _engine: Engine,
}

impl Server {
    /// Starts a server that keeps its jobs below `place`, and waits until it listens.
    pub(crate) fn in_place(place: &Path) -> Self {
        Self::in_place_with(place, &[])
    }

    /// The same with options.
    pub(crate) fn in_place_with(place: &Path, options: &[&str]) -> Self {
        let engine = Engine::Embedded(place.join("data"));
        let server = Self::begin_as("serve", options, engine, &place.join("server.log"));
        server.listens(1);
        server
    }

    /// The same server again, after it was killed; waits until it listens.
    pub(crate) fn restart(&mut self) {
        let starts = self.starts();
        self.start_again();
        self.listens(starts + 1);
    }

    fn listens(&self, starts: usize) {
        until("the server listens", || self.starts() == starts);
    }

    fn starts(&self) -> usize {
        self.log().matches("listening on").count()
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    pub(crate) fn pid(&mut self) -> u32 {
        self.process.child().id()
    }

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
    pub(crate) async fn start_as(command: &str, options: &[&str], engine: Engine, log: &Path) -> Self {
        let mut server = Self::begin_as(command, options, engine, log);
        server.ready().await;
        server
    }

    fn begin_as(command: &str, options: &[&str], engine: Engine, log: &Path) -> Self {
        Self::begin_at(servers::ports::free(), PROGRAM, &[&[command], options].concat(), engine, log)
    }

    /// Starts a process of a build of the program that serves at this port, and does not wait for it.
    pub(crate) fn begin_at(port: u16, program: &str, arguments: &[&str], engine: Engine, log: &Path) -> Self {
        let address = format!("127.0.0.1:{port}");
        let mut arguments = [arguments, &["--listen", &address]].concat();
        let directory;
        match &engine {
            Engine::Embedded(data) => {
                directory = data.to_str().expect("a name that is text");
                arguments.extend(["--data-dir", directory]);
            }
            Engine::Elasticsearch { urls, indices } => {
                arguments.extend(["--store", "elasticsearch", "--index-prefix", indices.prefix()]);
                arguments.extend(urls.iter().flat_map(|url| ["--elasticsearch-url", url]));
            }
        }
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        let url = format!("http://{address}");
        let program = vec![program.to_owned()];
        Self {
            process: spawn(&program, &arguments, log),
            program,
            arguments,
            log: log.to_owned(),
            url,
            _engine: engine,
        }
    }

    /// The same server again, which has ended, without waiting for it.
    pub(crate) fn start_again(&mut self) {
        self.process = spawn(&self.program, &self.arguments, &self.log);
    }

    /// Is started with another build of the program from its next start on, or with a command that runs it.
    pub(crate) fn is_to_run(&mut self, program: Vec<String>) {
        self.program = program;
    }

    /// SIGTERM; waits until the process has ended, and returns its exit status. It can be started again.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        tokio::task::block_in_place(|| std::mem::take(&mut self.process).end().code())
    }

    /// `kill -9`, and the same server again.
    pub(crate) async fn kill_and_restart(&mut self) {
        self.kill();
        self.start_again();
        self.ready().await;
    }

    /// SIGTERM, and the same server again once it has ended.
    pub(crate) async fn stop_and_restart(&mut self) {
        self.stop();
        self.start_again();
        self.ready().await;
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Ends the process at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGTERM, and its exit status.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        self.process.signal(Signal::SIGTERM);
        self.process.end().code()
    }

    /// What the server has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("the server's log can be read")
    }

    /// The sum of a counter's series on `/metrics`.
    pub(crate) async fn counter(&self, name: &str) -> f64 {
        let answer = reqwest::get(format!("{}/metrics", self.url)).await.expect("the server answers");
        let text = answer.text().await.expect("text");
        text.lines()
            .filter(|line| line.starts_with(name))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }

    /// Waits until the server is ready.
    pub(crate) async fn ready(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        let url = format!("{}/readyz", self.url);
        loop {
            if reqwest::get(&url).await.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            let ended = self.process.child().try_wait().expect("the server's process can be looked at");
            assert!(ended.is_none(), "the server ended with {ended:?}; its log:\n{}", self.log());
            assert!(Instant::now() < deadline, "the server was not ready in time; its log:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn spawn(program: &[String], arguments: &[String], log: &Path) -> Started {
    let output = File::options().create(true).append(true).open(log).expect("the log can be written");
    let errors = output.try_clone().expect("a second handle");
    let directory = log.parent().expect("a directory");
    let arguments = program[1..].iter().chain(arguments);
    Started::of(with_program(&program[0], directory, arguments).stdout(output).stderr(errors))
}

/// Waits for something that another process does.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let began = Instant::now();
        if condition() {
            return;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        // A look that starts a process costs the others time: they get the most of it.
        std::thread::sleep((3 * began.elapsed()).clamp(Duration::from_millis(5), Duration::from_millis(250)));
    }
}

/// Waits for something that another process does, or a task of this one, also where a whole store has to catch up.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + 5 * DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The lines of a file; none while there is no file.
pub(crate) fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Whether a process is there and more than a corpse that nobody has collected.
pub(crate) fn is_alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        !matches!(state, Some('Z' | 'X'))
    })
}
