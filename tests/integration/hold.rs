//! What must hold, shown on whole servers: raced, killed, cut off from their store.

mod addresses;
mod attack;
mod chaos;
mod disks;
mod duplicates;
mod faults;
mod kill;
mod later_version;
mod limits;
mod lines;
mod notifications;
mod out_of_order;
mod outage;
mod outputs;
mod race;
mod recovery;
mod resize;
mod rolling;
mod schedules;
mod sharing;
mod site;
mod stale;
mod strangers;
mod urgency;
mod ways;
