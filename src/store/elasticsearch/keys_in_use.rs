//! The keys that are in use in a store: a process that lacks one of them refuses to start, before it meets something
//! that it cannot decrypt.

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::encryption::EncryptionKeys;
use super::error::ConnectError;
use super::records::{IN_USE, Records};
use crate::job::{Json, RecordName};
use crate::store::{RecordKey, RecordKind, RecordWrite, WriteError};

/// How many times the names of the keys are written while others write them.
const MAX_TRIES: usize = 10;

/// The names of all keys with which something was ever encrypted.
#[derive(Default, Serialize, Deserialize)]
struct InUse {
    keys: Vec<String>,
}

/// Checks that these keys have all those that are in use, and notes the one with which this process encrypts.
///
/// # Errors
/// One of the keys in use is not there; or the records cannot be read or written now.
pub(super) async fn check(records: &Records, keys: &EncryptionKeys, deadline: Instant) -> Result<(), ConnectError> {
    let not_yet = |why: &dyn std::fmt::Display| ConnectError::NotYet(format!("the keys in use are not known: {why}"));
    let key = RecordKey::new(RecordKind::Setting, RecordName::system(IN_USE));
    for _ in 0..MAX_TRIES {
        let found = records.get(std::slice::from_ref(&key), deadline).await.map_err(|error| not_yet(&error))?;
        let found = found.into_iter().next().flatten();
        let mut in_use = match &found {
            Some(record) => record.read::<InUse>().map_err(|error| not_yet(&error))?,
            None => InUse::default(),
        };
        if let Some(lacking) = in_use.keys.iter().find(|id| !keys.accounts_for(id)) {
            return Err(lacks(lacking));
        }
        let Some(own) = keys.ids().next().filter(|own| !in_use.keys.iter().any(|id| id == own)) else { return Ok(()) };
        in_use.keys.push(own.to_owned());
        let body = Json::of(&in_use).map_err(|error| not_yet(&error))?;
        let expected = found.map(|record| record.version);
        let written = records.write(vec![RecordWrite::put(key.clone(), body, expected)]).await.pop();
        match written {
            Some(Ok(_)) => return Ok(()),
            Some(Err(WriteError::Refused(error))) => return Err(not_yet(&error)),
            // Another process has written, or perhaps this one: that is read.
            Some(Err(WriteError::Conflict(_) | WriteError::Unknown(_))) | None => {}
        }
    }
    Err(not_yet(&"others keep writing them"))
}

fn lacks(id: &str) -> ConnectError {
    ConnectError::refused(
        format!("something in the store is encrypted with the key `{id}`, which this process does not have"),
        format!(
            "name the file that has it (`secrets_key_file`, --secrets-key-file, LEASEHOLD_SECRETS_KEY_FILE), as all \
             processes of the store do; if the key is lost, add the line `lost {id}` to the file, and what it has \
             encrypted stays unreadable"
        ),
    )
}
