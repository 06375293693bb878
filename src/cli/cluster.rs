//! The settings by which the managers of one store call each other. Those of a member of a group are read in
//! [`super::members`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use reqwest::Url;
use url::Host;

use super::engine::StoreKind;
use super::failure::Failure;
use super::member_name::MemberName;
use super::peer_secret::{HOW_TO, SharedSecret};
use super::settings::{Settings, not_chosen};
use crate::executor::TargetUrl;

/// Those settings on the command line.
#[derive(Debug, Default, Args)]
pub(super) struct ClusterArgs {
    /// The URL by which the other managers of the same index reach this one, such as http://10.0.0.5:7400; port 0
    /// stands for the one that it listens on. Managers then tell each other of new jobs, which start at once wherever
    /// a worker waits; without it they find each other's jobs by searches only. Needs --cluster-secret
    #[arg(long, value_name = "URL")]
    pub(super) advertise: Option<String>,
    /// The secret that these managers, or the members of a cluster, share: 24 to 64 random bytes in base64 (`openssl
    /// rand -base64 32`). Others on this machine can read a command line: better give it in the environment, in the
    /// settings file or in a file of its own. Two of them, divided by a comma, while the secret is changed: the first
    /// signs, and both are accepted
    #[arg(long, value_name = "SECRET", hide_env_values = true)]
    pub(super) cluster_secret: Option<String>,
    /// A file with this secret, or with two, each on a line of its own. It is read again while the server runs
    #[arg(long, value_name = "FILE")]
    pub(super) cluster_secret_file: Option<PathBuf>,
    /// The name of the cluster that this server is a member of: three or five servers with embedded stores that are
    /// one, and go on when one of three or two of five fail. Needs --member, --peers and --cluster-secret
    #[arg(long, value_name = "NAME")]
    pub(super) cluster_name: Option<String>,
    /// The number of this member, or the host name that its address in --peers has, such as jobs-0 for
    /// http://jobs-0.jobs-members:7400
    #[arg(long, value_name = "N|HOST")]
    pub(super) member: Option<MemberName>,
    /// All members, this one among them, and where each is reached, such as
    /// 1=http://a:7400,2=http://b:7400,3=http://c:7400
    #[arg(long, value_name = "N=URL", value_delimiter = ',')]
    pub(super) peers: Vec<String>,
    /// Join a cluster that there is, with an empty data directory, instead of founding one: the member waits until
    /// `leasehold cluster add` adds it
    #[arg(long)]
    pub(super) join: bool,
    /// The most MiB a second that this member receives of another one's state when it lags too far behind
    /// [default: 64]
    #[arg(long, value_name = "MIB")]
    pub(super) snapshot_rate: Option<u32>,
}

impl ClusterArgs {
    /// Returns the secret as a text and as the path of a file.
    pub(super) fn secret(&self) -> (Option<&str>, Option<&Path>) {
        (self.cluster_secret.as_deref(), self.cluster_secret_file.as_deref())
    }
}

/// Where the other managers reach this one, and the secret that they share.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) url: Url,
    pub(super) secret: SharedSecret,
}

impl Cluster {
    /// Merges and checks the settings of the command line and of the file; `None` when there are none.
    pub(super) fn of(
        args: &ClusterArgs,
        settings: &Settings,
        chosen: Option<StoreKind>,
    ) -> Result<Option<Self>, Failure> {
        let advertise = args.advertise.clone().or_else(|| settings.advertise.clone());
        let texts = args.cluster_secret.is_some() || settings.cluster_secret.is_some();
        let files = args.cluster_secret_file.is_some() || settings.cluster_secret_file.is_some();
        let given = [("advertise", advertise.is_some()), ("cluster_secret", texts), ("cluster_secret_file", files)];
        let first = given.iter().find(|(_, is_given)| *is_given);
        if let Some((name, _)) = first.filter(|_| chosen != Some(StoreKind::Elasticsearch)) {
            let not_chosen = not_chosen(name, StoreKind::Elasticsearch, chosen);
            return Err(Failure::Usage(format!(
                "{not_chosen}; a member of a cluster of embedded stores needs `--cluster-name`, `--member`, `--peers` \
                 and `--cluster-secret`"
            )));
        }
        let Some(advertise) = advertise else {
            return match first {
                None => Ok(None),
                Some((name, _)) => Err(Failure::Usage(format!(
                    "`{name}` (--{}, LEASEHOLD_{}) needs the address by which the other managers reach this one: add \
                     `--advertise URL` (`advertise` in the settings file)",
                    name.replace('_', "-"),
                    name.to_uppercase()
                ))),
            };
        };
        let Some(secret) = SharedSecret::of([args.secret(), settings.cluster_secret()])? else {
            return Err(Failure::Usage(format!(
                "`advertise` (--advertise, LEASEHOLD_ADVERTISE) needs the secret that all managers share: {HOW_TO}"
            )));
        };
        Ok(Some(Self { url: address("advertise", &advertise)?, secret }))
    }

