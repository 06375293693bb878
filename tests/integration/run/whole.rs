//! Output is passed on whole, at any length, to any reader.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;

use super::number;
use crate::program::{Started, leasehold, run, until};

const BYTES: usize = 3_000_000;

fn stdout_of(place: &Path, flags: &[&str], line: &str, values: &[&str]) -> Vec<u8> {
    let words = [&["run"], flags, &["--shell", "--", line, ":::"], values].concat();
    let mut running = Started::of(&mut leasehold(place, words));
    let mut out = running.child().stdout.take().expect("its output");
    let mut bytes = Vec::new();
    out.read_to_end(&mut bytes).expect("read");
    running.end().expect(0);
    bytes
}

#[test]
fn no_byte_is_left_out_however_much_a_job_writes() {
    let place = tempfile::tempdir().expect("a directory");
    let zeros = format!("head -c {BYTES} /dev/zero # ");
    for flags in [&[][..], &["-k"], &["--output-limit", "1KiB"]] {
        let out = stdout_of(place.path(), flags, &zeros, &["1", "2"]);
        assert!(out.len() == 2 * BYTES && out.iter().all(|byte| *byte == 0), "{flags:?}: {} bytes", out.len());
    }
    let seq = "seq 300000 # ";
    let whole: String = (1..=300_000).map(|number| format!("x\t{number}\n")).collect();
    assert!(stdout_of(place.path(), &["--tag"], seq, &["x"]) == whole.as_bytes(), "a tagged line is missing");
    stdout_of(place.path(), &["--results", "res", "--output", "none"], &zeros, &["x"]);
    assert_eq!(fs::metadata(place.path().join("res/1/x/stdout")).expect("there").len(), BYTES as u64);
    let words = ["run", "--shell", "--", &format!("head -c {BYTES} /dev/zero >&2; exit {{}}"), ":::", "0"];
    assert!(run(place.path(), words).expect(0).stderr().matches('\0').count() == BYTES);
}

#[test]
fn of_what_was_shown_whole_only_so_much_is_kept() {
    let place = tempfile::tempdir().expect("a directory");
    let flags = ["--data-dir", "data", "--output-limit", "1KiB"];
    stdout_of(place.path(), &flags, &format!("head -c {BYTES} /dev/zero # "), &["1"]);
    let kept: Vec<_> = fs::read_dir(place.path().join("data/1/output")).expect("there").flatten().collect();
    let [kept] = &kept[..] else { panic!("{kept:?}") };
    let kept = fs::read_to_string(kept.path()).expect("text");
    assert!(kept.len() < 1100 && kept.contains(&format!("[{} bytes left out]", BYTES - 1024)), "{} bytes", kept.len());
}

/// The address space is a part of what is written, so that no stream is held in memory: not a line, and not with `-k`
/// behind a job that goes on.
#[test]
fn three_hundred_megabytes_cost_no_memory() {
    const WRITTEN: usize = 300_000_000;
    let place = tempfile::tempdir().expect("a directory");
    for flags in [&["-k", "-j2", "--tag"][..], &["-j2"]] {
        let wait = "until test -f done; do sleep 0.05; done";
        let job = format!("case {{}} in 2) head -c {WRITTEN} /dev/zero; touch done;; 1) {wait};; esac");
        let words = [&["run"], flags, &["--shell", "--", &job, ":::", "1", "2"]].concat();
        let mut command = leasehold(place.path(), words);
        let mut running = Started::of(command.stderr(Stdio::null()));
        let status = format!("/proc/{}/status", running.child().id());
        let mut out = running.child().stdout.take().expect("its output");
        let (mut bytes, mut chunk, mut peak) = (0, vec![0; 1 << 20], 0_u64);
        loop {
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
            peak = line.trim().trim_end_matches(" kB").parse().unwrap_or(peak);
            match out.read(&mut chunk).expect("read") {
                0 => break,
                read => bytes += read,
            }
        }
        running.end().expect(0);
        let tagged = if flags.contains(&"--tag") { "2\t\n".len() } else { 0 };
        assert_eq!(bytes, WRITTEN + tagged, "{flags:?}");
        assert!(peak > 0 && peak < 160 << 10, "{flags:?}: {peak} KiB of memory");
        let _ = fs::remove_file(place.path().join("done"));
    }
}

#[test]
fn a_reader_that_stands_still_holds_up_jobs_and_neither_their_ends_nor_a_signal() {
    let place = tempfile::tempdir().expect("a directory");
    // Of 60 jobs with 3 MB each no more than a few can be read: 16 MiB wait at most, beside what runs.
    let values: Vec<String> = (1..=60).map(|number| number.to_string()).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let job = format!("head -c {BYTES} /dev/zero; touch ended-{{}}");
    let words = [&["run", "-j2", "--data-dir", "data", "--shell", "--", &job, ":::"], &values[..]].concat();
    let mut command = leasehold(place.path(), words);
    let mut running = Started::of(command.stderr(Stdio::null()));
    let mut out = running.child().stdout.take().expect("its output");
    let ended = || values.iter().filter(|value| place.path().join(format!("ended-{value}")).exists()).count();
    let mut last = 0;
    let mut still = 0;
    until("nothing more ends", || {
        let now = ended();
        still = if now == last && now > 0 { still + 1 } else { 0 };
        last = now;
        still > 200
    });
    assert!((1..20).contains(&last), "{last} jobs have ended, and nobody has read");
    running.signal(nix::sys::signal::Signal::SIGTERM);
    let mut bytes = Vec::new();
    out.read_to_end(&mut bytes).expect("read");
    running.end().expect(143);
    assert_eq!(bytes.len(), ended() * BYTES, "what has ended was not shown whole");
}

