//! How commands reach a server.

use clap::Args;

use super::failure::Failure;
use super::settings::ClientSettings;
use crate::client::Client;

/// Where the server is when nobody says.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7400";

/// Which server, and with which token.
#[derive(Clone, Debug, Args)]
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
    pub(super) fn connect(self, settings: &ClientSettings) -> Result<Client, Failure> {
        let server = self.server.or_else(|| settings.server.clone()).unwrap_or_else(|| DEFAULT_SERVER.to_owned());
        let token = self.token.or_else(|| settings.token.clone());
        Ok(Client::new(&server, token.as_deref())?)
    }
}
