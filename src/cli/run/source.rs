//! The jobs of a run and their ids.
//!
//! A job's id is a hash of its line and of how many equal lines stand above it. So the same run started again finds
//! its jobs, and of a file that was changed meanwhile only the lines that changed are new, wherever they stand.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::each::{self, Template};
use crate::cli::failure::Failure;
use crate::cli::jobs::{self, JobLine};
use crate::job::{JobId, Json, Offers};
use crate::manager::NewJob;
use crate::wire::SubmitJob;
use crate::worker::shell;

/// The source of a run's jobs.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A file of JSON lines.
    File(PathBuf),
    /// Standard input, read to its end.
    Input(String),
    /// The files that match patterns.
    Each { patterns: Vec<String>, command: Vec<String>, shell: bool },
}

/// The settings of a job that does not have them itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub(super) attempts: u64,
    pub(super) timeout_ms: Option<u64>,
}

/// A job of a run.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) id: JobId,
    /// The number of its line or file, from 1.
    pub(super) number: usize,
    /// The job's name for people: the id that its line gives, or its command.
    pub(super) label: String,
    pub(super) job: NewJob,
}

impl Source {
    /// Returns what identifies this run: the same from one start to the next.
    pub(super) fn identity(&self) -> Result<String, Failure> {
        let place = |path: &Path| {
            path.canonicalize().map_err(|error| Failure::Usage(format!("cannot read {}: {error}", path.display())))
        };
        Ok(match self {
            Self::File(file) => format!("file {}", place(file)?.display()),
            Self::Input(text) => format!("input {}", hash(&[text.as_bytes()])),
            Self::Each { patterns, command, shell } => {
                let here = place(Path::new("."))?;
                let with = if *shell { "shell" } else { "command" };
                format!("each {patterns:?} {with} {command:?} in {}", here.display())
            }
        })
    }

    /// Returns the default directory of this run's data.
    pub(super) fn data_dir(&self) -> Result<PathBuf, Failure> {
        let name = hash(&[self.identity()?.as_bytes()]);
        Ok(Path::new("leasehold-data").join(format!("run-{}", &name[..12])))
    }

    /// Returns the name of the source in messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::File(file) => file.display().to_string(),
            Self::Input(_) => "standard input".to_owned(),
            Self::Each { .. } => "file".to_owned(),
        }
    }

    /// Returns the jobs, or an error when one of them cannot be run.
    pub(super) fn plan(&self, defaults: Defaults) -> Result<Vec<Planned>, Failure> {
        let lines = match self {
            Self::File(file) => jobs::parse(&self.name(), &jobs::read_text(file)?)?,
            Self::Input(text) => jobs::parse(&self.name(), text)?,
            Self::Each { patterns, command, shell } => each_file(patterns, command, *shell)?,
        };
        let wrong = |line: &JobLine, what: String| Failure::Usage(format!("{}:{}: {what}", self.name(), line.number));
        let mut equal_above: HashMap<&str, usize> = HashMap::new();
        let mut ids: HashMap<JobId, usize> = HashMap::new();
        let mut planned = Vec::with_capacity(lines.len());
        for line in &lines {
            let above = equal_above.entry(&line.text).or_default();
            let job = with_defaults(&line.job, defaults, || derived_id(&line.text, *above));
            *above += 1;
            if job.kind != shell::KIND {
                let kind = &job.kind;
                return Err(wrong(line, format!("only `shell` jobs can be run here, and this one is a `{kind}`")));
            }
            let job = job.into_new_job().map_err(|invalid| wrong(line, invalid.to_string()))?;
            if let Some(unmet) = job.spec.requires().iter().find(|requirement| !requirement.is_met_by(&Offers::new())) {
                return Err(wrong(line, format!("a run offers no labels, and this job requires `{unmet}`")));
            }
            if job.spec.unique().is_some() {
                return Err(wrong(line, "a run has each job once, and this one has a `unique_key`".to_owned()));
            }
            let Some(id) = job.id.clone() else { continue };
            match ids.entry(id.clone()) {
                Entry::Occupied(first) => {
                    return Err(wrong(line, format!("the id {id} is that of line {} already", first.get())));
                }
                Entry::Vacant(vacant) => drop(vacant.insert(line.number)),
            }
            let label = line.label.clone().or_else(|| line.job.id.clone());
            let label = label.unwrap_or_else(|| jobs::describe(&line.job));
            planned.push(Planned { id, number: line.number, label, job });
        }
        Ok(planned)
    }
}

