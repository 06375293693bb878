//! An answer that is kept for a while, and found once for all who ask meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

/// An answer, once it was found.
pub(super) struct Kept<T> {
    found: parking_lot::Mutex<Option<(Instant, Arc<T>)>>,
    /// Held by whoever finds it.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { found: parking_lot::Mutex::new(None), turn: Arc::default() }
    }
}

impl<T: Send + Sync + 'static> Kept<T> {
    /// Returns the answer, unless it is older than `kept`: then whoever asks first finds it, and the others wait for
    /// that.
    pub(super) async fn get<E>(&self, kept: Duration, find: impl Future<Output = Result<T, E>>) -> Result<Arc<T>, E> {
        let _turn = self.turn.lock().await;
        match self.latest(Some(kept)) {
            Some(answer) => Ok(answer),
            None => Ok(self.keep(find.await?)),
        }
    }

    /// Returns the answer, and has it found anew where it is older than `kept`. That is waited for no longer than
    /// `patience`: then the answer is the one from before, and `None` where there is none yet.
    pub(super) async fn get_within(
        self: &Arc<Self>,
        (kept, patience): (Duration, Duration),
        find: impl Future<Output = Option<T>> + Send + 'static,
    ) -> Option<Arc<T>> {
        if let Some(answer) = self.latest(Some(kept)) {
            return Some(answer);
        }
        if let Ok(turn) = Arc::clone(&self.turn).try_lock_owned() {
            let place = Arc::clone(self);
            let finding = tokio::spawn(async move {
                let _turn = turn;
                if let Some(answer) = find.await {
                    place.keep(answer);
                }
            });
            // It goes on where the patience ends, for those who ask next.
            let _in_time = timeout(patience, finding).await;
        }
        self.latest(None)
    }

    fn keep(&self, answer: T) -> Arc<T> {
        let answer = Arc::new(answer);
        *self.found.lock() = Some((Instant::now(), Arc::clone(&answer)));
        answer
    }

    /// Returns the answer, if it is younger than `kept`.
    fn latest(&self, kept: Option<Duration>) -> Option<Arc<T>> {
        let found = self.found.lock();
        let (at, answer) = found.as_ref()?;
        kept.is_none_or(|kept| at.elapsed() < kept).then(|| Arc::clone(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn an_answer_is_found_once_and_then_kept() {
        let kept = Kept::default();
        assert_eq!(kept.get(LONG, async { Err::<u8, _>("no") }).await, Err("no"));
        assert_eq!(kept.get(LONG, async { Ok::<_, &str>(1) }).await.as_deref(), Ok(&1));
        assert_eq!(kept.get(LONG, async { Ok::<_, &str>(2) }).await.as_deref(), Ok(&1));
        assert_eq!(kept.get(Duration::ZERO, async { Ok::<_, &str>(3) }).await.as_deref(), Ok(&3));
    }

    #[tokio::test]
    async fn an_answer_that_takes_long_is_there_for_those_who_ask_later() {
        let kept = Arc::new(Kept::default());
        let (open, opened) = tokio::sync::oneshot::channel::<u8>();
        let slow = async move { opened.await.ok() };
        assert_eq!(kept.get_within((LONG, Duration::ZERO), slow).await, None);
        assert_eq!(kept.get_within((LONG, LONG), async { Some(9) }).await, None, "it is being found already");
        open.send(1).expect("it is waited for");
        while kept.get_within((LONG, Duration::ZERO), async { None }).await.is_none() {
            tokio::task::yield_now().await;
        }
        // One from before stands in while the next is found.
        let never = std::future::pending();
        assert_eq!(kept.get_within((Duration::ZERO, Duration::ZERO), never).await.as_deref(), Some(&1));
    }
}
