//! The proxies in front of a server that are believed in what they say of their clients.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use serde::Deserialize;

/// The headers in which a proxy says for whom it calls, and how it was called.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const SAID_BY_PROXIES: [HeaderName; 6] = [
    FORWARDED_FOR,
    FORWARDED_PROTO,
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("forwarded"),
];

/// The address of a proxy, or of a network of proxies, such as `10.0.0.7` or `10.0.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TrustedProxy(IpNet);

impl FromStr for TrustedProxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither an address nor a network, such as 10.0.0.7 or 10.0.0.0/24");
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map(|network| Self(network.trunc())).map_err(|_| wrong())
    }
}

impl TryFrom<String> for TrustedProxy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for TrustedProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The proxies that a server trusts.
#[derive(Clone, Debug, Default)]
pub(super) struct Proxies(Vec<TrustedProxy>);

impl Proxies {
    pub(super) fn new(trusted: Vec<TrustedProxy>) -> Self {
        Self(trusted)
    }

    /// Returns whether a trusted proxy is at this address.
    pub(super) fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|TrustedProxy(network)| network.contains(&address))
    }

    /// Returns the address of the client whose call came from this one: of those that the proxies name, the last that
    /// is no trusted proxy itself. What stands before it anybody may have written.
    pub(super) fn client(&self, from: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = from;
        let lists = headers.get_all(FORWARDED_FOR).iter().rev().map(|list| list.to_str().unwrap_or_default());
        for named in lists.flat_map(|list| list.rsplit(',')) {
            if !self.trusts(client) {
                break;
            }
            let Some(address) = address_in(named.trim()) else { break };
            client = address;
        }
        client
    }

    /// Returns whether a trusted proxy, from which the call came, says that it was called by TLS.
    pub(super) fn is_by_tls(&self, from: IpAddr, headers: &HeaderMap) -> bool {
        let says = || headers.get_all(FORWARDED_PROTO).iter().map(HeaderValue::as_bytes);
        self.trusts(from) && says().next().is_some() && says().all(|said| said.eq_ignore_ascii_case(b"https"))
    }

    /// Takes away what only a trusted proxy may say, unless the call came from one.
    pub(super) fn believe(&self, from: Option<IpAddr>, headers: &mut HeaderMap) {
        if !from.is_some_and(|from| self.trusts(from)) {
            for name in SAID_BY_PROXIES {
                headers.remove(name);
            }
        }
    }
}

/// Reads an address, with or without a port.
fn address_in(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lists: &[&'static str]) -> HeaderMap {
        lists.iter().map(|list| (FORWARDED_FOR, HeaderValue::from_static(list))).collect()
    }

    fn proxies(trusted: &[&str]) -> Proxies {
        Proxies::new(trusted.iter().map(|text| text.parse().expect("a proxy")).collect())
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_client_is_who_the_last_proxy_that_is_trusted_names() {
        let proxies = proxies(&["10.0.0.0/24", "192.0.2.1", "2001:db8::/64"]);
        for (from, said, client) in [
            ("10.0.0.7", &["203.0.113.9"][..], "203.0.113.9"),
            ("10.0.0.7", &["198.51.100.1, 203.0.113.9"], "203.0.113.9"),
            ("10.0.0.7", &["203.0.113.9, 192.0.2.1"], "203.0.113.9"),
            ("10.0.0.7", &["203.0.113.9", "192.0.2.1"], "203.0.113.9"),
            ("::ffff:10.0.0.7", &["[2001:db8:1::9]:4711"], "2001:db8:1::9"),
            ("2001:db8::1", &["203.0.113.9:80"], "203.0.113.9"),
            ("10.0.0.7", &["unknown"], "10.0.0.7"),
            ("10.0.0.7", &[], "10.0.0.7"),
            ("10.0.1.7", &["203.0.113.9"], "10.0.1.7"),
        ] {
            let from = address(from).to_canonical();
            assert_eq!(proxies.client(from, &headers(said)), address(client), "{from} with {said:?}");
        }
    }

    #[test]
    fn what_is_said_of_clients_is_believed_of_trusted_proxies_alone() {
        let proxies = proxies(&["10.0.0.7"]);
        for (from, is_believed) in [(Some("10.0.0.7"), true), (Some("10.0.0.8"), false), (None, false)] {
            let mut said = headers(&["203.0.113.9"]);
            said.insert("x-forwarded-proto", HeaderValue::from_static("https"));
            said.insert("x-other", HeaderValue::from_static("kept"));
            proxies.believe(from.map(address), &mut said);
            assert_eq!(said.len(), if is_believed { 3 } else { 1 }, "{from:?}");
        }
    }

    #[test]
    fn a_trusted_proxy_alone_says_that_it_was_called_by_tls() {
        let proxies = proxies(&["10.0.0.7"]);
        for (from, said, is_by_tls) in [
            ("10.0.0.7", &["https"][..], true),
            ("10.0.0.7", &["HTTPS"], true),
            ("10.0.0.7", &["http"], false),
            ("10.0.0.7", &["https", "http"], false),
            ("10.0.0.7", &["https, http"], false),
            ("10.0.0.7", &[], false),
            ("10.0.0.8", &["https"], false),
        ] {
            let headers = said.iter().map(|said| (FORWARDED_PROTO, HeaderValue::from_static(said))).collect();
            assert_eq!(proxies.is_by_tls(address(from), &headers), is_by_tls, "{from} with {said:?}");
        }
    }

    #[test]
    fn a_proxy_is_an_address_or_a_network() {
        assert_eq!("10.0.0.7/24".parse::<TrustedProxy>().expect("a network").to_string(), "10.0.0.0/24");
        for wrong in ["", "proxy.example", "10.0.0.0/33", "10.0.0.7:80"] {
            assert!(wrong.parse::<TrustedProxy>().is_err(), "{wrong}");
        }
    }
}
