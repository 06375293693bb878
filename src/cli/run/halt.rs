//! When a run ends early: `--halt now,fail=1`, as GNU parallel has it.

use std::str::FromStr;

use crate::worker::Stop;

/// How many jobs must have ended so before a share of them counts.
const FEWEST_FOR_SHARE: u64 = 3;

/// When a run ends before its last job has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Halt {
    /// It does not.
    Never,
    /// As soon as so many jobs have ended so.
    When { stop: Stop, ends: Ends, amount: Amount },
}

/// Which ends of jobs count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Failed,
    Succeeded,
    Any,
}

/// How many jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Amount {
    Jobs(u64),
    /// A share of all jobs of the run, of at least [`FEWEST_FOR_SHARE`].
    Percent(f64),
}

impl Halt {
    /// Returns how urgently the run is to end once so many of its `total` jobs have been completed and have failed.
    pub(super) fn reached(self, completed: u64, failed: u64, total: u64) -> Option<Stop> {
        let Self::When { stop, ends, amount } = self else { return None };
        let ended = match ends {
            Ends::Failed => failed,
            Ends::Succeeded => completed,
            Ends::Any => completed + failed,
        };
        let reached = match amount {
            Amount::Jobs(jobs) => ended >= jobs,
            Amount::Percent(share) => ended >= FEWEST_FOR_SHARE && ended as f64 * 100.0 >= share * total.max(1) as f64,
        };
        reached.then_some(stop)
    }

    /// Returns whether the run has what it was for once it is halted.
    pub(super) const fn is_success(self) -> bool {
        matches!(self, Self::When { ends: Ends::Succeeded, .. })
    }
}

impl FromStr for Halt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self::Never);
        }
        let parse = || {
            let (when, what) = text.split_once(',')?;
            let (ends, amount) = what.split_once('=')?;
            let stop = match when {
                "now" => Stop::Now,
                "soon" => Stop::Drain,
                _ => return None,
            };
            let ends = match ends {
                "fail" => Ends::Failed,
                "success" => Ends::Succeeded,
                "done" => Ends::Any,
                _ => return None,
            };
            let amount = match amount.strip_suffix('%') {
                Some(share) => Amount::Percent(share.parse().ok().filter(|share| *share > 0.0 && *share <= 100.0)?),
                None => Amount::Jobs(amount.parse().ok().filter(|jobs| *jobs > 0)?),
            };
            Some(Self::When { stop, ends, amount })
        };
        parse().ok_or_else(|| {
            "it is `never`, or when and how many, such as `now,fail=1`, `soon,fail=10%` or `now,success=1`".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halt(text: &str) -> Halt {
        text.parse().expect(text)
    }

    #[test]
    fn so_many_ends_of_one_sort_end_a_run() {
        for (text, completed, failed, stop) in [
            ("never", 9, 9, None),
            ("now,fail=1", 9, 0, None),
            ("now,fail=1", 0, 1, Some(Stop::Now)),
            ("soon,fail=2", 5, 1, None),
            ("soon,fail=2", 5, 3, Some(Stop::Drain)),
            ("now,success=1", 1, 0, Some(Stop::Now)),
            ("soon,done=3", 2, 1, Some(Stop::Drain)),
        ] {
            assert_eq!(halt(text).reached(completed, failed, 10), stop, "{text}");
        }
    }

    #[test]
    fn a_share_is_of_all_jobs_and_of_three_at_least() {
        assert_eq!(halt("soon,fail=10%").reached(0, 2, 10), None);
        assert_eq!(halt("soon,fail=10%").reached(0, 3, 10), Some(Stop::Drain));
        assert_eq!(halt("soon,fail=10%").reached(0, 9, 100), None);
        assert_eq!(halt("now,success=50%").reached(50, 9, 100), Some(Stop::Now));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "now", "now,fail", "later,fail=1", "now,fail=0", "now,fail=101%", "now,fail=x", "soon,fall=1"]
        {
            assert!(text.parse::<Halt>().is_err(), "{text} was taken");
        }
    }
}
