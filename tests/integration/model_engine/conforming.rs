//! The model as the conformance suite has it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::store::Store;

use super::{Model, Odds};
use crate::engines;

/// A model for one process, to which nothing happens but that searches show nothing that is not waited for.
pub(crate) struct Alone {
    store: Arc<dyn Store>,
}

#[async_trait]
impl crate::store::Engine for Alone {
    async fn fresh() -> Self {
        let model = Model::new(Duration::from_secs(3_600));
        Self { store: model.handle(Odds::default(), 0) }
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    async fn settle(&self) {
        engines::refresh(&*self.store).await;
    }
}
