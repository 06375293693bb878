//! Who may use whom: imports go down the floors only, no files use each other in a circle, and `src/` keeps to its
//! form.
//!
//! `ARCHITECTURE.md` says why; [`FLOORS`] is the rule, from which the order in `src/lib.rs` and in `ARCHITECTURE.md` is
//! checked. Test code is not held to it: a manager's test runs on a real store.

mod circles;
mod recursions;
mod shown;
mod survey;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use circles::{circles, uses_within_modules};
pub(crate) use survey::sources;
use survey::{Crate, MAIN, Module, Source, Used};

/// The floors from the bottom up. A module uses what is on lower floors, and nothing else on its own. The longest name
/// that fits a path says where it belongs.
const FLOORS: &[&[&str]] = &[
    &["clock", "outgoing"],
    &["job"],
    &["schedule"],
    &["query"],
    &["store"],
    ENGINES,
    &["manager", "executor"],
    &["worker", "monitor", "peers"],
    &["notify"],
    &["wire"],
    &["scheduler"],
    &["page"],
    &["api", "client"],
    &["cli"],
];

/// The engines behind the store's trait, which only these may name: [`KNOW_ENGINES`].
const ENGINES: &[&str] = &["store::embedded", "store::elasticsearch"];
const KNOW_ENGINES: &[&str] = &["cli"];

/// Folders whose `mod.rs` holds the type that the files in it extend, each in the file of its subject. Such a file uses
/// its folder's `mod.rs`, which uses the file, and that is no circle.
const FRONTS: &[(&str, &str)] = &[("manager", "every room extends `Manager`")];

/// The one use in each circle of two files that stands for a reason: who, of whom, why.
const CIRCLES_WITH_A_REASON: &[(&str, &str, &str)] = &[];

/// Longer files are to be taken apart.
const MAX_LINES: usize = 500;
/// Longer lines are to be broken, comments and texts too.
const MAX_COLUMNS: usize = 120;
/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 6] = ["utils", "util", "common", "models", "helpers", "misc"];

