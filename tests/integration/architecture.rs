//! Who may use whom: imports go down the layers only, and `src/` keeps to its form.
//!
//! `ARCHITECTURE.md` says why; [`LAYERS`] is the rule. Test code is not held to it: a manager's test runs on a real
//! store.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// What a layer may use besides itself.
enum May {
    Use(&'static [&'static str]),
    UseEverything,
}
use May::{Use, UseEverything};

/// Each layer, from the bottom up, and what it may use. The longest name that fits a module is its layer.
#[rustfmt::skip]
const LAYERS: &[(&str, May)] = &[
    ("clock",                Use(&[])),
    ("job",                  Use(&["clock"])),
    ("query",                Use(&["job", "clock"])),
    ("store",                Use(&["query", "job", "clock"])),
    ("store::embedded",      Use(&["store", "query", "job", "clock"])),
    ("store::elasticsearch", Use(&["store", "query", "job", "clock"])),
    ("manager",              Use(&["store", "query", "job", "clock"])),
    ("executor",             Use(&["job", "clock"])),
    ("worker",               Use(&["manager", "store", "job", "clock"])),
    ("monitor",              Use(&["manager", "store", "query", "job", "clock"])),
    ("notify",               Use(&["worker", "executor", "manager", "store", "query", "job", "clock"])),
    ("wire",                 Use(&["notify", "executor", "manager", "store", "query", "job", "clock"])),
    ("api",                  Use(&["wire", "notify", "monitor", "executor", "manager", "store", "query", "job", "clock"])),
    ("client",               Use(&["wire", "worker", "manager", "query", "job", "clock"])),
    ("cli",                  UseEverything),
    (CRATE_ROOT,             UseEverything),
    (MAIN,                   UseEverything),
];

/// The layer of `lib.rs`.
const CRATE_ROOT: &str = "";
/// The layer of `main.rs`, which sees the library from outside.
const MAIN: &str = "main";
/// Longer files are to be taken apart.
const MAX_LINES: usize = 700;
/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 6] = ["utils", "util", "common", "models", "helpers", "misc"];

#[test]
fn imports_go_down_the_layers_only_and_every_file_keeps_to_its_form() {
    let found = violations(&sources());
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// One file of `src/`, by its path in there.
struct Source {
    path: PathBuf,
    text: String,
}

fn sources() -> Vec<Source> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut sources) = (vec![src.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of src can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file can be read");
                let path = path.strip_prefix(&src).expect("it is in src").to_owned();
                sources.push(Source { path, text });
            }
        }
    }
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    sources
}

/// A module's path from the crate's root: `["job", "transition"]`.
type Module = Vec<String>;

impl Source {
    fn module(&self) -> Module {
        let path = self.path.with_extension("");
        let mut module: Module = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if module.last().is_some_and(|last| last == "mod") || module == ["lib"] {
            module.pop();
        }
        module
    }

    /// A line of it, as an editor opens it.
    fn at(&self, line: usize) -> String {
        format!("src/{}:{line}", self.path.display())
    }
}

/// Everything that is wrong, a line each.
fn violations(sources: &[Source]) -> Vec<String> {
    let modules: BTreeSet<Module> = sources.iter().map(Source::module).collect();
    let surveys: Vec<(&Source, Survey)> = sources.iter().map(|source| (source, Survey::of(source, &modules))).collect();
    let declared: BTreeSet<&Module> = surveys.iter().flat_map(|(_, survey)| &survey.declared).collect();
    let test_modules: BTreeSet<&Module> = surveys.iter().flat_map(|(_, survey)| &survey.test_modules).collect();
    let is_test = |module: &Module| (0..=module.len()).any(|end| test_modules.contains(&module[..end].to_vec()));

    let mut found = Vec::new();
    for (source, survey) in &surveys {
        let module = source.module();
        let lines = source.text.lines().count();
        if lines > MAX_LINES {
            found.push(format!("{}: {lines} lines, more than {MAX_LINES}: take it apart", source.at(MAX_LINES)));
        }
        if let Some(name) = module.iter().find(|name| EMPTY_NAMES.contains(&name.as_str())) {
            found.push(format!("{}: a module named `{name}`: put each thing beside its use", source.at(1)));
        }
        let is_root = module.is_empty() || module == [MAIN];
        if !is_root && !declared.contains(&module) {
            found.push(format!("{}: no `mod` names this file: declare or remove it", source.at(1)));
        }
        let uses = survey.uses.iter().filter(|used| !is_test(&used.from));
        found.extend(uses.filter_map(|used| used.violation(source)));
    }
    found
}

