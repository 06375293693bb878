//! The web page, in a real browser over a real server with real workers.

mod browser;
mod elsewhere;
mod guarded;
mod journeys;
mod looks;
mod saved;
mod settings;

/// The size of most windows.
const DESK: (u32, u32) = (1280, 900);
