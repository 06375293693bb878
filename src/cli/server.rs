//! How commands reach a server, and how they print what it answers.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::output::{print, print_json};
use super::settings::Settings;
use crate::client::{Client, ClientError};

/// Where the server is when nobody says.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7400";
/// How many items one page of the server's has at most.
const PAGE: u64 = 1000;

/// Which server, and with which token.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerArgs {
    /// The server's address [default: http://127.0.0.1:7400]
    #[arg(long, value_name = "URL", env = "LEASEHOLD_SERVER")]
    pub(super) server: Option<String>,
    /// The token to show, where the server asks for one
    #[arg(long, value_name = "TOKEN", env = "LEASEHOLD_TOKEN", hide_env_values = true)]
    pub(super) token: Option<String>,
}

impl ServerArgs {
    /// A client of that server.
    pub(super) fn connect(&self, settings: &Settings) -> Result<Client, Failure> {
        let settings = &settings.client;
        let server = self.server.as_deref().or(settings.server.as_deref()).unwrap_or(DEFAULT_SERVER);
        let token = self.token.as_deref().or(settings.token.as_deref());
        Ok(Client::new(server, token)?)
    }
}

/// Which server a command asks, and whether it prints for people or for programs.
#[derive(Debug, Args)]
pub(super) struct ClientArgs {
    /// Print JSON as the server gives it, each item on a line of its own
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

impl ClientArgs {
    /// A client of the server.
    pub(super) fn connect(&self, settings: &Settings) -> Result<Client, Failure> {
        self.server.connect(settings)
    }

    /// Prints a value: as JSON, or as the text that people read.
    pub(super) fn print<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        if self.json { print_json(value) } else { print(&text(value)) }
    }

    /// Prints values: each as a line of JSON, or all as the text that people read.
    pub(super) fn print_all<T: Serialize>(
        &self,
        values: &[T],
        text: impl FnOnce(&[T]) -> String,
    ) -> Result<(), Failure> {
        if self.json { values.iter().try_for_each(print_json) } else { print(&text(values)) }
    }

    /// Reads up to `limit` items (all, for 0) page by page. Prints each page as JSON as it comes, or gives a row for each
    /// item in the end. `page` gets a size and a cursor, and gives items and the next page's cursor.
    pub(super) async fn pages<T: Serialize>(
        &self,
        limit: u64,
        mut page: impl AsyncFnMut(u64, Option<String>) -> Result<(Vec<T>, Option<String>), ClientError>,
        row: impl Fn(&T) -> Vec<String>,
    ) -> Result<Option<Vec<Vec<String>>>, Failure> {
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
        Ok((!self.json).then_some(rows))
    }
}
