use super::*;

fn occupy(directory: &Path, identity: &str) -> Result<Place, Failure> {
    Place::occupy(directory, identity, None)
}

#[test]
fn a_directory_is_found_again_by_its_own_run_and_by_no_other() {
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("a/b");
    let first = occupy(&directory, "file /x").expect("free").directory().to_owned();
    assert_eq!(occupy(&directory, "file /x").expect("its own").directory(), first);
    assert!(matches!(occupy(&directory, "file /y"), Err(Failure::Usage(said)) if said.contains("file /x")));
}

#[test]
fn a_directory_with_other_data_is_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("leasehold.format"), "1").expect("written");
    assert!(matches!(occupy(directory.path(), "file /x"), Err(Failure::Usage(_))));
    assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 1);
}

#[test]
fn one_process_works_in_a_directory_and_only_so_many_runs_are_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut place = occupy(directory.path(), "x").expect("free");
    assert!(matches!(occupy(directory.path(), "x"), Err(Failure::Failed(said)) if said.contains("in use by")));
    for number in 1..=4 {
        assert_eq!(place.last().number, number);
        fs::create_dir(place.folder()).expect("made");
        place.note_end().expect("noted");
        place.begin(Some(&OwnJob { id: "job".to_owned(), fence: number }), 2).expect("begun");
    }
    drop(place);
    let place = occupy(directory.path(), "x").expect("free again");
    assert_eq!((place.last().number, place.last().ended_at, place.runs.len()), (5, None, 2));
    assert!(place.runs[0].ended_at.is_some() && place.last().job.as_deref() == Some("job"));
    let mut folders: Vec<_> = fs::read_dir(directory.path()).expect("there").flatten().collect();
    folders.retain(|entry| entry.path().is_dir());
    assert_eq!(folders.iter().map(|entry| entry.file_name()).collect::<Vec<_>>(), ["4"]);
}

#[test]
fn the_run_of_a_former_version_is_the_first_also_when_its_move_was_interrupted() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    fs::write(path("run.json"), "{\"source\":\"x\"}").expect("written");
    fs::create_dir_all(path("store/a")).expect("made");
    fs::write(path("leasehold.format"), "8").expect("written");
    fs::create_dir_all(path("1/log")).expect("made");
    let place = occupy(directory.path(), "x").expect("its own");
    assert_eq!((place.last().number, place.last().ended_at, place.is_new()), (1, None, false));
    for there in ["1/log", "1/store/a", "1/leasehold.format"] {
        assert!(path(there).exists(), "{there}");
    }
    assert!(!path("store").exists() && !path("leasehold.lock").exists());
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("there").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// What a user keeps in the directory, of whatever name.
#[test]
fn nothing_in_the_directory_is_moved_or_removed_but_what_a_run_has_written() {
    let directory = tempfile::tempdir().expect("a directory");
    drop(occupy(directory.path(), "x").expect("free"));
    let own = ["007", "log.txt", "logs", "output", "store-2", "audit", "20261129", "3", "leasehold.notes"];
    for name in own {
        fs::create_dir(directory.path().join(name)).expect("made");
        fs::write(directory.path().join(name).join("mine"), "x").expect("written");
    }
    for _ in 0..6 {
        let mut place = occupy(directory.path(), "x").expect("its own");
        fs::create_dir_all(place.folder().join("store")).expect("made");
        place.note_end().expect("noted");
        place.begin(None, 1).expect("begun");
        assert_ne!(place.last().number, 3, "that is the user's");
    }
    for name in own {
        assert!(directory.path().join(name).join("mine").exists(), "{name}");
    }
    // Nothing is left of the runs, and what somebody has put into one stays with it.
    assert!(!directory.path().join("7").exists(), "{:?}", names(directory.path()));
    let mut place = occupy(directory.path(), "x").expect("its own");
    let folder = place.folder();
    fs::create_dir_all(folder.join("mine")).expect("made");
    place.begin(None, 1).expect("begun");
    assert!(folder.join("mine").exists());
}

#[test]
fn a_removal_that_was_interrupted_goes_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut place = occupy(directory.path(), "x").expect("free");
    let first = place.folder();
    place.begin(None, 1).expect("begun");
    place.removing.push(1);
    place.write().expect("written");
    drop(place);
    // As where the process was killed within it.
    fs::create_dir_all(first.join("output")).expect("made");
    let place = occupy(directory.path(), "x").expect("its own");
    assert!(!first.exists() && place.removing.is_empty());
}

#[test]
fn a_former_run_is_not_put_among_what_somebody_else_has_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    fs::write(path("run.json"), "{\"source\":\"x\"}").expect("written");
    fs::create_dir_all(path("store/a")).expect("made");
    fs::create_dir_all(path("1/argument")).expect("made");
    assert!(matches!(occupy(directory.path(), "x"), Err(Failure::Failed(said)) if said.contains("argument")));
    assert!(path("store/a").exists() && path("1/argument").exists());
    fs::rename(path("1"), path("results")).expect("moved");
    drop(occupy(directory.path(), "x").expect("its own"));
    assert!(path("1/store/a").exists() && path("results/argument").exists());
}

#[test]
fn results_are_not_taken_among_the_runs() {
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name);
    fs::create_dir(path("d")).expect("made");
    std::os::unix::fs::symlink(path("d"), path("link")).expect("linked");
    for (results, data) in [("d", "d"), ("d/r", "d"), ("link/r", "d"), ("x/../d/20261129", "d"), ("r", "r/1")] {
        let said = check_results(&path(results), &path(data));
        assert!(matches!(said, Err(Failure::Usage(said)) if said.contains("removed")), "{results} {data}");
    }
    for (results, data) in [("r", "d"), ("dd", "d"), (".", "d"), ("r", "r/run-1")] {
        check_results(&path(results), &path(data)).expect("apart");
    }
}

#[tokio::test]
async fn what_a_store_writes_is_known() {
    let directory = tempfile::tempdir().expect("a directory");
    let opened = crate::cli::run::start::open(directory.path()).await.expect("a store");
    opened.manager.shutdown().await;
    assert!(names(directory.path()).len() > 2);
    assert_eq!(foreign(directory.path()).expect("read"), None);
}
