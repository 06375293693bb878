//! How often the holder of a token signs in: each time, all sessions are looked at and one is written.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::error::{ApiError, Code};
use crate::job::Actor;

/// How many times the holder of a token signs in without a pause, and how soon as many times again.
const AT_ONCE: (u32, Duration) = (10, Duration::from_secs(60));

/// The turns of late, by the fingerprints of tokens.
#[derive(Debug, Default)]
pub(crate) struct SignIns(Mutex<HashMap<String, Instant>>);

impl SignIns {
    /// Counts that the holder of a token of this name and fingerprint signs in.
    ///
    /// # Errors
    /// It has done so too often of late.
    pub(crate) fn count(&self, token: &Actor, fingerprint: &str) -> Result<(), ApiError> {
        let ((many, each), now) = (AT_ONCE, Instant::now());
        let mut turns = self.0.lock();
        // What is past says nothing more; so there is at most one entry for each token that is known.
        turns.retain(|_, turn| *turn > now);
        let turn = turns.get(fingerprint).copied().unwrap_or(now) + each / many;
        if turn > now + each {
            let detail = format!("the token `{token}` has signed in too often of late: wait a moment");
            return Err(ApiError::new(Code::ShareTaken, detail));
        }
        turns.insert(fingerprint.to_owned(), turn);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_token_signs_in_ten_times_at_once_and_then_once_in_six_seconds() {
        let (sign_ins, name) = (SignIns::default(), Actor::system("ops"));
        let may = |fingerprint: &str| sign_ins.count(&name, fingerprint).map_err(|refused| refused.code());
        for nth in 0..10 {
            assert_eq!(may("one"), Ok(()), "time {nth}");
        }
        assert_eq!(may("one"), Err(Code::ShareTaken));
        assert_eq!(may("other"), Ok(()), "another token of the same name has turns of its own");
        for _ in 0..3 {
            tokio::time::advance(Duration::from_secs(6)).await;
            assert_eq!((may("one"), may("one")), (Ok(()), Err(Code::ShareTaken)));
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!((may("third"), sign_ins.0.lock().len()), (Ok(()), 1), "nothing is kept of what is past");
    }
}
