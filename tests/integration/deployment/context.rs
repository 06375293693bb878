//! What the image is built from: all files that `.dockerignore` lets through, and no other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;

/// Where the files are to be left for a build of the image, by the nightly script.
const LEFT_AT: &str = "LEASEHOLD_TEST_CONTEXT";

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// The templates' folder, as `askama.toml` names it.
const TEMPLATES: &str = "src/page/templates";

/// Copies what the engine would be sent.
fn copy_context(to: &Path) {
    let rules = fs::read_to_string(Path::new(ROOT).join(".dockerignore")).expect(".dockerignore");
    let mut rules = rules.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    assert_eq!(rules.next(), Some("*"), "nothing is sent that no line names");
    for rule in rules {
        let kept = rule.strip_prefix('!').unwrap_or_else(|| panic!("`{rule}` is no line that lets files through"));
        let found = glob::glob(&format!("{ROOT}/{kept}")).expect("a pattern");
        let found: Vec<PathBuf> = found.map(|path| path.expect("readable")).collect();
        assert!(!found.is_empty(), "`{rule}` names nothing");
        for path in found {
            copy(&path, &to.join(path.strip_prefix(ROOT).expect("below the root")));
        }
    }
}

fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::create_dir_all(to.parent().expect("a folder")).expect("creatable");
        fs::copy(from, to).expect("copied");
        return;
    }
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable").path();
        copy(&entry, &to.join(entry.file_name().expect("a name")));
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn the_image_is_built_from_files_that_docker_is_sent() {
    let temporary = tempfile::tempdir().expect("a folder");
    let place = std::env::var_os(LEFT_AT).map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    if place.exists() {
        fs::remove_dir_all(&place).expect("removable");
    }
    copy_context(&place);

    let included = Regex::new(r#"include_(?:str|bytes)!\(\s*"([^"]+)""#).expect("a pattern");
    let template = Regex::new(r#"#\[template\([^)]*path = "([^"]+)""#).expect("a pattern");
    let folder = Regex::new(r#"#\[folder = "\$CARGO_MANIFEST_DIR/([^"]+)""#).expect("a pattern");
    let mut files = Vec::new();
    sources(&place.join("src"), &mut files);
    let (mut missing, mut looked_for) = (Vec::new(), 0);
    for file in files {
        let text = fs::read_to_string(&file).expect("text");
        let beside = file.parent().expect("a folder").to_owned();
        for (pattern, base) in [(&included, beside), (&template, place.join(TEMPLATES)), (&folder, place.clone())] {
            for found in pattern.captures_iter(&text) {
                looked_for += 1;
                if !base.join(&found[1]).exists() {
                    missing.push(format!("{} needs {}", file.display(), &found[1]));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(looked_for > 30, "only {looked_for} files are named in the sources");
    let askama = fs::read_to_string(place.join("askama.toml")).expect("the template engine's settings");
    assert!(askama.contains(TEMPLATES), "{askama}");

    // As the Dockerfile has it: Cargo wants a file for every target of the manifest.
    assert!(super::DOCKERFILE.contains("touch tests/integration/main.rs"));
    fs::create_dir_all(place.join("tests/integration")).expect("creatable");
    fs::write(place.join("tests/integration/main.rs"), "").expect("writable");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut metadata = Command::new(cargo);
    metadata.args(["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"]).current_dir(&place);
    let output = metadata.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
