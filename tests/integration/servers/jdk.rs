//! Which Java runs the servers: the first one found that is new enough.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::user::ServerUser;

/// The oldest Java that Elasticsearch 9 and OpenSearch 3 run on.
const OLDEST: u32 = 21;

/// A Java that is new enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Jdk {
    pub(super) home: PathBuf,
    pub(super) version: u32,
}

impl Jdk {
    /// Looks at `ES_JAVA_HOME`, `JAVA_HOME`, the `java` on the PATH, and then at that one's neighbours: distributions
    /// keep several in one folder, of which the default may be too old. Of the neighbours the oldest that is new
    /// enough is taken, since the newest may be newer than the servers know.
    pub(super) fn find() -> Result<Self, String> {
        let named = ["ES_JAVA_HOME", "JAVA_HOME"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
        let on_path = java_on_path();
        let mut seen: Vec<Self> = named.chain(on_path.clone()).filter_map(Self::at).collect();
        if let Some(found) = seen.iter().find(|jdk| jdk.serves()) {
            return Ok(found.clone());
        }
        let folders = [on_path.as_deref().and_then(Path::parent), Some(Path::new("/usr/lib/jvm"))];
        let mut neighbours: Vec<Self> = folders
            .into_iter()
            .flatten()
            .filter_map(|folder| std::fs::read_dir(folder).ok())
            .flat_map(|entries| entries.flatten())
            .filter_map(|entry| Self::at(entry.path()))
            .collect();
        neighbours.sort_by_key(|jdk| jdk.version);
        if let Some(found) = neighbours.iter().find(|jdk| jdk.serves()) {
            return Ok(found.clone());
        }
        seen.extend(neighbours);
        let seen: Vec<String> = seen.iter().map(|jdk| format!("{} ({})", jdk.home.display(), jdk.version)).collect();
        Err(format!("no JDK {OLDEST} or newer; found: [{}]", seen.join(", ")))
    }

    /// The `java` program.
    pub(super) fn java(&self) -> PathBuf {
        self.home.join("bin/java")
    }

    fn serves(&self) -> bool {
        self.version >= OLDEST && ServerUser::reaches(&self.home.join("bin"))
    }

    fn at(home: PathBuf) -> Option<Self> {
        let home = home.canonicalize().ok()?;
        let java = home.join("bin/java");
        if !java.is_file() {
            return None;
        }
        let version = match std::fs::read_to_string(home.join("release")) {
            Ok(release) => version_in_release(&release),
            Err(_) => None,
        };
        let version = version.or_else(|| version_told_by(&java))?;
        Some(Self { home, version })
    }
}

fn java_on_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let java = std::env::split_paths(&path).map(|folder| folder.join("java")).find(|java| java.is_file())?;
    // The one on the PATH is mostly a link to the one in its own home.
    Some(java.canonicalize().ok()?.parent()?.parent()?.to_owned())
}

/// The line `JAVA_VERSION="25.0.1"` of a JDK's `release` file.
fn version_in_release(release: &str) -> Option<u32> {
    let line = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
    major(line.trim_matches('"'))
}

/// The first quoted word of `java -version`.
fn version_told_by(java: &Path) -> Option<u32> {
    let output = Command::new(java).arg("-version").output().ok()?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    major(told.split('"').nth(1)?)
}

/// `25.0.1` is 25; `1.8.0_402`, as it was counted up to 8, is 1, which is too old just the same.
fn major(version: &str) -> Option<u32> {
    version.split(['.', '-', '+', '_']).next()?.parse().ok()
}

#[test]
fn a_java_version_is_read_from_a_release_file_and_from_what_java_says() {
    assert_eq!(version_in_release("IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"25.0.3\"\n"), Some(25));
    assert_eq!(version_in_release("JAVA_VERSION=\"1.8.0_402\"\n"), Some(1));
    assert_eq!(version_in_release("IMPLEMENTOR=\"x\"\n"), None);
    assert_eq!(major("26-ea"), Some(26));
}