/// The layer that a module, or a path into one, belongs to.
fn layer(module: &[String]) -> &'static (&'static str, May) {
    let fits = |name: &str| {
        name.split("::").map(Some).eq(module.iter().map(|part| Some(part.as_str())).take(name.split("::").count()))
    };
    let named = LAYERS.iter().filter(|(name, _)| *name != CRATE_ROOT && fits(name));
    let root = LAYERS.iter().find(|(name, _)| *name == CRATE_ROOT).expect("the table has the root");
    named.max_by_key(|(name, _)| name.len()).unwrap_or(root)
}

/// A path that names something of this crate.
struct Used {
    from: Module,
    target: Module,
    line: usize,
}

impl Used {
    fn violation(&self, source: &Source) -> Option<String> {
        let (from, may) = layer(&self.from);
        let (target, _) = layer(&self.target);
        let told = self.target.join("::");
        if *from == CRATE_ROOT && !self.from.is_empty() {
            let module = self.from.join("::");
            return Some(format!("{}: `{module}` is in no layer: add it to LAYERS", source.at(self.line)));
        }
        match may {
            UseEverything => None,
            Use(_) if from == target => None,
            Use(allowed) if allowed.contains(target) => None,
            Use(allowed) => Some(format!(
                "{}: `{from}` uses `{told}`; it may use [{}] only: move the code or turn the dependency round",
                source.at(self.line),
                allowed.join(", ")
            )),
        }
    }
}

/// What one file declares and uses.
struct Survey<'a> {
    modules: &'a BTreeSet<Module>,
    /// The module that is being read; inline modules go deeper.
    here: Module,
    declared: Vec<Module>,
    test_modules: Vec<Module>,
    uses: Vec<Used>,
}

impl<'a> Survey<'a> {
    fn of(source: &Source, modules: &'a BTreeSet<Module>) -> Self {
        let here = source.module();
        let mut survey = Self { modules, here, declared: Vec::new(), test_modules: Vec::new(), uses: Vec::new() };
        let file = syn::parse_file(&source.text);
        survey.visit_file(&file.unwrap_or_else(|error| panic!("{}: {error}", source.at(error.span().start().line))));
        survey
    }

    /// Notes a path if it leads into this crate.
    fn note(&mut self, segments: &[String], line: usize) {
        if let Some(target) = self.resolve(segments) {
            self.uses.push(Used { from: self.here.clone(), target, line });
        }
    }

    fn resolve(&self, segments: &[String]) -> Option<Module> {
        let (first, rest) = segments.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "leasehold" if self.here == [MAIN] => Some(rest.to_vec()),
            "self" => Some([&self.here, rest].concat()),
            "super" => {
                let ups = segments.iter().take_while(|segment| *segment == "super").count();
                let kept = self.here.len().checked_sub(ups)?;
                Some([&self.here[..kept], &segments[ups..]].concat())
            }
            _ => {
                let child = [self.here.as_slice(), std::slice::from_ref(first)].concat();
                self.modules.contains(&child).then(|| [self.here.as_slice(), segments].concat())
            }
        }
    }

    fn note_use(&mut self, tree: &syn::UseTree, path: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.note_use(&part.tree, path);
                path.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.note_use(item, path)),
            syn::UseTree::Name(name) => self.note_leaf(&name.ident, path),
            syn::UseTree::Rename(rename) => self.note_leaf(&rename.ident, path),
            syn::UseTree::Glob(glob) => self.note(path, glob.span().start().line),
        }
    }

    fn note_leaf(&mut self, ident: &syn::Ident, path: &[String]) {
        let leaf = ident.to_string();
        let full = if leaf == "self" { path.to_vec() } else { [path, &[leaf]].concat() };
        self.note(&full, ident.span().start().line);
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}

