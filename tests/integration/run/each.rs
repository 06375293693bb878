//! A job for each file.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

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
fn a_new_file_is_the_only_job_of_who_goes_on() {
    let place = tempfile::tempdir().expect("a directory");
    let start = || {
        let words = ["run", "--json", "--resume", "--each", "*.txt", "--shell", "--", "echo {} >> ran"];
        run(place.path(), words).last_json(0)["completed"].as_u64()
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

#[test]
fn a_name_that_is_not_utf_8_is_refused_where_it_matches_and_else_disturbs_nobody() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join(OsStr::from_bytes(b"o\xffdd.png")), "").expect("written");
    fs::write(place.path().join("a.txt"), "").expect("written");
    run(place.path(), ["run", "--each", "*.txt", "--", "touch", "{.}.done"]).expect(0);
    assert!(place.path().join("a.done").exists());
    let said = run(place.path(), ["run", "--each", "*.png", "--", "touch", "{}"]).expect(2).stderr();
    assert!(said.contains("o\u{fffd}dd.png is not UTF-8") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_name_is_never_run_as_code_wherever_its_place_stands_in_a_line() {
    let place = tempfile::tempdir().expect("a directory");
    let names = ["$(touch pwned).txt", "`touch pwned`.txt", "'; touch pwned; '.txt", "a\ntouch pwned\n.txt", "-n.txt"];
    for name in names {
        fs::write(place.path().join(name), "text").expect("written");
    }
    let each = |line: &str| run(place.path(), ["run", "--each", "*.txt", "--shell", "--", line]);
    for line in ["echo \"{}\"", "echo 'of {/}'", "echo \\{}", "echo \"$(cat {})\""] {
        let said = each(line).expect(2).stderr();
        assert!(said.contains("stands in quotes") && said.contains("\"$EACH"), "{line}: {said}");
    }
    let said = run(place.path(), ["run", "--each", "*.txt", "--", "sh", "-c", "cat {}"]).expect(2).stderr();
    assert!(said.contains("--shell"), "{said}");
    let lines =
        ["cat `echo {}` || true", "cat <<END\n{}\nEND", "true # {}", "f() { cat \"$EACH\"; }; f {.}", "cat {} >> all"];
    for line in lines {
        each(line).expect(0);
    }
    assert_eq!(fs::read_to_string(place.path().join("all")).expect("written"), "text".repeat(names.len()));
    assert!(!place.path().join("pwned").exists(), "a name was run as code");
}
