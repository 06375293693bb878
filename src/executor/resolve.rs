//! Resolves names to addresses, and checks the addresses.
//!
//! The check is the HTTP client's only way to an address: it resolves a name once for a connection, and connects to
//! what came out. So a name that leads elsewhere a moment later (DNS rebinding) leads nowhere.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolving};
use tokio::sync::Semaphore;

use super::error::CallError;
use super::target::TargetPolicy;

/// The most addresses of a name that are used.
const MAX_ADDRESSES: usize = 32;
/// The most lookups that run at once. Each takes a thread until the system's resolver gives up.
const MAX_LOOKUPS: usize = 16;

/// Resolves names to addresses.
#[async_trait]
pub trait Resolve: Send + Sync + 'static {
    /// Returns the addresses of `host`.
    ///
    /// # Errors
    /// Returns an error when the name has no address, or when no resolver answers.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver, with its `hosts` file and search domains.
#[derive(Debug)]
pub struct SystemResolver {
    lookups: Arc<Semaphore>,
}

impl Default for SystemResolver {
    fn default() -> Self {
        Self { lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)) }
    }
}

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let permit = self.lookups.clone().acquire_owned().await.map_err(io::Error::other)?;
        let host = host.to_owned();
        // The permit moves to the thread, which outlives a call that has timed out.
        let lookup = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            (host.as_str(), 0).to_socket_addrs().map(|found| found.map(|address| address.ip()).collect())
        });
        lookup.await.map_err(io::Error::other)?
    }
}

/// Resolves a name, and refuses it unless the policy allows every address.
#[derive(Clone)]
pub(super) struct CheckedResolver {
    pub(super) resolver: Arc<dyn Resolve>,
    pub(super) policy: Arc<TargetPolicy>,
}

impl CheckedResolver {
    /// Returns the addresses of `host` if all of them may be called. One refused address refuses the name, since it is
    /// unknown which of them a connection takes.
    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, CallError> {
        let unresolvable = |reason: String| CallError::Unresolvable { host: host.to_owned(), reason };
        let mut addresses = self.resolver.resolve(host).await.map_err(|error| unresolvable(error.to_string()))?;
        if addresses.is_empty() {
            return Err(unresolvable("it has no address".to_owned()));
        }
        addresses.truncate(MAX_ADDRESSES);
        for address in &addresses {
            self.policy.check_address(host, *address)?;
        }
        Ok(addresses)
    }
}

impl reqwest::dns::Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let this = self.clone();
        Box::pin(async move {
            let addresses = this.addresses(name.as_str()).await?;
            // Port 0 stands for the port of the URL.
            Ok(Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}
