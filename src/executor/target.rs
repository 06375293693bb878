//! Which targets may be called: the form of a target's URL, and the policy for the addresses that it leads to.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use url::Host;

use super::address::AddressClass;

/// The longest accepted URL, in bytes.
pub const MAX_URL_BYTES: usize = 4096;

/// Names that resolve to a cloud's metadata service from within that cloud.
const METADATA_NAMES: [&str; 6] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "instance-data",
    "instance-data.ec2.internal",
];

/// Why a text is not the URL of a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    /// The text is longer than [`MAX_URL_BYTES`].
    #[error("is longer than {MAX_URL_BYTES} bytes")]
    TooLong,
    /// The text is not a URL.
    #[error("is not a URL: {0}")]
    Unreadable(String),
    /// The scheme is neither `http` nor `https`.
    #[error("must be an http or https URL")]
    Scheme,
    /// The URL contains a user name or a password, which belong in a header.
    #[error("must not carry a user name or password")]
    Credentials,
}

/// The URL of a target: `http` or `https`, without credentials.
///
/// The parser is the WHATWG's, so that every spelling of an IP address (`127.1`, `0x7f000001`, `[::ffff:7f00:1]`) has
/// become the address itself before it is checked. A URL may itself be a secret, so its path is not printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TargetUrl(Url);

impl TargetUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`InvalidTarget`] says what is wrong with the URL.
    pub fn parse(text: &str) -> Result<Self, InvalidTarget> {
        if text.len() > MAX_URL_BYTES {
            return Err(InvalidTarget::TooLong);
        }
        let url = Url::parse(text).map_err(|error| InvalidTarget::Unreadable(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(InvalidTarget::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidTarget::Credentials);
        }
        Ok(Self(url))
    }

    /// Returns the whole URL.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns the host, which may be printed.
    #[must_use]
    pub fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }

    /// Returns the host and the port, which may be printed.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host(), self.0.port_or_known_default().unwrap_or_default())
    }

    /// Returns the scheme, the host and the port, which may be printed; the port only where it is not the scheme's.
    #[must_use]
    pub fn origin(&self) -> String {
        self.0.origin().ascii_serialization()
    }

    pub(super) fn url(&self) -> Url {
        self.0.clone()
    }
}

impl fmt::Debug for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/…", self.0.scheme(), self.host())
    }
}

impl TryFrom<String> for TargetUrl {
    type Error = InvalidTarget;
    fn try_from(text: String) -> Result<Self, InvalidTarget> {
        Self::parse(&text)
    }
}

impl From<TargetUrl> for String {
    fn from(url: TargetUrl) -> Self {
        url.0.into()
    }
}

/// An exception from a policy's refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedTarget {
    /// Allows this name, with any private address that it resolves to.
    Host(String),
    /// Allows these addresses, with any name that resolves to them.
    Network(IpNet),
}

impl FromStr for AllowedTarget {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Self::Network(network));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Network(address.into()));
        }
        match Host::parse(text) {
            Ok(Host::Domain(name)) if !plain(&name).is_empty() => Ok(Self::Host(plain(&name).to_owned())),
            _ => Err(format!("`{text}` is neither a host's name nor a network such as 10.0.0.0/8")),
        }
    }
}

impl fmt::Display for AllowedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => f.write_str(name),
            Self::Network(network) => network.fmt(f),
        }
    }
}

/// Which targets may be called. Public addresses are always allowed, others only as this policy says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetPolicy {
    /// Whether private addresses are allowed: this machine's, its links' and its networks'. Metadata services,
    /// multicast and reserved addresses stay refused.
    pub allow_private: bool,
    /// Further allowed targets. A metadata service is called only if its address is among them.
    pub allow: Vec<AllowedTarget>,
}

/// Why a target was not called. Nothing was sent to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedTarget {
    /// The name itself is refused.
    #[error("{host} is a {class} name")]
    Name {
        /// The host in the URL.
        host: String,
        /// The class of the address.
        class: AddressClass,
    },
    /// The host is, or resolves to, a refused address. The message leaves the address out, so that users who name
    /// targets do not learn what this network's names resolve to.
    #[error("{host} leads to a {class} address")]
    Address {
        /// The host in the URL.
        host: String,
        /// The address that was refused.
        address: IpAddr,
        /// The class of the address.
        class: AddressClass,
    },
}

impl TargetPolicy {
    /// Checks a target without resolving its name. The addresses that a name resolves to are checked at each call.
    ///
    /// # Errors
    /// [`RefusedTarget`] when this policy never allows the target.
    pub fn check(&self, target: &TargetUrl) -> Result<(), RefusedTarget> {
        match target.0.host() {
            Some(Host::Domain(name)) => self.check_name(name),
            Some(Host::Ipv4(address)) => self.check_address(target.host(), address.into()),
            Some(Host::Ipv6(address)) => self.check_address(target.host(), address.into()),
            None => Ok(()),
        }
    }

    fn check_name(&self, host: &str) -> Result<(), RefusedTarget> {
        match class_of_name(plain(host)) {
            Some(class) if !self.allows(host, class) => Err(RefusedTarget::Name { host: host.to_owned(), class }),
            _ => Ok(()),
        }
    }

    /// Checks an address that `host` is or resolves to.
    pub(super) fn check_address(&self, host: &str, address: IpAddr) -> Result<(), RefusedTarget> {
        let class = AddressClass::of(address);
        // An IPv4-mapped address is the address that is mapped: the packets go there.
        let meant = address.to_canonical();
        let listed = self.allow.iter().any(|allowed| match allowed {
            AllowedTarget::Network(network) => network.contains(&meant),
            AllowedTarget::Host(_) => false,
        });
        if listed || class == AddressClass::Public {
            return Ok(());
        }
        // An allowed name does not allow a metadata service: the owner of the name could make it resolve to one.
        if class != AddressClass::Metadata && self.allows(host, class) {
            return Ok(());
        }
        Err(RefusedTarget::Address { host: host.to_owned(), address, class })
    }

    fn allows(&self, host: &str, class: AddressClass) -> bool {
        let is_listed = |allowed: &AllowedTarget| matches!(allowed, AllowedTarget::Host(name) if *name == plain(host));
        (self.allow_private && class.is_private()) || self.allow.iter().any(is_listed)
    }
}

/// Returns a name without the dot at its end, which does not change what it resolves to.
fn plain(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// Returns the class of a name that does not depend on a resolver.
fn class_of_name(name: &str) -> Option<AddressClass> {
    if name == "localhost" || name.ends_with(".localhost") {
        return Some(AddressClass::Loopback);
    }
    METADATA_NAMES.contains(&name).then_some(AddressClass::Metadata)
}

#[cfg(test)]
mod tests;
