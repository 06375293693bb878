//! Names that would do harm where they are taken for more than names.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use crate::program::{Started, leasehold, run};
use crate::screen::{Colour, Terminal};

const NAMES: [&str; 9] = [
    "it's",
    "a\"b",
    "two\nlines",
    "\u{1b}[2J\u{1b}]0;title\u{7}",
    "$(touch pwned)",
    "`touch pwned`; touch pwned",
    "-rf",
    "{}{#}",
    "\\",
];

#[test]
fn any_argument_arrives_as_it_is_and_is_never_run() {
    let place = tempfile::tempdir().expect("a directory");
    let input = NAMES.join("\0") + "\0";
    for words in [
        &["--", "printf", "%s.", "{}"][..],
        &["--", "printf", "%s.%.0s", "{}", "{%}"],
        &["--shell", "--", "printf %s. {}"],
        &["--nice", "1", "--tag", "--results", "res", "--shell", "--", "printf '%s.%.0s' {} {/}"],
    ] {
        let tagged = words.contains(&"--tag");
        let words = [&["run", "-k", "-0", "-"], words].concat();
        let ended = Started::with_input(&mut leasehold(place.path(), words), &input).end().expect(0);
        if !tagged {
            assert_eq!(ended.stdout(), NAMES.join(".") + ".");
        }
        assert!(!ended.stderr().contains('\u{1b}'), "{}", ended.said());
        assert!(!place.path().join("pwned").exists(), "a name was run as code");
    }
    assert_eq!(fs::read_dir(place.path().join("res/1")).expect("results").count(), NAMES.len());
}

#[test]
fn nothing_that_could_steer_it_reaches_a_terminal() {
    let place = tempfile::tempdir().expect("a directory");
    let name = "\u{1b}[2Jbell\u{7}";
    let mut command =
        leasehold(place.path(), ["run", "--tag", "--shell", "--", "printf '%s\\n' {}; exit 3", ":::", name]);
    let ended = Terminal::start(&mut command, 24, 80, Colour::No).end();
    assert_eq!(ended.code, Some(1));
    assert!(!ended.bytes.contains(&7), "{}", ended.text());
    // The bar is cleared with other sequences than the name has.
    assert!(!ended.text().contains("\u{1b}[2J"), "{}", ended.text());
    assert!(ended.text().contains("\u{fffd}[2Jbell"), "{}", ended.text());
}

#[test]
fn input_that_is_not_utf_8_is_refused_with_its_place() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("list"), b"good\nb\xffad\n").expect("written");
    let said = run(place.path(), ["run", "list", "--", "echo"]).expect(2).stderr();
    assert!(said.contains("list:2:2: the byte 0xff is not UTF-8"), "{said}");
    let bad = OsStr::from_bytes(b"b\xffad");
    run(place.path(), [OsStr::new("run"), OsStr::new("--"), OsStr::new("echo"), OsStr::new(":::"), bad]).expect(2);
    // What a job writes may be anything.
    let words = ["run", "--shell", "--", "printf 'a\\377\\033b' #", ":::", "1"];
    assert_eq!(run(place.path(), words).expect(0).stdout(), "a\u{fffd}\u{1b}b");
}
