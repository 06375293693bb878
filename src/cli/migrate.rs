//! `leasehold migrate`: brings the indices of an earlier version up to date, and to the settings' shards and replicas.

use clap::Args;

use super::engine::{self, EngineSettings, StoreArgs, StoreKind};
use super::failure::Failure;
use super::output::print;
use super::settings::Settings;
use crate::store::elasticsearch::Migration;

const HOW_IT_WORKS: &str = "\
After an upgrade, stop all servers, monitors and their workers' calls first: those of the former version do not know \
what the new one writes. Only fields and settings are added; no document is written anew. It can be run again at any \
time, also after it was interrupted, and does what is left.

With --elasticsearch-shards, the indices of live jobs and of bodies get this number of primary shards: a multiple of \
what they have, or a divisor. Servers, monitors and workers of this version go on meanwhile. Writes wait, for 20 s at \
the most: an index that is not ready by then is left as it was. Leases are kept. With --elasticsearch-replicas, all \
indices get this number of replicas.

Exit status: 0 when everything is as it should be, 1 when something cannot be done in place or the server refuses.

Examples:
  leasehold migrate --elasticsearch-url http://localhost:9200 --dry-run
  leasehold migrate --config /etc/leasehold.toml
  leasehold migrate --elasticsearch-url http://localhost:9200 --elasticsearch-shards 4";

/// Bring the indices in Elasticsearch up to date, and to another number of shards or replicas
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_WORKS)]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Migrates.
pub(super) async fn run(args: MigrateArgs, settings: Settings) -> Result<(), Failure> {
    let named = args.store.store.or(settings.store);
    // Naming a node selects Elasticsearch.
    let names_a_node = !args.store.elasticsearch_url.is_empty() || settings.elasticsearch_url.is_some();
    let store = named.or(names_a_node.then_some(StoreKind::Elasticsearch));
    let EngineSettings::Elasticsearch(settings) = settings.engine(StoreArgs { store, ..args.store })? else {
        let message = "no Elasticsearch is named: pass `--store elasticsearch` and `--elasticsearch-url`; the embedded \
                       store has nothing to migrate";
        return Err(Failure::Usage(message.to_owned()));
    };
    let migration = Migration::plan(engine::elasticsearch_options(settings)?).await.map_err(Failure::failed)?;
    if migration.changes().next().is_none() {
        return print("the indices are up to date; there is nothing to do");
    }
    if args.dry_run {
        print("would:")?;
        for change in migration.changes() {
            print(&format!("  {change}"))?;
        }
    } else {
        // The migration goes on when standard output is closed.
        let mut printed = Ok(());
        let show = |change: &str| {
            if printed.is_ok() {
                printed = print(&format!("done: {change}"));
            }
        };
        migration.apply(show).await.map_err(Failure::failed)?;
        printed?;
    }
    Ok(())
}
