//! Reads what `strace` saw a process do.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::program::until;

/// What matters of a trace, in the order in which it came to pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Bytes were handed to the operating system for this segment of the log.
    Written(PathBuf),
    /// What was written to this segment before is on disk.
    Synced(PathBuf),
    /// The process began to say that a write is acknowledged.
    Acknowledged,
}

/// The command that traces all threads of a program into the file `log`, and lets calls that are not traced pass.
///
/// # Panics
/// When there is no `strace`.
pub(crate) fn strace(log: &Path, options: &[&str]) -> Vec<OsString> {
    let found = Command::new("strace").arg("--version").stdout(Stdio::null()).status();
    assert!(
        found.is_ok_and(|status| status.success()),
        "this test needs `strace` to see what the store asks of the operating system: `apt-get install strace`"
    );
    let fixed = ["strace", "--follow-forks", "--seccomp-bpf", "--quiet=all", "--string-limit=16", "--output"];
    let mut command: Vec<OsString> = fixed.into_iter().map(OsString::from).collect();
    command.push(log.as_os_str().to_owned());
    command.extend(options.iter().map(OsString::from));
    command
}

/// The same for a program that [`detach`] is to be called for: with a filter for calls, the system refuses those that
/// were traced once nobody traces them any more.
pub(crate) fn strace_for_a_while(log: &Path, options: &[&str]) -> Vec<OsString> {
    let mut command = strace(log, &[&["--interruptible=anywhere"], options].concat());
    command.retain(|part| part != "--seccomp-bpf");
    command
}

/// Lets a process go on that is traced: from now on its calls are as they are without that.
pub(crate) fn detach(process: u32) {
    let tracer = || {
        let status = fs::read_to_string(format!("/proc/{process}/status")).expect("the process is there");
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).expect("a line");
        tracer.trim().parse::<i32>().expect("a number")
    };
    kill(Pid::from_raw(tracer()), Signal::SIGTERM).expect("it is traced");
    until("the process to be traced no more", || tracer() == 0);
}

/// The segments' and the acknowledgements' events in a log. A call counts from when it has returned, an
/// acknowledgement from when it begins.
pub(crate) fn events(log: &Path, data: &Path, acknowledgement: &str) -> Vec<Event> {
    let text = fs::read_to_string(log).expect("a log");
    let mut unfinished: HashMap<&str, &str> = HashMap::new();
    let mut events = Vec::new();
    for line in text.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if is_acknowledgement(call, acknowledgement) {
            events.push(Event::Acknowledged);
        }
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            unfinished.insert(thread, begun);
        } else if call.starts_with("<... ") {
            let begun = unfinished.remove(thread).unwrap_or_default();
            events.extend(returned(begun, call, data));
        } else {
            events.extend(returned(call, call, data));
        }
    }
    events
}

fn is_acknowledgement(call: &str, said: &str) -> bool {
    call.strip_prefix("write(1<")
        .and_then(|rest| rest.split_once(">, \""))
        .is_some_and(|(_, text)| text.starts_with(said))
}

/// The event of a call that began as `begun` and whose line ends as `ended`, if it succeeded on a segment of the
/// store's log.
fn returned(begun: &str, ended: &str, data: &Path) -> Option<Event> {
    let (name, arguments) = begun.split_once('(')?;
    let (_, rest) = arguments.split_once('<')?;
    let (path, _) = rest.split_once('>')?;
    let path = Path::new(path);
    if !path.starts_with(data) || path.extension().is_none_or(|extension| extension != "log") {
        return None;
    }
    let (_, result) = ended.rsplit_once(" = ")?;
    let result: i64 = result.split_whitespace().next()?.parse().ok()?;
    match name {
        "write" | "pwrite64" | "writev" if result > 0 => Some(Event::Written(path.to_owned())),
        "fsync" | "fdatasync" if result == 0 => Some(Event::Synced(path.to_owned())),
        _ => None,
    }
}