#[test]
fn imports_go_down_the_floors_without_circles_and_every_file_keeps_to_its_form() {
    let found = violations(&sources(), FRONTS, CIRCLES_WITH_A_REASON);
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn the_maps_of_the_crate_tell_the_order_of_the_floors() {
    let modules: Vec<&str> = FLOORS.iter().copied().flatten().copied().filter(|name| !ENGINES.contains(name)).collect();
    let lib = text("src/lib.rs");
    let listed: Vec<&str> = lib.lines().filter_map(numbered_module).collect();
    assert_eq!(listed, modules, "the map at the top of src/lib.rs");

    let page = text("ARCHITECTURE.md");
    let layers = page.split_once("\n## Layers\n").expect("a section about layers").1;
    let layers = layers.split("\n- ").next().unwrap_or_default();
    let rows = layers.lines().filter_map(|line| line.strip_prefix("    ")?.split("  ").next());
    let mut listed: Vec<Vec<&str>> = rows.map(|names| names.split(", ").collect()).collect();
    listed.reverse();
    assert_eq!(listed, FLOORS, "the layers in ARCHITECTURE.md, from the top down");
}

fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The module that a line such as ``//! 3. [`query`] – …`` names.
fn numbered_module(line: &str) -> Option<&str> {
    let (number, rest) = line.strip_prefix("//! ")?.split_once(". [`")?;
    number.parse::<usize>().ok()?;
    rest.split('`').next()
}

/// Everything that is wrong, a line each.
fn violations(sources: &[Source], fronts: &[(&str, &str)], exceptions: &[(&str, &str, &str)]) -> Vec<String> {
    let modules: BTreeSet<Module> = sources.iter().map(Source::module).collect();
    let all = Crate::of(sources, &modules);
    let declared: BTreeSet<&Module> = all.surveys.iter().flat_map(|survey| &survey.declared).collect();
    let mut found = Vec::new();
    for survey in &all.surveys {
        found.extend(bad_form(survey.source, &declared));
        found.extend(survey.uses.iter().filter_map(|used| goes_up(used, survey.source)));
    }
    found.extend(circles_without_a_reason(&all, fronts, exceptions));
    found
}

/// What is wrong with a file as such.
fn bad_form(source: &Source, declared: &BTreeSet<&Module>) -> Vec<String> {
    let mut found = Vec::new();
    let module = source.module();
    let lines = source.text.lines().count();
    if lines > MAX_LINES {
        found.push(format!("{}: {lines} lines, more than {MAX_LINES}: take it apart", source.at(MAX_LINES)));
    }
    let wide = source.text.lines().position(|line| line.chars().count() > MAX_COLUMNS);
    if let Some(line) = wide {
        found.push(format!("{}: wider than {MAX_COLUMNS} columns: break the line", source.at(line + 1)));
    }
    if let Some(name) = module.iter().find(|name| EMPTY_NAMES.contains(&name.as_str())) {
        found.push(format!("{}: a module named `{name}`: put each thing beside its use", source.at(1)));
    }
    let is_root = module.is_empty() || module == [MAIN];
    if !is_root && !declared.contains(&module) {
        found.push(format!("{}: no `mod` names this file: declare or remove it", source.at(1)));
    }
    found
}

/// Whether `name`, a path such as `store::embedded`, begins the path of `module`.
fn begins(name: &str, module: &[String]) -> bool {
    let parts: Vec<&str> = name.split("::").collect();
    parts.len() <= module.len() && parts.iter().zip(module).all(|(part, segment)| part == segment)
}

/// The floor that a path belongs to, and the name there; `None` for the crate's root and `main`, which use everything.
fn floor(module: &[String]) -> Option<(usize, &'static str)> {
    let named = FLOORS.iter().enumerate().flat_map(|(floor, names)| names.iter().map(move |name| (floor, *name)));
    named.filter(|(_, name)| begins(name, module)).max_by_key(|(_, name)| name.len())
}

fn goes_up(used: &Used, source: &Source) -> Option<String> {
    if used.from.is_empty() || used.from == [MAIN] {
        return None;
    }
    let place = source.at(used.line);
    let Some((from_floor, from)) = floor(&used.from) else {
        return Some(format!("{place}: `{}` is on no floor: add it to FLOORS", used.from.join("::")));
    };
    let target = used.target.join("::");
    let (target_floor, name) = floor(&used.target)?;
    if ENGINES.contains(&name) && from != name && !KNOW_ENGINES.contains(&from) {
        return Some(format!("{place}: `{from}` uses `{target}`; only {KNOW_ENGINES:?} may name an engine"));
    }
    (from != name && target_floor >= from_floor).then(|| {
        format!("{place}: `{from}` uses `{target}`, which is not below it: move the code or turn the dependency round")
    })
}

/// Every circle that no exception explains, and every exception that explains none.
fn circles_without_a_reason(
    all: &Crate<'_>,
    fronts: &[(&str, &str)],
    exceptions: &[(&str, &str, &str)],
) -> Vec<String> {
    let mut uses = uses_within_modules(all);
    let mut found = Vec::new();
    for (front, _) in fronts {
        let before = uses.len();
        uses.retain(|(from, target), _| target.join("::") != *front || !begins(front, from));
        if uses.len() == before {
            found.push(format!("FRONTS names `{front}`, which no file in it uses: remove it there"));
        }
    }
    for (from, target, _) in exceptions {
        let removed = uses.extract_if(.., |(user, used), _| user.join("::") == *from && used.join("::") == *target);
        let removed: Vec<_> = removed.collect();
        let without = circles(&uses).len();
        uses.extend(removed.iter().cloned());
        if circles(&uses).len() == without {
            found.push(format!("`{from}` and `{target}` are in no circle: remove the exception"));
        }
        uses.retain(|key, _| removed.iter().all(|(other, _)| other != key));
    }
    found.extend(circles(&uses));
    found
}

/// What is wrong with a crate of these files, whose modules are declared unless `text` forgets to.
fn violations_in(files: &[(&str, &str)]) -> Vec<String> {
    violations_with(files, &[], &[])
}

fn violations_with(files: &[(&str, &str)], fronts: &[(&str, &str)], exceptions: &[(&str, &str, &str)]) -> Vec<String> {
    let files = files.iter().map(|(path, text)| Source { path: PathBuf::from(path), text: (*text).to_owned() });
    violations(&files.collect::<Vec<_>>(), fronts, exceptions)
}

#[test]
fn an_import_that_goes_up_is_found_however_it_is_written() {
    for (upward, line) in [
        ("use crate::manager::Manager;", 1),
        ("use crate::{clock::Clock, manager};", 1),
        ("use crate::manager::*;", 1),
        ("use super::manager::Manager as Boss;", 1),
        ("pub use crate::manager::Manager;", 1),
        ("\nfn f() -> crate::manager::Manager { new() }", 2),
        ("fn f() {\n    let x = vec![crate::manager::new()];\n}", 2),
        ("mod inner {\n    use super::super::manager::Manager;\n}", 2),
    ] {
        let found = violations_in(&[("lib.rs", "mod job; mod manager;"), ("job.rs", upward), ("manager.rs", "")]);
        assert_eq!(found.len(), 1, "{upward}: {found:?}");
        assert!(found[0].starts_with(&format!("src/job.rs:{line}: `job` uses `manager")), "{upward}: {found:?}");
    }
}

#[test]
fn an_import_that_goes_down_within_a_module_or_out_of_the_crate_is_fine() {
    let lib = ("lib.rs", "mod clock; mod job; mod manager; mod cli; pub use manager::Manager;");
    let found = violations_in(&[
        lib,
        ("main.rs", "fn main() { leasehold::cli::run() }"),
        ("clock.rs", "use manager::external; pub struct Clock;"),
        ("job/mod.rs", "mod state; pub use state::State; use crate::clock::Clock;"),
        ("job/state.rs", "use crate::clock; use std::fmt;"),
        ("manager.rs", "use crate::{clock, job::{self, Job}};"),
        ("cli.rs", "use crate::manager::Manager;"),
    ]);
    assert_eq!(found, [""; 0]);
}

#[test]
fn modules_of_one_floor_do_not_use_each_other() {
    let found = violations_in(&[
        ("lib.rs", "mod manager; mod executor;"),
        ("manager.rs", "use crate::executor::Target;"),
        ("executor.rs", ""),
    ]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("src/manager.rs:1: `manager` uses `executor::Target`"), "{found:?}");
}

#[test]
fn the_engines_know_neither_each_other_nor_does_the_manager_know_them() {
    let found = violations_in(&[
        ("lib.rs", "mod store; mod manager; mod cli;"),
        ("store/mod.rs", "mod embedded; mod elasticsearch; pub use embedded::Embedded;"),
        ("store/embedded.rs", "use super::elasticsearch::Bulk;"),
        ("store/elasticsearch.rs", "use elasticsearch::Client; use super::Store;"),
        ("manager.rs", "use crate::store::{Store, embedded::Embedded};"),
        ("cli.rs", "use crate::store::embedded::Embedded;"),
    ]);
    let starts = [
        "src/manager.rs:1: `manager` uses `store::embedded::Embedded`",
        "src/store/embedded.rs:1: `store::embedded` uses `store::elasticsearch::Bulk`",
        "src/store/mod.rs:1: `store` uses `store::embedded::Embedded`",
    ];
    let mut found: Vec<&String> = found.iter().filter(|line| !line.starts_with("a circle")).collect();
    found.sort();
    assert_eq!(found.len(), starts.len(), "{found:?}");
    assert!(found.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{found:?}");
}

/// A folder whose first file holds a type that another file extends, with a circle between two more.
const CIRCLE: &[(&str, &str)] = &[
    ("lib.rs", "mod job;"),
    ("job/mod.rs", "mod end; mod names; mod state; pub use names::Name; use state::State; pub struct Job(State);"),
    ("job/state.rs", "use super::Name; pub struct State(Name);"),
    ("job/names.rs", "pub struct Name;"),
    ("job/end.rs", "use super::Job; impl Job {}"),
];

#[test]
fn a_file_that_uses_what_its_folder_only_passes_on_is_in_no_circle() {
    assert_eq!(violations_in(CIRCLE), [""; 0]);
}

#[test]
fn files_that_use_each_other_are_found_over_any_number_of_steps() {
    let closed = |path: &str, text: &'static str| {
        let mut files = CIRCLE.to_vec();
        files.iter_mut().filter(|(name, _)| *name == path).for_each(|(_, old)| *old = text);
        violations_in(&files)
    };
    let two = closed("job/names.rs", "use super::state::State; pub struct Name;");
    assert_eq!(
        two,
        ["a circle: `job::names` uses `job::state` (src/job/names.rs:1), `job::state` uses `job::names` \
             (src/job/state.rs:1)"]
    );
    let three = closed("job/names.rs", "pub struct Name; fn f(job: &super::Job) {}");
    assert_eq!(three.len(), 1, "{three:?}");
    assert!(three[0].contains("`job` uses `job::state`") && three[0].contains("`job::names` uses `job`"), "{three:?}");
}

#[test]
fn a_circle_may_stand_where_it_is_named_and_a_name_without_a_circle_may_not() {
    let mut files = CIRCLE.to_vec();
    files[1].1 = "mod end; mod names; mod state; pub use names::Name; use end::End; pub struct Job(End);";
    assert_eq!(violations_in(&files).len(), 1);
    assert_eq!(violations_with(&files, &[("job", "its files extend `Job`")], &[]), [""; 0]);
    assert_eq!(violations_with(&files, &[], &[("job::end", "job", "it extends `Job`")]), [""; 0]);
    let stale = violations_with(CIRCLE, &[("job::state", "nothing")], &[("job::state", "job::names", "nothing")]);
    assert_eq!(stale.len(), 2, "{stale:?}");
}

#[test]
fn test_code_may_use_what_it_needs() {
    let found = violations_in(&[
        ("lib.rs", "mod job; mod manager;"),
        ("job/mod.rs", "#[cfg(test)] mod tests; #[cfg(test)] mod inline { use crate::manager::Manager; }"),
        ("job/tests.rs", "use crate::manager::Manager; mod deeper { use crate::manager::Other; }"),
        ("manager.rs", ""),
    ]);
    assert_eq!(found, [""; 0]);
}

#[test]
fn a_file_that_is_too_long_too_wide_unreachable_badly_named_or_on_no_floor_is_found() {
    let long = "\n".repeat(MAX_LINES + 1);
    let wide = format!("\n//{}", "–".repeat(MAX_COLUMNS - 1));
    let found = violations_in(&[
        ("lib.rs", "mod job; mod novel; mod utils; mod query;"),
        ("job.rs", &long),
        ("query.rs", &wide),
        ("clock.rs", ""),
        ("novel.rs", "use crate::job::Job;"),
        ("utils.rs", ""),
    ]);
    let starts = [
        "src/job.rs:500: 501 lines",
        "src/query.rs:2: wider than 120 columns",
        "src/clock.rs:1: no `mod` names this file",
        "src/novel.rs:1: `novel` is on no floor",
        "src/utils.rs:1: a module named `utils`",
    ];
    assert_eq!(found.len(), starts.len(), "{found:?}");
    assert!(found.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{found:?}");
}
