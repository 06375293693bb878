//! What users and programs see, byte by byte: the JSON of the API, its description, and the help of each command. It is
//! compared with the files of `tests/golden`, so that every change of it is seen. Files of what is stored, and of what
//! is sent to Elasticsearch, are compared by tests beside the code.

mod answers;
mod help;
mod recorded;
mod wire;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use recorded::{Files, check};

#[test]
fn the_description_of_the_api_is_as_recorded() {
    let description = leasehold::api::openapi_json().expect("a description");
    let description = String::from_utf8(description.to_vec()).expect("text");
    check("openapi", &Files::from([("openapi.json".to_owned(), description + "\n")]));
}

/// A test compares all files of a folder, so that only a whole folder can be left over.
#[test]
fn every_folder_of_recorded_files_is_of_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources =
        |folder| files(&root.join(folder)).into_iter().filter(|path| path.extension().is_some_and(|it| it == "rs"));
    let sources = sources("src").chain(sources("tests")).map(|path| fs::read_to_string(path).expect("a source file"));
    let sources: String = sources.collect();
    let golden = root.join("tests/golden");
    let folders: BTreeSet<PathBuf> =
        files(&golden).into_iter().filter_map(|file| Some(file.parent()?.to_owned())).collect();
    let names = folders.iter().map(|folder| folder.strip_prefix(&golden).expect("it is in there").display());
    let unused: Vec<_> = names.filter(|name| !sources.contains(&format!("check(\"{name}\""))).collect();
    assert!(unused.is_empty() && !folders.is_empty(), "no test compares {unused:?}");
}

/// All files in a folder and the folders in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder can be read").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
