//! A real browser without a window, driven as a person would: it looks, clicks and types.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fantoccini::elements::Element;
use fantoccini::key::Key;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::program::DEADLINE;

/// The pause between two looks at a page.
const PAUSE: Duration = Duration::from_millis(50);

/// `chromedriver`, and the browsers that it has started. All of them end when it is dropped.
struct Driver(Child);

impl Driver {
    /// Starts it on a free port; `None` where there is no Chromium.
    fn start() -> Option<(Self, String)> {
        let spawned = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(missing) if std::env::var_os("CI").is_none() => {
                eprintln!("the page was not tried: chromedriver, which comes with Chromium: {missing}");
                return None;
            }
            Err(missing) => panic!("chromedriver: {missing}"),
        };
        let said = BufReader::new(child.stdout.take().expect("its output"));
        let driver = Self(child);
        let port = said.lines().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        let port = port.expect("chromedriver says its port");
        Some((driver, format!("http://127.0.0.1:{port}")))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Ok(group) = i32::try_from(self.0.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.0.wait();
    }
}

/// A browser on the page of a server.
pub(super) struct Browser {
    client: Client,
    base: String,
    _driver: Driver,
}

impl Browser {
    /// Opens a window of this size on the page of a server; `None` where there is no Chromium.
    pub(super) async fn open(base: &str, (width, height): (u32, u32)) -> Option<Self> {
        let (driver, at) = Driver::start()?;
        let arguments = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            "--no-first-run".to_owned(),
            "--force-color-profile=srgb".to_owned(),
            format!("--window-size={width},{height}"),
        ];
        let options = json!({"args": arguments});
        let Value::Object(wanted) = json!({"goog:chromeOptions": options}) else { unreachable!("an object") };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(wanted)
            .connect(&at)
            .await
            .expect("the browser starts");
        client.set_window_size(width, height).await.expect("a size");
        Some(Self { client, base: base.to_owned(), _driver: driver })
    }

    pub(super) async fn go(&self, path: &str) {
        self.client.goto(&format!("{}{path}", self.base)).await.expect("the page loads");
    }

    /// The path and the query of the page that is shown.
    pub(super) async fn place(&self) -> String {
        let url = self.client.current_url().await.expect("an address");
        url.as_str().trim_start_matches(&self.base).to_owned()
    }

    /// Waits until the address of the page that is shown has this part.
    pub(super) async fn at(&self, part: &str) {
        let deadline = Instant::now() + DEADLINE;
        while !self.place().await.contains(part) {
            assert!(Instant::now() < deadline, "never at {part}, but on {}", self.place().await);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until an element is there and seen.
    pub(super) async fn see(&self, css: &str) -> Element {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Ok(found) = self.client.find(Locator::Css(css)).await
                && found.is_displayed().await.unwrap_or(false)
            {
                return found;
            }
            assert!(Instant::now() < deadline, "never seen: {css}, on {}: {}", self.place().await, self.text().await);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until the text of the page says this.
    pub(super) async fn read(&self, wanted: &str) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let text = self.text().await;
            if text.contains(wanted) {
                return;
            }
            assert!(Instant::now() < deadline, "never said: {wanted}, on {}: {text}", self.place().await);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// All text that the page shows.
    pub(super) async fn text(&self) -> String {
        let script = "return document.body ? document.body.innerText : ''";
        // A page that is being left answers no script.
        let said = self.client.execute(script, vec![]).await.unwrap_or_default();
        said.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks, again where the page was renewed just then.
    pub(super) async fn click(&self, css: &str) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let clicked = self.see(css).await.click().await;
            match clicked {
                Ok(()) => return,
                Err(error) => assert!(Instant::now() < deadline, "{css} cannot be clicked: {error}"),
            }
        }
    }

    /// Clicks on what has this text, among elements of a kind.
    pub(super) async fn click_on(&self, css: &str, text: &str) {
        let deadline = Instant::now() + DEADLINE;
        let script = "const [css, text] = arguments; \
            const found = [...document.querySelectorAll(css)].find((one) => one.textContent.trim() === text); \
            if (found) found.click(); return !!found";
        loop {
            let clicked = self.client.execute(script, vec![json!(css), json!(text)]).await.unwrap_or_default();
            if clicked == json!(true) {
                return;
            }
            assert!(Instant::now() < deadline, "there is no {css} `{text}`: {}", self.text().await);
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(super) async fn type_into(&self, css: &str, text: &str) {
        self.see(css).await.send_keys(text).await.expect("it can be typed into");
    }

    /// Gives a field a value that is awkward to type, such as a time or a choice.
    pub(super) async fn set(&self, css: &str, value: &str) {
        let field = self.see(css).await;
        let script = "const [field, value] = arguments; field.value = value; \
            field.dispatchEvent(new Event('input', {bubbles: true}))";
        let field = serde_json::to_value(field).expect("an element");
        self.client.execute(script, vec![field, json!(value)]).await.expect("a script runs");
    }

    /// Presses keys, whatever has the focus.
    pub(super) async fn press(&self, keys: &str) {
        let active = self.client.active_element().await.expect("something has the focus");
        active.send_keys(keys).await.expect("keys");
    }

    pub(super) async fn enter(&self) {
        self.press(&char::from(Key::Enter).to_string()).await;
    }

    /// Runs a script in the page.
    pub(super) async fn run(&self, script: &str) -> Value {
        self.client.execute(script, vec![]).await.expect("a script runs")
    }

    /// Runs a script whose last argument takes its answer.
    pub(super) async fn run_async(&self, script: &str) -> Value {
        self.client.execute_async(script, vec![]).await.expect("a script runs")
    }

    /// Has the browser look as in light or dark surroundings.
    pub(super) async fn use_theme(&self, theme: &str) {
        self.run(&format!("localStorage.setItem('theme', '{theme}')")).await;
    }

    pub(super) async fn screenshot(&self, file: &Path) {
        let picture = self.client.screenshot().await.expect("a picture");
        std::fs::write(file, picture).expect("it can be written");
    }
}
