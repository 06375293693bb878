//! The blocks of a page, with what its comments say about them.

use super::OTHER_LANGUAGES;

/// What a page shows, in order.
pub(super) struct Page {
    pub(super) steps: Vec<Step>,
}

/// A block of a page. `line` is where it begins.
pub(super) enum Step {
    /// Commands to run.
    Run { line: usize, commands: String, end: End },
    /// What the commands before it print.
    Shows { line: usize, text: String },
    /// Commands that cannot run in a test.
    NotRun { line: usize, commands: String, why: String },
}

/// How commands end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With this status.
    Status(i32),
    /// With success, once this has been printed by what goes on in the background.
    Says(String),
    /// By Ctrl-C, once they have printed this.
    Until(String),
    /// With success, if need be after some repetitions, and having printed this.
    Again(String),
}

/// What a comment says about the next block.
enum Remark {
    End(End),
    Shows,
    NotRun(String),
}

/// A server that the commands of a page need.
const SERVER: &str = "leasehold serve &";
const SERVER_ON_ELASTICSEARCH: &str =
    "leasehold serve --store elasticsearch --elasticsearch-url http://localhost:9200 &";
/// What a server prints when it can be called.
const LISTENS: &str = "listening on";

impl Page {
    /// Reads a page. The error says where and what is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut steps = Vec::new();
        let mut remark: Option<Remark> = None;
        let mut lines = text.lines().zip(1..);
        while let Some((content, line)) = lines.next() {
            if let Some(language) = content.trim_start().strip_prefix("```") {
                let block = block(&mut lines).ok_or_else(|| format!("{line}: the block has no end"))?;
                steps.extend(step(language, line, block, remark.take())?);
            } else if let Some(said) = content.strip_prefix("<!-- commands: ") {
                let said = said.strip_suffix(" -->").ok_or_else(|| format!("{line}: a remark ends on its line"))?;
                match said {
                    "server" => steps.push(server(line, SERVER)),
                    "server on elasticsearch" => steps.push(server(line, SERVER_ON_ELASTICSEARCH)),
                    _ => remark = Some(self::remark(said).ok_or_else(|| format!("{line}: an unknown remark: {said}"))?),
                }
            } else if content.starts_with("    leasehold ") || content.starts_with("    curl ") {
                return Err(format!("{line}: commands stand in a fenced block, or they are not tested"));
            } else if remark.is_some() && !content.is_empty() {
                return Err(format!("{line}: no block of commands follows the remark"));
            }
        }
        Ok(Self { steps })
    }
}

/// The lines up to the end of the block.
fn block<'a>(lines: &mut impl Iterator<Item = (&'a str, usize)>) -> Option<String> {
    let mut text = String::new();
    for (content, _) in lines {
        if content.trim() == "```" {
            return Some(text);
        }
        text.push_str(content);
        text.push('\n');
    }
    None
}

/// What is to be done with a block.
fn step(language: &str, line: usize, block: String, remark: Option<Remark>) -> Result<Option<Step>, String> {
    let commands = match language {
        "sh" => block,
        // Only what is typed, which comes after the prompt.
        "console" => block.lines().filter_map(|line| line.strip_prefix("$ ")).map(|line| format!("{line}\n")).collect(),
        other if !OTHER_LANGUAGES.contains(&other) => {
            return Err(format!("{line}: commands have the language `sh`; `{other}` is not known"));
        }
        _ => {
            return match remark {
                None => Ok(None),
                Some(Remark::Shows) => Ok(Some(Step::Shows { line, text: block })),
                Some(_) => Err(format!("{line}: no block of commands follows the remark")),
            };
        }
    };
    match remark {
        None => Ok(Some(Step::Run { line, commands, end: End::Status(0) })),
        Some(Remark::End(end)) => Ok(Some(Step::Run { line, commands, end })),
        Some(Remark::NotRun(why)) => Ok(Some(Step::NotRun { line, commands, why })),
        Some(Remark::Shows) => Err(format!("{line}: a block of commands shows nothing")),
    }
}

fn server(line: usize, command: &str) -> Step {
    Step::Run { line, commands: command.to_owned(), end: End::Says(LISTENS.to_owned()) }
}

/// Reads what a comment says.
fn remark(said: &str) -> Option<Remark> {
    if said == "again" {
        return Some(Remark::End(End::Again(String::new())));
    }
    if said == "shows" {
        return Some(Remark::Shows);
    }
    if let Some(why) = said.strip_prefix("not run: ") {
        return (!why.trim().is_empty()).then(|| Remark::NotRun(why.to_owned()));
    }
    let (word, rest) = said.split_once(' ')?;
    let text = || Some(rest.strip_prefix('"')?.strip_suffix('"')?.to_owned());
    Some(Remark::End(match word {
        "again" => End::Again(text()?),
        "exit" => End::Status(rest.parse().ok()?),
        "says" => End::Says(text()?),
        "until" => End::Until(text()?),
        _ => return None,
    }))
}

/// The shown lines that are not among the printed ones. Numbers may differ, an ellipsis stands for anything, and it does
/// not matter who leads.
pub(super) fn missing<'a>(shown: &'a str, printed: &str) -> Vec<&'a str> {
    let printed: Vec<String> = printed.lines().map(shape).collect();
    let is_printed = |line: &str| printed.iter().any(|printed| is_like(&shape(line), printed));
    shown.lines().filter(|line| !line.trim().is_empty() && !is_printed(line)).collect()
}

/// A line without what differs from run to run.
fn shape(line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(of_word).collect();
    words.join(" ").replace("leader", "follower")
}

fn of_word(word: &str) -> String {
    let mut shape = String::new();
    let is_hash = word.len() >= 32 && word.chars().all(|letter| letter.is_ascii_hexdigit());
    for letter in word.chars() {
        let of_letter = if letter.is_ascii_digit() || is_hash { '0' } else { letter };
        if !(matches!(of_letter, '0' | '─') && shape.ends_with(of_letter)) {
            shape.push(of_letter);
        }
    }
    shape
}

/// Whether a line is as shown, where an ellipsis stands for anything.
fn is_like(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = parts.next().and_then(|first| printed.strip_prefix(first)) else { return false };
    let mut last = "";
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        (rest, last) = (after, part);
    }
    rest.is_empty() || (last.is_empty() && shown.ends_with('…'))
}

#[test]
fn what_is_shown_is_like_what_is_printed_but_for_numbers_and_what_is_left_out() {
    let printed = " 2   http://127.0.0.1:15412   follower   yes   7   0\noutput: less data/run-77aa/8d1f.1.stderr\n";
    assert!(
        missing("2 http://127.0.0.1:7412 leader yes 1204 1\noutput: less data/run-…/….1.stderr", printed).is_empty()
    );
    assert_eq!(missing("output: less data/run-…/….1.stdout\n", printed).len(), 1);
    assert_eq!(missing("2 http://127.0.0.1:7412 learner yes 1204 1", printed).len(), 1);
}
