//! `leasehold events`.

use std::fs::File;
use std::path::Path;

use nix::sys::signal::Signal;

use super::Bed;
use crate::program::{Server, Started, leasehold, lines, run, until};

#[test]
fn what_has_happened_is_shown_and_that_is_all() {
    let bed = Bed::start();
    bed.submit(&["--id", "one", "--queue", "a"], "true");
    bed.submit(&["--id", "two", "--queue", "b"], "true");
    bed.run(&["cancel", "two", "--reason", "wrong\nmonth"]).expect(0);
    let shown = bed.run(&["events"]).expect(0).stdout();
    let shown: Vec<&str> = shown.lines().collect();
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert!(shown[0].contains("submitted") && shown[0].contains("one in a (shell) by anonymous"), "{}", shown[0]);
    assert!(shown[2].contains("cancelled") && shown[2].ends_with("(wrong month)"), "{}", shown[2]);
    let filtered = bed.run(&["events", "--event", "cancelled,failed", "--queue", "b", "--json"]).json(0);
    assert_eq!((&filtered["job"]["id"], &filtered["number"]), (&"two".into(), &2.into()));
    assert_eq!(bed.run(&["events", "--job", "one"]).expect(0).stdout().lines().count(), 1);
    assert_eq!(bed.run(&["events", "--since", "0ms"]).expect(0).stdout(), "");
    assert!(bed.run(&["events", "--event", "done"]).expect(2).stderr().contains("is not an event"));
}

#[test]
fn following_goes_on_when_the_server_was_away_and_ends_when_interrupted() {
    let place = tempfile::tempdir().expect("a directory");
    let mut server = Server::in_place(place.path());
    let url = server.url();
    let output = place.path().join("output");
    let said = place.path().join("said");
    let create = |path: &Path| File::create(path).expect("a file");
    let mut command = leasehold(place.path(), ["events", "--follow", "--since", "1h", "--server", &url]);
    let mut following = Started::of(command.stdout(create(&output)).stderr(create(&said)));
    let submit = |id: &str| run(place.path(), ["submit", "--server", &url, "--id", id, "--", "true"]).expect(0);
    submit("before");
    until("the first is told", || lines(&output).len() == 1);
    server.kill();
    until("the break is told", || lines(&said).iter().any(|line| line.contains("connecting again")));
    server.restart();
    submit("after");
    until("the second is told", || lines(&output).len() > 1);
    following.signal(Signal::SIGINT);
    assert_eq!(following.end().code(), Some(130));
    let told = lines(&output);
    assert_eq!(told.len(), 2, "each is told once: {told:?}");
    assert!(told[0].contains("before") && told[1].contains("after"), "{told:?}");
    assert_eq!(server.terminate(), Some(0));
}
