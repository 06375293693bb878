//! Who may write the output of an attempt.

use super::{Job, LeaseProof, Refusal};

impl Job {
    /// Checks that the worker holds the lease, or ended the attempt itself: the last of its output may come after that.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`].
    pub fn takes_output_of(&self, proof: &LeaseProof) -> Result<(), Refusal> {
        if self.end_by(proof).is_some() {
            return Ok(());
        }
        self.held_by(proof).map(drop)
    }
}
