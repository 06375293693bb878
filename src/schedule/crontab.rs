//! Crontabs, as Vixie cron and cronie read them (crontab(5)).

use std::collections::BTreeMap;

use chrono_tz::Tz;

use super::cron::Cron;
use super::period::{Period, Repeat};
use super::zone::parse_zone;

mod fields;

/// What a crontab says, line by line.
#[derive(Clone, Debug)]
pub struct Crontab {
    /// The lines with a command, in order.
    pub entries: Vec<CrontabEntry>,
    /// The other lines that mean something, in order.
    pub not_understood: Vec<Remark>,
    /// What was read in another way than it may look, in order.
    pub notes: Vec<Remark>,
}

/// A line of a crontab with a command.
#[derive(Clone, Debug)]
pub struct CrontabEntry {
    /// The number of the line, from 1.
    pub line: usize,
    /// The expression as the line has it, with one value for each range with `~`.
    pub expression: String,
    /// When the command runs.
    pub period: Period,
    /// The user whom the command runs as, in a crontab with users.
    pub user: Option<String>,
    /// The command, for a shell.
    pub command: String,
    /// What the command reads from its standard input.
    pub input: Option<String>,
    /// The environment that the lines above set.
    pub environment: BTreeMap<String, String>,
    /// The comment right above the line.
    pub comment: Option<String>,
}

/// What is to be said of a line of a crontab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The number of the line, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// Why the line cannot be a schedule, or how it was read.
    pub why: String,
}

/// Whose crontab it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrontabKind {
    /// One user's, as `crontab -l` prints it.
    User,
    /// The system's, such as `/etc/crontab`, which names the user before each command.
    System,
}

/// How the lines above are for those below.
struct Reader {
    kind: CrontabKind,
    /// The zone of lines that stand below no `CRON_TZ`, or an empty one.
    usual_zone: Tz,
    /// `None` below a `CRON_TZ` that names no zone.
    zone: Option<Tz>,
    environment: BTreeMap<String, String>,
    comment: Vec<String>,
    /// What is to be said of the line that is being read.
    notes: Vec<String>,
    /// The name of the crontab, by which values of ranges with `~` are drawn.
    seed: String,
    /// How many lines have had an expression.
    times: BTreeMap<String, usize>,
}

impl Crontab {
    /// Reads a crontab of this name whose times are in `zone`, unless a line sets `CRON_TZ`. The values of its ranges
    /// with `~` follow from the name.
    #[must_use]
    pub fn parse(text: &str, kind: CrontabKind, zone: Tz, name: &str) -> Self {
        let mut crontab = Self { entries: Vec::new(), not_understood: Vec::new(), notes: Vec::new() };
        let mut reader = Reader {
            kind,
            usual_zone: zone,
            zone: Some(zone),
            environment: BTreeMap::new(),
            comment: Vec::new(),
            notes: Vec::new(),
            seed: name.to_owned(),
            times: BTreeMap::new(),
        };
        for (index, text) in text.lines().enumerate() {
            let line = index + 1;
            let remark = |why| Remark { line, text: text.trim().to_owned(), why };
            match reader.read(line, text.trim_matches([' ', '\t', '\r'])) {
                Ok(entry) => crontab.entries.extend(entry),
                Err(why) => crontab.not_understood.push(remark(why)),
            }
            crontab.notes.extend(reader.notes.drain(..).map(remark));
        }
        crontab
    }
}

impl Reader {
    /// Reads a line, and returns its entry if it has one.
    fn read(&mut self, line: usize, text: &str) -> Result<Option<CrontabEntry>, String> {
        if let Some(comment) = text.strip_prefix('#') {
            self.comment.push(comment.trim().to_owned());
            return Ok(None);
        }
        let comment = std::mem::take(&mut self.comment).join("\n");
        if text.is_empty() {
            return Ok(None);
        }
        if let Some((name, value)) = variable(text) {
            return self.set(name, value).map(|()| None);
        }
        // SUSE's cron, and others since, write nothing to the system's log for such a line.
        let (mut fields, rest) = fields_of(text.strip_prefix('-').unwrap_or(text))?;
        let written = fields.join(" ");
        let before = self.times.entry(written.clone()).or_default();
        *before += 1;
        self.notes.extend(fields::expand(&mut fields, &format!("{}\0{written}\0{before}", self.seed)));
        let expression = fields.join(" ");
        let cron: Cron = expression.parse().map_err(|error: super::InvalidCron| error.to_string())?;
        let zone = self.zone.ok_or("stands below a time zone that is not known")?;
        let (user, rest) = match self.kind {
            CrontabKind::User if word(rest).is_some_and(|(user, rest)| user == "root" && !rest.starts_with('-')) => {
                return Err(
                    "names the user `root` before its command: such a crontab is read with `--system`".to_owned()
                );
            }
            CrontabKind::User => (None, rest),
            CrontabKind::System => match word(rest) {
                Some((user, _)) if !is_user(user) => {
                    return Err(format!(
                        "names no user before its command, which `{user}` cannot be: a crontab of one \
                                        user's own is read without `--system`"
                    ));
                }
                found => found.map(|(user, rest)| (Some(user.to_owned()), rest)).unwrap_or_default(),
            },
        };
        if rest.is_empty() {
            return Err("has no command".to_owned());
        }
        let (command, input) = command_and_input(rest);
        Ok(Some(CrontabEntry {
            line,
            expression,
            period: Period { repeat: Repeat::Cron(cron), zone },
            user,
            command,
            input,
            environment: self.environment.clone(),
            comment: Some(comment).filter(|comment| !comment.is_empty()),
        }))
    }

