//! Runs the commands of a run's jobs: gives each the number of its slot and its niceness.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::template::SLOT_VARIABLE;
use super::watch::Watch;
use crate::job::Json;
use crate::worker::shell::{CommandLine, ShellHandler, ShellPayload};
use crate::worker::{Attempt, Handler, HandlerError};

/// Runs the commands of a run's jobs.
pub(super) struct RunHandler {
    shell: ShellHandler,
    nice: Option<i8>,
    watch: Arc<Watch>,
    /// The numbers of the slots that are taken, from 1.
    taken: Arc<Mutex<BTreeSet<usize>>>,
}

impl RunHandler {
    /// Creates the handler, with what runs the commands and who hears first of their ends.
    pub(super) fn new(shell: ShellHandler, nice: Option<i8>, watch: Arc<Watch>) -> Self {
        Self { shell, nice, watch, taken: Arc::default() }
    }

    fn adapted(&self, payload: Option<&Json>, slot: usize) -> Option<Json> {
        let mut payload = ShellPayload::parse(payload).ok()?;
        payload.env.insert(SLOT_VARIABLE.to_owned(), slot.to_string());
        if let Some(nice) = self.nice {
            let nice = ["nice".to_owned(), "-n".to_owned(), nice.to_string(), "--".to_owned()];
            let command = match payload.command {
                CommandLine::Arguments(words) => words,
                CommandLine::Line(line) => vec!["sh".to_owned(), "-c".to_owned(), line],
            };
            payload.command = CommandLine::Arguments(nice.into_iter().chain(command).collect());
        }
        Json::of(&payload).ok()
    }
}

#[async_trait]
impl Handler for RunHandler {
    async fn run(&self, mut attempt: Attempt) -> Result<Option<Json>, HandlerError> {
        let slot = Slot::take(&self.taken);
        if let Some(payload) = self.adapted(attempt.job.payload.as_ref(), slot.number) {
            attempt.job.payload = Some(payload);
        }
        let job = attempt.job.clone();
        let ended = self.shell.run(attempt).await;
        self.watch.command_ended(&job, ended.as_ref().err());
        ended
    }
}

/// The lowest number that no other running job has.
struct Slot {
    number: usize,
    taken: Arc<Mutex<BTreeSet<usize>>>,
}

impl Slot {
    fn take(taken: &Arc<Mutex<BTreeSet<usize>>>) -> Self {
        let mut numbers = taken.lock();
        let number = (1..).zip(numbers.iter()).find(|(free, taken)| free != *taken).map(|(free, _)| free);
        let number = number.unwrap_or(numbers.len() + 1);
        numbers.insert(number);
        Self { number, taken: taken.clone() }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.taken.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_the_lowest_free_number() {
        let taken = Arc::default();
        let [first, second, third] = [1, 2, 3].map(|_| Slot::take(&taken));
        assert_eq!([first.number, second.number, third.number], [1, 2, 3]);
        drop(second);
        assert_eq!(Slot::take(&taken).number, 2);
        drop(first);
        assert_eq!(Slot::take(&taken).number, 1);
    }
}
