//! The jobs of a run and their ids.
//!
//! A job's id is a hash of its line and of how many equal lines stand above it. So the same run started again finds
//! its jobs, and of a file that was changed meanwhile only the lines that changed are new, wherever they stand.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::arguments::{Input, List, combinations, hash, place_of};
use super::template::Template;
use crate::cli::failure::Failure;
use crate::cli::jobs::{self, JobLine};
use crate::cli::output::shorten;
use crate::job::names::MAX_NAME_BYTES;
use crate::job::shell::quote;
use crate::job::{JobId, Json, Offers};
use crate::manager::NewJob;
use crate::wire::SubmitJob;
use crate::worker::shell::{self, CommandLine, ShellPayload};

/// The source of a run's jobs.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A list whose lines are jobs as JSON, or commands.
    Lines(List),
    /// A command for each combination of arguments.
    Command { words: Vec<String>, shell: bool, inputs: Vec<Input>, end: char },
}

/// The settings of a job that does not have them itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub(super) attempts: u64,
    pub(super) timeout_ms: Option<u64>,
}

/// How many characters of a command are shown.
const LABEL_CHARACTERS: usize = 60;

/// A job's name for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Name {
    #[serde(rename = "line")]
    pub(super) number: usize,
    #[serde(rename = "command")]
    pub(super) label: String,
    pub(super) id: JobId,
}

/// A job of a run.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) id: JobId,
    /// The number of its line or file, from 1.
    pub(super) number: usize,
    /// The job's name for people: the id that its line gives, or its command.
    pub(super) label: String,
    /// Whether its line gives its id.
    names_itself: bool,
    /// Its arguments, where it has any.
    pub(super) arguments: Vec<Arc<str>>,
    pub(super) job: NewJob,
}

impl Planned {
    /// Returns its name for people.
    pub(super) fn name(&self) -> Name {
        Name { number: self.number, label: shorten(&self.label, LABEL_CHARACTERS), id: self.id.clone() }
    }

    /// Returns the job as it is in a run: each run has ids of its own, so that programs that go by the id of a job, or
    /// by its id and fence, tell the nights apart. Those of the first run are the ones of the list.
    pub(super) fn in_run(mut self, run: u64) -> Result<Self, Failure> {
        if run == 1 {
            return Ok(self);
        }
        let of_run = format!("{}.{run}", self.id);
        let hashed = || hash(&[self.id.as_str().as_bytes(), &run.to_le_bytes()])[..32].to_owned();
        let id = if self.names_itself && of_run.len() <= MAX_NAME_BYTES { of_run } else { hashed() };
        self.id = JobId::new(id).map_err(Failure::failed)?;
        self.job.id = Some(self.id.clone());
        Ok(self)
    }

    /// Returns its command as a shell would read it.
    pub(super) fn command(&self) -> String {
        if !self.arguments.is_empty() {
            return self.label.clone();
        }
        match ShellPayload::parse(self.job.payload.as_ref()).map(|payload| payload.command) {
            Ok(CommandLine::Arguments(words)) => words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" "),
            Ok(CommandLine::Line(line)) => line,
            Err(_) => self.label.clone(),
        }
    }
}

