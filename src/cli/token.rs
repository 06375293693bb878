//! `leasehold token`: creates an access token.

use clap::Args;

use super::failure::Failure;
use super::output::{print, print_json};
use crate::api::access::token_hash;

/// How many random bytes a token has: as many bits as its hash.
const BYTES: usize = 32;

/// Create an access token, and the lines of the settings file that let a server accept it
///
/// The token itself is stored nowhere: hand it to its user. The server's settings file holds only its hash.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  leasehold token --name render-farm --role submit --role work")]
pub(super) struct TokenArgs {
    /// The name of the token's user in the histories of jobs
    #[arg(long, default_value = "me")]
    name: String,
    /// What the token may do: read, submit, work or admin (repeatable) [default: all of them]
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',',
          value_parser = ["read", "submit", "work", "admin"])]
    roles: Vec<String>,
    /// Let the role submit change jobs and schedules that were submitted under other names, too
    #[arg(long)]
    may_edit_others: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Creates and prints a token.
pub(super) fn run(args: &TokenArgs) -> Result<(), Failure> {
    let secret: [u8; BYTES] = rand::random();
    let token: String =
        std::iter::once("lh_".to_owned()).chain(secret.iter().map(|byte| format!("{byte:02x}"))).collect();
    let sha256 = token_hash(&token);
    let all = ["read", "submit", "work", "admin"].map(str::to_owned);
    let roles = if args.roles.is_empty() { all.as_slice() } else { args.roles.as_slice() };
    if args.json {
        return print_json(&serde_json::json!({
            "token": token, "name": args.name, "roles": roles, "sha256": sha256,
            "may_edit_others": args.may_edit_others,
        }));
    }
    let name = toml::Value::from(args.name.as_str());
    let roles = toml::Value::from(roles.to_vec());
    let others = if args.may_edit_others { "\nmay_edit_others = true" } else { "" };
    print(&format!(
        "The token, which is shown only now:\n\n  {token}\n\nFor the server's settings file (leasehold serve --config \
         FILE):\n\n[[tokens]]\nname = {name}\nroles = {roles}\nsha256 = \"{sha256}\"{others}"
    ))
}
