//! Access control: bearer tokens with roles, and the protection of a server without tokens.

mod sites;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub use self::sites::OwnNames;

use self::sites::Sites;
use super::budgets::Budgets;
use super::denied::DeniedCalls;
use super::error::{ApiError, Code};
use super::failures::Failures;
use super::proxies::Proxies;
use crate::job::{Actor, Bearer, words};
use crate::manager::Caller;
use crate::wire::Me;
use crate::wire::cookie::Way;

words! {
    /// A permission of a token's holder.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Role: "a role", "roles" {
        /// The holder may read jobs, counts, queues and metrics.
        Read = "read",
        /// The holder may submit, cancel and retry jobs.
        Submit = "submit",
        /// The holder may claim jobs, send heartbeats, and end or release attempts.
        Work = "work",
        /// The holder may do everything, including ending other workers' leases and pausing queues.
        Admin = "admin",
    }
}

/// A token as it is configured. Only its hash is stored. The hash has no salt and is fast, so a token must be long and
/// random (such as 32 random bytes), never a chosen password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// The name of the token's holder, which is the actor in the histories of jobs.
    pub name: Actor,
    /// The roles of the holder; at least one.
    pub roles: BTreeSet<Role>,
    /// The SHA-256 hash of the token, in hexadecimal.
    pub sha256: String,
}

/// A mistake in the configuration of tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The token's `sha256` is not a hash.
    #[error("the token `{0}` must have a sha256 of 64 hexadecimal digits")]
    Hash(Actor),
    /// The token has no roles.
    #[error("the token `{0}` has no roles")]
    NoRoles(Actor),
    /// The system itself acts under the token's name.
    #[error("a token cannot have the name `{0}`, under which the system itself acts")]
    Reserved(Actor),
    /// Two tokens have the same name.
    #[error("there are two tokens `{0}`")]
    Twice(Actor),
    /// The server can be reached from other machines and has no tokens.
    #[error(
        "{0} can be reached from elsewhere and no tokens are configured: anyone could submit and take jobs. \
         Configure tokens, listen on a loopback address, or say that this is meant (`--insecure`)"
    )]
    Exposed(SocketAddr),
    /// A running server without tokens would have some.
    #[error("the server has run without tokens: it takes the first ones when it is started again")]
    First,
    /// A running server with tokens would have none, and be open to everybody.
    #[error("there are no tokens any more: a server that is to be open is started again")]
    Last,
}

/// The tokens that a server accepts, and the names by which it is called. The tokens of clones are renewed together.
#[derive(Clone, Debug, Default)]
pub struct Access {
    tokens: Arc<RwLock<Arc<[Arc<Holder>]>>>,
    /// How many times the tokens were renewed.
    renewals: Arc<AtomicU64>,
    names: OwnNames,
}

#[derive(Debug, PartialEq, Eq)]
struct Holder {
    name: Actor,
    roles: BTreeSet<Role>,
    hash: [u8; 32],
}

impl Access {
    /// Creates access for the holders of these tokens, or for everyone when there are none.
    ///
    /// # Errors
    /// [`AccessError`] when a token's hash, roles or name is wrong.
    pub fn new(tokens: Vec<Token>) -> Result<Self, AccessError> {
        Ok(Self { tokens: Arc::new(RwLock::new(holders(tokens)?)), ..Self::default() })
    }

    /// Accepts these tokens instead of those before, and returns whether that changes anything.
    ///
    /// # Errors
    /// [`AccessError`] when a token's hash, roles or name is wrong, or when there would be the first token, or none any
    /// more: then those before stay.
    pub fn renew(&self, tokens: Vec<Token>) -> Result<bool, AccessError> {
        let renewed = holders(tokens)?;
        let mut now = self.tokens.write();
        if renewed.is_empty() != now.is_empty() {
            return Err(if now.is_empty() { AccessError::First } else { AccessError::Last });
        }
        let is_changed = *now != renewed;
        *now = renewed;
        self.renewals.fetch_add(1, Ordering::Release);
        Ok(is_changed)
    }

    /// Returns the same access to a server that is called by these names.
    #[must_use]
    pub fn called(self, names: OwnNames) -> Self {
        Self { names, ..self }
    }

