//! Circles of files that use each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::survey::{Crate, Module};

/// Uses between the files of one top-level module: from whom, of whom, and the place of the first one.
pub(super) type Uses = BTreeMap<(Module, Module), String>;

/// Every use of one file by another of the same top-level module.
pub(super) fn uses_within_modules(all: &Crate<'_>) -> Uses {
    let mut uses = Uses::new();
    for survey in &all.surveys {
        let from = survey.source.module();
        for used in survey.uses.iter().filter(|used| used.passed_on_as.is_none()) {
            let target = all.file_of(&used.target);
            if from != target && !target.is_empty() && from.first() == target.first() {
                uses.entry((from.clone(), target)).or_insert_with(|| survey.source.at(used.line));
            }
        }
    }
    uses
}

/// One shortest circle for each group of files that all use each other, as a line that names the places.
pub(super) fn circles(uses: &Uses) -> Vec<String> {
    let mut used_by: BTreeMap<&Module, Vec<&Module>> = BTreeMap::new();
    for (from, target) in uses.keys() {
        used_by.entry(from).or_default().push(target);
    }
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (from, target) in uses.keys() {
        if seen.contains(from) || seen.contains(target) {
            continue;
        }
        let Some(back) = way(&used_by, target, from) else { continue };
        let files: Vec<&Module> = std::iter::once(from).chain(back).collect();
        let steps = files.windows(2).map(|step| {
            let place = &uses[&(step[0].clone(), step[1].clone())];
            format!("`{}` uses `{}` ({place})", step[0].join("::"), step[1].join("::"))
        });
        found.push(format!("a circle: {}", steps.collect::<Vec<_>>().join(", ")));
        seen.extend(files);
    }
    found
}

/// The shortest way along the uses, both ends included.
fn way<'a>(
    uses: &BTreeMap<&'a Module, Vec<&'a Module>>,
    from: &'a Module,
    to: &Module,
) -> Option<VecDeque<&'a Module>> {
    let mut before: BTreeMap<&Module, &'a Module> = BTreeMap::new();
    let mut waiting = VecDeque::from([from]);
    while let Some(file) = waiting.pop_front() {
        if file == to {
            let mut files = VecDeque::from([file]);
            while let Some(earlier) = before.get(files[0]) {
                files.push_front(earlier);
            }
            return Some(files);
        }
        for next in uses.get(file).into_iter().flatten() {
            if *next != from && !before.contains_key(next) {
                before.insert(next, file);
                waiting.push_back(next);
            }
        }
    }
    None
}
