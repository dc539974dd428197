//! Three nodes: leaders change, nodes die, and the majority goes away and comes back.

mod consuming;
mod fencing;
mod provisioning;
mod publishing;
mod relaying;
