//! How a member of a cluster is told which one it is.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use reqwest::Url;
use serde::Deserialize;

/// Which of the members of a cluster a process is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Told")]
pub(super) enum MemberName {
    /// The one of this number.
    Number(u64),
    /// The one whose host has this name, or one that begins with it: processes that an orchestrator starts are given
    /// names and no numbers.
    Host(String),
}

/// A number or a text in the settings file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected the number of a member or the name of its host")]
enum Told {
    Number(u64),
    Text(String),
}

impl TryFrom<Told> for MemberName {
    type Error = String;
    fn try_from(told: Told) -> Result<Self, String> {
        match told {
            Told::Number(number) => Ok(Self::Number(number)),
            Told::Text(text) => text.parse(),
        }
    }
}

impl FromStr for MemberName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match text.parse() {
            Ok(number) => Ok(Self::Number(number)),
            Err(_) if text.is_empty() || text.contains(['/', ':', ' ']) => {
                Err(format!("`{text}` is neither a number from 1 on nor a host name, such as jobs-0"))
            }
            Err(_) => Ok(Self::Host(text.to_ascii_lowercase())),
        }
    }
}

impl MemberName {
    /// Returns the number of the member among these, of which each has an address.
    ///
    /// # Errors
    /// Why there is not exactly one.
    pub(super) fn of(&self, addresses: &BTreeMap<u64, Arc<str>>) -> Result<u64, String> {
        let name = match self {
            Self::Number(number) => return Ok(*number),
            Self::Host(name) => name,
        };
        let is_named = |address: &str| {
            let host = Url::parse(address).ok().and_then(|url| url.host_str().map(str::to_owned));
            let rest = host.as_deref().and_then(|host| host.strip_prefix(name.as_str()));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let mut named = addresses.iter().filter(|(_, address)| is_named(address)).map(|(number, _)| *number);
        match (named.next(), named.next()) {
            (Some(number), None) => Ok(number),
            (Some(_), Some(_)) => Err(format!("more than one member has a host `{name}` or `{name}.…`")),
            (None, _) => Err(format!("no member has a host `{name}` or `{name}.…`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_can_be_named_by_its_host() {
        let addresses = ["1=http://jobs-0.members:7400", "4=http://jobs-1.members:7400", "3=http://jobs-10:7400"];
        let addresses = addresses.map(|one| one.split_once('=').expect("both"));
        let addresses = addresses.map(|(number, address)| (number.parse().expect("a number"), address.into())).into();
        let of = |host: &str| host.parse::<MemberName>().expect("a name").of(&addresses);
        for (host, number) in [("jobs-0", 1), ("jobs-1", 4), ("Jobs-1.members", 4), ("jobs-10", 3), ("3", 3)] {
            assert_eq!(of(host), Ok(number), "{host}");
        }
        for none in ["jobs-2", "jobs", "members", "jobs-1.member"] {
            assert!(of(none).is_err_and(|said| said.contains("no member") && said.contains(none)), "{none}");
        }
        let twice = BTreeMap::from([(1, "http://a:1".into()), (2, "http://a:2".into())]);
        let said = MemberName::Host("a".to_owned()).of(&twice).expect_err("there are two");
        assert!(said.contains("more than one"), "{said}");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for wrong in ["", "http://a", "a:7400", "a b"] {
            assert!(wrong.parse::<MemberName>().is_err_and(|said| said.contains("host name")), "{wrong}");
        }
    }

    #[test]
    fn a_settings_file_has_a_number_or_a_text() {
        #[derive(Deserialize)]
        struct Settings {
            member: MemberName,
        }
        let read = |text: &str| toml::from_str::<Settings>(text).map(|settings| settings.member);
        assert_eq!(read("member = 2").expect("a number"), MemberName::Number(2));
        assert_eq!(read("member = \"jobs-1\"").expect("a name"), MemberName::Host("jobs-1".to_owned()));
        assert!(read("member = []").is_err_and(|error| error.to_string().contains("the name of its host")));
    }
}