impl Source {
    /// Returns what identifies this run: the same from one start to the next.
    pub(super) fn identity(&self) -> Result<String, Failure> {
        Ok(match self {
            Self::Lines(List::File(file)) => format!("file {}", place_of(file)?.display()),
            Self::Lines(list) => list.identity()?,
            Self::Command { words, shell, inputs, .. } => {
                let here = place_of(Path::new("."))?;
                let with = if *shell { "shell" } else { "command" };
                let mut lists = String::new();
                for Input { list, linked } in inputs {
                    let between = match (lists.is_empty(), linked) {
                        (true, _) => "",
                        (false, false) => " and ",
                        (false, true) => " beside ",
                    };
                    lists = lists + between + &list.identity()?;
                }
                format!("{lists} {with} {words:?} in {}", here.display())
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
            Self::Lines(List::File(file)) => file.display().to_string(),
            Self::Lines(List::Input(_)) => "standard input".to_owned(),
            Self::Lines(List::Each(_) | List::Values(_)) | Self::Command { .. } => "job".to_owned(),
        }
    }

    /// Returns the jobs, or an error when one of them cannot be run.
    pub(super) fn plan(&self, defaults: Defaults) -> Result<Vec<Planned>, Failure> {
        let (lines, mut arguments) = match self {
            Self::Lines(List::File(file)) => (self.parse(&jobs::read_text(file)?)?, Vec::new()),
            Self::Lines(List::Input(text)) => (self.parse(text)?, Vec::new()),
            Self::Lines(list @ (List::Each(_) | List::Values(_))) => {
                commands(&[Input { list: list.clone(), linked: false }], '\n')?
            }
            Self::Command { words, inputs, end, .. } if words.is_empty() => commands(inputs, *end)?,
            Self::Command { words, shell, inputs, end } => filled(words, *shell, inputs, *end)?,
        };
        let wrong = |line: &JobLine, what: String| Failure::Usage(format!("{}:{}: {what}", self.name(), line.number));
        let mut equal_above: HashMap<&str, usize> = HashMap::new();
        let mut ids: HashMap<JobId, usize> = HashMap::new();
        let mut planned = Vec::with_capacity(lines.len());
        for (index, line) in lines.iter().enumerate() {
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
            let arguments = arguments.get_mut(index).map(std::mem::take).unwrap_or_default();
            let names_itself = line.job.id.is_some();
            planned.push(Planned { id, number: line.number, label, names_itself, arguments, job });
        }
        Ok(planned)
    }

    fn parse(&self, text: &str) -> Result<Vec<JobLine>, Failure> {
        jobs::parse_with_commands(&self.name(), text)
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

/// The lines of jobs, and the arguments of each.
type Lines = (Vec<JobLine>, Vec<Vec<Arc<str>>>);

/// Returns a line for each combination of arguments: the command with the arguments put in.
fn filled(words: &[String], shell: bool, inputs: &[Input], end: char) -> Result<Lines, Failure> {
    let template = Template::new(words.to_vec(), shell, inputs.len())?;
    let (mut lines, mut all) = (Vec::new(), Vec::new());
    for (index, arguments) in combinations(inputs, end)?.into_iter().enumerate() {
        let number = index + 1;
        let payload = template.fill(&arguments, number);
        payload.check().map_err(|what| Failure::Usage(format!("job {number}: {what}")))?;
        let payload = Json::of(&payload)?;
        let job = SubmitJob { payload: Some(payload.clone()), ..SubmitJob::new(jobs::DEFAULT_QUEUE, shell::KIND) };
        let label = Some(template.describe(&arguments, number));
        lines.push(JobLine { number, text: payload.as_str().to_owned(), label, job });
        all.push(arguments.into_iter().map(|argument| argument.text).collect());
    }
    Ok((lines, all))
}

/// Returns a line for each combination of arguments, which are commands themselves.
fn commands(inputs: &[Input], end: char) -> Result<Lines, Failure> {
    let mut lines = Vec::new();
    for (index, arguments) in combinations(inputs, end)?.into_iter().enumerate() {
        let text = arguments.iter().map(|argument| argument.text.as_ref()).collect::<Vec<_>>().join(" ");
        let job = jobs::shell_job(&text).map_err(|what| Failure::Usage(format!("job {}: {what}", index + 1)))?;
        lines.push(JobLine { number: index + 1, text, label: None, job });
    }
    Ok((lines, Vec::new()))
}

fn derived_id(line: &str, equal_above: usize) -> String {
    hash(&[line.as_bytes(), &equal_above.to_le_bytes()])[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const DEFAULTS: Defaults = Defaults { attempts: 1, timeout_ms: None };

    fn ids(text: &str) -> Vec<String> {
        let planned = Source::Lines(List::Input(text.to_owned())).plan(DEFAULTS).expect("good lines");
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
    fn each_run_has_ids_of_its_own_and_the_first_those_of_the_list() {
        let long = "y".repeat(MAX_NAME_BYTES);
        let line = |id: &str| format!("{{\"id\": \"{id}\", \"command\": \"a\"}}\n");
        let text = format!("{{\"command\": \"a\"}}\n{}{}", line("x"), line(&long));
        let planned = Source::Lines(List::Input(text)).plan(DEFAULTS);
        let planned = planned.expect("good lines");
        let ids = |run| -> Vec<String> {
            let jobs = planned.iter().map(|job| job.clone().in_run(run).expect("an id"));
            jobs.map(|job| (job.id.clone(), job.job.id))
                .map(|(id, same)| {
                    assert_eq!(Some(&id), same.as_ref());
                    id.into()
                })
                .collect()
        };
        assert_eq!(ids(1), planned.iter().map(|job| job.id.to_string()).collect::<Vec<_>>());
        assert_eq!(ids(2)[1], "x.2");
        let all: HashSet<String> = (1..=12).flat_map(ids).collect();
        assert_eq!(all.len(), 36);
    }

    #[test]
    fn plain_lines_are_commands_for_a_shell_among_lines_of_json() {
        let text = "# note\necho 'a'  | wc\n{\"command\": [\"b\"]}\n";
        let planned = Source::Lines(List::Input(text.to_owned())).plan(DEFAULTS).expect("good lines");
        let labels: Vec<_> = planned.iter().map(|job| (job.number, job.label.as_str())).collect();
        assert_eq!(labels, [(2, "echo 'a'  | wc"), (3, "b")]);
    }

    #[test]
    fn other_defaults_do_not_make_other_jobs() {
        let source = Source::Lines(List::Input("{\"command\": \"a\"}".to_owned()));
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
            match Source::Lines(List::Input(text.to_owned())).plan(DEFAULTS) {
                Err(Failure::Usage(said)) => assert!(said.contains(word), "{said}"),
                other => panic!("taken: {other:?}"),
            }
        }
    }
}
