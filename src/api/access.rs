//! Who may call what: bearer tokens with roles, and what protects a server that has none.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, Uri};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::{ApiError, Code};
use crate::job::Actor;
use crate::manager::Caller;

/// What a token's holder may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Read jobs, counts, queues and metrics.
    Read,
    /// Submit jobs, cancel and retry them.
    Submit,
    /// Claim jobs, and whatever follows from it.
    Work,
    /// Everything, to end other workers' leases, and to pause queues.
    Admin,
}

impl Role {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Work => "work",
            Self::Admin => "admin",
        }
    }
}

/// A token as it is configured. The token itself is nowhere: only its hash. The hash is a plain one, so a token must
/// be long and random (32 random bytes, say), never a word that somebody thought of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Whose it is: the actor in the histories of what is done with it.
    pub name: Actor,
    /// What it allows.
    pub roles: BTreeSet<Role>,
    /// The SHA-256 hash of the token, in hexadecimal.
    pub sha256: String,
}

/// Why a configuration of tokens cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Not a hash.
    #[error("the token `{0}` must have a sha256 of 64 hexadecimal digits")]
    Hash(Actor),
    /// Allows nothing.
    #[error("the token `{0}` has no roles")]
    NoRoles(Actor),
    /// Two of one name.
    #[error("there are two tokens `{0}`")]
    Twice(Actor),
    /// Open to the world.
    #[error(
        "{0} can be reached from elsewhere and no tokens are configured: anyone could submit and take jobs. \
         Configure tokens, listen on a loopback address, or say that this is meant (`--insecure`)"
    )]
    Exposed(SocketAddr),
}

/// Who may call.
#[derive(Clone, Debug, Default)]
pub struct Access {
    tokens: Vec<Holder>,
}

#[derive(Clone, Debug)]
struct Holder {
    name: Actor,
    roles: BTreeSet<Role>,
    hash: [u8; 32],
}

impl Access {
    /// Access for the holders of these tokens; for everyone when there are none.
    ///
    /// # Errors
    /// [`AccessError`] for a token that cannot be meant.
    pub fn new(tokens: Vec<Token>) -> Result<Self, AccessError> {
        let mut names = BTreeSet::new();
        let mut holders = Vec::with_capacity(tokens.len());
        for Token { name, roles, sha256 } in tokens {
            let hash = from_hex(&sha256).ok_or_else(|| AccessError::Hash(name.clone()))?;
            if roles.is_empty() {
                return Err(AccessError::NoRoles(name));
            }
            if !names.insert(name.clone()) {
                return Err(AccessError::Twice(name));
            }
            holders.push(Holder { name, roles, hash });
        }
        Ok(Self { tokens: holders })
    }

    /// Whether everyone may call, since no token is configured.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Who shows this token. Every token is compared, each in constant time, so that the time taken tells nothing
    /// about which came close.
    fn holder(&self, token: &str) -> Option<&Holder> {
        let shown: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        self.tokens
            .iter()
            .fold(None, |found, holder| if holder.hash.ct_eq(&shown).into() { Some(holder) } else { found })
    }

    /// Who calls, when they may do what `role` stands for.
    pub(super) fn allow(&self, headers: &HeaderMap, role: Role) -> Result<Caller, ApiError> {
        if self.is_open() {
            return Ok(Actor::system("anonymous"));
        }
        let token = bearer(headers)
            .ok_or_else(|| ApiError::new(Code::Unauthorized, "send a token as `Authorization: Bearer …`"))?;
        let holder = self.holder(token).ok_or_else(|| ApiError::new(Code::Unauthorized, "the token is not known"))?;
        if holder.roles.contains(&role) || holder.roles.contains(&Role::Admin) {
            Ok(holder.name.clone())
        } else {
            let detail = format!("the token has not the role `{}`, which this call needs", role.as_str());
            Err(ApiError::new(Code::Forbidden, detail))
        }
    }
}

/// The hash of a token, as [`Token::sha256`] holds it.
#[must_use]
pub fn token_hash(token: &str) -> String {
    Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that a server at `listen` is not open to the world by oversight.
///
/// # Errors
/// [`AccessError::Exposed`] when it can be reached from elsewhere, has no tokens, and this is not said to be meant.
pub fn check_exposure(listen: SocketAddr, access: &Access, insecure: bool) -> Result<(), AccessError> {
    if listen.ip().is_loopback() || !access.is_open() || insecure { Ok(()) } else { Err(AccessError::Exposed(listen)) }
}

/// Refuses what a web page of another site has made a browser send. A server on loopback without tokens trusts
/// everyone on its machine, and so every browser there: a page could send it a form (which the `Origin` header shows),
/// or have its own name resolve to 127.0.0.1 and read the answers too (which the `Host` header shows).
pub(crate) fn refuse_other_sites(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let foreign = |what: &str| Err(ApiError::new(Code::ForeignOrigin, format!("{what} is not this server's")));
    let text = |name| headers.get(name).map(|value: &http::HeaderValue| value.to_str().unwrap_or_default());
    // HTTP/2 has the authority in the URI, HTTP/1.1 in the Host header.
    let authority = uri.authority().map(http::uri::Authority::as_str).or_else(|| text(HOST));
    if !authority.is_some_and(is_local) {
        return foreign("the host asked for");
    }
    match text(ORIGIN) {
        Some(origin) if origin.split_once("://").map(|(_, origin)| origin) != authority => {
            foreign("the origin of the request")
        }
        _ => Ok(()),
    }
}

fn is_local(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
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
