//! The page about security: it has a line for each requirement, and the tests that it names are there.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/security.md");

/// The requirements of OWASP ASVS 5.0 at level 1.
const LEVEL_1: [&str; 70] = [
    "1.2.1", "1.2.2", "1.2.3", "1.2.4", "1.2.5", "1.3.1", "1.3.2", "1.5.1", "2.1.1", "2.2.1", "2.2.2", "2.3.1",
    "3.2.1", "3.2.2", "3.3.1", "3.4.1", "3.4.2", "3.5.1", "3.5.2", "3.5.3", "4.1.1", "4.4.1", "5.2.1", "5.2.2",
    "5.3.1", "5.3.2", "6.1.1", "6.2.1", "6.2.2", "6.2.3", "6.2.4", "6.2.5", "6.2.6", "6.2.7", "6.2.8", "6.3.1",
    "6.3.2", "6.4.1", "6.4.2", "7.2.1", "7.2.2", "7.2.3", "7.2.4", "7.4.1", "7.4.2", "8.1.1", "8.2.1", "8.2.2",
    "8.3.1", "9.1.1", "9.1.2", "9.1.3", "9.2.1", "10.4.1", "10.4.2", "10.4.3", "10.4.4", "10.4.5", "11.3.1", "11.3.2",
    "11.4.1", "12.1.1", "12.2.1", "12.2.2", "13.4.1", "14.2.1", "14.3.1", "15.1.1", "15.2.1", "15.3.1",
];

/// The lines of the table, each as its cells.
fn lines() -> impl Iterator<Item = Vec<&'static str>> {
    let cells = |line: &'static str| line.trim_matches('|').splitn(3, '|').map(str::trim).collect::<Vec<_>>();
    let is_a_number =
        |text: &str| text.split('.').count() == 3 && text.split('.').all(|part| part.parse::<u8>().is_ok());
    PAGE.lines().filter(|line| line.starts_with("| ")).map(cells).filter(move |cells| is_a_number(cells[0]))
}

#[test]
fn every_requirement_of_level_1_has_its_line() {
    assert_eq!(lines().map(|cells| cells[0]).collect::<Vec<_>>(), LEVEL_1);
    for cells in lines() {
        assert!(["met", "not met", "no part"].contains(&cells[1]), "{cells:?}");
        assert!(!cells[2].is_empty(), "{cells:?}");
    }
}

/// The files in which the tests of a module may be.
fn files(module: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = module.strip_suffix("::tests").unwrap_or(module).replace("::", "/");
    let (unit, integration) = (root.join("src").join(&path), root.join("tests/integration").join(&path));
    let suffixes = [unit.with_extension("rs"), unit.join("mod.rs"), unit.join("tests.rs")];
    suffixes.into_iter().chain([integration.with_extension("rs"), integration.join("mod.rs")]).collect()
}

#[test]
fn every_test_that_the_page_names_is_there() {
    let named = PAGE.split('`').skip(1).step_by(2).filter_map(|code| code.rsplit_once("::"));
    let mut count = 0;
    for (module, test) in named {
        let texts = files(module).into_iter().filter_map(|file| std::fs::read_to_string(file).ok());
        let begins = format!("fn {test}(");
        assert!(texts.into_iter().any(|text| text.contains(&begins)), "{module}::{test}");
        count += 1;
    }
    assert!(count > 30, "{count}");
}

#[test]
fn the_list_of_libraries_has_what_the_program_is_built_of_and_nothing_of_the_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| -> toml::Table {
        std::fs::read_to_string(root.join(file)).expect(file).parse().unwrap_or_else(|why| panic!("{file}: {why}"))
    };
    let (manifest, lock) = (read("Cargo.toml"), read("Cargo.lock"));
    let output = Command::new(root.join(".ci/sbom")).env("CARGO", env!("CARGO")).output().expect(".ci/sbom runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&listed["bomFormat"], &listed["specVersion"]), (&"CycloneDX".into(), &"1.6".into()));
    let components = listed["components"].as_array().expect("components");

    let names: HashSet<&str> = components.iter().map(|component| component["name"].as_str().expect("a name")).collect();
    let named = |table: &str| manifest[table].as_table().expect("a table").keys().map(String::as_str).collect();
    let (used, of_tests): (HashSet<&str>, HashSet<&str>) = (named("dependencies"), named("dev-dependencies"));
    assert_eq!(used.difference(&names).collect::<Vec<_>>(), Vec::<&&str>::new(), "these are not listed");
    for of_test in ["fantoccini", "proptest", "testcontainers"] {
        assert!(of_tests.contains(of_test) && !names.contains(of_test), "{of_test} is listed");
    }

    let locked: HashSet<[&str; 3]> = lock["package"].as_array().expect("packages").iter().filter_map(of_lock).collect();
    for component in components {
        let said = [&component["name"], &component["version"], &component["hashes"][0]["content"]];
        let said = said.map(|text| text.as_str().unwrap_or_else(|| panic!("{component}")));
        assert!(locked.contains(&said), "{said:?} is not in Cargo.lock");
        assert!(component["licenses"][0]["expression"].is_string(), "{said:?} has no licence");
    }
}

/// The name, the version and the checksum of a package of `Cargo.lock`, of which the program itself has none.
fn of_lock(package: &toml::Value) -> Option<[&str; 3]> {
    let text = |name: &str| package.get(name).and_then(toml::Value::as_str);
    Some([text("name")?, text("version")?, text("checksum")?])
}
