//! Commands that are shown to be pasted are built by `job::shell`, which quotes what users have named.

use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::survey::{is_for_tests, sources};

/// What looks like a command with something filled in and is none: the file, and how the text begins.
const NO_COMMANDS: &[(&str, &str)] = &[("cli/top.rs", "leasehold top")];

/// Returns the command in a format that has something filled in, if there is one. Such a command ends with its line, at
/// a backtick, or where the next one begins.
fn filled_in(format: &str) -> Option<String> {
    let format = format.replace("{{", "").replace("}}", "");
    let mut rest = format.as_str();
    while let Some(at) = rest.find("leasehold ") {
        rest = &rest[at..];
        let command = rest.split(['`', '\n', ';']).next().unwrap_or_default();
        let begins = command["leasehold ".len()..].starts_with(|letter: char| letter.is_ascii_lowercase());
        if begins && command.contains('{') {
            return Some(command.to_owned());
        }
        rest = &rest["leasehold ".len()..];
    }
    None
}

/// The commands of one file that have something filled in.
#[derive(Default)]
struct Formats {
    found: Vec<String>,
}

impl Formats {
    fn read(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.read(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                        self.found.extend(filled_in(&text.value()));
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Formats {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.read(item.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        // The text of an error is a format too.
        if let syn::Meta::List(list) = &attribute.meta
            && list.path.is_ident("error")
        {
            self.read(list.tokens.clone());
        }
    }
}

#[test]
fn no_command_is_shown_that_is_not_built_by_what_quotes_names() {
    let mut wrong = Vec::new();
    for source in sources() {
        let path = source.path.display().to_string();
        if path.ends_with("tests.rs") || path.contains("/tests/") || path == "job/shell.rs" {
            continue;
        }
        let mut formats = Formats::default();
        formats.visit_file(&syn::parse_file(&source.text).expect("Rust"));
        let is_none =
            |command: &str| NO_COMMANDS.iter().any(|(file, begins)| *file == path && command.starts_with(begins));
        wrong.extend(formats.found.iter().filter(|command| !is_none(command)).map(|found| format!("{path}: {found}")));
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page");
    for entry in std::fs::read_dir(page.join("templates")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let template = std::fs::read_to_string(&path).expect("a template");
        for command in template.split("leasehold ").skip(1).map(|rest| rest.split('<').next().unwrap_or_default()) {
            // With `{%` a part of the page may end before the command does.
            if command.contains("{{") {
                wrong.push(format!("{}: leasehold {command}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "build these with `job::shell::leasehold`:\n{}", wrong.join("\n"));
}

#[test]
fn a_command_with_something_filled_in_is_found_and_no_other_text() {
    for format in ["more: leasehold logs {id}", "`leasehold queue resume {}` helps", "leasehold a; leasehold b --c {d}"]
    {
        assert!(filled_in(format).is_some(), "{format}");
    }
    for format in
        ["another `leasehold migrate` runs: {why}", "leasehold {}", "leasehold add '{{due_at}}'", "leasehold: {id}"]
    {
        assert_eq!(filled_in(format), None, "{format}");
    }
    let mut formats = Formats::default();
    let code =
        r#"fn f() { x(vec![format!("leasehold logs {id}")]); } mod t { fn g() { y!(a, "leasehold a {}", b); } }"#;
    formats.visit_file(&syn::parse_file(code).expect("Rust"));
    assert_eq!(formats.found.len(), 2);
}
