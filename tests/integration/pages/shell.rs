//! The bash that the commands of a page run in.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::page::End;
use crate::program::{DEADLINE, PROGRAM};
use crate::servers::{self, IndexSet, ports};

const SCRIPT: &str = include_str!("shell.sh");
/// The Elasticsearch of the pages.
const ELASTICSEARCH: &str = "http://localhost:9200";
/// The variable by which all processes of a page are found.
const MARK: &str = "PAGE_OF_A_TEST";
/// The status of what Ctrl-C has ended.
const INTERRUPTED: i32 = 128 + 2;
const POLL: Duration = Duration::from_millis(20);

/// The first two digits of all ports of the pages.
const PORTS: &str = "74";
/// The ports of the pages, after these digits.
const USED_PORTS: [u16; 6] = [0, 10, 11, 12, 13, 14];
/// Above the ports that other tests take, and below those of outgoing connections.
const HUNDREDS: std::ops::Range<u16> = 301..327;

/// What stands in the place of what the pages name.
pub(super) struct Stand {
    ports: String,
    others: Vec<(&'static str, String)>,
    _indices: Option<IndexSet>,
}

impl Stand {
    /// Exchanges ports for free ones, machines for this one, and Elasticsearch for that of the tests.
    pub(super) fn of(place: &Path, needs_elasticsearch: bool) -> Self {
        let mut others: Vec<(&'static str, String)> =
            ["10.0.0.5", "jobs-1.example", "jobs-2.example"].map(|machine| (machine, "127.0.0.1".to_owned())).into();
        others.push(("/tmp/", format!("{}/", place.display())));
        let mut indices = None;
        if needs_elasticsearch {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            let own = runtime.block_on(servers::elasticsearch()).own_indices("pages");
            // All commands that have the URL as an option have these too. A migration waits for the longest search.
            let options = format!("--index-prefix {} --query-time 2s", own.prefix());
            others.push((ELASTICSEARCH, format!("{} {options}", own.url())));
            indices = Some(own);
        }
        Self { ports: free_hundred(), others, _indices: indices }
    }

    fn exchange(&self, commands: &str) -> String {
        let mut exchanged = String::new();
        let mut rest = commands;
        while let Some((before, after)) = rest.split_once(PORTS) {
            exchanged.push_str(before);
            let is_port = before.ends_with([':', ' ']) && ends_as_port(after);
            exchanged.push_str(if is_port { &self.ports } else { PORTS });
            rest = after;
        }
        exchanged.push_str(rest);
        self.others.iter().fold(exchanged, |text, (from, to)| text.replace(from, to))
    }
}

/// Whether this goes on as a port of the pages does, also as one that a loop counts: `741$n`.
fn ends_as_port(after: &str) -> bool {
    let mut letters = after.chars();
    letters.next().is_some_and(|letter| letter.is_ascii_digit())
        && letters.next().is_some_and(|letter| letter.is_ascii_digit() || letter == '$')
}

/// The first digits of a hundred ports of which those that are used are free, which this process has not given out.
fn free_hundred() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % u32::from(HUNDREDS.end - HUNDREDS.start)) as u16;
    for _ in HUNDREDS {
        let step = start + NEXT.fetch_add(1, Ordering::Relaxed);
        let hundred = HUNDREDS.start + step % (HUNDREDS.end - HUNDREDS.start);
        if USED_PORTS.iter().all(|port| ports::is_free(hundred * 100 + port)) {
            return hundred.to_string();
        }
    }
    panic!("no ports of {HUNDREDS:?} hundred are free");
}

/// Whether commands need Elasticsearch.
pub(super) fn names_elasticsearch(commands: &str) -> bool {
    commands.contains(ELASTICSEARCH)
}

/// A bash, and all that was started in it. Ended when dropped.
pub(super) struct Shell {
    stand: Stand,
    blocks: PathBuf,
    count: usize,
    bash: Child,
    orders: Option<ChildStdin>,
    mark: String,
}

