//! The same calls from elsewhere: what a dialog shows is what it does, in every shell and for every text.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::DESK;
use super::browser::Browser;
use super::guarded::{OPERATOR, client, with_tokens};
use crate::cli::Bed;
use crate::program::{Ended, PROGRAM, Started};

/// Texts that names and reasons can have.
const NAMES: [&str; 4] = ["plain", "it's \"so\" $HOME `id` \\ ! ~", "-n", "é 😀 * ? [a] {b} #"];
/// Texts that a query or a reason can bring beside these.
const HOSTILE: [&str; 6] =
    ["two\nlines'\n", "tab\there", "\u{1b}[201~\rid\u{7}\u{9b}\u{7f}", "a\u{202e}b\u{200b}\u{61c}\u{e0041}c", "'", ""];

/// Makes every order that the page can show of each of TEXTS, with the lines that show it.
const ORDERS: &str = r"
const done = arguments[arguments.length - 1];
function ordersOf(text, acts, settings) {
  const orders = [];
  const at = (base) => ({ base: `${base}/${encodeURIComponent(text)}`, name: text });
  const all = { reason: text, priority: '-5' };
  const typedIn = (fields = []) => Object.fromEntries(fields.map(({ name }) => [name, all[name]]));
  const found = { kql: `kind: ${JSON.stringify(text)}`, state: 'failed', zone: '+02:00' };
  for (const act of Object.keys(acts.ACTS)) {
    const job = { one: at('/v1/jobs').base, fence: '3', id: text };
    orders.push(acts.ofOne(act, job, typedIn(acts.fieldsOfOne(act))));
    // The list of jobs does not offer it.
    if (act === 'rerun') continue;
    for (const [place, ids] of [[found, []], [{}, []], [found, [text, 'b']]])
      orders.push(acts.ofMany(act, acts.filterOf(place, ids), typedIn(acts.fieldsOfMany(act))));
  }
  for (const act of ['pause', 'resume'])
    for (const of of ['queue', 'schedule'])
      orders.push(acts.ofThing(act, { of, ...at(`/v1/${of}s`) }, typedIn(acts.THINGS[act].fields)));
  orders.push(acts.ofThing('run', { of: 'schedule', ...at('/v1/schedules') }, {}));
  const schedule = { id: text, cron: '0 2 * * *', time_zone: 'UTC', queue: text };
  orders.push(acts.ofNewSchedule(schedule, ['echo', text, '-n']));
  const span = { from: '2025-01-01T00:00:00.000Z', to: '2025-01-02T00:00:00.000Z' };
  orders.push(acts.ofBackfill(`${at('/v1/schedules').base}/backfill`, text, span));
  const limit = { base: settings.limitPath('key', text), name: `key:${text}` };
  const whole = {
    max_concurrent: 9, urgent: { places: 2, min_priority: -5 }, rate: { count: 5, per_ms: 90500, burst: 7 },
    paused_until: '2031-01-01T00:00:00.000Z',
  };
  for (const set of [whole, { max_concurrent: 1 }, { rate: whole.rate }, {}]) orders.push(settings.ofLimit(limit, set));
  const queue = { order: 'shortest', fairness: 'owner', weights: '', orphan_policy: 'flag' };
  orders.push(settings.ofQueue(at('/v1/queues'), { weights: { a: 1 } }, queue));
  const changed = { ...queue, weights: `${text.trim() || 'x'}=5`, orphan_policy: 'default' };
  orders.push(settings.ofQueue(at('/v1/queues'), { orphan_policy: 'flag' }, changed));
  return orders;
}
Promise.all(['acts', 'settings', 'elsewhere'].map((name) => import(`/assets/${name}.js`)))
  .then(([acts, settings, { words, command, curl }]) => TEXTS
    .flatMap((text) => ordersOf(text, acts, settings))
    .map((order) => ({ order, words: words(order), command: command(order), curl: curl(order) })))
  .then(done, (error) => done(String(error)));
";

async fn orders(browser: &Browser, texts: &[&str]) -> Vec<Value> {
    let made = browser.run_async(&ORDERS.replace("TEXTS", &json!(texts).to_string())).await;
    made.as_array().unwrap_or_else(|| panic!("{made}")).clone()
}

/// Runs a line as somebody who pastes it, with these functions in place of the programs.
fn paste(place: &Path, functions: &str, line: &str, token: Option<&str>) -> Ended {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{functions}\n{line}")]).current_dir(place).stdin(Stdio::null());
    shell.stdout(Stdio::piped()).stderr(Stdio::piped()).env("PROGRAM", PROGRAM).env_remove("LEASEHOLD_TOKEN");
    Started::of(shell.envs(token.map(|token| ("LEASEHOLD_TOKEN", token)))).end()
}

const RUN: &str = "leasehold() { \"$PROGRAM\" \"$@\"; }";

