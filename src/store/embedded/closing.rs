//! How a store is closed: its threads end first, then reads under way, and the directory is released last.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::spawn_blocking;

use super::error::closed;
use super::{EmbeddedStore, INDEXED_SCANS, Inner, LOOKUPS, SCANS};

impl EmbeddedStore {
    /// Closes the store, and returns once the directory is free.
    pub(super) async fn close_all(&self) {
        self.inner.is_closed.store(true, Ordering::Release);
        self.queue().close(closed());
        self.inner.received.close();
        let inner = Arc::clone(&self.inner);
        // The threads before the engine, which they have.
        drop(spawn_blocking(move || drop(inner.running.lock().take())).await);
        if let Some(exchange) = &self.inner.exchange {
            exchange.close();
        }
        // All permits: reads under way are done then, and none begins.
        let Inner { scans, indexed_scans, lookups, .. } = &*self.inner;
        for (permits, count) in [(scans, SCANS), (indexed_scans, INDEXED_SCANS), (lookups, LOOKUPS)] {
            let taken = permits.acquire_many(count).await;
            permits.close();
            drop(taken);
        }
        // Before the engine, with which the directory is released: who opens it next opens the output too.
        self.inner.beside.outputs.close().await;
        let engine = self.inner.engine.write().take();
        let release = move || {
            // Nobody else has the engine any more: neither readers, nor the writer, nor these threads.
            if let Some(engine) = engine.and_then(Arc::into_inner)
                && let Err(failure) = engine.close()
            {
                tracing::error!(%failure, "the store was closed after a failure");
            }
        };
        drop(spawn_blocking(release).await);
    }
}

impl Drop for EmbeddedStore {
    /// Ends the threads, so that the directory is free again once nobody reads.
    fn drop(&mut self) {
        self.inner.is_closed.store(true, Ordering::Release);
        self.queue().close(closed());
        self.inner.received.close();
        if let Some(renewing) = self.renewing.lock().take() {
            drop(renewing.join());
        }
        drop(self.inner.running.lock().take());
        if let Some(exchange) = &self.inner.exchange {
            exchange.close();
        }
    }
}
