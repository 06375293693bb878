//! The options of the store on Elasticsearch.

use std::fmt;
use std::time::Duration;

use elasticsearch::auth::Credentials;
use elasticsearch::http::Url;
use percent_encoding::percent_decode_str;

use super::encryption::EncryptionKeys;
use super::error::ConnectError;
use super::indices::Indices;
use super::nodes::{Access, Nodes};
use crate::store::QUERY_TIME;

/// The longest index prefix: an index's name has at most 255 bytes.
const MAX_PREFIX: usize = 200;

/// The options for reaching and using the store.
#[derive(Clone)]
pub struct ElasticsearchOptions {
    /// The addresses of the nodes. An address may contain a user and password.
    pub urls: Vec<String>,
    /// The user and password for the addresses that contain none.
    pub basic: Option<(String, String)>,
    /// The API key, encoded as the server gave it, for the addresses that contain no user. It takes precedence over
    /// `basic`.
    pub api_key: Option<String>,
    /// The certificate (PEM) of the private authority that signed the nodes' certificates; `None` for a public one.
    pub certificate_authority: Option<Vec<u8>>,
    /// The prefix of the indices' names, at most 200 bytes.
    pub index_prefix: String,
    /// The longest time that a node may take to answer one request.
    pub request_timeout: Duration,
    /// The longest time that a read may take, retries included.
    pub read_timeout: Duration,
    /// The longest time that a query in Kibana's language or for statistics may take. Other searches are answered by
    /// the indices, and have `read_timeout`.
    pub query_time: Duration,
    /// The longest time that a write may take, retries included, before it fails or is reported as unknown.
    pub write_timeout: Duration,
    /// The most writes that may wait in each lane. A write counts once more for every 4 KiB of its document and its
    /// bodies.
    pub write_queue: u32,
    /// The most documents that may wait to be read.
    pub read_queue: u32,
    /// The most bulk requests under way at once in each lane: of writes that can be sent at once, of those that bring
    /// bodies, and of those whose job has to be looked for in the archive.
    pub bulks_in_flight: usize,
    /// The number of primary shards of the indices of live jobs and of bodies; `None` for what they have, and for one
    /// in an index that is made. A month of the archive and the indices of records and of schedules have one in any
    /// case.
    pub shards: Option<u32>,
    /// The number of replicas of each shard; `None` for one replica as soon as there is a second node, and none before
    /// that.
    pub replicas: Option<u32>,
    /// The refresh interval of the indices: how long a write may take to become visible to searches.
    pub refresh_interval: Duration,
    /// How long after its end a settled job moves to the archive; at least `write_timeout`, so that no write that ended
    /// it is still under way.
    pub move_after: Duration,
    /// How long the tombstone of a moved or removed job stays in the live index. This must be longer than any write can
    /// be under way.
    pub tombstone_after: Duration,
    /// The keys with which what is secret in documents is encrypted; without any, nothing is.
    pub encryption_keys: EncryptionKeys,
}

impl Default for ElasticsearchOptions {
    fn default() -> Self {
        Self {
            urls: vec!["http://localhost:9200".to_owned()],
            basic: None,
            api_key: None,
            certificate_authority: None,
            index_prefix: "leasehold-".to_owned(),
            request_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(20),
            query_time: QUERY_TIME,
            write_timeout: Duration::from_secs(30),
            write_queue: 50_000,
            read_queue: 50_000,
            bulks_in_flight: 3,
            shards: None,
            replicas: None,
            refresh_interval: Duration::from_secs(1),
            move_after: Duration::from_secs(600),
            tombstone_after: Duration::from_secs(600),
            encryption_keys: EncryptionKeys::default(),
        }
    }
}

/// Shows no secrets.
impl fmt::Debug for ElasticsearchOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElasticsearchOptions")
            .field("nodes", &self.urls.len())
            .field("index_prefix", &self.index_prefix)
            .field("shards", &self.shards)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

