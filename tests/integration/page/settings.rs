//! Limits, and the order of a queue, by the page alone.

use serde_json::{Value, json};

use super::DESK;
use super::browser::Browser;
use crate::cli::Bed;

const TAB: &str = "\u{e004}";

/// What is set of a limit.
fn limit(night: &Bed, name: &str) -> Value {
    let limit = night.run(&["limit", "show", name, "--json"]).json(0);
    let fields = ["max_concurrent", "urgent", "rate", "paused_until"].map(|field| (field, limit[field].clone()));
    Value::Object(fields.map(|(field, value)| (field.to_owned(), value)).into_iter().collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_set_paused_changed_resumed_and_removed_and_loses_nothing_that_a_form_does_not_show() {
    let night = Bed::start();
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    let name = "key:an \"api\" & <b>its</b> 50% \\ / key";
    browser.go("/queues").await;
    browser.read("No limits are set").await;
    browser.click("#set-limit").await;
    browser.set("#ask [name=scope]", "key").await;
    browser.type_into("#ask [name=name]", &name["key:".len()..]).await;
    // Nothing that is set is no limit: the form stays as it is, and says so.
    browser.click("#ask button.main").await;
    browser.read("must be given").await;
    let fields = [("max_concurrent", "10"), ("places", "2"), ("min_priority", "-5"), ("count", "100"), ("per", "1.5")];
    for (field, value) in fields {
        browser.type_into(&format!("#ask [name={field}]"), value).await;
    }
    browser.type_into("#ask [name=burst]", "7").await;
    browser.click("#ask button.main").await;
    browser.read("10, 2 of them from priority -5 on").await;
    let rate = json!({"count": 100, "per_ms": 1500, "burst": 7});
    let whole =
        json!({"max_concurrent": 10, "urgent": {"places": 2, "min_priority": -5}, "rate": rate, "paused_until": null});
    assert_eq!(limit(&night, name), whole);

    // A second one under its name would take its place.
    browser.click("#set-limit").await;
    browser.set("#ask [name=scope]", "key").await;
    browser.type_into("#ask [name=name]", &name["key:".len()..]).await;
    browser.type_into("#ask [name=max_concurrent]", "1").await;
    browser.click("#ask button.main").await;
    browser.read("is set already").await;
    browser.click_on("#ask button", "Leave it").await;

    browser.click_on(".acts button", "pause").await;
    browser.set("#ask [name=paused_until]", "2031-05-06T07:08:09").await;
    browser.click("#ask button.main").await;
    browser.read("paused until").await;
    let paused = limit(&night, name);
    let until = paused["paused_until"].as_str().expect("a time").to_owned();
    assert!(until.starts_with("2031-05-0"), "{until}");
    assert_eq!(paused, json!({"paused_until": until, "max_concurrent": 10, "urgent": whole["urgent"], "rate": rate}));

    browser.click_on(".acts button", "change").await;
    browser.set("#ask [name=max_concurrent]", "12").await;
    browser.set("#ask [name=places]", "").await;
    browser.set("#ask [name=min_priority]", "").await;
    browser.click("#ask button.main").await;
    browser.read("12").await;
    assert_eq!(limit(&night, name), json!({"max_concurrent": 12, "urgent": null, "rate": rate, "paused_until": until}));

    browser.click_on(".acts button", "resume").await;
    browser.click("#ask button.main").await;
    browser.see("button[data-do=pause]").await;
    assert_eq!(limit(&night, name), json!({"max_concurrent": 12, "urgent": null, "rate": rate, "paused_until": null}));

    browser.click_on(".acts button", "remove").await;
    browser.click("#ask button.danger").await;
    browser.read("No limits are set").await;
    assert_eq!(limit(&night, name)["max_concurrent"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_set_changed_and_removed_by_the_keyboard_alone() {
    let night = Bed::start();
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/").await;
    browser.press("gq").await;
    browser.read("No limits are set").await;
    browser.press("l").await;
    browser.see("#ask select").await;
    // The first field has the focus; a letter chooses.
    browser.press("ke").await;
    browser.press(TAB).await;
    browser.press("db-7").await;
    browser.press(TAB).await;
    browser.press("3").await;
    browser.enter().await;
    browser.read("key:db-7").await;
    assert_eq!(limit(&night, "key:db-7")["max_concurrent"], 3);
    browser.press("j").await;
    browser.press(TAB).await;
    browser.enter().await;
    browser.see("#ask [name=max_concurrent]").await;
    browser.press("\u{e010}0").await;
    browser.enter().await;
    browser.read("30").await;
    assert_eq!(limit(&night, "key:db-7")["max_concurrent"], 30);
    browser.run("document.activeElement.blur()").await;
    browser.press("j").await;
    for _ in 0..3 {
        browser.press(TAB).await;
    }
    browser.enter().await;
    browser.see("#ask button.danger").await;
    browser.press(TAB).await;
    browser.enter().await;
    browser.read("No limits are set").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_a_queue_is_changed_and_what_is_left_alone_stays() {
    let night = Bed::start();
    night.submit(&["--queue", "night"], "true");
    night.run(&["queue", "set", "night", "--orphan-policy", "flag", "--weight", "team=a=3"]).expect(0);
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    let queue = || night.run(&["queue", "show", "night", "--json"]).json(0);
    browser.go("/queues").await;
    browser.click_on(".acts button", "order").await;
    browser.set("#ask [name=order]", "shortest").await;
    browser.set("#ask [name=fairness]", "owner").await;
    browser.click("#ask button.main").await;
    browser.read("shortest, fair: owner").await;
    let after = queue();
    assert_eq!((&after["order"], &after["fairness"]), (&json!("shortest"), &json!("owner")));
    assert_eq!((&after["orphan_policy"], &after["weights"]), (&json!("flag"), &json!({"team=a": 3})));
    browser.click_on(".acts button", "order").await;
    browser.set("#ask [name=weights]", "team=a=5\n-b=2").await;
    browser.set("#ask [name=orphan_policy]", "default").await;
    browser.click("#ask button.main").await;
    crate::program::until("the weights are set", || queue()["weights"] == json!({"team=a": 5, "-b": 2}));
    assert_eq!((&queue()["orphan_policy"], &queue()["order"]), (&Value::Null, &json!("shortest")));
}