#[tokio::test(flavor = "multi_thread")]
async fn every_shell_reads_every_command_as_it_is_meant() {
    let night = Bed::start();
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/jobs").await;
    let texts = [&NAMES[..], &HOSTILE].concat();
    // A zero byte ends each word, and what follows tells one line from the next.
    let functions = "show() { printf '%s\\0' \"$@\"; printf '\\1\\0'; }\n\
        leasehold() { show leasehold \"$@\"; }\ncurl() { show curl \"$@\"; }";
    let orders = orders(&browser, &texts).await;
    let lines: Vec<&str> =
        orders.iter().flat_map(|made| [&made["command"], &made["curl"]]).filter_map(Value::as_str).collect();
    assert!(lines.len() > texts.len() * 80, "{}", lines.len());
    let script = night.path().join("lines.sh");
    std::fs::write(&script, lines.join("\n")).expect("written");
    let read = paste(night.path(), functions, ". ./lines.sh", None).expect(0).stdout();
    let mut read = read.split("\u{1}\0").map(|line| line.trim_end_matches('\0').split('\0').collect::<Vec<_>>());
    for made in &orders {
        if let Some(words) = made["words"].as_array() {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            let line = read.next().expect("a line");
            // Of an empty last word only its end is left.
            assert_eq!(line.join("\0").trim_end_matches('\0'), words.join("\0").trim_end_matches('\0'), "{made}");
        }
        let call = read.next().expect("a line");
        let order = &made["order"];
        assert_eq!(call[..3], ["curl", "-X", order["method"].as_str().expect("a method")], "{made}");
        let url = format!("{}{}", night.server.url(), order["path"].as_str().expect("a path"));
        assert_eq!(call.last(), Some(&url.as_str()), "{made}");
        let body = call.iter().position(|word| *word == "--data-raw").map(|at| call[at + 1]);
        let body = body.map(|body| serde_json::from_str::<Value>(body).expect("JSON"));
        assert_eq!(body.unwrap_or_default(), order["body"], "{made}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_takes_every_command_that_the_page_shows() {
    let night = Bed::start();
    let Some(browser) = Browser::open(&night.server.url(), DESK).await else { return };
    browser.go("/jobs").await;
    let orders = orders(&browser, &NAMES[1..3]).await;
    let mut commands = 0;
    for command in orders.iter().filter_map(|made| made["command"].as_str()) {
        let ended = paste(night.path(), RUN, command, None);
        // There are no such jobs; what is wrong with the line itself ends it with 2, as does the question whether many
        // are to be changed, which nobody answers.
        let is_taken = matches!(ended.code(), Some(0 | 1)) || ended.stderr().contains("say --yes to");
        assert!(is_taken, "{command}: {}", ended.said());
        commands += 1;
    }
    // A schedule whose name looks like a flag is the only one that no command can say.
    assert_eq!(orders.len() - commands, 1);
}

#[test]
fn the_program_takes_every_command_that_a_page_names_where_there_is_nothing_to_show() {
    let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page/templates");
    let mut commands = 0;
    for entry in std::fs::read_dir(&templates).expect("a folder") {
        let template = std::fs::read_to_string(entry.expect("an entry").path()).expect("a template");
        let codes = template.split("<code>leasehold ").skip(1).filter_map(|rest| rest.split("</code>").next());
        for command in codes.filter(|command| !command.contains("{{")) {
            // What stands before `--help` has to be right all the same.
            let (command, _) = command.split_once(" -- ").unwrap_or((command, ""));
            paste(&templates, RUN, &format!("leasehold {command} --help"), None).expect(0);
            commands += 1;
        }
    }
    assert!(commands > 5, "{commands}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dialog_shows_follows_what_is_typed_and_does_the_same_elsewhere() {
    let place = tempfile::tempdir().expect("a directory");
    let server = with_tokens(place.path()).await;
    let job = json!({"id": "it's one", "queue": "night", "kind": "k"});
    let submit = client().post(format!("{}/v1/jobs", server.url())).bearer_auth(OPERATOR).json(&job);
    assert!(submit.send().await.expect("an answer").status().is_success());
    let Some(browser) = Browser::open(&server.url(), DESK).await else { return };
    browser.go("/jobs/it's%20one").await;
    browser.type_into("input[name=token]", OPERATOR).await;
    browser.enter().await;
    browser.see("h1.job-title").await;
    let shown = async |act: &str, reason: &str, what: &str| {
        browser.click_on(".acts button", act).await;
        browser.type_into("#ask input[name=reason]", reason).await;
        browser.click("#ask .elsewhere summary").await;
        browser.see(&format!("#ask-{what}")).await;
        // A browser without a window has no clipboard that may be read.
        browser.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }").await;
        browser.click(&format!("#ask [data-copy=ask-{what}]")).await;
        browser.read("copied").await;
        let line = browser.run("return window.copied").await.as_str().expect("a line").to_owned();
        browser.click_on("#ask button", "Leave it").await;
        line
    };
    let reason = "it's \"so\", $HOME, `id` & \\n";
    let curl = shown("hold", reason, "curl").await;
    assert!(curl.contains("$LEASEHOLD_TOKEN") && !curl.contains(OPERATOR), "{curl}");
    let held = paste(place.path(), "", &curl, Some(OPERATOR)).expect(0).stdout();
    let held: Value = serde_json::from_str(&held).expect("a job");
    assert_eq!(held["hold"]["reason"], reason, "{held}");
    browser.see("button[data-act=unhold]").await;
    let command = shown("unhold", reason, "command").await;
    paste(place.path(), RUN, &command, Some(OPERATOR)).expect(0);
    browser.see("button[data-act=hold]").await;
    let refused = paste(place.path(), RUN, &command, None);
    assert_eq!(refused.code(), Some(1), "{}", refused.said());
}
