//! The guard of a server without tokens against what a page of another site has a browser send. Everyone is trusted who
//! reaches such a server, and so is every browser that does: a page could send it a form (which `Origin` shows), load
//! an image from it (which `Sec-Fetch-Site` shows), or have its own name resolve to the server's address and read the
//! answers too (which `Host` shows).

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use http::header::ORIGIN;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use url::Url;

use crate::api::error::{ApiError, Code};
use crate::wire::cookie;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
/// What a browser says of the site of a request that no other site made.
const OWN_SITES: [&str; 2] = ["same-origin", "none"];

/// The names by which a server is called, beside its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnNames {
    /// The names of hosts, in small letters.
    hosts: BTreeSet<String>,
    /// The origins of the URLs under which people reach the server.
    origins: BTreeSet<String>,
}

impl OwnNames {
    /// Returns the same names and that of a host.
    #[must_use]
    pub fn with_host(mut self, host: &str) -> Self {
        self.hosts.insert(host.to_ascii_lowercase());
        self
    }

    /// Returns the same names and that of the host in a URL by which other processes reach the server.
    #[must_use]
    pub fn with_url(self, url: &Url) -> Self {
        match url.host_str() {
            Some(host) => self.with_host(host),
            None => self,
        }
    }

    /// Returns the same names and that in the URL under which people reach the server, whose pages may call it.
    #[must_use]
    pub fn with_public_url(mut self, url: &Url) -> Self {
        self.origins.insert(url.origin().ascii_serialization());
        self.with_url(url)
    }

    /// Returns whether people reach the server by TLS.
    pub(super) fn is_by_tls(&self) -> bool {
        self.origins.iter().any(|origin| origin.starts_with("https://"))
    }
}

/// From where a server can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Machine,
    Network,
}

/// Tells the requests that pages of other sites made from others.
#[derive(Debug)]
pub(crate) struct Sites {
    reach: Reach,
    names: OwnNames,
}

impl Sites {
    /// Guards a server that listens on this address and is called by these names.
    pub(super) fn new(address: SocketAddr, names: OwnNames) -> Self {
        let reach = if address.ip().is_loopback() { Reach::Machine } else { Reach::Network };
        Self { reach, names }
    }

    /// Refuses a request that a page of another site had a browser send.
    pub(crate) fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let authority = cookie::authority(uri, headers);
        if !authority.is_some_and(|authority| self.is_own(authority)) {
            return foreign("the host asked for", "; `--allow-host` names further ones");
        }
        let origin = headers.get(ORIGIN).map(text);
        if origin.is_some_and(|origin| !self.is_own_origin(origin, authority)) {
            return foreign("the origin of the request", "");
        }
        let is_of_own_site = headers.get_all(SITE).iter().all(|site| OWN_SITES.contains(&text(site)));
        if is_of_own_site || is_opened(method, uri, headers) { Ok(()) } else { foreign("the site of the request", "") }
    }

    fn is_own(&self, authority: &str) -> bool {
        let host = host(authority);
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let is_reached_by = match (self.reach, address) {
            (Reach::Machine, Ok(address)) => address.is_loopback(),
            (Reach::Machine, Err(_)) => host.eq_ignore_ascii_case("localhost"),
            (Reach::Network, Ok(_)) => true,
            // Nobody can have such a name resolve to an address of their choice but who runs the network.
            (Reach::Network, Err(_)) => !host.is_empty() && host.bytes().all(is_of_a_plain_name),
        };
        is_reached_by || self.names.hosts.contains(&host.to_ascii_lowercase())
    }

    fn is_own_origin(&self, origin: &str, authority: Option<&str>) -> bool {
        let is_of_the_host = origin.split_once("://").map(|(_, origin)| origin) == authority;
        is_of_the_host || self.names.origins.contains(origin)
    }
}

/// Returns whether a browser opens a page because of the request, as it does for a link: nobody else sees the answer.
fn is_opened(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    let says = |name: HeaderName, value: &str| headers.get(name).is_some_and(|said| said == value);
    let path = uri.path();
    let is_a_page = path != "/v1" && !path.starts_with("/v1/") && path != "/metrics";
    *method == Method::GET && is_a_page && says(MODE, "navigate") && says(DEST, "document")
}

fn foreign(what: &str, advice: &str) -> Result<(), ApiError> {
    Err(ApiError::new(Code::ForeignOrigin, format!("{what} is not this server's{advice}")))
}

/// A value that is no text is no name of anything.
fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or_default()
}

/// Returns the host of an authority, which may end with a port.
fn host(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

fn is_of_a_plain_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_".contains(&byte)
}

#[cfg(test)]
mod tests {
    use http::header::HOST;

    use super::*;

