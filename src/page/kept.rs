//! An answer that is kept for a while, and found once for all who ask meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

/// An answer, once it was found.
pub(super) struct Kept<T>(Mutex<Option<(Instant, Arc<T>)>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Kept<T> {
    /// Returns the answer, unless it is older than `kept`: then whoever asks first finds it, and the others wait for
    /// that.
    pub(super) async fn get<E>(&self, kept: Duration, find: impl Future<Output = Result<T, E>>) -> Result<Arc<T>, E> {
        let mut place = self.0.lock().await;
        if let Some((found, answer)) = &*place
            && found.elapsed() < kept
        {
            return Ok(Arc::clone(answer));
        }
        let answer = Arc::new(find.await?);
        *place = Some((Instant::now(), Arc::clone(&answer)));
        Ok(answer)
    }
}
