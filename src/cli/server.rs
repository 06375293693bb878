//! How commands call servers, and how they print their answers.

use std::fmt;

use clap::Args;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::failure::Failure;
use super::output::{print, print_json};
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
        self.token.as_deref().or(settings.token.as_deref())
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
    /// Print JSON as the server returns it, one line per item
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

impl ClientArgs {
    /// Creates a client of the servers, with the settings of the file where no flag is given.
    pub(super) fn connect(&self, settings: &ServerArgs) -> Result<Client, Failure> {
        self.server.connect(settings)
    }

    /// Prints a value, as JSON or as text for people.
    pub(super) fn print<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        if self.json { print_json(value) } else { print(&text(value)) }
    }

    /// Prints values, each as a line of JSON or all as text for people.
    pub(super) fn print_all<T: Serialize>(
        &self,
        values: &[T],
        text: impl FnOnce(&[T]) -> String,
    ) -> Result<(), Failure> {
        if self.json { values.iter().try_for_each(print_json) } else { print(&text(values)) }
    }

    /// Reads up to `limit` items (0 for all), page by page. Prints them as JSON as they come, or a row for each as text
    /// for people in the end. `page` is called with a size and a cursor, and returns items and the next page's cursor.
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
            if self.json {
                items.iter().try_for_each(print_json)?;
            } else {
                rows.extend(items.iter().map(&row));
            }
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        if self.json { Ok(()) } else { print(&text(rows)) }
    }
}