    type Pair = (HeaderName, &'static str);

    fn sites(address: &str) -> Sites {
        Sites::new(address.parse().expect("an address"), OwnNames::default())
    }

    fn passes_at(sites: &Sites, method: &Method, path: &'static str, pairs: &[Pair]) -> bool {
        let headers = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        sites.check(method, &Uri::from_static(path), &headers).is_ok()
    }

    fn passes(sites: &Sites, pairs: &[Pair]) -> bool {
        passes_at(sites, &Method::POST, "/v1/jobs", pairs)
    }

    #[test]
    fn a_server_on_loopback_is_asked_for_by_names_of_this_machine_only() {
        let sites = sites("127.0.0.1:7400");
        for host in ["127.0.0.1:7400", "localhost:7400", "LOCALHOST", "[::1]:7400", "127.0.0.1"] {
            assert!(passes(&sites, &[(HOST, host)]), "{host}");
        }
        for host in
            ["evil.example:7400", "127.0.0.1.evil.example", "localhost.evil.example", "", "10.0.0.1:7400", "jobs"]
        {
            assert!(!passes(&sites, &[(HOST, host)]), "{host}");
        }
        assert!(!passes(&sites, &[]), "no host at all");
    }

    #[test]
    fn an_open_server_is_asked_for_by_addresses_and_plain_names_and_those_that_it_is_given() {
        let named = |name: &str| OwnNames::default().with_host(name);
        let url = |text: &str| Url::parse(text).expect("a URL");
        let plain = sites("0.0.0.0:7400");
        for host in ["10.1.2.3:7400", "[fd00::1]:7400", "leasehold:7400", "jobs-1", "localhost", "LEASEHOLD"] {
            assert!(passes(&plain, &[(HOST, host)]), "{host}");
        }
        for host in ["evil.example", "10.1.2.3.evil.example:7400", "a@leasehold", "leasehold.", ".", ""] {
            assert!(!passes(&plain, &[(HOST, host)]), "{host}");
        }
        assert!(!passes(&plain, &[]), "no host at all");
        for address in ["0.0.0.0:7400", "127.0.0.1:7400"] {
            for (names, host) in [
                (named("Jobs.Example"), "jobs.example:80"),
                (OwnNames::default().with_url(&url("http://jobs-0.members:7400")), "jobs-0.members:7400"),
                (OwnNames::default().with_public_url(&url("https://jobs.example/leasehold")), "JOBS.example"),
            ] {
                let sites = Sites::new(address.parse().expect("an address"), names);
                assert!(passes(&sites, &[(HOST, host)]), "{host} at {address}");
                assert!(!passes(&sites, &[(HOST, "evil.example")]), "{address}");
            }
        }
    }

    #[test]
    fn an_origin_is_that_of_the_host_or_of_the_public_url() {
        for address in ["127.0.0.1:7400", "0.0.0.0:7400"] {
            let names = OwnNames::default().with_public_url(&Url::parse("https://jobs.example/").expect("a URL"));
            let sites = Sites::new(address.parse().expect("an address"), names);
            for origin in ["http://localhost:7400", "https://localhost:7400", "https://jobs.example"] {
                assert!(passes(&sites, &[(HOST, "localhost:7400"), (ORIGIN, origin)]), "{origin} at {address}");
            }
            for origin in ["http://evil.example", "http://localhost:8080", "http://jobs.example", "null", ""] {
                assert!(!passes(&sites, &[(HOST, "localhost:7400"), (ORIGIN, origin)]), "{origin} at {address}");
            }
        }
    }

    #[test]
    fn another_site_has_a_browser_open_a_page_and_nothing_else() {
        let navigates = [(HOST, "localhost"), (SITE, "cross-site"), (MODE, "navigate"), (DEST, "document")];
        for address in ["127.0.0.1:7400", "0.0.0.0:7400"] {
            let sites = sites(address);
            for site in ["same-origin", "none"] {
                assert!(passes(&sites, &[(HOST, "localhost"), (SITE, site)]), "{site}");
            }
            for site in ["cross-site", "same-site", "", "same-origin, cross-site"] {
                assert!(!passes(&sites, &[(HOST, "localhost"), (SITE, site)]), "{site}");
            }
            assert!(!passes(&sites, &[(HOST, "localhost"), (SITE, "none"), (SITE, "cross-site")]), "the second");
            for page in ["/", "/jobs/a?tab=output", "/v1x"] {
                assert!(passes_at(&sites, &Method::GET, page, &navigates), "a link to {page}");
                assert!(!passes_at(&sites, &Method::GET, page, &navigates[..3]), "an image of {page}");
                assert!(!passes_at(&sites, &Method::POST, page, &navigates), "a form to {page}");
            }
            for path in ["/v1/jobs?fields=payload", "/v1", "/metrics"] {
                assert!(!passes_at(&sites, &Method::GET, path, &navigates), "a link to {path}");
            }
        }
    }
}
