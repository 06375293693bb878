//! The settings of a process that is a member of a group, whose embedded stores are one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::cluster::{self, ClusterArgs};
use super::engine::StoreKind;
use super::failure::Failure;
use super::peer_secret::{HOW_TO, SharedSecret};
use super::settings::{Settings, not_chosen};
use crate::peers::{ClusterMap, MAX_CLUSTER_BYTES, Reached};
use crate::store::embedded::GroupOptions;

/// The time between two looks at whether the leader is silent; a member stands for election after ten to twenty.
const TICK: Duration = Duration::from_millis(100);

/// How long all members must have known a version from which they cannot go back before they agree on it.
pub(super) const SETTLED: Duration = Duration::from_secs(60 * 60);

/// How many bytes of the log a member keeps for others that lag behind.
const KEPT_LOG_BYTES: u64 = 256 << 20;

/// How many MiB a second of another member's state are received unless a setting says otherwise.
const SNAPSHOT_MIB: u32 = 64;

/// The members of the group, and the secret that they share.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) map: ClusterMap,
    pub(super) secret: SharedSecret,
    /// Whether a new data directory joins a cluster that there is.
    joins: bool,
    /// The most bytes a second that are received of another member's state.
    snapshot_rate: u64,
}

impl Members {
    /// Merges and checks the settings of the command line and of the file; `None` when there are none.
    pub(super) fn of(
        args: &ClusterArgs,
        settings: &Settings,
        chosen: Option<StoreKind>,
    ) -> Result<Option<Self>, Failure> {
        let name = args.cluster_name.as_ref().or(settings.cluster_name.as_ref());
        let member = args.member.as_ref().or(settings.member.as_ref());
        let peers = if args.peers.is_empty() { &settings.peers } else { &args.peers };
        let given = [("cluster_name", name.is_some()), ("member", member.is_some()), ("peers", !peers.is_empty())];
        let Some((first, _)) = given.iter().find(|(_, is_given)| *is_given) else { return Ok(None) };
        if chosen == Some(StoreKind::Elasticsearch) {
            return Err(Failure::Usage(not_chosen(first, StoreKind::Embedded, chosen)));
        }
        if args.advertise.is_some() || settings.advertise.is_some() {
            return wrong(
                "`advertise` (--advertise, LEASEHOLD_ADVERTISE) is for the managers of one Elasticsearch: take it \
                 away; the members of a cluster reach each other at their addresses in `--peers`",
            );
        }
        let (Some(name), Some(member), false) = (name, member, peers.is_empty()) else {
            let missing: Vec<String> =
                given.iter().filter(|(_, is_given)| !is_given).map(|(name, _)| setting(name)).collect();
            return wrong(format!("{} needs {} as well: {EXAMPLE}", setting(first), missing.join(" and ")));
        };
        check_name(name)?;
        let addresses = addresses(peers)?;
        let member = member
            .of(&addresses)
            .map_err(|why| Failure::Usage(format!("{}: {why} in {}", setting("member"), setting("peers"))))?;
        let map = ClusterMap { cluster: name.as_str().into(), member, addresses, reached: Reached::default() };
        if !map.addresses.contains_key(&member) {
            let numbers: Vec<String> = map.addresses.keys().map(u64::to_string).collect();
            let known = numbers.join(", ");
            return wrong(format!(
                "{} {member} is none of the members {known} that {} names: all members are given the same list, this \
                 one among them",
                setting("member"),
                setting("peers")
            ));
        }
        let Some(secret) = SharedSecret::of([args.secret(), settings.cluster_secret()])? else {
            return wrong(format!("{} needs the secret that all members share: {HOW_TO}", setting(first)));
        };
        let joins = args.join || settings.join == Some(true);
        let snapshot_rate = u64::from(args.snapshot_rate.or(settings.snapshot_rate).unwrap_or(SNAPSHOT_MIB)) << 20;
        Ok(Some(Self { map, secret, joins, snapshot_rate }))
    }

    /// Returns the group, as the store is opened with it.
    pub(super) fn group(&self) -> GroupOptions {
        GroupOptions {
            cluster: self.map.cluster.to_string(),
            member: self.map.member,
            members: self.map.addresses.keys().copied().collect(),
            tick: TICK,
            settles_in: SETTLED,
            note_ticks: None,
            joins: self.joins,
            goes_on_alone: false,
            keeps_log_bytes: KEPT_LOG_BYTES,
            receive_bytes_per_second: Some(self.snapshot_rate),
        }
    }
}

/// What a member is started with.
const EXAMPLE: &str = "`--cluster-name jobs --member 1 --peers 1=http://a:7400,2=http://b:7400,3=http://c:7400`";

fn wrong<T>(what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Usage(what.into()))
}

/// Names a setting in each of its forms.
fn setting(name: &str) -> String {
    format!("`{name}` (--{}, LEASEHOLD_{})", name.replace('_', "-"), name.to_uppercase())
}