#[test]
fn with_a_reader_that_stands_still_the_second_signal_ends_it_and_what_waits_is_counted() {
    let place = tempfile::tempdir().expect("a directory");
    let said = || fs::read_to_string(place.path().join("said")).unwrap_or_default();
    for flags in [&[][..], &["-k"]] {
        let job = format!("head -c {BYTES} /dev/zero; touch ended-{{}}");
        let words = [&["run", "-j1"], flags, &["--shell", "--", &job, ":::", "1", "2"]].concat();
        let mut command = leasehold(place.path(), words);
        command.stderr(fs::File::create(place.path().join("said")).expect("made"));
        let mut running = Started::of(&mut command);
        let out = running.child().stdout.take().expect("its output");
        until("the jobs have ended", || place.path().join("ended-2").exists());
        // Signals that come at once are one.
        until("it has ended", || {
            running.signal(nix::sys::signal::Signal::SIGTERM);
            std::thread::sleep(std::time::Duration::from_millis(50));
            running.child().try_wait().expect("its state").is_some()
        });
        let code = running.end().code();
        drop(out);
        assert!(said().contains(&format!("{} bytes of 2 outputs", 2 * BYTES)), "{flags:?}: {code:?}: {}", said());
        // The last job may have ended without its record.
        assert!([Some(1), Some(143)].contains(&code), "{code:?}");
        fs::remove_file(place.path().join("ended-2")).expect("removed");
    }
}

#[test]
fn what_a_kill_has_left_of_jobs_that_ended_is_passed_on_by_the_start_that_goes_on() {
    let place = tempfile::tempdir().expect("a directory");
    // The first job's output is more than a pipe takes, so that nothing of the second is told.
    let job = format!(
        "case {{}} in 1) head -c {BYTES} /dev/zero;; 2) echo two;; *) touch began; until test -f go; do sleep 0.02; \
         done; echo three;; esac"
    );
    for flags in [&["--data-dir", "a", "--results", "ra"][..], &["-k", "--data-dir", "b", "--results", "rb"]] {
        let words = [&["run", "-j1"], flags, &["--shell", "--", &job, ":::", "1", "2", "3"]].concat();
        let mut command = leasehold(place.path(), &words);
        let mut running = Started::of(command.stderr(Stdio::null()));
        let out = running.child().stdout.take().expect("its output");
        until("the third job runs", || place.path().join("began").exists());
        running.kill();
        drop(out);
        fs::write(place.path().join("go"), "").expect("written");
        let ended = run(place.path(), &words).expect(0);
        let shown = ended.stdout();
        let text = shown.trim_start_matches('\0');
        assert_eq!((shown.len() - text.len(), text), (BYTES, "two\nthree\n"), "{flags:?}");
        let results = place.path().join(flags[flags.len() - 1]);
        for (job, text) in [("2", "two\n"), ("3", "three\n")] {
            let there = fs::read_to_string(results.join("1").join(job).join("stdout"));
            assert_eq!(there.expect("copied"), text, "{flags:?}");
        }
        let output = place.path().join(flags[flags.len() - 3]).join("1/output");
        let mut left = fs::read_dir(output).expect("there").flatten();
        assert!(left.all(|file| file.path().extension().is_none_or(|end| end != "whole")));
        for name in ["go", "began"] {
            fs::remove_file(place.path().join(name)).expect("removed");
        }
    }
}

#[test]
fn what_cannot_be_written_is_said_with_its_job_and_bytes() {
    let place = tempfile::tempdir().expect("a directory");
    let full = || fs::File::options().write(true).open("/dev/full").expect("it is there");
    for flags in [&[][..], &["--tag"], &["-k"]] {
        let words = [&["run"], flags, &["--", "echo", ":::", "12345"]].concat();
        let ended = Started::of(leasehold(place.path(), words).stdout(full())).end().expect(1);
        let said = ended.stderr();
        assert!(
            said.contains("#1 echo 12345: 6 bytes of its stdout are lost: standard output: No space left"),
            "{said}"
        );
        assert!(said.contains("6 bytes of 1 outputs"), "{said}");
    }
    // The file of the results takes nothing, nor that in the data directory, which is made with the first byte.
    let told = |flags: &[&str], command: &str| {
        fs::write(place.path().join("jobs"), serde_json::json!({"id": "a", "command": command}).to_string())
            .expect("written");
        run(place.path(), [&["run", "jobs", "--json", "--data-dir", "data"], flags].concat()).last_json(1)
    };
    let write = format!("head -c {BYTES} /dev/zero");
    let results = place.path().join("res/1/a");
    fs::create_dir_all(&results).expect("made");
    std::os::unix::fs::symlink("/dev/full", results.join("stdout")).expect("linked");
    let to_results = told(&["--results", "res"], &write);
    let to_data = told(&[], &format!("ln -s /dev/full data/2/output/a.2.1.stdout; {write}"));
    for told in [to_results, to_data] {
        assert_eq!((number(&told, "completed"), number(&told, "failed")), (1, 0), "{told}");
        let lost = &told["lost"][0];
        assert_eq!((number(&told, "lost_bytes"), &lost["stream"]), (BYTES as u64, &"stdout".into()), "{told}");
        assert!(lost["error"].as_str().is_some_and(|error| error.contains("No space left")), "{told}");
    }
}
