//! The simulation of the relay. The package also has the programs `bench`, `chaos` and `simulate`.

#[cfg(all(unix, feature = "servers"))]
pub mod patient;
pub mod simulation;