impl ElasticsearchOptions {
    pub(super) fn indices(&self) -> Result<Indices, ConnectError> {
        let prefix = &self.index_prefix;
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        let starts_well = !prefix.starts_with(['-', '_', '.']);
        if prefix.len() > MAX_PREFIX || !starts_well || !prefix.bytes().all(allowed) {
            return Err(ConnectError::refused(
                format!("`{prefix}` cannot start an index's name"),
                "use lower-case letters, digits, `-`, `_` and `.`, with a letter or a digit first",
            ));
        }
        Ok(Indices {
            encryption: self.encryption_keys.clone(),
            jobs: format!("{prefix}jobs"),
            bodies: format!("{prefix}bodies"),
            records: format!("{prefix}records"),
            schedules: format!("{prefix}schedules"),
            archive: format!("{prefix}archive"),
            all: format!("{prefix}all"),
            resizing: format!("{prefix}resizing-"),
            replaced: format!("{prefix}replaced"),
        })
    }

    /// Checks the options that depend on each other.
    pub(super) fn check(&self) -> Result<(), ConnectError> {
        if self.move_after < self.write_timeout {
            let (least, own) = (self.write_timeout.as_millis(), self.move_after.as_millis());
            return Err(ConnectError::refused(
                format!(
                    "jobs are to be moved {own} ms after their end, when the write that ended them may be under way"
                ),
                format!("set `--archive-after` to at least {least} ms"),
            ));
        }
        Ok(())
    }

    pub(super) fn nodes(&self) -> Result<Nodes, ConnectError> {
        let credentials = match (&self.api_key, &self.basic) {
            (Some(key), _) => {
                if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                    return Err(ConnectError::refused("the API key is not one", "give it encoded, as the server did"));
                }
                Some(Credentials::EncodedApiKey(key.clone()))
            }
            (None, Some((user, password))) => Some(Credentials::Basic(user.clone(), password.clone())),
            (None, None) => None,
        };
        let certificate_authority = self.certificate_authority.clone();
        let access = Access { credentials, certificate_authority, request_timeout: self.request_timeout };
        let urls = self.urls.iter().map(|url| address(url)).collect::<Result<Vec<_>, ConnectError>>()?;
        Nodes::new(urls, &access).map_err(|what| {
            ConnectError::refused(
                what,
                "mend the address or the certificate; an address looks like http://localhost:9200",
            )
        })
    }
}

/// Parses an address into a URL and the user and password that it contains. Error messages do not repeat the address,
/// since it may contain a password.
fn address(text: &str) -> Result<(Url, Option<Credentials>), ConnectError> {
    let mend = "give it as in http://localhost:9200 or https://user:password@host:9200";
    let url = Url::parse(text)
        .map_err(|error| ConnectError::refused(format!("an address of the store cannot be read ({error})"), mend))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(ConnectError::refused("an address of the store is neither http:// nor https://", mend));
    }
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let own = (!url.username().is_empty())
        .then(|| Credentials::Basic(decode(url.username()), decode(url.password().unwrap_or_default())));
    Ok((url, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_gives_up_its_user_and_password_as_they_were_meant() {
        let (_, own) = address("https://el%40stic:p%2Fw%25@localhost:9200").expect("an address");
        assert!(matches!(own, Some(Credentials::Basic(user, password)) if user == "el@stic" && password == "p/w%"));
        assert!(address("http://localhost:9200").expect("an address").1.is_none());
    }

    #[test]
    fn a_wrong_address_or_prefix_is_refused_for_good() {
        for text in ["localhost", "ftp://localhost", "", "http://"] {
            assert!(address(text).is_err_and(|error| !error.is_transient()), "{text}");
        }
        for prefix in ["Jobs-", "-a", "a/b", "a*", "a b"] {
            let options = ElasticsearchOptions { index_prefix: prefix.to_owned(), ..Default::default() };
            assert!(options.indices().is_err(), "{prefix}");
        }
        assert!(ElasticsearchOptions::default().indices().is_ok());
    }

    #[test]
    fn jobs_are_not_moved_while_the_write_that_ended_them_may_be_under_way() {
        let options = ElasticsearchOptions { move_after: Duration::from_secs(29), ..ElasticsearchOptions::default() };
        assert!(options.check().is_err_and(|error| !error.is_transient()));
        let options = ElasticsearchOptions { move_after: Duration::from_secs(30), ..options };
        assert!(options.check().is_ok());
    }

    #[test]
    fn options_do_not_show_secrets() {
        let options = ElasticsearchOptions {
            urls: vec!["https://user:secret@localhost".to_owned()],
            api_key: Some("secret".to_owned()),
            ..Default::default()
        };
        assert!(!format!("{options:?}").contains("secret"));
    }
}