    /// Returns whether everyone may call, because no token is configured.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.tokens.read().is_empty()
    }

    /// Returns the holder of this token. Every token is compared, each in constant time, so that the duration does not
    /// reveal which one came close.
    fn holder(&self, token: &str) -> Option<Arc<Holder>> {
        let shown: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let tokens = self.tokens.read();
        let found = tokens
            .iter()
            .fold(None, |found, holder| if holder.hash.ct_eq(&shown).into() { Some(holder) } else { found });
        found.cloned()
    }

    /// Returns the names of the holders.
    pub(super) fn names(&self) -> Vec<Actor> {
        self.tokens.read().iter().map(|holder| holder.name.clone()).collect()
    }

    /// Returns the name of the token in these headers, if it is known.
    pub(super) fn name(&self, headers: &HeaderMap) -> Option<Actor> {
        self.holder(bearer(headers)?).map(|holder| holder.name.clone())
    }

    /// Checks that the caller may call at all, in whatever role.
    pub(super) fn know(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.is_open() { Ok(()) } else { self.named(headers).map(drop) }
    }

    /// Returns the holder of the token in these headers.
    fn named(&self, headers: &HeaderMap) -> Result<Arc<Holder>, ApiError> {
        let token = bearer(headers)
            .ok_or_else(|| ApiError::new(Code::Unauthorized, "send a token as `Authorization: Bearer …`"))?;
        self.holder(token).ok_or_else(|| ApiError::new(Code::Unauthorized, "the token is not known"))
    }

    /// Returns who the caller is, and what it may do.
    pub(super) fn me(&self, headers: &HeaderMap) -> Result<Me, ApiError> {
        let me = |name: &Actor, roles: &mut dyn Iterator<Item = &Role>| Me {
            name: name.to_string(),
            roles: roles.map(Role::to_string).collect(),
        };
        if self.is_open() {
            return Ok(me(&anonymous(), &mut Role::ALL.iter()));
        }
        self.named(headers).map(|holder| me(&holder.name, &mut holder.roles.iter()))
    }

    /// Returns the caller when it has the role.
    pub(super) fn allow(&self, headers: &HeaderMap, role: Role) -> Result<Caller, ApiError> {
        let bearer = self.bearer(headers, role)?;
        Ok(bearer.map_or_else(anonymous, |bearer| bearer.name))
    }

    /// Returns the holder of the caller's token when it has the role; `None` on a server without tokens.
    pub(super) fn bearer(&self, headers: &HeaderMap, role: Role) -> Result<Option<Bearer>, ApiError> {
        if self.is_open() {
            return Ok(None);
        }
        let holder = self.named(headers)?;
        let is_admin = holder.roles.contains(&Role::Admin);
        if is_admin || holder.roles.contains(&role) {
            Ok(Some(Bearer { name: holder.name.clone(), is_admin }))
        } else {
            let detail = format!("the token has not the role `{role}`, which this call needs");
            Err(ApiError::new(Code::Forbidden, detail).of_token(&holder.name))
        }
    }
}

/// Returns the caller of a server without tokens.
pub(super) fn anonymous() -> Caller {
    Actor::system("anonymous")
}

/// Checks tokens as they are configured.
fn holders(tokens: Vec<Token>) -> Result<Arc<[Arc<Holder>]>, AccessError> {
    let mut names = BTreeSet::new();
    let mut holders = Vec::with_capacity(tokens.len());
    for Token { name, roles, sha256 } in tokens {
        let hash = from_hex(&sha256).ok_or_else(|| AccessError::Hash(name.clone()))?;
        if name.is_reserved() {
            return Err(AccessError::Reserved(name));
        }
        if roles.is_empty() {
            return Err(AccessError::NoRoles(name));
        }
        if !names.insert(name.clone()) {
            return Err(AccessError::Twice(name));
        }
        holders.push(Arc::new(Holder { name, roles, hash }));
    }
    Ok(holders.into())
}

/// Who may call a process, and from where.
#[derive(Debug)]
pub(super) struct Guard {
    /// The tokens and their roles.
    pub(super) access: Access,
    /// Which sites' pages may call the process; `None` where everyone needs a token.
    pub(super) sites: Option<Sites>,
    /// What callers may hold at once.
    pub(super) budgets: Budgets,
    /// Who is believed in what it says of clients.
    pub(super) proxies: Proxies,
    /// The tokens that were refused of late.
    pub(super) failures: Failures,
    /// The calls that were denied of late.
    pub(super) denied: DeniedCalls,
    /// Whether people reach the process by TLS, whatever a proxy says.
    is_by_tls: bool,
    /// The renewals of tokens after which the budgets were shared.
    seen: AtomicU64,
}

impl Guard {
    /// Guards a process that listens on this address.
    pub(super) fn new(access: Access, address: SocketAddr, budgets: Budgets, proxies: Proxies) -> Self {
        let sites = access.is_open().then(|| Sites::new(address, access.names.clone()));
        let (failures, is_by_tls) = (Failures::default(), access.names.is_by_tls());
        let seen = AtomicU64::new(0);
        let denied = DeniedCalls::default();
        Self { sites, is_by_tls, access, budgets, proxies, failures, denied, seen }
    }

    /// Shares the budgets among the holders of tokens that were renewed.
    pub(super) fn keep_up(&self) {
        let renewals = self.access.renewals.load(Ordering::Acquire);
        if renewals != self.seen.load(Ordering::Relaxed) && self.seen.swap(renewals, Ordering::Relaxed) != renewals {
            self.budgets.share_among(&self.access.names());
        }
    }

    /// Returns how a request with these headers, which came from this address, was sent by its client.
    pub(super) fn way(&self, from: Option<IpAddr>, headers: &HeaderMap) -> Way {
        let is_said = || from.is_some_and(|from| self.proxies.is_by_tls(from, headers));
        if self.is_by_tls || is_said() { Way::Tls } else { Way::Plain }
    }
}

/// Returns the hash of a token, as [`Token::sha256`] holds it.
#[must_use]
pub fn token_hash(token: &str) -> String {
    Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that a server at `listen` is not open to other machines by mistake.
///
/// # Errors
/// [`AccessError::Exposed`] when other machines can reach it, it has no tokens, and `insecure` is not set.
pub fn check_exposure(listen: SocketAddr, access: &Access, insecure: bool) -> Result<(), AccessError> {
    if listen.ip().is_loopback() || !access.is_open() || insecure { Ok(()) } else { Err(AccessError::Exposed(listen)) }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
