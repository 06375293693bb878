//! The program as a process: started, watched with a deadline, and ended when dropped.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Longer than anything here takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The program, with arguments, in a directory, and with no settings but those given.
pub(crate) fn leasehold<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LEASEHOLD_")) {
        command.env_remove(name);
    }
    command.args(arguments).current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end.
pub(crate) fn run<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> Ended {
    Started::of(&mut leasehold(directory, arguments)).end()
}

/// A running process, killed when dropped.
pub(crate) struct Started(Option<Child>);

impl Started {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self(Some(command.spawn().expect("the program starts")))
    }

    /// Writes all of its input.
    pub(crate) fn with_input(command: &mut Command, input: &str) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().expect("the program starts");
        child.stdin.take().expect("an input").write_all(input.as_bytes()).expect("it reads");
        Self(Some(child))
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("not ended yet")
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        let pid = i32::try_from(self.child().id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("it is there to be signalled");
    }

    /// Waits for its end, which must come in time.
    pub(crate) fn end(mut self) -> Ended {
        let child = self.0.take().expect("not ended yet");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait_with_output()));
        match receiver.recv_timeout(DEADLINE) {
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
        if let Some(child) = &mut self.0 {
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

    /// Checks the status.
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), Some(code), "{}", self.said());
        self
    }
}

/// A server on a port of its own.
pub(crate) struct Server {
    process: Started,
    _output: BufReader<ChildStdout>,
    pub(crate) url: String,
}

impl Server {
    /// Starts one that keeps its jobs in `data`; on a free port, or on the one that `url` names.
    pub(crate) fn start(data: &Path, url: Option<&str>) -> Self {
        let listen = url.and_then(|url| url.strip_prefix("http://")).unwrap_or("127.0.0.1:0");
        let mut command = leasehold(data, ["serve", "--data-dir", "data", "--listen", listen]);
        let mut process = Started::of(command.stderr(Stdio::inherit()).env("LEASEHOLD_LOG", "error"));
        let mut output = BufReader::new(process.child().stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("it says where it listens");
        let url = line.trim().strip_prefix("listening on ").expect("it says where it listens").to_owned();
        Self { process, _output: output, url }
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.process.child().kill().expect("killed");
        let _ = self.process.child().wait();
    }

    /// SIGTERM, and its exit status.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        self.process.signal(Signal::SIGTERM);
        let mut rest = String::new();
        let _ = self._output.read_to_string(&mut rest);
        self.process.end().code()
    }
}

/// Waits for something that another process does.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
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