impl Shell {
    pub(super) fn start(place: &Path, stand: Stand) -> Self {
        let home = place.join(".home");
        let blocks = home.join("blocks");
        fs::create_dir_all(&blocks).expect("a folder");
        // An answer from 400 on is a failure.
        fs::write(home.join(".curlrc"), "fail-with-body\n").expect("written");
        // Commands call the page's server unless they name another one, as those of a reader call that on port 7400.
        let server = format!("http://127.0.0.1:{}00", stand.ports);
        let contexts = home.join(".config/leasehold/contexts.toml");
        fs::create_dir_all(contexts.parent().expect("a folder")).expect("a folder");
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(contexts).expect("a file");
        write!(file, "current = \"page\"\n\n[contexts.page]\nserver = [\"{server}\"]\n").expect("written");

        let mark = uuid::Uuid::now_v7().simple().to_string();
        let program = Path::new(PROGRAM).parent().expect("a folder").display().to_string();
        let path = format!("{program}:{}", std::env::var("PATH").expect("a path"));
        // Tests that run in the background of a shell inherit that these are ignored, and so would every command.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP,INT,QUIT", "bash", "-c", SCRIPT]).current_dir(place).env_clear();
        command.env("PATH", path).env("HOME", &home).env("TMPDIR", place).env("LANG", "C.UTF-8").env(MARK, &mark);
        command.env("LEASEHOLD_LISTEN", server.trim_start_matches("http://"));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut bash = command.spawn().expect("bash starts");
        let orders = bash.stdin.take();
        Self { stand, blocks, count: 0, bash, orders, mark }
    }

    /// Runs the commands of a block, and returns what they have printed. The error says what went wrong.
    pub(super) fn run(&mut self, commands: &str, end: &End) -> Result<String, String> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let ran = self.once(commands, end, deadline);
            if !matches!(end, End::Again(_)) || ran.is_ok() || Instant::now() > deadline {
                return ran;
            }
            std::thread::sleep(POLL);
        }
    }

    fn once(&mut self, commands: &str, end: &End, deadline: Instant) -> Result<String, String> {
        self.count += 1;
        let block = self.blocks.join(self.count.to_string());
        fs::write(&block, self.stand.exchange(commands)).map_err(|error| error.to_string())?;
        let how = if matches!(end, End::Until(_)) { "apart" } else { "here" };
        let orders = self.orders.as_mut().expect("not ended yet");
        writeln!(orders, "{how} {}", block.display()).map_err(|error| format!("bash has ended: {error}"))?;

        let part = |name: &str| fs::read_to_string(block.with_extension(name)).unwrap_or_default();
        let wait = |what: &str, is_so: &dyn Fn() -> bool| {
            while !is_so() {
                if Instant::now() > deadline {
                    return Err(format!("not in time: {what}; printed: {}", part("out")));
                }
                std::thread::sleep(POLL);
            }
            Ok(())
        };
        let has_ended = || block.with_extension("done").exists();
        if let End::Until(text) = end {
            // The commands may print this before the shell has said which group they are.
            let is_known = || part("group").ends_with('\n');
            wait(text, &|| has_ended() || part("out").contains(text) && is_known())?;
            if let Ok(group) = part("group").trim().parse() {
                let _ = killpg(Pid::from_raw(group), Signal::SIGINT);
            }
        }
        wait("its end", &has_ended)?;
        if let End::Says(text) | End::Until(text) = end {
            wait(text, &|| part("out").contains(text))?;
        }
        let (failed, printed) = (part("failed"), part("out"));
        let is_as_said = match end {
            End::Status(0) | End::Says(_) => failed.is_empty(),
            End::Again(text) => failed.is_empty() && printed.contains(text),
            End::Status(status) => !failed.is_empty() && all_have(&failed, *status),
            End::Until(_) => all_have(&failed, INTERRUPTED),
        };
        if is_as_said { Ok(printed) } else { Err(format!("failed: {failed}\nprinted: {printed}")) }
    }
}

fn all_have(failed: &str, status: i32) -> bool {
    failed.lines().all(|line| line.split(' ').next() == Some(&status.to_string()))
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.orders = None;
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline && matches!(self.bash.try_wait(), Ok(None)) {
            std::thread::sleep(POLL);
        }
        let _ = self.bash.kill();
        let _ = self.bash.wait();
        while Instant::now() < deadline + DEADLINE {
            let left = processes_with(&format!("{MARK}={}", self.mark));
            if left.is_empty() {
                return;
            }
            for pid in left {
                let _ = kill(pid, Signal::SIGKILL);
            }
            std::thread::sleep(POLL);
        }
    }
}

/// The processes that have this in their environment. A process that has ended has none.
fn processes_with(variable: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let marked = entries.filter(|entry| {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|part| part == variable.as_bytes())
    });
    marked.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw)).collect()
}
