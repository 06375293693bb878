//! Counts executions by what the workers wrote down, and nothing else.

use std::collections::HashMap;
use std::fmt;

use super::journal::{Line, What};

/// One execution of a job.
#[derive(Debug, Default)]
pub(super) struct Execution {
    pub(super) worker: String,
    pub(super) token: u64,
    pub(super) is_acknowledged: bool,
    pub(super) is_refused: bool,
    started: u64,
    /// When it had done its work, was given up or was killed.
    over: Option<u64>,
    /// The times in which its worker believed to hold the lease, from and until.
    believed: Vec<(u64, u64)>,
}

/// The executions of each job.
#[derive(Debug, Default)]
pub(super) struct Tally(HashMap<String, Vec<Execution>>);

/// What there was of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) executions: usize,
    /// Those of which no end was heard: their worker was killed, or gave them up when it heard that the lease was lost.
    pub(super) cut_short: usize,
    /// Jobs with more than one execution.
    pub(super) jobs_executed_again: usize,
    /// Executions whose completion was acknowledged, or refused.
    pub(super) acknowledged: usize,
    pub(super) refused: usize,
    /// Jobs of which more than one execution was acknowledged.
    pub(super) jobs_acknowledged_twice: usize,
    /// Jobs of which two executions ran at one time,
    pub(super) jobs_overlapping: usize,
    /// … while the workers of both believed to hold the lease.
    pub(super) jobs_overlapping_in_lease: usize,
}

impl Tally {
    pub(super) fn of(journals: Vec<(String, Vec<Line>)>) -> Self {
        let mut tally = Self::default();
        for (worker, lines) in journals {
            let mut own: HashMap<(String, u64), Execution> = HashMap::new();
            for line in lines {
                if line.what == What::Killed {
                    own.values_mut().for_each(|execution| execution.ends(line.at));
                    continue;
                }
                let begun = || Execution { worker: worker.clone(), started: line.at, ..Execution::default() };
                let execution = own.entry((line.job, line.token)).or_insert_with(begun);
                execution.token = line.token;
                execution.believed.extend(line.until.map(|until| (line.at, until)));
                match line.what {
                    What::Started | What::Renewed | What::Killed => {}
                    What::Abandoned | What::Done => execution.ends(line.at),
                    What::Acknowledged => execution.is_acknowledged = true,
                    What::Refused => execution.is_refused = true,
                }
            }
            for ((job, _), execution) in own {
                tally.0.entry(job).or_default().push(execution);
            }
        }
        tally
    }

    /// The executions of a job.
    pub(super) fn job(&self, id: &str) -> &[Execution] {
        self.0.get(id).map_or(&[], Vec::as_slice)
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for executions in self.0.values() {
            let acknowledged = executions.iter().filter(|execution| execution.is_acknowledged).count();
            let overlap = |both: fn(&Execution, &Execution) -> bool| {
                let mut others = executions.iter().enumerate();
                usize::from(others.any(|(number, one)| executions[number + 1..].iter().any(|other| both(one, other))))
            };
            counts.executions += executions.len();
            counts.cut_short += executions.iter().filter(|execution| execution.is_cut_short()).count();
            counts.jobs_executed_again += usize::from(executions.len() > 1);
            counts.acknowledged += acknowledged;
            counts.refused += executions.iter().filter(|execution| execution.is_refused).count();
            counts.jobs_acknowledged_twice += usize::from(acknowledged > 1);
            counts.jobs_overlapping += overlap(Execution::overlaps);
            counts.jobs_overlapping_in_lease += overlap(Execution::overlaps_in_lease);
        }
        counts
    }
}

impl Execution {
    fn ends(&mut self, at: u64) {
        self.over.get_or_insert(at);
    }

    fn is_cut_short(&self) -> bool {
        !self.is_acknowledged && !self.is_refused
    }

    /// When it ran. The worker of one that is never over was stopped, which no run does.
    fn ran(&self) -> (u64, u64) {
        (self.started, self.over.unwrap_or(u64::MAX))
    }

