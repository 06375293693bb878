//! A real browser without a window, driven as a person would: it looks, clicks and types.

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fantoccini::elements::Element;
use fantoccini::error::{CmdError, NewSessionError};
use fantoccini::key::Key;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::program::DEADLINE;
use crate::servers;

/// The pause between two looks at a page.
const PAUSE: Duration = Duration::from_millis(100);

/// How wide and how high a window is.
type Size = (u32, u32);

/// Browsers that no test has. Starting one takes seconds of processor time.
static IDLE: Mutex<Vec<(Size, Client)>> = Mutex::new(Vec::new());

/// As many are kept: each takes some hundred MiB.
const MOST_IDLE: usize = 3;

/// Where the connections to browsers are served, which outlast the test that made them.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

/// A browser on the page of a server, which nobody else has until this is dropped.
pub(super) struct Browser {
    client: Client,
    size: Size,
    base: String,
}

impl Drop for Browser {
    /// Leaves it to the next test; that of a test that has failed is ended.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let (size, client) = (self.size, self.client.clone());
        RUNTIME.spawn(async move {
            // A page goes on asking its server.
            if client.goto("about:blank").await.is_ok() {
                let mut idle = IDLE.lock();
                if idle.len() < MOST_IDLE {
                    idle.push((size, client));
                }
            }
        });
    }
}

impl Browser {
    /// Opens a window of this size on the page of a server; `None` where there is no Chromium.
    pub(super) async fn open(base: &str, size: Size) -> Option<Self> {
        let driver = servers::chromedriver().await?;
        while let Some(client) = idle(size) {
            if is_as_new(&client, base).await.is_ok_and(|is_as_new| is_as_new) {
                return Some(Self { client, size, base: base.to_owned() });
            }
        }
        let client = RUNTIME.spawn(start(driver, size)).await.expect("a runtime").expect("the browser starts");
        Some(Self { client, size, base: base.to_owned() })
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

fn idle(size: Size) -> Option<Client> {
    let mut idle = IDLE.lock();
    let at = idle.iter().position(|(has, _)| *has == size)?;
    Some(idle.swap_remove(at).1)
}

/// Whether a used browser has been made as a new one for this server: with one window, no cookies, and nothing stored.
async fn is_as_new(client: &Client, base: &str) -> Result<bool, CmdError> {
    // There is rarely one to dismiss.
    let _ = client.dismiss_alert().await;
    if client.windows().await?.len() != 1 {
        return Ok(false);
    }
    // What is stored belongs to the address, and cookies to the host.
    client.goto(&format!("{base}/openapi.json")).await?;
    client.execute("localStorage.clear(); sessionStorage.clear()", vec![]).await?;
    client.delete_all_cookies().await?;
    Ok(true)
}

async fn start(driver: &str, (width, height): Size) -> Result<Client, NewSessionError> {
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
    let mut builder = ClientBuilder::new(HttpConnector::new());
    let client = builder.capabilities(wanted).connect(driver).await?;
    client.set_window_size(width, height).await.expect("a size");
    Ok(client)
}
