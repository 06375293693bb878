//! `leasehold kibana`: installs a data view, searches and a dashboard for jobs in Kibana.
//!
//! They are a file, `deploy/kibana/leasehold.ndjson`, in Kibana's export format. It is made for the index prefix
//! `leasehold-`; for another prefix its names are changed, so that several installations can share one Kibana.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::multipart::{Form, Part};
use reqwest::{Certificate, Client, Url};
use serde::Deserialize;
use serde_json::Value;

use super::failure::Failure;
use super::output::{complain, print};
use super::settings::Settings;
use crate::client::innermost_cause;
use crate::outgoing;

/// The saved objects: a data view, searches, charts and a dashboard.
const OBJECTS: &str = include_str!("../../deploy/kibana/leasehold.ndjson");
/// The index prefix for which the saved objects are made.
const PREFIX: &str = "leasehold-";
/// The time limit of an import: Kibana answers when its index has all objects.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Set up Kibana for looking at jobs: a data view, searches and a dashboard
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold kibana install
  leasehold kibana install --kibana-url https://kibana:5601 --space operations
  leasehold kibana print > leasehold.ndjson

To import the file by hand: Stack Management, Saved Objects, Import.")]
pub(super) struct KibanaArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Import the saved objects into Kibana, over those of an earlier installation
    Install(InstallArgs),
    /// Print the saved objects in Kibana's import format
    Print(PrintArgs),
}

#[derive(Debug, Args)]
struct InstallArgs {
    /// Kibana's URL, with user and password where needed
    #[arg(long, value_name = "URL", default_value = "http://localhost:5601", hide_env_values = true)]
    kibana_url: Url,
    /// An API key that may manage saved objects
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    kibana_api_key: Option<String>,
    /// The PEM file with the certificate of the private authority behind Kibana's certificate
    #[arg(long, value_name = "FILE")]
    kibana_ca: Option<PathBuf>,
    /// The id of the Kibana space to install into [default: the default space]
    #[arg(long, value_name = "ID", env = "LEASEHOLD_KIBANA_SPACE")]
    space: Option<String>,
    /// Leave saved objects that exist already as they are
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    index: PrintArgs,
}

#[derive(Debug, Args)]
struct PrintArgs {
    /// The prefix of the names of indices [default: leasehold-]
    #[arg(long, value_name = "PREFIX")]
    index_prefix: Option<String>,
}

/// Runs the subcommand.
pub(super) async fn run(args: KibanaArgs, settings: Settings) -> Result<(), Failure> {
    let objects = |index: PrintArgs| {
        let prefix = index.index_prefix.or(settings.index_prefix);
        objects(prefix.as_deref().unwrap_or(PREFIX))
    };
    match args.action {
        Action::Print(print_args) => print(objects(print_args)?.trim_end()),
        Action::Install(install_args) => {
            let objects = objects(install_args.index)?;
            let import = Import { overwrite: !install_args.keep, space: install_args.space };
            let client = client(install_args.kibana_ca)?;
            let answer = import.send(&client, install_args.kibana_url, install_args.kibana_api_key, objects).await?;
            report(&answer, install_args.keep)
        }
    }
}

/// Returns the saved objects for an index prefix.
fn objects(prefix: &str) -> Result<String, Failure> {
    if prefix == PREFIX {
        return Ok(OBJECTS.to_owned());
    }
    // Ids, references and the data view's indices are the only texts that begin with the prefix.
    let renamed = OBJECTS.replace(&format!("\"{PREFIX}"), &format!("\"{prefix}"));
    let mut lines = String::with_capacity(renamed.len());
    for line in renamed.lines() {
        let mut object: Value = serde_json::from_str(line)?;
        // The texts that people read.
        let name = if object["type"] == "index-pattern" { "name" } else { "title" };
        if let Value::String(name) = &mut object["attributes"][name] {
            *name = format!("{name} ({})", prefix.trim_end_matches('-'));
        }
        lines.push_str(&object.to_string());
        lines.push('\n');
    }
    Ok(lines)
}