impl<'ast> Visit<'ast> for Survey<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.here.push(item.ident.to_string());
        if is_for_tests(&item.attrs) {
            self.test_modules.push(self.here.clone());
        }
        if item.content.is_none() {
            self.declared.push(self.here.clone());
        }
        visit::visit_item_mod(self, item);
        self.here.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.note_use(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        // A single word is a name in scope: a variable, or something that a `use` has brought in.
        if segments.len() > 1 {
            self.note(&segments, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    /// What a macro is given is no syntax tree, but paths in it that start at the crate's root can be told.
    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        let line = mac.span().start().line;
        let tokens = mac.tokens.to_string().replace(" ::", "::").replace(":: ", "::");
        for (start, _) in tokens.match_indices("crate::") {
            let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
            let path = tokens[start..].split(|letter| !is_part(letter)).next().unwrap_or_default();
            let segments: Vec<String> = path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
            self.note(&segments, line);
        }
        visit::visit_macro(self, mac);
    }
}

/// What is wrong with a crate of these files, whose modules are declared unless `text` forgets to.
fn violations_in(files: &[(&str, &str)]) -> Vec<String> {
    let files = files.iter().map(|(path, text)| Source { path: PathBuf::from(path), text: (*text).to_owned() });
    violations(&files.collect::<Vec<_>>())
}

#[test]
fn an_import_that_goes_up_is_found_however_it_is_written() {
    for (upward, line) in [
        ("use crate::manager::Manager;", 1),
        ("use crate::{clock::Clock, manager};", 1),
        ("use crate::manager::*;", 1),
        ("use super::manager::Manager as Boss;", 1),
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
fn an_import_that_goes_down_sideways_within_a_layer_or_out_of_the_crate_is_fine() {
    let lib = ("lib.rs", "mod clock; mod job; mod manager; mod cli; pub use manager::Manager;");
    let found = violations_in(&[
        lib,
        ("main.rs", "fn main() { leasehold::cli::run() }"),
        ("clock.rs", "use manager::external; pub struct Clock;"),
        ("job/mod.rs", "mod state; pub use state::State; use crate::clock::Clock;"),
        ("job/state.rs", "use super::Job; use crate::job; use std::fmt;"),
        ("manager.rs", "use crate::{clock, job::{self, Job}};"),
        ("cli.rs", "use crate::manager::Manager;"),
    ]);
    assert_eq!(found, [""; 0]);
}

#[test]
fn the_engines_know_neither_each_other_nor_does_the_manager_know_them() {
    let found = violations_in(&[
        ("lib.rs", "mod store; mod manager;"),
        ("store/mod.rs", "mod embedded; mod elasticsearch; pub use embedded::Embedded;"),
        ("store/embedded.rs", "use super::elasticsearch::Bulk;"),
        ("store/elasticsearch.rs", "use elasticsearch::Client; use super::Store;"),
        ("manager.rs", "use crate::store::{Store, embedded::Embedded};"),
    ]);
    let starts = [
        "src/store/mod.rs:1: `store` uses `store::embedded::Embedded`",
        "src/store/embedded.rs:1: `store::embedded` uses `store::elasticsearch::Bulk`",
        "src/manager.rs:1: `manager` uses `store::embedded::Embedded`",
    ];
    assert_eq!(found.len(), starts.len(), "{found:?}");
    assert!(found.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{found:?}");
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
fn a_file_that_is_too_long_unreachable_badly_named_or_in_no_layer_is_found() {
    let long = "\n".repeat(MAX_LINES + 1);
    let found = violations_in(&[
        ("lib.rs", "mod job; mod novel; mod utils;"),
        ("job.rs", &long),
        ("clock.rs", ""),
        ("novel.rs", "use crate::job::Job;"),
        ("utils.rs", ""),
    ]);
    let starts = [
        "src/job.rs:700: 701 lines",
        "src/clock.rs:1: no `mod` names this file",
        "src/novel.rs:1: `novel` is in no layer",
        "src/utils.rs:1: a module named `utils`",
    ];
    assert_eq!(found.len(), starts.len(), "{found:?}");
    assert!(found.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{found:?}");
}
