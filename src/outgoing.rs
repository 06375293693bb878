//! What the clients in the program have in common: whose certificates count where they call others by TLS, and by which
//! proxy they call. The environment names neither: a call that bears a token is not to go where a variable points that
//! was set for something else.

use std::sync::OnceLock;

use reqwest::{Certificate, Client, ClientBuilder, NoProxy, Proxy, Url};

/// The private authorities, which are named once, before the first client is made.
static PRIVATE: OnceLock<Vec<Certificate>> = OnceLock::new();
/// The proxy, which is named once, before the first client is made.
static PROXY: OnceLock<Proxy> = OnceLock::new();

/// Why private authorities, or a proxy, cannot count.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// The text has no certificates, or some that cannot be read.
    #[error("has no certificate in PEM, or one that cannot be read")]
    Certificates,
    /// The text is no address of a proxy.
    #[error("is no address of a proxy, such as http://proxy.example:3128")]
    Proxy,
    /// Others have been named before.
    #[error("others were named before")]
    Late,
}

/// Has certificates of these authorities count at every client that is made from now on. The text is in PEM.
pub(crate) fn trust_also(pem: &[u8]) -> Result<(), Unusable> {
    let certificates = Certificate::from_pem_bundle(pem).map_err(|_| Unusable::Certificates)?;
    if certificates.is_empty() {
        return Err(Unusable::Certificates);
    }
    PRIVATE.set(certificates).map_err(|_| Unusable::Late)
}

/// Where no proxy gets to: this machine.
const HERE: &str = "localhost,127.0.0.0/8,::1";

/// Has every client of servers and of Kibana that is made from now on call by this proxy, but for what is on this
/// machine.
pub(crate) fn call_by(proxy: &str) -> Result<(), Unusable> {
    let is_address = Url::parse(proxy).is_ok_and(|url| url.scheme() == "http" && url.has_host());
    let proxy = Proxy::all(proxy).ok().filter(|_| is_address).ok_or(Unusable::Proxy)?;
    PROXY.set(proxy.no_proxy(NoProxy::from_string(HERE))).map_err(|_| Unusable::Late)
}

/// Returns what makes a client, which calls by no proxy. Every client of the program begins with it, but those of
/// Elasticsearch and Kibana, which have settings of their own for certificates.
pub(crate) fn client() -> ClientBuilder {
    let private = PRIVATE.get().into_iter().flatten();
    private.fold(direct(), |client, authority| client.add_root_certificate(authority.clone()))
}

/// Returns what makes a client that trusts no private authorities, and calls by no proxy.
pub(crate) fn direct() -> ClientBuilder {
    Client::builder().no_proxy()
}

/// Has a client call by the proxy that the command line names, if it names one.
pub(crate) fn by_proxy(client: ClientBuilder) -> ClientBuilder {
    PROXY.get().into_iter().fold(client, |client, proxy| client.proxy(proxy.clone()))
}
