//! The web page, in a real browser over a real server with real workers.

mod browser;
mod guarded;
mod journeys;
mod looks;

use std::path::Path;

use crate::program::{Ended, Server, Started, leasehold, until};

/// The size of most windows.
const DESK: (u32, u32) = (1280, 900);

/// A server with a night's jobs, and who runs them.
struct Night {
    place: tempfile::TempDir,
    server: Server,
}

impl Night {
    fn start() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let server = Server::in_place(place.path());
        Self { place, server }
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        Started::of(leasehold(self.path(), arguments).env("LEASEHOLD_SERVER", self.server.url())).end()
    }

    /// Submits a line for the shell and gives its id.
    fn submit(&self, flags: &[&str], line: &str) -> String {
        let arguments: Vec<&str> = ["submit"].iter().chain(flags).chain(&["--", "sh", "-c", line]).copied().collect();
        self.run(&arguments).expect(0).stdout().trim().to_owned()
    }

    fn worker(&self, flags: &[&str]) -> Started {
        let arguments = ["worker"].iter().chain(flags);
        Started::of(leasehold(self.path(), arguments).env("LEASEHOLD_SERVER", self.server.url()))
    }

    fn state(&self, id: &str) -> String {
        self.run(&["get", "--json", id]).json(0)["state"].as_str().expect("a state").to_owned()
    }

    fn until(&self, id: &str, state: &str) {
        until(&format!("{id} is {state}"), || self.state(id) == state);
    }
}
