//! Tests on three nodes: leader changes, dead nodes, and a lost majority.

mod consuming;
mod fencing;
mod provisioning;
mod publishing;
mod relaying;