fn with_defaults(job: &SubmitJob, defaults: Defaults, id: impl FnOnce() -> String) -> SubmitJob {
    let mut job = job.clone();
    job.id.get_or_insert_with(id);
    // The id identifies the submission.
    job.idempotency_key = None;
    job.max_attempts = job.max_attempts.or(Some(defaults.attempts));
    job.timeout_ms = job.timeout_ms.or(defaults.timeout_ms);
    job
}

/// Returns a line for each file.
fn each_file(patterns: &[String], command: &[String], shell: bool) -> Result<Vec<JobLine>, Failure> {
    let template = Template::new(command.to_vec(), shell)?;
    let mut lines = Vec::new();
    for (index, file) in each::files(patterns)?.iter().enumerate() {
        let number = index + 1;
        let payload = template.fill(file, number);
        payload.check().map_err(Failure::Usage)?;
        let payload = Json::of(&payload)?;
        let job = SubmitJob { payload: Some(payload.clone()), ..SubmitJob::new(jobs::DEFAULT_QUEUE, shell::KIND) };
        let label = Some(template.describe(file, number));
        lines.push(JobLine { number, text: payload.as_str().to_owned(), label, job });
    }
    Ok(lines)
}

fn derived_id(line: &str, equal_above: usize) -> String {
    hash(&[line.as_bytes(), &equal_above.to_le_bytes()])[..32].to_owned()
}

/// Returns a hash of the parts, separated from each other, in hexadecimal.
fn hash(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.len().to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: Defaults = Defaults { attempts: 1, timeout_ms: None };

    fn ids(text: &str) -> Vec<String> {
        let planned = Source::Input(text.to_owned()).plan(DEFAULTS).expect("good lines");
        planned.into_iter().map(|job| job.id.into()).collect()
    }

    #[test]
    fn a_line_keeps_its_id_wherever_it_stands_and_equal_lines_are_jobs_of_their_own() {
        let (a, b) = ("{\"command\": \"a\"}", "{\"command\": \"b\"}");
        let former = ids(&format!("{a}\n{a}\n{b}\n"));
        let changed = ids(&format!("{b}\n{{\"command\": \"c\"}}\n{a}\n{a}\n"));
        assert_eq!([&changed[0], &changed[2], &changed[3]], [&former[2], &former[0], &former[1]]);
        assert_ne!(former[0], former[1]);
        assert!(!former.contains(&changed[1]));
    }

    #[test]
    fn other_defaults_do_not_make_other_jobs() {
        let source = Source::Input("{\"command\": \"a\"}".to_owned());
        let again = Defaults { attempts: 5, timeout_ms: Some(9) };
        let (first, second) = (source.plan(DEFAULTS).expect("good"), source.plan(again).expect("good"));
        assert_eq!(first[0].id, second[0].id);
        assert_eq!((first[0].job.spec.max_attempts, second[0].job.spec.max_attempts), (1, 5));
    }

    #[test]
    fn an_id_twice_or_a_job_nobody_here_can_run_is_refused() {
        let twice = "{\"id\": \"x\", \"command\": \"a\"}\n{\"id\": \"x\", \"command\": \"b\"}";
        let unique = "{\"command\": \"a\", \"unique_key\": \"b\"}";
        let labelled = "{\"command\": \"a\", \"requires\": [\"!gpu\", \"hw=fpga\"]}";
        for (text, word) in [
            (twice, "standard input:2: the id x is that of line 1"),
            ("{\"kind\": \"render\"}", "only `shell`"),
            (unique, "standard input:1: a run has each job once"),
            (labelled, "standard input:1: a run offers no labels, and this job requires `hw = fpga`"),
        ] {
            match Source::Input(text.to_owned()).plan(DEFAULTS) {
                Err(Failure::Usage(said)) => assert!(said.contains(word), "{said}"),
                other => panic!("taken: {other:?}"),
            }
        }
    }
}
