//! Runs the simulation of the relay over many seeds. `cargo xtask simulate` builds and runs this program.
//!
//! It prints each failure with its history and the command that repeats it, the same for a smaller world that fails
//! likewise, and a summary line.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use outbox_stress::simulation::{Outcome, TAIL, Without, Wrong, minimise, simulate_without};

const USAGE: &str =
    "usage: simulate [--seeds N] [--from SEED] [--wrong MISTAKE] [--without FAULTS] [--threads N] [--trace]";
/// Failures that are shown in full.
const SHOWN_MAX: u64 = 5;

#[derive(Debug, Clone, Copy)]
struct Options {
    from: u64,
    seeds: u64,
    wrong: Wrong,
    without: Without,
    threads: usize,
    trace: bool,
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)) {
        Ok(options) => run(options),
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        from: 0,
        seeds: 1000,
        wrong: Wrong::None,
        without: Without::NOTHING,
        threads: thread::available_parallelism().map_or(1, usize::from),
        trace: false,
    };
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{name} needs a value"));
        let number = |text: String| {
            text.parse::<u64>()
                .map_err(|_| format!("`{text}` is not a number"))
        };
        match name.as_str() {
            "--from" => options.from = number(value()?)?,
            "--seeds" => options.seeds = number(value()?)?,
            "--threads" => options.threads = number(value()?)?.clamp(1, 1024) as usize,
            "--wrong" => options.wrong = value()?.parse()?,
            "--without" => options.without = value()?.parse()?,
            "--trace" => options.trace = true,
            _ => return Err(format!("`{name}` is not known")),
        }
    }
    Ok(options)
}

fn run(options: Options) -> ExitCode {
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
            let outcome = simulate_without(seed, options.wrong, options.without, lines);
            messages.fetch_add(outcome.messages as u64, Ordering::Relaxed);
            slowest.fetch_max(outcome.drained_ms, Ordering::Relaxed);
            show(&outcome, options, &violations);
        }
    };
    thread::scope(|scope| {
        for _ in 0..options.threads {
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
        if !options.trace {
            println!("the same with less:\n{}\n", minimise(outcome, TAIL));
        }
    } else if let Some((invariant, what)) = &outcome.violation {
        println!("seed {}: {invariant}: {what}", outcome.seed);
    }
}
