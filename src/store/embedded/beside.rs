//! What lies beside the state of a store, and is not in its log: the output of attempts and the audit.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::audit::{Audit, AuditFiles, CopiedAudit, Writer};
use super::copied::CopiedOutputs;
use super::exchange::Exchange;
use super::output::Outputs;
use crate::store::OutputStore;

/// The output and the audit of a data directory.
pub(super) struct Beside {
    pub(super) audit: Arc<Mutex<Audit>>,
    pub(super) outputs: Arc<Outputs>,
    /// How a group has them.
    pub(super) copied: Option<(Arc<CopiedOutputs>, Arc<CopiedAudit>)>,
}

impl Beside {
    /// Creates what lies in a data directory beside the state. Nothing is created on the disk.
    pub(super) fn in_directory(path: &Path, exchange: Option<&Arc<Exchange>>) -> Self {
        let outputs = Outputs::in_directory(path);
        let copied = exchange.map(|exchange| {
            let copied = CopiedOutputs::new(Arc::clone(&outputs), Arc::clone(exchange));
            (copied, CopiedAudit::new(path, Arc::clone(exchange)))
        });
        Self { audit: Arc::new(Mutex::new(Audit::in_directory(path))), outputs, copied }
    }

    /// Returns the output of the store, of all members where it is one of several.
    pub(super) fn output_store(&self) -> Arc<dyn OutputStore> {
        match &self.copied {
            Some((copied, _)) => Arc::clone(copied) as Arc<dyn OutputStore>,
            None => Arc::clone(&self.outputs) as Arc<dyn OutputStore>,
        }
    }

    /// Returns the files of the audit in the data directory.
    pub(super) fn audit_files(&self, path: &Path) -> AuditFiles {
        let own = self.copied.as_ref().and_then(|(_, audit)| audit.own());
        AuditFiles::in_directory(path, own.unwrap_or(Writer(0)))
    }

    /// Waits until another member has what was added to the audit, where there is one, for some seconds at most.
    pub(super) async fn audit_is_copied(&self) {
        if let Some((_, audit)) = &self.copied {
            audit.until_copied().await;
        }
    }
}
