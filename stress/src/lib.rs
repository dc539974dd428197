//! The simulation of the relay. Beside it stand the programs `bench` (measures relays and consumers), `chaos` (kills and pauses them) and `simulate`.

pub mod simulation;
