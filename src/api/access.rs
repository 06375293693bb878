//! Access control: bearer tokens with roles, the sessions of the web page that stand for them, and the protection of a
//! server without tokens.

mod sessions;
mod shown;
mod sign_ins;
mod sites;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

pub(super) use self::sessions::SessionReader;
pub(super) use self::shown::session_key;
pub use self::sites::OwnNames;

use self::sessions::KnownSessions;
use self::shown::Shown;
use self::sign_ins::SignIns;
use self::sites::Sites;
use super::budget::Holder;
use super::budgets::Budgets;
use super::denied::DeniedCalls;
use super::error::{ApiError, Code};
use super::failures::Failures;
use super::proxies::Proxies;
use crate::job::{Actor, Bearer, words};
use crate::manager::{Caller, Reach, Session, SessionKey};
use crate::wire::cookie::Way;
use crate::wire::{Me, Sight};

words! {
    /// A permission of a token's holder.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Role: "a role", "roles" {
        /// The holder may read jobs, counts, queues and metrics.
        Read = "read",
        /// The holder may submit jobs and schedules, and change those that it submitted.
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
    /// The name of the token's holder, which is the actor in the histories of jobs. Several tokens may have it, such as
    /// one and its successor.
    pub name: Actor,
    /// The roles of the holder; at least one.
    pub roles: BTreeSet<Role>,
    /// The SHA-256 hash of the token, in hexadecimal.
    pub sha256: String,
    /// Whether the holder, with the role `submit`, may change jobs and schedules that were submitted under other names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_edit_others: bool,
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
    /// A token has the hash of another one. Two of one name are one holder's: the former one and the next.
    #[error("the token `{0}` has the hash of another one")]
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
    tokens: Arc<RwLock<Arc<[Arc<TokenHolder>]>>>,
    /// How many times the tokens were renewed.
    renewals: Arc<AtomicU64>,
    sessions: Arc<KnownSessions>,
    names: OwnNames,
}

#[derive(Debug, PartialEq, Eq)]
struct TokenHolder {
    name: Actor,
    roles: BTreeSet<Role>,
    hash: [u8; 32],
    may_edit_others: bool,
}

impl TokenHolder {
    /// Returns what stands for the token in its sessions: the hash of its hash, which no server accepts.
    fn fingerprint(&self) -> String {
        hex(&Sha256::digest(self.hash))
    }
}

