//! What must hold, shown on whole servers: raced, killed, cut off from their store.

mod faults;
mod kill;
mod notifications;
mod outage;
mod race;
mod recovery;
