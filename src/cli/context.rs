//! Contexts: named servers with their tokens, for people who work with several.
//!
//! They are in a file that only its user can read. A flag, a variable of the environment and the settings file come
//! before the current context; a server that is named otherwise is never sent a context's token.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::output::{complain, print, table};
use super::server::ServerArgs;

/// The file below the user's folder of settings.
const FILE: &str = "leasehold/contexts.toml";

/// The file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Contexts {
    /// The name of the context that is used when none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    contexts: BTreeMap<String, Context>,
}

/// A server, or several of one installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Context {
    server: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl Contexts {
    fn read(path: &Path) -> Result<Self, Failure> {
        let wrong = |what: String| Failure::Usage(format!("the contexts in {}: {what}", path.display()));
        match fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text).map_err(|error| wrong(error.message().to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    /// Writes the file in the place of the former one, for its user alone.
    fn write(&self, path: &Path) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::Failed(format!("cannot write {}: {error}", path.display()));
        let text = toml::to_string(self).map_err(Failure::failed)?;
        fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let new = path.with_extension("toml.new");
        let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
        file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all())).map_err(failed)?;
        fs::rename(&new, path).map_err(failed)
    }
}

/// Returns the settings of clients with the context that is named or current, where they name no server.
pub(super) fn apply(client: ServerArgs, named: Option<&str>) -> Result<ServerArgs, Failure> {
    if client.server.is_some() && named.is_none() {
        return Ok(client);
    }
    let Some(path) = path() else { return Ok(client) };
    // A program that runs as another user may not read the file, and asks for no context.
    if named.is_none() && fs::File::open(&path).is_err() {
        return Ok(client);
    }
    let contexts = Contexts::read(&path)?;
    let Some(name) = named.or(contexts.current.as_deref()) else { return Ok(client) };
    let Some(context) = contexts.contexts.get(name) else {
        let known: Vec<&str> = contexts.contexts.keys().map(String::as_str).collect();
        let known =
            if known.is_empty() { "there is none".to_owned() } else { format!("there are {}", known.join(", ")) };
        return Err(Failure::Usage(format!("there is no context `{name}`; {known} (`leasehold login` adds one)")));
    };
    Ok(ServerArgs { server: Some(context.server.clone()), token: context.token.clone(), is_of_context: true })
}

/// Returns the names of all contexts; none when they cannot be read.
pub(super) fn names() -> Vec<String> {
    let read = path().and_then(|path| Contexts::read(&path).ok());
    read.map(|contexts| contexts.contexts.into_keys().collect()).unwrap_or_default()
}

/// Returns the path of the file; `None` where the user has no folder for settings.
fn path() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    Some(set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?.join(FILE))
}

fn known_path() -> Result<PathBuf, Failure> {
    path().ok_or_else(|| Failure::Usage("neither XDG_CONFIG_HOME nor HOME says where contexts are kept".to_owned()))
}

/// Keep a server and its token under a name, and use them from now on
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold login prod --server https://jobs.example --token lh_…
  leasehold list
  leasehold --context test list")]
pub(super) struct LoginArgs {
    /// The name of the context
    #[arg(default_value = "default")]
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Tries the server and keeps it.
pub(super) async fn login(args: LoginArgs) -> Result<(), Failure> {
    let Some(server) = args.server.server.clone() else {
        return Err(Failure::Usage("name the server: `--server URL`".to_owned()));
    };
    let health = args.server.connect(&ServerArgs::default())?.health().await?;
    let path = known_path()?;
    let mut contexts = Contexts::read(&path)?;
    contexts.contexts.insert(args.name.clone(), Context { server, token: args.server.token });
    contexts.current = Some(args.name.clone());
    contexts.write(&path)?;
    for reason in &health.reasons {
        complain(&format!("leasehold: {reason}"));
    }
    print(&format!("the context {} is used from now on", args.name))
}

/// List, choose and remove the servers that `leasehold login` has kept
#[derive(Debug, Args)]
pub(super) struct ContextArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the contexts
    List,
    /// Use a context from now on
    Use(NameArg),
    /// Remove a context with its token
    Remove(NameArg),
}

#[derive(Debug, Args)]
struct NameArg {
    /// The name of the context
    name: String,
}

/// Lists or changes the contexts.
pub(super) fn run(args: ContextArgs) -> Result<(), Failure> {
    let path = known_path()?;
    let mut contexts = Contexts::read(&path)?;
    let unknown = |name: &str| Failure::Usage(format!("there is no context `{name}`"));
    match args.action {
        Action::List if contexts.contexts.is_empty() => print("there are no contexts"),
        Action::List => {
            let row = |(name, context): (&String, &Context)| {
                let mark = if contexts.current.as_ref() == Some(name) { "*" } else { "" };
                let token = if context.token.is_some() { "yes" } else { "no" };
                vec![mark.to_owned(), name.clone(), context.server.join(", "), token.to_owned()]
            };
            print(&table(&["", "context", "server", "token"], contexts.contexts.iter().map(row)))
        }
        Action::Use(NameArg { name }) => {
            if !contexts.contexts.contains_key(&name) {
                return Err(unknown(&name));
            }
            contexts.current = Some(name);
            contexts.write(&path)
        }
        Action::Remove(NameArg { name }) => {
            contexts.contexts.remove(&name).ok_or_else(|| unknown(&name))?;
            contexts.current = contexts.current.filter(|current| *current != name);
            contexts.write(&path)
        }
    }
}
