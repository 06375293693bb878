//! A command's environment and process group, and how processes end.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

/// The prefix of the environment variables that hold this program's own settings.
const SETTINGS: &str = "LEASEHOLD_";

/// Removes this program's own settings from the environment that a command inherits: they belong to the process that
/// starts it, and a token among them gives rights that whoever wrote the command may not have.
pub fn remove_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(SETTINGS.as_bytes())) {
        command.env_remove(name);
    }
}

/// Keeps other processes of the same user out of this one's memory and environment, where settings can be: a command
/// could otherwise read in `/proc` what was removed from its own environment. It has an effect on Linux only, and none
/// on commands that run as root.
///
/// # Errors
/// The system refuses it.
pub fn hide_settings() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_dumpable(false)?;
    Ok(())
}

/// The process group of a command. It is killed when this value is dropped.
///
/// It has the number of its first process. Once that has been waited for and the group is empty the number is free
/// again, but the system hands numbers out in a circle: it comes back only after all others, long after the last
/// signal from here.
#[derive(Debug)]
pub(super) struct Group(Option<Pid>);

impl Group {
    /// Returns the group of a child that was started as the leader of one.
    pub(super) fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }

    /// Sends SIGTERM to every process of the group.
    pub(super) fn terminate(&self) {
        self.signal(Signal::SIGTERM);
        // A stopped process receives the signal only once it continues.
        self.signal(Signal::SIGCONT);
    }

    /// Sends SIGKILL to every process of the group.
    pub(super) fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    fn signal(&self, signal: Signal) {
        let Some(group) = self.0 else { return };
        match killpg(group, signal) {
            // The group has ended already. Some systems return EPERM when only zombies are left.
            Ok(()) | Err(Errno::ESRCH | Errno::EPERM) => {}
            Err(error) => tracing::warn!(group = group.as_raw(), %signal, %error, "cannot signal a job's processes"),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Describes how a process ended.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("killed by {signal}"),
            Err(_) => format!("killed by signal {number}"),
        },
        (None, None) => "ended in an unknown way".to_owned(),
    }
}
