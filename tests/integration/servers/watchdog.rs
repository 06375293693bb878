//! A server process that ends with the test process, however that ends: by a return, a panic or `kill -9`.
//!
//! Nothing in the test process can promise this: statics are never dropped, and a killed process runs no code. So each
//! server is the child of a small shell script (`watchdog.sh`) that waits for the end of a pipe from the test process
//! and then kills the server's process group.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::user::ServerUser;

const SCRIPT: &str = include_str!("watchdog.sh");
/// Where the watchdog writes the server's process group down.
const GROUP: &str = "group";
/// How long it may take to do so.
const STARTED_WITHIN: Duration = Duration::from_secs(10);
/// How many lines of a server's log a failure tells.
const LOG_TAIL_LINES: usize = 40;

/// The folder of one server: `server/` belongs to the user it runs as, the rest to us.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// A new folder that the server's user can reach.
    pub(super) fn create(name: &str) -> Result<Self, String> {
        let parent = ServerUser::reachable_temp_dir();
        let made = tempfile::Builder::new().prefix(&format!("leasehold-{name}-")).tempdir_in(&parent);
        let folder = made.map_err(|error| format!("cannot make a folder in {}: {error}", parent.display()))?.keep();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&folder, open)
            .and_then(|()| std::fs::create_dir(folder.join("server")))
            .map_err(|error| format!("cannot prepare {}: {error}", folder.display()))?;
        Ok(Self(folder))
    }

    /// Where the server's own files go.
    pub(super) fn server(&self) -> PathBuf {
        self.0.join("server")
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.0.join(name)).ok()
    }
}

/// A server under its watchdog. Dropping it ends both and removes the folder.
pub(super) struct Watched {
    folder: Folder,
    orders: Option<ChildStdin>,
    watchdog: Child,
}

impl Watched {
    /// Starts `command` in `folder`, as the unprivileged user when we are root.
    pub(super) fn start(folder: Folder, command: &Command) -> Result<Self, String> {
        ServerUser::own(&folder.server())?;
        let mut shell = Command::new("bash");
        shell.arg("-c").arg(SCRIPT).arg("watchdog.sh").arg(&folder.0).args(ServerUser::command_line(command));
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        // A group of its own: what is sent to the test's group, such as a terminal's interrupt, must not end the one
        // that cleans up.
        let spawned = shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut watchdog = spawned.map_err(|error| format!("cannot start bash for the watchdog: {error}"))?;
        let mut watched = Self { folder, orders: watchdog.stdin.take(), watchdog };
        watched.start_again()?;
        Ok(watched)
    }

    /// Starts the server again after [`Watched::kill`].
    pub(super) fn start_again(&mut self) -> Result<(), String> {
        // Whoever kills next must not meet the group of the time before.
        let group = self.folder.0.join(GROUP);
        if group.exists() {
            std::fs::remove_file(&group).map_err(|error| format!("cannot remove {}: {error}", group.display()))?;
        }
        let orders = self.orders.as_mut().ok_or("the watchdog has no pipe")?;
        orders.write_all(b"start\n").map_err(|error| format!("the watchdog is gone: {error}"))
    }

    /// `kill -9` to every process of the server. It is gone once its ports are free.
    pub(super) fn kill(&self) -> Result<(), String> {
        let group = self.group().ok_or("the server was not started")?;
        let group = group.trim().parse().map_err(|error| format!("not a process group, {group:?}: {error}"))?;
        killpg(Pid::from_raw(group), Signal::SIGKILL).map_err(|error| format!("cannot kill group {group}: {error}"))
    }

    /// The server's process group, which the watchdog writes down a moment after it has started the server.
    fn group(&self) -> Option<String> {
        let deadline = Instant::now() + STARTED_WITHIN;
        loop {
            let group = self.folder.read(GROUP);
            if group.is_some() || Instant::now() >= deadline {
                return group;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The exit status, when the server has ended by itself.
    pub(super) fn exited(&self) -> Option<String> {
        self.folder.read("exited").map(|status| status.trim().to_owned())
    }

    /// The end of the server's log.
    pub(super) fn log_tail(&self) -> String {
        let log = self.folder.read("log").unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// The folder, which is removed with the server.
    pub(super) fn folder(&self) -> &Path {
        &self.folder.0
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.orders.take());
        // It kills and removes, which takes milliseconds; without waiting a test that ends the process next would
        // leave the rest to be seen by whoever looks at once.
        let _status = self.watchdog.wait();
    }
}