fn check_name(name: &str) -> Result<(), Failure> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=MAX_CLUSTER_BYTES).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    let name = setting("cluster_name");
    wrong(format!("{name} has 1 to {MAX_CLUSTER_BYTES} letters, digits, `-`, `_` and `.`, such as `jobs`"))
}

/// Reads the members, each as `NUMBER=URL`.
fn addresses(peers: &[String]) -> Result<BTreeMap<u64, Arc<str>>, Failure> {
    let peers_setting = setting("peers");
    let mut addresses = BTreeMap::new();
    for peer in peers {
        let form = || {
            let text =
                format!("{peers_setting}: `{peer}` is not a number from 1 on and a URL, such as 1=http://a:7400");
            Failure::Usage(text)
        };
        let (number, url) = peer.split_once('=').ok_or_else(form)?;
        let number = number.trim().parse().ok().filter(|number| *number > 0).ok_or_else(form)?;
        let url = cluster::address("peers", url.trim())?;
        let url: Arc<str> = url.as_str().trim_end_matches('/').into();
        if addresses.insert(number, url).is_some() {
            return wrong(format!("{peers_setting} names member {number} twice"));
        }
    }
    let distinct: BTreeSet<&Arc<str>> = addresses.values().collect();
    if distinct.len() < addresses.len() {
        return wrong(format!("{peers_setting} has one address for two members; each listens on one of its own"));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::super::member_name::MemberName;
    use super::*;

    const SECRET: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    const PEERS: &str = "1=http://a:7400,2=http://b:7400/,3=https://c/jobs";

    fn args(name: &str, member: Option<u64>, peers: &str, secret: Option<&str>) -> ClusterArgs {
        ClusterArgs {
            advertise: None,
            cluster_secret: secret.map(str::to_owned),
            cluster_secret_file: None,
            cluster_name: Some(name).filter(|name| !name.is_empty()).map(str::to_owned),
            join: false,
            snapshot_rate: None,
            member: member.map(MemberName::Number),
            peers: peers.split(',').filter(|peer| !peer.is_empty()).map(str::to_owned).collect(),
        }
    }

    fn refused(args: &ClusterArgs, chosen: Option<StoreKind>) -> String {
        match Members::of(args, &Settings::default(), chosen) {
            Err(Failure::Usage(said)) => said,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_member_knows_its_cluster_its_number_and_every_address() {
        let given = args("jobs", Some(2), PEERS, Some(SECRET));
        for chosen in [None, Some(StoreKind::Embedded)] {
            let members = Members::of(&given, &Settings::default(), chosen).expect("good").expect("given");
            assert_eq!(&*members.map.addresses[&2], "http://b:7400");
            assert_eq!(&*members.map.addresses[&3], "https://c/jobs");
            let group = members.group();
            assert_eq!((group.cluster.as_str(), group.member, group.members), ("jobs", 2, vec![1, 2, 3]));
        }
        assert!(Members::of(&args("", None, "", None), &Settings::default(), None).is_ok_and(|none| none.is_none()));
    }

    #[test]
    fn what_is_missing_is_named() {
        for (args, missing) in [
            (args("jobs", None, "", Some(SECRET)), ["--member", "--peers"]),
            (args("", Some(1), "", Some(SECRET)), ["--cluster-name", "--peers"]),
            (args("", None, PEERS, Some(SECRET)), ["--cluster-name", "--member"]),
            (args("jobs", Some(1), PEERS, None), ["LEASEHOLD_CLUSTER_SECRET", "openssl"]),
        ] {
            let said = refused(&args, None);
            assert!(missing.iter().all(|word| said.contains(word)), "{said}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (name, member, peers, word) in [
            ("a name", 1, PEERS, "--cluster-name"),
            ("jobs", 4, PEERS, "1, 2, 3"),
            ("jobs", 1, "1=http://a:1,1=http://b:1,3=http://c:1", "member 1 twice"),
            ("jobs", 1, "1=http://a:1,2=http://a:1/,3=http://c:1", "one address for two"),
            ("jobs", 1, "0=http://a:1", "number from 1 on"),
            ("jobs", 1, "http://a:1", "number from 1 on"),
            ("jobs", 1, "1=a:1", "--peers"),
            ("jobs", 1, "1=http://0.0.0.0:1", "leads nowhere"),
        ] {
            let said = refused(&args(name, Some(member), peers, Some(SECRET)), None);
            assert!(said.contains(word), "{peers}: {said}");
        }
        let said = refused(&args("jobs", Some(1), PEERS, Some("a word")), None);
        assert!(said.contains("base64") && !said.contains("a word"), "{said}");
    }

    #[test]
    fn members_have_the_embedded_store_and_no_advertised_address() {
        let given = args("jobs", Some(1), PEERS, Some(SECRET));
        let said = refused(&given, Some(StoreKind::Elasticsearch));
        assert!(said.contains("--cluster-name") && said.contains("add `--store embedded`"), "{said}");
        let said = refused(&ClusterArgs { advertise: Some("http://a:1".to_owned()), ..given }, None);
        assert!(said.contains("take it away") && said.contains("--peers"), "{said}");
    }
}
