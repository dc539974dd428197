//! A program that compiles, for the test of what happens to one among those that must not.

fn main() {}
