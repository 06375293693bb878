//! Whole nights under what can go wrong: the process is killed or hung up, the disk is full, descriptors are few. Each
//! job's marker is there exactly once a night, and exit status and last words are true.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::program::{Ended, Started, leasehold, until};
use nix::sys::signal::Signal;

/// How a night goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Night {
    Killed,
    HungUp,
    /// Standard output takes nothing.
    FullDisk,
    /// So few descriptors as some systems give.
    FewDescriptors,
}

/// A job ends with its marker, which is there once: a second `mkdir` fails. What is killed before runs again.
fn job() -> &'static str {
    "mkdir marks/{} || touch twice; echo {}"
}

fn command(place: &Path, night: Night, files: &str) -> Command {
    let list = place.join(files);
    let words = ["run", "-j4", list.to_str().expect("text"), "--shell", "--output", "all", "--", job()];
    match night {
        Night::FewDescriptors => {
            let mut command = leasehold(place, [""; 0]);
            let program = command.get_program().to_owned();
            let mut limited = Command::new("sh");
            limited.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]).arg(program).args(words).current_dir(place);
            limited.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
            limited.stderr(std::process::Stdio::piped());
            command = limited;
            command
        }
        Night::FullDisk => {
            let mut command = leasehold(place, words);
            command.stdout(fs::File::options().write(true).open("/dev/full").expect("it is there"));
            command
        }
        Night::Killed | Night::HungUp => leasehold(place, words),
    }
}

fn nights(files: usize) {
    for night in [Night::Killed, Night::HungUp, Night::FullDisk, Night::FewDescriptors] {
        let place = tempfile::tempdir().expect("a directory");
        let list: String = (0..files).map(|number| format!("{number}\n")).collect();
        fs::write(place.path().join("list"), list).expect("written");
        let marks = place.path().join("marks");
        let done = || fs::read_dir(&marks).map_or(0, Iterator::count);
        for turn in 1..=2 {
            let _ = fs::remove_dir_all(&marks);
            fs::create_dir(&marks).expect("made");
            let start = || Started::of(&mut command(place.path(), night, "list"));
            let ended = match night {
                Night::Killed => {
                    // Between the end of a command and its record there are as many jobs as slots: only those may
                    // come again.
                    for part in 1..=3 {
                        let mut running = start();
                        until("some more jobs have ended", || done() >= files * part / 5);
                        running.kill();
                    }
                    let ended = start().end_within(Duration::from_secs(600));
                    assert!(ended.stderr().starts_with("going on with the run of "), "{}", ended.said());
                    let _ = fs::remove_file(place.path().join("twice"));
                    ended
                }
                Night::HungUp => {
                    let mut running = start();
                    until("some jobs have ended", || done() >= files / 3);
                    running.signal(Signal::SIGHUP);
                    let ended = running.end().expect(129);
                    assert!(
                        ended.stderr().ends_with("the same command goes on where this one was\n"),
                        "{}",
                        ended.said()
                    );
                    start().end_within(Duration::from_secs(600))
                }
                Night::FullDisk | Night::FewDescriptors => start().end_within(Duration::from_secs(600)),
            };
            assert_eq!(done(), files, "{night:?} {turn}: {}", ended.stderr());
            assert!(!place.path().join("twice").exists(), "{night:?} {turn}: a job ran twice: {}", ended.stderr());
            last_words(night, files, ended);
        }
    }
}

fn last_words(night: Night, files: usize, ended: Ended) {
    let said = ended.stderr();
    match night {
        Night::FullDisk => {
            let ended = ended.expect(1);
            assert!(ended.stderr().contains("bytes of its stdout are lost: standard output: No space left"), "{said}");
            let bytes: usize = (0..files).map(|number| number.to_string().len() + 1).sum();
            assert!(said.contains(&format!("{bytes} bytes of {files} outputs")), "{said}");
        }
        Night::Killed | Night::HungUp | Night::FewDescriptors => {
            let failures =
                said.contains("failed") && !said.lines().any(|line| line.contains("failed") && line.contains(" 0"));
            // A job that was killed behind its marker finds it there.
            assert!(night == Night::Killed || (!failures && ended.code() == Some(0)), "{night:?}: {}", ended.said());
            let out = ended.stdout();
            assert!(out.lines().all(|line| line.parse::<usize>().is_ok_and(|number| number < files)), "{out}");
            if night == Night::FewDescriptors {
                assert_eq!(out.lines().count(), files);
            }
        }
    }
}

#[test]
fn every_jobs_marker_is_there_once_a_night_whatever_happens() {
    nights(60);
}

#[test]
#[ignore = "two thousand files: some minutes"]
fn the_markers_of_two_thousand_files_are_there_once_a_night_whatever_happens() {
    nights(2000);
}