/// What is said to those who show nothing.
const SEND_A_TOKEN: &str = "send a token as `Authorization: Bearer …`";

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
    fn holder_of(&self, token: &str) -> Option<Arc<TokenHolder>> {
        let shown: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        self.find(|holder| holder.hash.ct_eq(&shown).into())
    }

    /// Returns the holder of the token for which a session stands, as the session was last read.
    fn holder_in(&self, key: &SessionKey) -> Option<Arc<TokenHolder>> {
        let session = self.sessions.get(key)?;
        self.find(|holder| holder.name == session.token && holder.fingerprint() == session.fingerprint)
    }

    fn find(&self, is_it: impl Fn(&TokenHolder) -> bool) -> Option<Arc<TokenHolder>> {
        let tokens = self.tokens.read();
        tokens.iter().fold(None, |found, holder| if is_it(holder) { Some(holder) } else { found }).cloned()
    }

    fn holder(&self, shown: Shown<'_>) -> Option<Arc<TokenHolder>> {
        match shown {
            Shown::Token(token) => self.holder_of(token),
            Shown::Session(session) => self.holder_in(&SessionKey::parse(session)?),
        }
    }

    /// Returns the name and the fingerprint of the token in these headers.
    ///
    /// # Errors
    /// There is no token, but perhaps a session, or the token is not known.
    pub(super) fn shown_token(&self, headers: &HeaderMap) -> Result<(Actor, String), ApiError> {
        match Shown::in_headers(headers) {
            Some(Shown::Token(_)) => self.named(headers).map(|holder| (holder.name.clone(), holder.fingerprint())),
            _ => Err(ApiError::new(Code::Unauthorized, SEND_A_TOKEN)),
        }
    }

    /// Notes the state of a session, before anybody reads it in the store.
    pub(super) fn note_session(&self, key: &SessionKey, session: Option<Session>) {
        self.sessions.note(key, session, Instant::now());
    }

    /// Returns the names of the holders.
    pub(super) fn names(&self) -> BTreeSet<Actor> {
        self.tokens.read().iter().map(|holder| holder.name.clone()).collect()
    }

    /// Returns the name of the token in these headers, if it is known.
    pub(super) fn name(&self, headers: &HeaderMap) -> Option<Actor> {
        self.holder(Shown::in_headers(headers)?).map(|holder| holder.name.clone())
    }

    /// Checks that the caller may call at all, in whatever role.
    pub(super) fn know(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.is_open() { Ok(()) } else { self.named(headers).map(drop) }
    }

    /// Returns the holder of the token in these headers, or of the one for which the session in them stands.
    fn named(&self, headers: &HeaderMap) -> Result<Arc<TokenHolder>, ApiError> {
        let shown = Shown::in_headers(headers).ok_or_else(|| ApiError::new(Code::Unauthorized, SEND_A_TOKEN))?;
        let unknown = match shown {
            Shown::Token(_) => "the token is not known",
            Shown::Session(_) => "the session has ended: sign in once more",
        };
        self.holder(shown).ok_or_else(|| ApiError::new(Code::Unauthorized, unknown))
    }

    /// Returns who the caller is, and what it may do.
    pub(super) fn me(&self, headers: &HeaderMap) -> Result<Me, ApiError> {
        let me = |name: &Actor, roles: &mut dyn Iterator<Item = &Role>| Me {
            name: name.to_string(),
            roles: roles.map(Role::to_string).collect(),
        };
        if self.is_open() {
            return Ok(me(&anonymous().name, &mut Role::ALL.iter()));
        }
        self.named(headers).map(|holder| me(&holder.name, &mut holder.roles.iter()))
    }

    /// Returns what the caller may do when it has the role.
    pub(super) fn allow(&self, headers: &HeaderMap, role: Role) -> Result<Permit, ApiError> {
        if self.is_open() {
            return Ok(Permit { caller: anonymous(), bearer: None, sight: Sight::Reader });
        }
        let holder = self.named(headers)?;
        let has = |role: Role| holder.roles.contains(&role);
        let is_admin = has(Role::Admin);
        if has(role) || is_admin {
            let reach = if is_admin || holder.may_edit_others { Reach::All } else { Reach::Of(holder.name.clone()) };
            let sight = if has(Role::Read) || is_admin { Sight::Reader } else { Sight::Course };
            let bearer = Some(Bearer { name: holder.name.clone(), is_admin });
            Ok(Permit { caller: Caller { name: holder.name.clone(), reach }, bearer, sight })
        } else {
            let detail = format!("the token has not the role `{role}`, which this call needs");
            Err(ApiError::new(Code::Forbidden, detail).of_token(&holder.name))
        }
    }
}

/// Returns the caller of a server without tokens.
pub(super) fn anonymous() -> Caller {
    Caller::system("anonymous")
}

/// Checks tokens as they are configured.
fn holders(tokens: Vec<Token>) -> Result<Arc<[Arc<TokenHolder>]>, AccessError> {
    let mut hashes = BTreeSet::new();
    let mut holders = Vec::with_capacity(tokens.len());
    for Token { name, roles, sha256, may_edit_others } in tokens {
        let hash = from_hex(&sha256).ok_or_else(|| AccessError::Hash(name.clone()))?;
        if name.is_reserved() {
            return Err(AccessError::Reserved(name));
        }
        if roles.is_empty() {
            return Err(AccessError::NoRoles(name));
        }
        if !hashes.insert(hash) {
            return Err(AccessError::Twice(name));
        }
        holders.push(Arc::new(TokenHolder { name, roles, hash, may_edit_others }));
    }
    Ok(holders.into())
}

/// What a caller may do, who has the role for its call.
#[derive(Clone, Debug)]
pub(super) struct Permit {
    /// Who calls, and what it may change.
    pub(super) caller: Caller,
    /// The holder of its token; `None` on a server without tokens.
    pub(super) bearer: Option<Bearer>,
    /// How much of jobs it is shown.
    pub(super) sight: Sight,
}

