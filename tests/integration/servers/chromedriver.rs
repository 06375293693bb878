//! The process that drives browsers without a window, one for all tests.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

use super::ports;
use super::watchdog::{Folder, Watched};

const START_DEADLINE: Duration = Duration::from_secs(60);
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// How often it is started again when another process took its port between the choice and the start.
const START_ATTEMPTS: usize = 3;

static RUNNING: OnceCell<Option<(String, Watched)>> = OnceCell::const_new();

/// Returns its address; `None` where there is no Chromium, and no CI that would have to have one. Started at the first
/// call, it ends with the test process, and so do the browsers that it has started.
///
/// # Panics
/// When it does not come up; it says why.
pub(crate) async fn chromedriver() -> Option<&'static str> {
    RUNNING.get_or_init(start).await.as_ref().map(|(url, _)| url.as_str())
}

async fn start() -> Option<(String, Watched)> {
    let asked = Command::new("chromedriver").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if let Err(missing) = asked {
        assert!(std::env::var_os("CI").is_none(), "chromedriver: {missing}");
        eprintln!("the page was not tried: chromedriver, which comes with Chromium: {missing}");
        return None;
    }
    let mut failed = String::new();
    for _ in 0..START_ATTEMPTS {
        match start_once().await {
            Ok(started) => return Some(started),
            Err(why) => failed = why,
        }
    }
    panic!("no chromedriver: {failed}");
}

async fn start_once() -> Result<(String, Watched), String> {
    let folder = Folder::create("chromedriver")?;
    let (server, port) = (folder.server(), ports::free());
    let mut command = Command::new("chromedriver");
    // What a browser leaves behind is removed with the folder.
    command.arg(format!("--port={port}")).env("HOME", &server).env("TMPDIR", &server);
    let watched = Watched::start(folder, &command)?;
    let (url, http, deadline) =
        (format!("http://127.0.0.1:{port}"), reqwest::Client::new(), Instant::now() + START_DEADLINE);
    while Instant::now() < deadline && watched.exited().is_none() {
        let asked = http.get(format!("{url}/status")).timeout(ANSWERS_WITHIN).send().await;
        if asked.is_ok_and(|answer| answer.status().is_success()) {
            return Ok((url, watched));
        }
        tokio::time::sleep(POLL).await;
    }
    Err(watched.log_tail())
}
