//! What jobs write: where it is kept, and how it is shown.

use std::fs;
use std::path::Path;

use crate::program::{Started, leasehold, run};

fn files_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn output_is_shown_whole_of_all_jobs_of_failed_ones_or_of_none() {
    let place = tempfile::tempdir().expect("a directory");
    let job = "echo out-{}; echo err-{} >&2; sleep 0.05; echo end-{}; exit {}";
    let told = |output: &str| {
        let words = ["run", "-k", "--output", output, "--data-dir", output, "--shell", "--", job, ":::", "0", "3"];
        let ended = run(place.path(), words).expect(1);
        (ended.stdout(), ended.stderr())
    };
    let (out, errors) = told("all");
    assert_eq!(out, "out-0\nend-0\nout-3\nend-3\n");
    assert!(errors.contains("err-0\n") && errors.contains("err-3\n"), "{errors}");
    let (out, errors) = told("failed");
    assert_eq!(out, "out-3\nend-3\n");
    assert!(!errors.contains("err-0\n") && errors.contains("err-3\n"), "{errors}");
    assert_eq!(told("none").0, "");
}

#[test]
fn a_failure_names_its_output_and_what_to_type_next() {
    let place = tempfile::tempdir().expect("a directory");
    let words = ["run", "--output", "none", "--shell", "--", "echo out; echo no paper >&2; exit {}", ":::", "3"];
    let said = run(place.path(), words).expect(1).stderr();
    let look = said.lines().find_map(|line| line.trim().strip_prefix("output: less ")).expect("a command");
    let shown = std::process::Command::new("sh")
        .current_dir(place.path())
        .args(["-c", &format!("cat {look}")])
        .output()
        .expect("run");
    assert_eq!(String::from_utf8_lossy(&shown.stdout), "out\nno paper\n");
    let again = said.lines().find_map(|line| line.trim().strip_prefix("again:")).expect("a command");
    assert!(again.contains("run --retry-failed --output none --shell -- 'echo out"), "{again}");
    let again = std::process::Command::new("sh").current_dir(place.path()).args(["-c", again]).output().expect("run");
    assert!(String::from_utf8_lossy(&again.stderr).contains("exit status 3"), "{again:?}");
}

#[test]
fn output_comes_in_the_order_of_the_list_when_it_is_to() {
    let place = tempfile::tempdir().expect("a directory");
    // The first job ends last.
    let job = "test {} = 1 && until test -f ended-3; do sleep 0.02; done; echo {}; touch ended-{}";
    let words = ["run", "-j3", "--keep-order", "--shell", "--", job, ":::", "1", "2", "3"];
    assert_eq!(run(place.path(), words).expect(0).stdout(), "1\n2\n3\n");
}

#[test]
fn a_tag_begins_every_line() {
    let place = tempfile::tempdir().expect("a directory");
    let words = ["run", "-k", "--tag", "--shell", "--", "printf '1\\n2 # %s' {1}", ":::", "a b", ":::", "c"];
    assert_eq!(run(place.path(), words).expect(0).stdout(), "a b c\t1\na b c\t2 # a b\n");
}

#[test]
fn results_are_written_to_a_folder_for_each_argument() {
    let place = tempfile::tempdir().expect("a directory");
    let job = "echo {1}; echo {2} >&2";
    run(place.path(), ["run", "--results", "res", "--shell", "--", job, ":::", "a/b", "..", ":::", "c"]).expect(0);
    let read = |file: &str| fs::read_to_string(place.path().join("res").join(file)).expect(file);
    assert_eq!(read("1/a+zb/2/c/stdout") + &read("1/a+zb/2/c/stderr") + &read("1/a+zb/2/c/seq"), "a/b\nc\n1");
    assert_eq!(files_below(&place.path().join("res")).len(), 6);
}

#[test]
fn each_attempt_keeps_its_own_output() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(
        place.path().join("jobs"),
        r#"{"command": "echo $LEASEHOLD_ATTEMPT; test $LEASEHOLD_ATTEMPT = 2", "retry": {"base_ms": 1}}"#,
    )
    .expect("written");
    let said = run(place.path(), ["run", "jobs", "--retries", "2", "--data-dir", "data"]).expect(0).stdout();
    assert_eq!(said, "2\n");
    let kept = files_below(&place.path().join("data/1/output"));
    let mut kept: Vec<_> = kept.iter().map(|file| fs::read_to_string(file).expect("text")).collect();
    kept.sort();
    assert_eq!(kept, ["1\n", "2\n"]);
}

/// 256 MiB, since a debug build takes its time for a whole GiB.
#[test]
fn a_job_that_nobody_is_shown_and_that_writes_without_end_costs_bounded_memory_and_disk() {
    const WRITTEN: u64 = 256 << 20;
    let place = tempfile::tempdir().expect("a directory");
    let job = format!("echo first; head -c {WRITTEN} /dev/zero | tr '\\0' x; echo; echo last");
    fs::write(place.path().join("jobs"), &job).expect("written");
    let mut command = leasehold(place.path(), ["run", "jobs", "--output", "none", "--data-dir", "data"]);
    let mut running = Started::of(&mut command);
    let status = format!("/proc/{}/status", running.child().id());
    let (mut peak, done) = (0, std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let watched = done.clone();
    let watcher = std::thread::spawn(move || {
        while !watched.load(std::sync::atomic::Ordering::Relaxed) {
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
            peak = line.trim().trim_end_matches(" kB").parse().unwrap_or(peak);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        peak
    });
    let ended = running.end();
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    let peak_kib: u64 = watcher.join().expect("it ends");
    assert_eq!(ended.expect(0).stdout(), "");
    let kept: u64 =
        files_below(&place.path().join("data/1/output")).iter().map(|file| file.metadata().expect("there").len()).sum();
    let file = files_below(&place.path().join("data/1/output")).pop().expect("a file");
    let text = fs::read_to_string(file).expect("text");
    assert!(text.starts_with("first\nxxx") && text.ends_with("xxx\nlast\n") && text.contains(" bytes left out]"));
    assert!(kept < (1 << 20) + 100, "{kept} bytes kept");
    assert!(peak_kib > 0 && peak_kib < 128 << 10, "{peak_kib} KiB of memory");
}