    /// Sets a variable for the lines below.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "CRON_TZ" if value.is_empty() => {
                self.zone = Some(self.usual_zone);
                Ok(())
            }
            "CRON_TZ" => {
                let zone = parse_zone(value);
                self.zone = zone.as_ref().ok().copied();
                zone.map(|_| ()).map_err(|error| error.to_string())
            }
            "MAILTO" | "MAILFROM" if value.is_empty() => Ok(()),
            "MAILTO" | "MAILFROM" => {
                self.notes.push("no mail is sent; events can be subscribed to instead".to_owned());
                Ok(())
            }
            _ => {
                if name == "RANDOM_DELAY" {
                    self.notes.push("is a variable like any other; `spread_ms` of a schedule delays it".to_owned());
                } else if value.contains('$') {
                    self.notes.push("stays as it is: a crontab replaces no variables in a value".to_owned());
                }
                self.environment.insert(name.to_owned(), value.to_owned());
                Ok(())
            }
        }
    }
}

/// Returns the name and the value that a line sets, if it sets a variable.
fn variable(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let name = unquoted(name.trim());
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let begins_well = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    (is_name && begins_well).then(|| (name, unquoted(value.trim())))
}

fn unquoted(text: &str) -> &str {
    let within = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(text)
}

/// Splits a line into the fields of its expression and what follows.
fn fields_of(text: &str) -> Result<(Vec<String>, &str), String> {
    if text.starts_with(['"', '\'']) {
        return Err("has quotes around its fields of time, which crontabs have not".to_owned());
    }
    let count = if text.starts_with('@') { 1 } else { 5 };
    let (mut fields, mut rest) = (Vec::with_capacity(count), text);
    for _ in 0..count {
        let Some((field, after)) = word(rest) else {
            return Err("has fewer than five fields of time".to_owned());
        };
        if let Some(other) = field.chars().find(|character| character.is_whitespace() || *character == '\u{200b}') {
            return Err(format!("has the character U+{:04X} where a blank belongs", u32::from(other)));
        }
        fields.push(field.to_owned());
        rest = after;
    }
    match &*fields[0] {
        "@reboot" => Err("runs when the machine starts, which is no time of a calendar".to_owned()),
        "@every_minute" => Ok((["*"; 5].map(str::to_owned).into(), rest)),
        _ if word(rest).is_some_and(|(word, _)| word == "?") || fields.iter().any(|field| field == "?") => {
            Err("has the fields of Quartz: leave out the seconds, and write `*` for `?`".to_owned())
        }
        _ => Ok((fields, rest)),
    }
}

/// Returns whether a word may be the name of a user, and is neither a path nor what commands mostly begin with.
fn is_user(word: &str) -> bool {
    !word.contains('/') && word != "cd"
}

/// Splits off the first word.
fn word(text: &str) -> Option<(&str, &str)> {
    let end = text.find([' ', '\t']).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    (!word.is_empty()).then(|| (word, rest.trim_start_matches([' ', '\t'])))
}

/// Splits at the first `%`: what follows is input, in which each `%` ends a line, and so does its end. `\%` is a `%`.
fn command_and_input(text: &str) -> (String, Option<String>) {
    let (mut command, mut input) = (String::new(), None::<String>);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let part = input.as_mut().unwrap_or(&mut command);
        match character {
            '\\' if characters.next_if_eq(&'%').is_some() => part.push('%'),
            '%' => match &mut input {
                Some(input) => input.push('\n'),
                None => input = Some(String::new()),
            },
            _ => part.push(character),
        }
    }
    if let Some(input) = &mut input
        && !input.is_empty()
        && !input.ends_with('\n')
    {
        input.push('\n');
    }
    (command, input)
}

#[cfg(test)]
mod tests;
