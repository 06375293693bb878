//! The end of a thread of the store by a panic: it says what it was about, and the process ends.

use std::panic;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use super::at::last_at;
use super::last::Last;
use crate::job::shell::leasehold;
use crate::store::StoreError;

/// How long a thread that panics may take to say so, before the process ends all the same: what it says may be read
/// by nobody any more, and then it waits for good.
const GRACE: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(3) };

/// What the names of all threads of a store begin with.
const OF_STORE: &str = "store-";

/// What the end of a thread of the store is for the rest of it.
pub(super) struct Exits {
    /// Has the store take no more writes, for this reason.
    pub(super) fail: Box<dyn Fn(&StoreError) + Send + Sync>,
    /// The number of this member of its group; `None` for a store of its own.
    pub(super) member: Option<u64>,
    pub(super) directory: PathBuf,
    pub(super) ends_process: bool,
}

impl Exits {
    /// Returns the guard of a thread that the store cannot do without, which is dropped there.
    pub(super) fn guard(self: &Arc<Self>) -> FailOnExit {
        let mut guard = self.guard_of_panics();
        guard.fails_at_end = true;
        guard
    }

    /// Returns the guard of a thread that may end before others have written what waits.
    pub(super) fn guard_of_panics(self: &Arc<Self>) -> FailOnExit {
        if self.ends_process {
            end_after_panics();
        }
        FailOnExit { exits: Arc::clone(self), fails_at_end: false }
    }

    /// Says which thread of which member has panicked, at which entry, and what to do.
    fn panicked(&self, thread: &str, at: Option<Last>) -> String {
        let member = self.member.map_or_else(String::new, |member| format!(" of member {member}"));
        let at = at.map_or_else(String::new, |Last { number, term }| format!(" at entry {number} of term {term}"));
        format!("the thread {thread}{member} has panicked{at}: {}", what_to_do(self.member, &self.directory))
    }
}

/// Says what to do where this member of a group, or a store of its own, contradicts itself.
pub(super) fn what_to_do(member: Option<u64>, directory: &Path) -> String {
    let verify = leasehold("verify").option("--data-dir", &directory.to_string_lossy());
    let instead = match member {
        None => "restore the whole directory from a backup".to_owned(),
        Some(member) => {
            let replace = leasehold("cluster replace").operand(&member.to_string());
            format!("begin with an empty one and `--join`, by `{replace}` while another member leads")
        }
    };
    format!(
        "start the process again; where that does not help, keep a copy of the data directory, check it by \
         `{verify}`, and {instead}"
    )
}

/// Has the store take no more writes however a thread of it ends, so that nobody waits for one that has panicked. Then
/// the process ends as well, where it may: nobody knows what the thread has left half done in memory.
pub(super) struct FailOnExit {
    exits: Arc<Exits>,
    /// Whether the store takes no more writes also where the thread has not panicked.
    fails_at_end: bool,
}

impl Drop for FailOnExit {
    fn drop(&mut self) {
        let Exits { fail, ends_process, .. } = &*self.exits;
        if !thread::panicking() {
            if self.fails_at_end {
                let why = "one of its threads has ended; look at the log, and restart the server";
                fail(&StoreError::Stopped(why.to_owned()));
            }
            return;
        }
        let why = self.exits.panicked(thread::current().name().unwrap_or_default(), last_at());
        fail(&StoreError::Stopped(why.clone()));
        tracing::error!("{why}");
        if *ends_process {
            process::exit(1);
        }
    }
}

/// Has the process end once a thread of a store panics, also where that cannot even say so.
fn end_after_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let says = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let is_of_store = thread::current().name().is_some_and(|name| name.starts_with(OF_STORE));
            if is_of_store && thread::Builder::new().name("exit".to_owned()).spawn(end_after_grace).is_err() {
                process::exit(1);
            }
            says(panic);
        }));
    });
}

fn end_after_grace() {
    thread::sleep(GRACE);
    process::exit(1);
}

/// Has a thread of its own write a line of the log, which waits for as long as nobody reads what was written before.
pub(super) fn log_aside(line: impl FnOnce() + Send + 'static) {
    // Where there is no room for a thread, there is no line.
    drop(thread::Builder::new().name("log-line".to_owned()).spawn(line));
}

#[cfg(test)]
mod tests;
