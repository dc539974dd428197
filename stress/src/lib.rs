//! The simulation of the relay. The package also has the programs `bench` (measures relays and consumers), `chaos`
//! (kills and pauses them) and `simulate`.

#[cfg(all(unix, feature = "servers"))]
pub mod patient;
pub mod simulation;
