//! Searches that the browser keeps under a name.

use super::DESK;
use super::browser::Browser;
use crate::cli::Bed;

const TAB: &str = "\u{e004}";

#[tokio::test(flavor = "multi_thread")]
async fn a_search_is_saved_opened_and_removed_by_the_keyboard_whatever_its_name_is() {
    let night = Bed::start();
    night.submit(&["--queue", "night"], "true");
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    let name = "<img src=x onerror=\"document.title='taken'\">' \u{202e}abc";
    let search = "/jobs?kql=queue%3A+%22night%22&state=available";
    browser.go(search).await;
    browser.press("s").await;
    browser.see("#saved input").await;
    browser.press(name).await;
    browser.enter().await;
    browser.read("Saved: <img").await;
    let kept = browser.run("return document.querySelector('#saved li a').textContent").await;
    assert_eq!(kept, name);
    assert_eq!(browser.run("return document.querySelectorAll('#saved img').length").await, 0);

    browser.go("/jobs").await;
    browser.press("s").await;
    browser.see("#saved li a").await;
    // The page is renewed meanwhile, and the menu stays open.
    night.submit(&["--queue", "later"], "true");
    browser.read("later").await;
    browser.see("#saved li a").await;
    browser.enter().await;
    browser.see("#saved:not([open])").await;
    browser.read("night").await;
    assert_eq!(browser.place().await, search);

    browser.press("s").await;
    browser.press(TAB).await;
    browser.enter().await;
    browser.read("None yet").await;
    // The focus is where the next one is typed, and Escape closes the menu.
    browser.press("again").await;
    browser.press("\u{e00c}").await;
    assert_eq!(browser.run("return document.getElementById('saved').open").await, false);
    browser.go("/jobs").await;
    browser.press("s").await;
    browser.read("None yet").await;
    assert_eq!(browser.run("return document.title").await, "Jobs – Leasehold");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_something_else_wrote_into_the_browser_keeps_no_list_from_working() {
    let night = Bed::start();
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/jobs").await;
    for written in
        ["{", "null", "7", "{\"name\": 1}", "[null, 1, {\"name\": \"a\"}, {\"name\": \"b\", \"query\": \"\"}]"]
    {
        let quoted = serde_json::json!(written);
        browser.run(&format!("localStorage.setItem('searches', {quoted})")).await;
        browser.go("/jobs").await;
        browser.click("#saved summary").await;
        browser.see("#saved input").await;
        let there = browser.run("return document.querySelectorAll('#saved li').length").await;
        assert_eq!(there, i32::from(written.contains("\"b\"")), "{written}");
    }
    browser.click_on("#saved a", "b").await;
    browser.see("#saved:not([open])").await;
    assert!(browser.place().await.starts_with("/jobs"), "{}", browser.place().await);
}
