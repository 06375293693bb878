//! How commands call servers, and how they print their answers.

use std::fmt;

use clap::Args;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::failure::Failure;
use super::look::{OUTPUT, Output};
use super::output::{clean, for_stdout, print, print_json};
use crate::client::{Client, ClientError};

/// The server's default URL.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7400";
/// The most items on a page of the server.
const PAGE: u64 = 1000;

/// The servers to call, and the access token.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerArgs {
    /// The URL of the server (repeatable): of several of one installation, the next is called where one cannot be
    /// reached or cannot serve [default: http://127.0.0.1:7400]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    #[serde(default, deserialize_with = "one_or_more")]
    pub(super) server: Option<Vec<String>>,
    /// The access token, where the server requires one
    #[arg(long, value_name = "TOKEN", hide_env_values = true)]
    pub(super) token: Option<String>,
    /// Whether these are of a context, whose token is for its own servers only.
    #[arg(skip)]
    #[serde(skip)]
    pub(super) is_of_context: bool,
}

impl ServerArgs {
    /// Creates a client of the servers, with the settings of the file where no flag is given.
    pub(super) fn connect(&self, settings: &Self) -> Result<Client, Failure> {
        let servers = self.server.as_deref().or(settings.server.as_deref());
        match servers {
            Some(servers) => Ok(Client::with_servers(servers, self.token(settings))?),
            None => self.connect_to(DEFAULT_SERVER, settings),
        }
    }

    /// Creates a client of this server, with the same token.
    pub(super) fn connect_to(&self, server: &str, settings: &Self) -> Result<Client, Failure> {
        Ok(Client::new(server, self.token(settings))?)
    }

    fn token<'a>(&'a self, settings: &'a Self) -> Option<&'a str> {
        let is_meant = !(settings.is_of_context && self.server.is_some());
        self.token.as_deref().or(settings.token.as_deref().filter(|_| is_meant))
    }
}

/// Splits a text of addresses that commas separate.
pub(super) fn addresses(text: &str) -> Vec<String> {
    text.split(',').map(|address| address.trim().to_owned()).collect()
}

/// Reads a text of one or more addresses, or a list of addresses.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    struct OneOrMore;

    impl<'de> Visitor<'de> for OneOrMore {
        type Value = Vec<String>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("the URL of a server, or a list of such")
        }

        fn visit_str<E>(self, text: &str) -> Result<Vec<String>, E> {
            Ok(addresses(text))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<String>, A::Error> {
            let mut all = Vec::new();
            while let Some(address) = list.next_element()? {
                all.push(address);
            }
            Ok(all)
        }
    }

    deserializer.deserialize_any(OneOrMore).map(Some)
}

/// The servers to call, and whether to print for people or for programs.
#[derive(Debug, Args)]
pub(super) struct ClientArgs {
    /// Print JSON as the server returns it, one line per item: the same as `--output json`
    #[arg(long, conflicts_with = OUTPUT)]
    json: bool,
    /// Print a `table`, a `wide` one with all columns and whole ids, `json`, `yaml`, or each id or `name`
    #[arg(id = OUTPUT, long = "output", value_enum, value_name = "FORMAT", hide_possible_values = true)]
    output: Option<Output>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

impl ClientArgs {
    /// Creates a client of the servers, with the settings of the file where no flag is given.
    pub(super) fn connect(&self, settings: &ServerArgs) -> Result<Client, Failure> {
        self.server.connect(settings)
    }

    fn output(&self) -> Output {
        self.output.unwrap_or(if self.json { Output::Json } else { Output::Table })
    }

    /// Returns whether each item is printed with all of its members for programs.
    pub(super) fn json(&self) -> bool {
        matches!(self.output(), Output::Json | Output::Yaml)
    }

    /// Returns whether programs read the output, so that nothing is printed beside the values.
    pub(super) fn is_for_programs(&self) -> bool {
        !matches!(self.output(), Output::Table | Output::Wide)
    }

    /// Prints a value, as JSON or as text for people.
    pub(super) fn print<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        if self.is_for_programs() { self.print_item(value) } else { print(&text(value)) }
    }

    /// Prints values, each as a line of JSON or all as text for people.
    pub(super) fn print_all<T: Serialize>(
        &self,
        values: &[T],
        text: impl FnOnce(&[T]) -> String,
    ) -> Result<(), Failure> {
        if self.is_for_programs() {
            values.iter().try_for_each(|value| self.print_item(value))
        } else {
            print(&text(values))
        }
    }

    /// Prints a value for programs: as JSON, unless the command line says otherwise.
    pub(super) fn print_item(&self, value: &impl Serialize) -> Result<(), Failure> {
        match self.output() {
            Output::Yaml => print_yaml(value),
            Output::Name => print(&clean(&name_of(&serde_json::to_value(value)?))),
            Output::Json | Output::Table | Output::Wide => print_json(value),
        }
    }

    /// Reads up to `limit` items (0 for all), page by page. Prints them for programs as they come, or a row for each as
    /// text for people in the end. `page` is called with a size and a cursor, and returns items and the next page's
    /// cursor.
    pub(super) async fn print_pages<T: Serialize>(
        &self,
        limit: u64,
        mut page: impl AsyncFnMut(u64, Option<String>) -> Result<(Vec<T>, Option<String>), ClientError>,
        row: impl Fn(&T) -> Vec<String>,
        text: impl FnOnce(Vec<Vec<String>>) -> String,
    ) -> Result<(), Failure> {
        let mut left = if limit == 0 { u64::MAX } else { limit };
        let mut rows = Vec::new();
        let mut cursor = None;
        while left > 0 {
            let (items, next) = page(left.min(PAGE), cursor).await?;
            left -= left.min(items.len() as u64);
            if self.is_for_programs() {
                items.iter().try_for_each(|item| self.print_item(item))?;
            } else {
                rows.extend(items.iter().map(&row));
            }
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        if self.is_for_programs() { Ok(()) } else { print(&text(rows)) }
    }
}

/// The members of an item, of which the first that there is names it.
const NAMES: [&str; 5] = ["id", "job_id", "name", "limit", "member"];

/// Returns the id or the name of an item.
fn name_of(item: &Value) -> String {
    let name = NAMES.iter().find_map(|name| item.get(name));
    match name.unwrap_or(item) {
        Value::String(name) => name.clone(),
        other => other.to_string(),
    }
}

/// Prints a value as a document of YAML.
fn print_yaml(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string(value)?;
    // JSON is YAML as well: a number that YAML's library cannot take is printed in that form.
    let yaml = serde_json::from_str::<Value>(&json).ok().and_then(|value| serde_norway::to_string(&value).ok());
    // Not every form of a text in YAML has escape sequences; that of JSON has.
    let shown = for_stdout(&json);
    let yaml = yaml.filter(|_| shown == json);
    print(&format!("---\n{}", yaml.as_deref().unwrap_or(&shown).trim_end()))
}
