//! Runs the simulation over many seeds, for `cargo xtask simulate`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use outbox_stress::simulation::{Outcome, TAIL, Wrong, simulate};

const SHOWN_MAX: u64 = 5;

/// Runs the simulation of the relay over many seeds. The last of several equal options counts.
#[derive(Clone, Copy, Debug, Parser)]
#[command(name = "simulate", args_override_self = true)]
struct Options {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Number of seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The mistake to plant.
    #[arg(long, value_enum, default_value_t = Wrong::None)]
    wrong: Wrong,
    /// Threads; as many as processors by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Print the whole history of each world.
    #[arg(long)]
    trace: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let (next, violations) = (AtomicU64::new(0), AtomicU64::new(0));
    let messages = AtomicU64::new(0);
    let slowest = AtomicU64::new(0);
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= options.seeds {
                return;
            }
            let lines = if options.trace { usize::MAX } else { TAIL };
            let seed = options.from.wrapping_add(index);
            let outcome = simulate(seed, options.wrong, lines);
            messages.fetch_add(outcome.messages as u64, Ordering::Relaxed);
            slowest.fetch_max(outcome.drained_ms, Ordering::Relaxed);
            show(&outcome, options, &violations);
        }
    };
    thread::scope(|scope| {
        let processors = || thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..options.threads.unwrap_or_else(processors) {
            scope.spawn(worker);
        }
    });
    let violations = violations.into_inner();
    println!(
        "{} messages, the slowest drain took {} ms of simulated time",
        messages.into_inner(),
        slowest.into_inner()
    );
    println!("{} seeds, {violations} violations", options.seeds);
    ExitCode::from(u8::from(violations > 0))
}

fn show(outcome: &Outcome, options: Options, violations: &AtomicU64) {
    if outcome.violation.is_none() {
        if options.trace {
            println!("{outcome}");
        }
        return;
    }
    if violations.fetch_add(1, Ordering::Relaxed) < SHOWN_MAX {
        println!("{outcome}\n");
    } else if let Some((invariant, what)) = &outcome.violation {
        println!("seed {}: {invariant:?}: {what}", outcome.seed);
    }
}
