//! What the files of `src/` declare and use, read from their syntax trees.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The module of `main.rs`, which sees the library from outside.
pub(super) const MAIN: &str = "main";

/// The path of a module from the root of the crate: `["job", "transition"]`.
pub(super) type Module = Vec<String>;

/// One file of `src/`, by its path in there.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// Every source file under `src/`, in the order of their paths.
pub(crate) fn sources() -> Vec<Source> {
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

impl Source {
    /// The module that this file is.
    pub(super) fn module(&self) -> Module {
        let path = self.path.with_extension("");
        let mut module: Module = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if module.last().is_some_and(|last| last == "mod") || module == ["lib"] {
            module.pop();
        }
        module
    }

    /// The place of a line, in the form that an editor opens.
    pub(super) fn at(&self, line: usize) -> String {
        format!("src/{}:{line}", self.path.display())
    }
}

/// A path in the code that names something of this crate.
pub(super) struct Used {
    /// The module that the path stands in.
    pub(super) from: Module,
    /// The path, from the root of the crate.
    pub(super) target: Module,
    /// The line that it stands on.
    pub(super) line: usize,
    /// The name under which a `pub use` passes it on, if it is one: passing on is not using.
    pub(super) passed_on_as: Option<String>,
}

/// What one file declares and uses.
pub(super) struct Survey<'a> {
    pub(super) source: &'a Source,
    modules: &'a BTreeSet<Module>,
    /// The module that is being read; inline modules go deeper.
    here: Module,
    /// Whether the `use` that is being read passes on what it names.
    passing_on: bool,
    pub(super) declared: Vec<Module>,
    pub(super) test_modules: Vec<Module>,
    pub(super) uses: Vec<Used>,
}

impl<'a> Survey<'a> {
    pub(super) fn of(source: &'a Source, modules: &'a BTreeSet<Module>) -> Self {
        let mut survey = Self {
            source,
            modules,
            here: source.module(),
            passing_on: false,
            declared: Vec::new(),
            test_modules: Vec::new(),
            uses: Vec::new(),
        };
        let file = syn::parse_file(&source.text);
        survey.visit_file(&file.unwrap_or_else(|error| panic!("{}: {error}", source.at(error.span().start().line))));
        survey
    }

    /// Notes a path if it leads into this crate.
    fn note(&mut self, segments: &[String], line: usize, name: Option<String>) {
        if let Some(target) = self.resolve(segments) {
            let passed_on_as = name.filter(|_| self.passing_on);
            self.uses.push(Used { from: self.here.clone(), target, line, passed_on_as });
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
            syn::UseTree::Name(name) => self.note_leaf(&name.ident, &name.ident, path),
            syn::UseTree::Rename(rename) => self.note_leaf(&rename.ident, &rename.rename, path),
            syn::UseTree::Glob(glob) => self.note(path, glob.span().start().line, None),
        }
    }

    fn note_leaf(&mut self, ident: &syn::Ident, name: &syn::Ident, path: &[String]) {
        let leaf = ident.to_string();
        let full = if leaf == "self" { path.to_vec() } else { [path, &[leaf]].concat() };
        self.note(&full, ident.span().start().line, Some(name.to_string()));
    }
}

pub(super) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
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
        self.passing_on = !matches!(item.vis, syn::Visibility::Inherited);
        self.note_use(&item.tree, &mut Vec::new());
        self.passing_on = false;
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        // A single word is a name in scope: a variable, or something that a `use` has brought in.
        if segments.len() > 1 {
            self.note(&segments, path.span().start().line, None);
        }
        visit::visit_path(self, path);
    }

    /// The arguments of a macro are no syntax tree, but paths in them that start at the crate's root can be found.
    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        let line = mac.span().start().line;
        let tokens = mac.tokens.to_string().replace(" ::", "::").replace(":: ", "::");
        for (start, _) in tokens.match_indices("crate::") {
            let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
            let path = tokens[start..].split(|letter| !is_part(letter)).next().unwrap_or_default();
            let segments: Vec<String> = path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
            self.note(&segments, line, None);
        }
        visit::visit_macro(self, mac);
    }
}

/// All surveyed files, without what their tests use.
pub(super) struct Crate<'a> {
    pub(super) surveys: Vec<Survey<'a>>,
    modules: &'a BTreeSet<Module>,
    passed_on: BTreeMap<Module, Module>,
}

impl<'a> Crate<'a> {
    pub(super) fn of(sources: &'a [Source], modules: &'a BTreeSet<Module>) -> Self {
        let mut surveys: Vec<Survey<'a>> = sources.iter().map(|source| Survey::of(source, modules)).collect();
        let tests: BTreeSet<Module> = surveys.iter().flat_map(|survey| survey.test_modules.clone()).collect();
        let is_test = |module: &[String]| (0..=module.len()).any(|end| tests.contains(&module[..end]));
        for survey in &mut surveys {
            survey.uses.retain(|used| !is_test(&used.from));
        }
        let all = surveys.iter().flat_map(|survey| &survey.uses);
        let passed_on = all.filter_map(|used| {
            let name = used.passed_on_as.clone()?;
            Some(([used.from.as_slice(), &[name]].concat(), used.target.clone()))
        });
        let passed_on = passed_on.collect();
        Self { surveys, modules, passed_on }
    }

    /// The file that defines what a path names: a `pub use` on the way is followed.
    pub(super) fn file_of(&self, path: &[String]) -> Module {
        let mut path = path.to_vec();
        // No path is passed on more often than there are files.
        for _ in 0..=self.modules.len() {
            let passed_on = (1..=path.len()).find_map(|end| Some((end, self.passed_on.get(&path[..end])?)));
            match passed_on {
                Some((end, target)) if target[..] != path[..end] => path = [target.as_slice(), &path[end..]].concat(),
                _ => break,
            }
        }
        let file = (0..=path.len()).rev().map(|end| &path[..end]).find(|module| self.modules.contains(*module));
        file.unwrap_or_default().to_vec()
    }
}
