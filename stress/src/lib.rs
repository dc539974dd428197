//! The simulation of the relay. The package also has the programs `bench` (measures relays and consumers), `chaos`
//! (kills and pauses them) and `simulate`.

#[cfg(all(unix, feature = "servers"))]
pub mod patient;
#[cfg(all(unix, feature = "servers"))]
pub mod private;
pub mod simulation;