fn client(authority: Option<PathBuf>) -> Result<Client, Failure> {
    let mut builder = outgoing::by_proxy(outgoing::direct())
        .timeout(TIMEOUT)
        .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")));
    if let Some(file) = authority {
        let unusable = |error: String| Failure::Usage(format!("cannot use {}: {error}", file.display()));
        let pem = fs::read(&file).map_err(|error| unusable(error.to_string()))?;
        builder =
            builder.add_root_certificate(Certificate::from_pem(&pem).map_err(|error| unusable(error.to_string()))?);
    }
    builder.build().map_err(|error| Failure::Failed(format!("cannot make calls: {error}")))
}

/// An import of saved objects.
struct Import {
    overwrite: bool,
    space: Option<String>,
}

impl Import {
    /// Returns the URL of the import. Kibana's address may have a path of its own.
    fn url(&self, mut kibana: Url) -> Result<Url, Failure> {
        let wrong = || Failure::Usage("Kibana's address is not one of HTTP".to_owned());
        if !matches!(kibana.scheme(), "http" | "https") {
            return Err(wrong());
        }
        {
            let mut path = kibana.path_segments_mut().map_err(|()| wrong())?;
            path.pop_if_empty();
            if let Some(space) = &self.space {
                path.extend(["s", space]);
            }
            path.extend(["api", "saved_objects", "_import"]);
        }
        if self.overwrite {
            kibana.query_pairs_mut().append_pair("overwrite", "true");
        }
        Ok(kibana)
    }

    async fn send(
        &self,
        client: &Client,
        kibana: Url,
        api_key: Option<String>,
        objects: String,
    ) -> Result<ImportAnswer, Failure> {
        let file = Part::text(objects).file_name("leasehold.ndjson").mime_str("application/ndjson");
        let file = file.map_err(Failure::failed)?;
        // Kibana takes changes only from calls that no web page can make, which this header shows.
        let mut request =
            client.post(self.url(kibana)?).header("kbn-xsrf", "true").multipart(Form::new().part("file", file));
        if let Some(key) = api_key {
            let mut value = HeaderValue::try_from(format!("ApiKey {key}"))
                .map_err(|_| Failure::Usage("the API key has characters that no header can have".to_owned()))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        // The address may have a password in it.
        let response = request.send().await.map_err(|error| {
            Failure::Unreachable(format!("Kibana cannot be reached: {}", innermost_cause(&error.without_url())))
        })?;
        let status = response.status();
        let body = response.text().await.map_err(|error| {
            Failure::Unreachable(format!("Kibana's answer broke off: {}", innermost_cause(&error.without_url())))
        })?;
        match (status.as_u16(), serde_json::from_str(&body)) {
            (200..=299, Ok(answer)) => Ok(answer),
            (401 | 403, _) => Err(Failure::Failed(format!(
                "Kibana does not accept the credentials, or they do not suffice ({status})"
            ))),
            (404, _) if self.space.is_some() => {
                Err(Failure::Failed("Kibana has no such space, or it is not Kibana".to_owned()))
            }
            _ => Err(Failure::Failed(format!("not an answer of Kibana's import ({status}): {}", beginning(&body)))),
        }
    }
}

/// Kibana's answer to an import.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ImportAnswer {
    success_count: u64,
    #[serde(default)]
    errors: Vec<ImportError>,
}

#[derive(Debug, Deserialize)]
struct ImportError {
    id: String,
    error: Value,
}

impl ImportError {
    /// Whether the object was only refused because it exists already.
    fn is_there(&self) -> bool {
        self.error["type"] == "conflict"
    }
}

fn report(answer: &ImportAnswer, keep: bool) -> Result<(), Failure> {
    let (there, refused): (Vec<_>, Vec<_>) = answer.errors.iter().partition(|error| keep && error.is_there());
    for error in &refused {
        complain(&format!("{}: {}", error.id, error.error));
    }
    if !refused.is_empty() {
        return Err(Failure::Failed(format!("Kibana refused {} of the objects", refused.len())));
    }
    let left = if there.is_empty() { String::new() } else { format!(", {} left as they were", there.len()) };
    print(&format!("{} objects installed{left}; look for the dashboard “Leasehold”", answer.success_count))
}

fn beginning(text: &str) -> String {
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests;
