//! Whose certificates count where the program calls others by TLS: those of the authorities that the system knows, of
//! those that are built in, and of private ones that the command line names.

use std::sync::OnceLock;

use reqwest::{Certificate, Client, ClientBuilder};

/// The private authorities, which are named once, before the first client is made.
static PRIVATE: OnceLock<Vec<Certificate>> = OnceLock::new();

/// Why private authorities cannot count.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Untrusted {
    /// The text has no certificates, or some that cannot be read.
    #[error("has no certificate in PEM, or one that cannot be read")]
    Unreadable,
    /// Others have been named before.
    #[error("others were named before")]
    Late,
}

/// Has certificates of these authorities count at every client that is made from now on. The text is in PEM.
pub(crate) fn also(pem: &[u8]) -> Result<(), Untrusted> {
    let certificates = Certificate::from_pem_bundle(pem).map_err(|_| Untrusted::Unreadable)?;
    if certificates.is_empty() {
        return Err(Untrusted::Unreadable);
    }
    PRIVATE.set(certificates).map_err(|_| Untrusted::Late)
}

/// Returns what makes a client. Every client of the program begins with it, but those of Elasticsearch and Kibana,
/// which have settings of their own for that.
pub(crate) fn client() -> ClientBuilder {
    let private = PRIVATE.get().into_iter().flatten();
    private.fold(Client::builder(), |client, authority| client.add_root_certificate(authority.clone()))
}
