//! The tokens of docker-compose.yml, made as its first start makes them.

use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold::peers::PeerSecret;
use leasehold::store::elasticsearch::EncryptionKeys;
use serde_norway::Value;

use super::{COMPOSE, DOCKERFILE, service, strings};
use crate::program::PROGRAM;

/// Where the folders of tokens are in each container.
const FOLDER: &str = "/etc/leasehold";
const SCRIPT: &str = "deploy/compose/tokens.sh";

/// The folders of tokens in a place of this machine.
pub(super) struct Tokens {
    root: PathBuf,
}

impl Tokens {
    /// Makes them with the script of the service.
    pub(super) fn make(place: &Path) -> Self {
        let root = place.join("etc");
        for folder in ["server", "worker", "metrics"] {
            std::fs::create_dir_all(root.join(folder)).expect("a folder");
        }
        let tokens = Self { root };
        tokens.run_script();
        tokens
    }

    fn run_script(&self) {
        let bin = Path::new(PROGRAM).parent().expect("a folder");
        let path = std::env::var("PATH").expect("a path");
        let mut script = Command::new("/bin/sh");
        script.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(SCRIPT)).arg(&self.root);
        let made = script.env("PATH", format!("{}:{path}", bin.display())).output().expect("it runs");
        assert!(made.status.success() && made.stderr.is_empty(), "{}", String::from_utf8_lossy(&made.stderr));
        assert!(made.stdout.is_empty(), "no token is in the log: {}", String::from_utf8_lossy(&made.stdout));
    }

    /// The path here of one in a container.
    pub(super) fn here(&self, path: &str) -> PathBuf {
        let below = path.strip_prefix(FOLDER).unwrap_or_else(|| panic!("{path} is not in {FOLDER}"));
        self.root.join(below.trim_start_matches('/'))
    }

    /// The settings file here of a service.
    pub(super) fn settings_of(&self, service: &Value) -> PathBuf {
        self.here(service["environment"]["LEASEHOLD_CONFIG"].as_str().expect("a settings file"))
    }

    /// What a file in the containers holds.
    pub(super) fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.here(path)).expect("a file")
    }
}

#[test]
fn nothing_of_compose_is_open_and_each_container_has_the_tokens_that_it_needs_and_no_others() {
    assert!(!COMPOSE.contains("insecure"));
    let mounts = |name: &str| strings(&service(name)["volumes"]);
    let servers = ["leasehold", "leasehold-2", "monitor", "member-1", "member-2", "member-3"];
    let workers = ["worker", "member-worker"];
    for (names, folder) in [(&servers[..], "server"), (&workers[..], "worker"), (&["prometheus"][..], "metrics")] {
        for name in names {
            let of_tokens: Vec<String> = mounts(name).into_iter().filter(|mount| mount.contains(FOLDER)).collect();
            let suffix = format!(":{FOLDER}/{folder}:ro");
            assert!(of_tokens.len() == 1 && of_tokens[0].ends_with(&suffix), "{name}: {of_tokens:?}");
        }
    }
    for name in [&servers[..], &["prometheus"]].concat() {
        let waits = service(name)["depends_on"]["tokens"]["condition"].clone();
        assert_eq!(waits.as_str(), Some("service_completed_successfully"), "{name}");
    }
    let maker = service("tokens");
    assert_eq!(strings(&maker["entrypoint"]), ["/bin/sh", "/opt/leasehold/tokens.sh"]);
    assert_eq!(strings(&maker["volumes"])[0], "./deploy/compose:/opt/leasehold:ro");
    let declared: Value = serde_norway::from_str::<Value>(COMPOSE).expect("YAML")["volumes"].clone();
    for mount in &strings(&maker["volumes"])[1..] {
        let (volume, folder) = mount.split_once(':').expect("a volume and a folder");
        assert!(declared.get(volume).is_some(), "{volume}");
        // A new volume is the user's whom the image runs as only where the image has the folder.
        assert!(DOCKERFILE.contains(&folder[1..].replacen("etc/", "", 1)), "{folder}");
    }
}

#[test]
fn tokens_are_made_once_and_nobody_else_can_read_them() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = tempfile::tempdir().expect("a directory");
    let tokens = Tokens::make(place.path());
    let all = [
        "server/leasehold.toml",
        "server/cluster-secret",
        "server/secrets-key",
        "server/admin-token",
        "worker/leasehold.toml",
        "metrics/token",
    ];
    let read = || all.map(|file| tokens.text(&format!("{FOLDER}/{file}")));
    let made = read();
    tokens.run_script();
    assert_eq!(read(), made);
    for (file, mode) in all.into_iter().zip([0o600, 0o600, 0o600, 0o600, 0o600, 0o644]) {
        let found = std::fs::metadata(tokens.here(&format!("{FOLDER}/{file}"))).expect("a file").permissions().mode();
        assert_eq!(found & 0o777, mode, "{file}");
    }
    let [settings, secret, key, admin, worker, metrics] = made;
    assert!(secret.parse::<PeerSecret>().is_ok_and(|secret| secret.count() == 1));
    assert!(EncryptionKeys::parse(&key).is_ok_and(|keys| keys.ids().count() == 1) && key != secret);
    for secret in [worker.as_str(), metrics.as_str()] {
        assert!(!secret.contains(admin.trim()), "the administrator's token is the servers' and nobody else's");
    }
    let settings: toml::Table = settings.parse().expect("TOML");
    let roles = |index: usize| settings["tokens"][index]["roles"].as_array().expect("a list").len();
    assert_eq!([roles(0), roles(1), roles(2)], [4, 1, 1]);
}