    /// Returns the address of a manager that listens on this port.
    pub(super) fn address(&self, listens_on: u16) -> Arc<str> {
        let mut url = self.url.clone();
        if url.port() == Some(0) {
            url.set_port(Some(listens_on)).expect("an http URL has a port");
        }
        url.as_str().trim_end_matches('/').into()
    }
}

/// Reads the URL by which other processes reach one, from the setting of this name.
pub(super) fn address(name: &str, text: &str) -> Result<Url, Failure> {
    let wrong = |what: &str| {
        let variable = name.to_uppercase();
        Failure::Usage(format!(
            "`{name}` (--{name}, LEASEHOLD_{variable}): {text} {what}, such as http://10.0.0.5:7400"
        ))
    };
    TargetUrl::parse(text).map_err(|error| wrong(&error.to_string()))?;
    let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    let is_unspecified = match url.host() {
        Some(Host::Ipv4(address)) => address.is_unspecified(),
        Some(Host::Ipv6(address)) => address.is_unspecified(),
        _ => false,
    };
    if is_unspecified {
        return Err(wrong("leads nowhere from another machine: name the address of this one"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("must end with its path"));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

    fn cluster(
        advertise: Option<&str>,
        secret: Option<&str>,
        store: Option<StoreKind>,
    ) -> Result<Option<Cluster>, String> {
        let args = ClusterArgs {
            advertise: advertise.map(str::to_owned),
            cluster_secret: secret.map(str::to_owned),
            cluster_secret_file: None,
            ..ClusterArgs::default()
        };
        Cluster::of(&args, &Settings::default(), store).map_err(|failure| match failure {
            Failure::Usage(said) => said,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn address_and_secret_are_given_together_or_not_at_all() {
        let on = Some(StoreKind::Elasticsearch);
        assert!(cluster(None, None, on).is_ok_and(|cluster| cluster.is_none()));
        assert!(cluster(None, None, None).is_ok_and(|cluster| cluster.is_none()));
        assert!(cluster(Some("http://a:1"), None, on).is_err_and(|said| said.contains("LEASEHOLD_CLUSTER_SECRET")));
        assert!(cluster(None, Some(SECRET), on).is_err_and(|said| said.contains("--advertise URL")));
        let said = cluster(Some("http://a:1"), Some("a word"), on).expect_err("no secret");
        assert!(said.contains("base64") && !said.contains("a word"), "{said}");
    }

    #[test]
    fn a_store_of_one_manager_has_no_others_to_tell() {
        for store in [None, Some(StoreKind::Embedded)] {
            let said = cluster(Some("http://a:1"), Some(SECRET), store).expect_err("refused");
            assert!(said.contains("--advertise") && said.contains("add `--store elasticsearch`"), "{said}");
        }
    }

    #[test]
    fn an_address_is_one_that_others_can_call() {
        let on = Some(StoreKind::Elasticsearch);
        for wrong in
            ["a:1", "ftp://a", "http://0.0.0.0:7400", "http://[::]:1", "http://u:p@a", "http://a/?b", "http://a/#b"]
        {
            assert!(cluster(Some(wrong), Some(SECRET), on).is_err_and(|said| said.contains("--advertise")), "{wrong}");
        }
        let address =
            |text| cluster(Some(text), Some(SECRET), on).expect("good").expect("given").address(7).to_string();
        assert_eq!(address("http://a:1"), "http://a:1");
        assert_eq!(address("https://a/leasehold/"), "https://a/leasehold");
        assert_eq!(address("http://127.0.0.1:0"), "http://127.0.0.1:7");
    }
}
