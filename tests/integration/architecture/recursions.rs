//! What recurses over what users send is known: `src/recursion.rs` tries each at its bound and beyond.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::survey::{is_for_tests, sources};

/// Where what users send is read: files, and folders with all that is in them.
const READERS: &[&str] =
    &["api/extract", "api/trim", "job/", "query/", "schedule/", "store/elasticsearch/kql", "wire/"];

/// The functions there that recurse, each file's together.
const RECURSIONS: &[(&str, &[&str])] = &[
    ("api/trim.rs", &["add", "copy"]),
    ("query/kql/ast.rs", &["depth"]),
    ("query/kql/bounds.rs", &["of"]),
    ("query/kql/doubts.rs", &["doubts_of"]),
    ("query/kql/evaluate.rs", &["holds"]),
    ("query/kql/parse.rs", &["not_query", "one_or_list", "or_query", "sub_query"]),
    ("query/kql/plan.rs", &["node", "nodes", "phase"]),
    ("store/elasticsearch/kql.rs", &["plan"]),
];

/// Functions that only call one of the same name of another type, or recurse over what the program defines.
const OTHERS: &[(&str, &[&str])] = &[
    ("job/body.rs", &["bytes"]),
    ("job/history.rs", &["deserialize", "serialize"]),
    ("job/retry.rs", &["serialize"]),
    ("job/state.rs", &["deserialize", "is_exactly", "serialize"]),
    ("query/fields.rs", &["lease", "orphan"]),
    ("query/kql/bounds.rs", &["and", "is_empty", "or"]),
    ("query/kql/date.rs", &["name", "parse"]),
    ("query/kql/evaluate.rs", &["admits"]),
    ("query/kql/number.rs", &["parse"]),
    ("query/stats.rs", &["value"]),
    ("schedule/count.rs", &["count"]),
    ("schedule/period.rs", &["next_after"]),
    ("schedule/text.rs", &["parse"]),
    ("wire/cookie.rs", &["authority"]),
    ("wire/hidden.rs", &["copy"]),
    ("wire/job.rs", &["collect_fields"]),
    ("wire/selected.rs", &["part_of"]),
];

/// The functions of one file, and which of them each calls.
#[derive(Default)]
struct Calls {
    calls: BTreeMap<String, BTreeSet<String>>,
    within: Vec<String>,
}

impl Calls {
    fn call(&mut self, name: &syn::Ident) {
        if let Some(caller) = self.within.last() {
            self.calls.entry(caller.clone()).or_default().insert(name.to_string());
        }
    }

    fn enter(&mut self, name: &syn::Ident, inside: impl FnOnce(&mut Self)) {
        self.within.push(name.to_string());
        self.calls.entry(name.to_string()).or_default();
        inside(self);
        self.within.pop();
    }

    /// Returns the functions that call themselves, by way of others or not.
    fn that_recurse(&self) -> Vec<String> {
        let reaches_itself = |name: &&String| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![*name]);
            while let Some(called) = next.pop().and_then(|one| self.calls.get(one)) {
                next.extend(called.iter().filter(|one| self.calls.contains_key(*one) && seen.insert(*one)));
            }
            seen.contains(name)
        };
        self.calls.keys().filter(reaches_itself).cloned().collect()
    }
}

impl<'ast> Visit<'ast> for Calls {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.enter(&item.sig.ident, |calls| visit::visit_item_fn(calls, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.enter(&item.sig.ident, |calls| visit::visit_impl_item_fn(calls, item));
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        let segments: Vec<&syn::Ident> = path.path.segments.iter().map(|segment| &segment.ident).collect();
        if let [of, name] = segments[..]
            && (of == "Self" || of == "self")
        {
            self.call(name);
        }
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func
            && let Some(name) = path.path.get_ident()
        {
            self.call(name);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        // A method of the same name of something else than `self` is the same one for all that is seen here.
        let is_own = matches!(&*call.receiver, syn::Expr::Path(path) if path.path.is_ident("self"));
        let is_of_another = matches!(&*call.receiver, syn::Expr::Path(path) if !path.path.is_ident("self"));
        if is_own || is_of_another && self.within.last().is_some_and(|within| call.method == within) {
            self.call(&call.method);
        }
        visit::visit_expr_method_call(self, call);
    }
}

#[test]
fn whatever_recurses_over_what_users_send_is_known_and_tried_at_its_bound() {
    let mut found = BTreeSet::new();
    for source in sources() {
        let path = source.path.display().to_string();
        let is_of_tests = path.ends_with("tests.rs") || path.contains("/tests/");
        if is_of_tests || !READERS.iter().any(|reader| path.starts_with(reader)) {
            continue;
        }
        let mut calls = Calls::default();
        calls.visit_file(&syn::parse_file(&source.text).expect("Rust"));
        found.extend(calls.that_recurse().into_iter().map(|name| format!("{path}: {name}")));
    }
    let known = RECURSIONS.iter().chain(OTHERS);
    let known = known.flat_map(|(path, names)| names.iter().map(move |name| format!("{path}: {name}"))).collect();
    assert_eq!(found, known, "bound what is new, try it in src/recursion.rs, and name it here");
}
