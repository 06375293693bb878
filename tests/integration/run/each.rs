//! A job for each file.

use std::fs;

use crate::program::{lines, run};

#[test]
fn each_file_is_one_argument_whatever_its_name_holds() {
    let place = tempfile::tempdir().expect("a directory");
    fs::create_dir(place.path().join("in")).expect("made");
    let names = ["a b.txt", "it's.txt", "$(touch pwned).txt", "-rf.txt", "{#}.txt", "\"q\".txt"];
    for name in names {
        fs::write(place.path().join("in").join(name), name).expect("written");
    }
    run(place.path(), ["run", "--each", "in/*.txt", "--", "cp", "{}", "{//}/{/.}.copy"]).expect(0);
    for name in names {
        let copy = name.replace(".txt", ".copy");
        assert_eq!(fs::read_to_string(place.path().join("in").join(&copy)).expect(&copy), name);
    }
    let line = "cat {} >> {//}/{/.}.out; echo {#} >> numbers";
    run(place.path(), ["run", "--each", "in/*.txt", "--shell", "--", line]).expect(0);
    for name in names {
        let out = name.replace(".txt", ".out");
        assert_eq!(fs::read_to_string(place.path().join("in").join(&out)).expect(&out), name);
    }
    assert!(!place.path().join("pwned").exists(), "a name was run as code");
    let mut numbers = lines(&place.path().join("numbers"));
    numbers.sort();
    assert_eq!(numbers, ["1", "2", "3", "4", "5", "6"]);
}

#[test]
fn a_new_file_is_the_only_job_of_the_next_start() {
    let place = tempfile::tempdir().expect("a directory");
    let start = || {
        run(place.path(), ["run", "--json", "--each", "*.txt", "--shell", "--", "echo {} >> ran"]).json(0)["completed"]
            .as_u64()
    };
    fs::write(place.path().join("b.txt"), "").expect("written");
    assert_eq!(start(), Some(1));
    fs::write(place.path().join("a.txt"), "").expect("written");
    assert_eq!(start(), Some(1));
    assert_eq!(lines(&place.path().join("ran")), ["b.txt", "a.txt"]);
}

#[test]
fn no_matching_file_is_an_error_that_says_so() {
    let place = tempfile::tempdir().expect("a directory");
    let said = run(place.path(), ["run", "--each", "*.png", "--", "true"]).expect(2).stderr();
    assert!(said.contains("no file matches `*.png`"), "{said}");
}