/// Who makes a call, with the roles at that time.
#[derive(Clone, Debug)]
pub(super) struct KnownCaller {
    holder: Arc<TokenHolder>,
    /// The session that stands for the token, if one does.
    session: Option<SessionKey>,
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
    /// What reads sessions; `None` where nobody signs in.
    sessions: Option<SessionReader>,
    /// How often the holder of each token has signed in of late.
    pub(super) sign_ins: SignIns,
    /// Whether people reach the process by TLS, whatever a proxy says.
    is_by_tls: bool,
    /// How long an answer goes on before who called is looked at again.
    pub(super) looks_again_after: Duration,
    /// The renewals of tokens after which the budgets were shared.
    seen: AtomicU64,
}

impl Guard {
    /// Guards a process that listens on this address.
    pub(super) fn new(
        access: Access,
        address: SocketAddr,
        budgets: Budgets,
        proxies: Proxies,
        sessions: Option<SessionReader>,
        looks_again_after: Duration,
    ) -> Self {
        let sites = access.is_open().then(|| Sites::new(address, access.names.clone()));
        let (failures, is_by_tls) = (Failures::default(), access.names.is_by_tls());
        let seen = AtomicU64::new(0);
        let (denied, sign_ins) = (DeniedCalls::default(), SignIns::default());
        Self {
            sites,
            is_by_tls,
            access,
            budgets,
            proxies,
            failures,
            denied,
            sessions,
            sign_ins,
            looks_again_after,
            seen,
        }
    }

    /// Returns the key of the session that a call shows and that has to be read before the call is looked at.
    pub(super) fn unread_session(&self, headers: &HeaderMap) -> Option<SessionKey> {
        if self.access.is_open() { None } else { sessions::unread(headers, &self.access.sessions) }
    }

    /// Reads a session as the store has it now, for a call from this address. A key that is not known to be that of a
    /// session may be made up: until it is read, the call is a stranger's.
    ///
    /// # Errors
    /// The store cannot be read, or the address has as many calls of strangers as it may.
    pub(super) async fn read_session(&self, key: &SessionKey, address: Option<IpAddr>) -> Result<(), ApiError> {
        let (Some(sessions), known) = (&self.sessions, &self.access.sessions) else { return Ok(()) };
        let stranger = address.filter(|_| known.get(key).is_none()).map(Holder::at);
        let _share = stranger.map(|stranger| self.budgets.strange_calls.take(&stranger, 1)).transpose()?;
        Ok(sessions.read(key, known).await?)
    }

    /// Returns who calls with these headers, with the roles of now; `None` where nobody has to show it, or nobody is
    /// known that does.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Option<KnownCaller> {
        if self.access.is_open() {
            return None;
        }
        let holder = self.access.named(headers).ok()?;
        Some(KnownCaller { holder, session: session_key(headers) })
    }

    /// Returns whether a caller still has what it had when its call began. Its session is looked at in the store, which
    /// is no use of it. Where the store cannot be read, what is known counts.
    pub(super) async fn still_has(&self, KnownCaller { holder: then, session }: &KnownCaller) -> bool {
        if let (Some(key), Some(sessions)) = (session, &self.sessions)
            && let Err(error) = sessions.look(key, &self.access.sessions).await
        {
            tracing::debug!(%error, "a session cannot be looked at again");
        }
        let now = match session {
            Some(key) => self.access.holder_in(key),
            None => self.access.find(|holder| holder.hash == then.hash),
        };
        let has_all =
            |now: Arc<TokenHolder>| now.roles.is_superset(&then.roles) && now.may_edit_others >= then.may_edit_others;
        now.is_some_and(|now| now.name == then.name && has_all(now))
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
    hex(&Sha256::digest(token.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that a server at `listen` is not open to other machines by mistake.
///
/// # Errors
/// [`AccessError::Exposed`] when other machines can reach it, it has no tokens, and `insecure` is not set.
pub fn check_exposure(listen: SocketAddr, access: &Access, insecure: bool) -> Result<(), AccessError> {
    if listen.ip().is_loopback() || !access.is_open() || insecure { Ok(()) } else { Err(AccessError::Exposed(listen)) }
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
