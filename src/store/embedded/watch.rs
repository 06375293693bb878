//! What the store must not run out of: room on the disk, and memory. While one of them is short, new jobs are refused,
//! and the work on those that are there goes on, which makes room.

use std::fs;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::exits::FailOnExit;
use super::periodic::Periodic;
use super::writer::Queue;
use crate::store::{Member as _, StoreError};

/// The time between two looks. At full speed jobs take some 50 MB meanwhile.
const PERIOD: Duration = Duration::from_millis(500);

/// How often a member that leads hands over for want of room.
const HAND_OVER_EVERY: Duration = Duration::from_secs(60);

/// The share of the machine's memory, or of what the process may have, that jobs may fill unless a limit is set, in
/// percent. The rest is for queries, for connections, and for other programs.
const MEMORY_SHARE: u64 = 70;

/// Starts the thread that watches, which ends by itself when the engine is gone. `memory_limit` is in bytes.
pub(super) fn start(
    engine: Weak<Engine>,
    queue: Arc<Queue>,
    memory_limit: Option<u64>,
    guard: FailOnExit,
) -> std::io::Result<Periodic> {
    let limit = memory_limit.or_else(default_limit);
    let (mut was_short, mut handed_over) = (false, None);
    Periodic::start("store-watch", PERIOD, guard, move || {
        let Some(engine) = engine.upgrade() else { return false };
        let short_of_room = engine.disk.short_of_room();
        if let Some(exchange) = &engine.exchange
            && is_to_hand_over(short_of_room.is_some(), exchange.standing().borrow().leads, &mut handed_over)
        {
            tracing::warn!("another member may have the room that this one lacks");
            exchange.begin_to_hand_over(None);
        }
        let why = short_of_room.or_else(|| short_of_memory(limit?));
        match &why {
            Some(why) if !was_short => tracing::warn!(why, "new jobs are refused"),
            None if was_short => tracing::info!("new jobs are accepted again"),
            _ => {}
        }
        was_short = why.is_some();
        queue.refuse_new_jobs(why.map(StoreError::OutOfOrder));
        true
    })
}

/// Returns whether a member is to hand over the lead for want of room on its disk: the group refuses new jobs while its
/// leader does, and takes them where another one has room. Where all lack room, the lead does not go round and round.
fn is_to_hand_over(is_short: bool, leads: bool, handed_over: &mut Option<Instant>) -> bool {
    let is_to = is_short && leads && handed_over.is_none_or(|last| last.elapsed() >= HAND_OVER_EVERY);
    if is_to {
        *handed_over = Some(Instant::now());
    }
    is_to
}

fn short_of_memory(limit: u64) -> Option<String> {
    let used = resident()?;
    (used > limit).then(|| {
        let (used, limit) = (used >> 20, limit >> 20);
        format!(
            "the server uses {used} MiB of memory, and its limit is {limit} MiB: new jobs are refused until some have \
             ended; raise the limit (--memory-limit), or add workers"
        )
    })
}

/// Returns how many bytes of memory the process has, where the system says so.
fn resident() -> Option<u64> {
    kilobytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Returns the limit that holds unless another one is set.
fn default_limit() -> Option<u64> {
    let of_machine = kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
    let least = of_group().map_or(of_machine, |of_group| of_group.min(of_machine));
    Some(least / 100 * MEMORY_SHARE)
}

/// Returns the limit of the process's control group, of version 2 or 1, if it has one.
fn of_group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let file = match controllers {
            "" => format!("/sys/fs/cgroup{path}/memory.max"),
            "memory" => format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"),
            _ => return None,
        };
        fs::read_to_string(file).ok()?.trim().parse().ok()
    });
    limits.min()
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok().map(|kilobytes: u64| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_this_process_and_its_limit_are_known() {
        let (used, limit) = (resident().expect("it is known"), default_limit().expect("it is known"));
        assert!((1 << 20..1 << 40).contains(&used), "{used}");
        assert!(limit > 1 << 26, "{limit}");
        assert!(short_of_memory(u64::MAX).is_none());
        assert!(short_of_memory(1).is_some_and(|why| why.contains("--memory-limit")));
    }

    #[test]
    fn a_leader_without_room_hands_over_and_not_again_at_once() {
        let mut last = None;
        assert!(!is_to_hand_over(false, true, &mut last) && !is_to_hand_over(true, false, &mut last));
        assert!(is_to_hand_over(true, true, &mut last) && !is_to_hand_over(true, true, &mut last));
        last = last.and_then(|last| last.checked_sub(HAND_OVER_EVERY));
        assert!(is_to_hand_over(true, true, &mut last));
    }

    #[test]
    fn a_line_that_is_not_there_or_has_no_number_is_none() {
        assert_eq!(kilobytes("MemTotal:       24 kB\nVmRSS: x kB\n", "MemTotal:"), Some(24 << 10));
        assert_eq!(kilobytes("MemTotal:       24 kB\nVmRSS: x kB\n", "VmRSS:"), None);
        assert_eq!(kilobytes("", "VmRSS:"), None);
    }
}
