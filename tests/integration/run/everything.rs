//! Whole nights under what can go wrong: the process is killed or hung up, the disk is full, descriptors are few. Each
//! job's marker is there exactly once a night, but for what a kill interrupts, and exit status and last words are
//! true.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::program::{Ended, Started, leasehold, leasehold_in_a_terminal, until};
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

/// How many jobs run at once.
const SLOTS: usize = 4;
const KILLS: usize = 3;

/// A job adds a line to its marker. The last ones wait, so that what is to come in between does not come after the end.
fn job(files: usize) -> String {
    let first = files * 4 / 5;
    format!("echo x >> marks/{{}}; test {{}} -lt {first} || until test -f go; do sleep 0.02; done; echo {{}}")
}

fn command(place: &Path, night: Night, files: usize) -> Command {
    let (slots, job) = (format!("-j{SLOTS}"), job(files));
    let words = ["run", &slots, "list", "--shell", "--output", "all", "--", &job];
    match night {
        Night::FewDescriptors => {
            let program = leasehold(place, [""; 0]).get_program().to_owned();
            let mut limited = Command::new("sh");
            limited.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]).arg(program).args(words).current_dir(place);
            limited.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
            limited.stderr(std::process::Stdio::piped());
            limited
        }
        Night::FullDisk => {
            let mut command = leasehold(place, words);
            command.stdout(fs::File::options().write(true).open("/dev/full").expect("it is there"));
            command
        }
        Night::Killed | Night::HungUp => leasehold_in_a_terminal(place, words),
    }
}

fn nights(files: usize) {
    for night in [Night::Killed, Night::HungUp, Night::FullDisk, Night::FewDescriptors] {
        let place = tempfile::tempdir().expect("a directory");
        let list: String = (0..files).map(|number| format!("{number}\n")).collect();
        fs::write(place.path().join("list"), list).expect("written");
        let path = |name: &str| place.path().join(name);
        let done = || fs::read_dir(path("marks")).map_or(0, Iterator::count);
        for turn in 1..=2 {
            let _ = fs::remove_dir_all(path("marks"));
            let _ = fs::remove_file(path("go"));
            fs::create_dir(path("marks")).expect("made");
            let go = || fs::write(path("go"), "").expect("written");
            let start = || Started::of(&mut command(place.path(), night, files));
            let ended = match night {
                Night::Killed => {
                    for part in 1..=KILLS {
                        let mut running = start();
                        until("some more jobs have begun", || done() >= files * part / 5);
                        running.kill();
                    }
                    go();
                    let ended = start().end_within(Duration::from_secs(600));
                    assert!(ended.stderr().starts_with("going on with the run of "), "{}", ended.said());
                    ended
                }
                Night::HungUp => {
                    let said = || fs::read_to_string(path("said")).unwrap_or_default();
                    let mut command = command(place.path(), night, files);
                    let mut running = Started::of(command.stderr(fs::File::create(path("said")).expect("made")));
                    until("some jobs have begun", || done() >= files / 3);
                    running.signal(Signal::SIGHUP);
                    until("it has noticed", || said().contains("waiting for the running jobs"));
                    go();
                    running.end().expect(129);
                    let goes_on = "the same command goes on where this one was\n";
                    assert!(said().ends_with(goes_on), "{}", said());
                    start().end_within(Duration::from_secs(600))
                }
                Night::FullDisk | Night::FewDescriptors => {
                    go();
                    start().end_within(Duration::from_secs(600))
                }
            };
            // Between the end of a command and its record there are as many jobs as slots: only those, and what a kill
            // interrupts, may come again.
            let most = if night == Night::Killed { KILLS * SLOTS } else { 0 };
            let lines = |number: usize| fs::read_to_string(path("marks").join(number.to_string())).unwrap_or_default();
            let began: Vec<usize> = (0..files).map(|number| lines(number).lines().count()).collect();
            assert!(began.iter().all(|times| *times > 0), "{night:?} {turn}: {began:?} {}", ended.stderr());
            let again = began.iter().sum::<usize>() - files;
            assert!(again <= most, "{night:?} {turn}: {again} jobs ran twice: {began:?} {}", ended.stderr());
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
            assert_eq!(ended.code(), Some(0), "{night:?}: {}", ended.said());
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
#[ignore = "every night: two thousand files take some minutes"]
fn the_markers_of_two_thousand_files_are_there_once_a_night_whatever_happens() {
    nights(2000);
}