    fn overlaps(&self, other: &Self) -> bool {
        common(self.ran(), other.ran()).is_some()
    }

    fn overlaps_in_lease(&self, other: &Self) -> bool {
        let Some(both_ran) = common(self.ran(), other.ran()) else { return false };
        let mut pairs = self.believed.iter().flat_map(|own| other.believed.iter().map(move |others| (*own, *others)));
        pairs.any(|(own, others)| common(own, others).is_some_and(|both| common(both, both_ran).is_some()))
    }
}

/// What two spans of time have in common.
fn common(one: (u64, u64), other: (u64, u64)) -> Option<(u64, u64)> {
    let both = (one.0.max(other.0), one.1.min(other.1));
    (both.0 < both.1).then_some(both)
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:>8} executions", self.executions)?;
        writeln!(f, "  {:>8} of these cut short: killed, or given up when the lease was lost", self.cut_short)?;
        writeln!(f, "  {:>8} jobs executed more than once", self.jobs_executed_again)?;
        writeln!(f, "  {:>8} completions acknowledged", self.acknowledged)?;
        writeln!(f, "  {:>8} completions refused", self.refused)?;
        writeln!(
            f,
            "  {:>8} jobs whose completion was acknowledged to more than one execution",
            self.jobs_acknowledged_twice
        )?;
        writeln!(f, "  {:>8} jobs of which two executions overlapped", self.jobs_overlapping)?;
        write!(f, "  {:>8} of these while both workers believed to hold the lease", self.jobs_overlapping_in_lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: u64, what: What, until: Option<u64>) -> Line {
        Line { at, what, job: "job".to_owned(), token: 1, until }
    }

    fn counts(journals: [Vec<Line>; 2]) -> Counts {
        let named = journals.into_iter().enumerate().map(|(number, lines)| (format!("worker-{number}"), lines));
        Tally::of(named.collect()).counts()
    }

    const TWICE: Counts = Counts {
        executions: 2,
        cut_short: 0,
        jobs_executed_again: 1,
        acknowledged: 1,
        refused: 1,
        jobs_acknowledged_twice: 0,
        jobs_overlapping: 0,
        jobs_overlapping_in_lease: 0,
    };

    #[test]
    fn an_execution_after_another_overlaps_with_nothing() {
        let first = vec![line(1, What::Started, Some(10)), line(5, What::Done, None), line(9, What::Refused, None)];
        let second =
            vec![line(6, What::Started, Some(16)), line(7, What::Done, None), line(8, What::Acknowledged, None)];
        assert_eq!(counts([first, second]), TWICE);
    }

    #[test]
    fn a_late_execution_overlaps_outside_its_lease() {
        let late = vec![line(1, What::Started, Some(5)), line(20, What::Done, None), line(21, What::Refused, None)];
        let next = vec![line(6, What::Started, Some(16)), line(7, What::Done, None), line(8, What::Acknowledged, None)];
        assert_eq!(counts([late, next]), Counts { jobs_overlapping: 1, ..TWICE });
    }

    #[test]
    fn two_that_believe_in_their_leases_overlap_within_them() {
        let first = vec![
            line(1, What::Started, Some(5)),
            line(7, What::Renewed, Some(12)),
            line(9, What::Done, None),
            line(10, What::Acknowledged, None),
        ];
        let second =
            vec![line(6, What::Started, Some(16)), line(8, What::Done, None), line(9, What::Acknowledged, None)];
        let all = Counts { jobs_overlapping: 1, jobs_overlapping_in_lease: 1, ..TWICE };
        assert_eq!(counts([first, second]), Counts { acknowledged: 2, refused: 0, jobs_acknowledged_twice: 1, ..all });
    }

    #[test]
    fn a_killed_execution_is_over_when_its_process_is() {
        let killed = vec![line(1, What::Started, Some(10)), line(4, What::Killed, None)];
        let next = vec![line(5, What::Started, Some(16)), line(7, What::Done, None), line(8, What::Acknowledged, None)];
        assert_eq!(counts([killed, next]), Counts { cut_short: 1, refused: 0, ..TWICE });
    }
}
