//! Several relays over one outbox, under faults of relays and servers.
//!
//! Invariant: no message is lost, invented, changed, out of order or unsettled. After the log is
//! dropped, the table has no unpublished message.

mod child;
mod log;
mod servers;
mod world;
mod written;

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::Result;
use crate::processes::{Processes, Torment};
use crate::servers::Place;
use servers::{ServerKills, Servers};
use world::World;
use written::Written;

pub(crate) use child::{Child, child};

/// The last of several equal options counts.
#[derive(Args, Clone, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// PostgreSQL or MariaDB, for prefixed tables that are removed if no message is lost or
    /// repeated.
    #[arg(long, required_unless_present = "postgres_program")]
    database_url: Option<String>,
    /// A nats-server with JetStream.
    #[arg(long, required_unless_present = "nats_program")]
    nats_url: Option<String>,
    /// The program `postgres`, with `initdb` in the same folder: starts a private server, which is
    /// killed too.
    #[arg(long, conflicts_with = "database_url")]
    postgres_program: Option<PathBuf>,
    /// The program `nats-server`: starts a private server, which is killed too.
    #[arg(long, conflicts_with = "nats_url")]
    nats_program: Option<PathBuf>,
    /// What the relays read.
    #[arg(long, value_enum, default_value_t = Way::Table)]
    relay: Way,
    /// Number of times that the log is dropped and recreated while the second half is recorded. If
    /// it is above 0, half of the relays poll the table.
    #[arg(long, default_value_t = 0)]
    hand_overs: u32,
    /// The total number of messages.
    #[arg(long, default_value_t = 200_000)]
    messages: u32,
    /// Concurrent relays.
    #[arg(long, default_value_t = 4)]
    relays: usize,
    /// Milliseconds between two faults.
    #[arg(long, default_value_t = 1000)]
    every_ms: u64,
    /// Number of faults, spread over the second half of the messages. Default: faults until the
    /// last message.
    #[arg(long)]
    faults: Option<u32>,
    /// Small sizes: three relays, 1,600 messages and 12 faults, in seconds.
    #[arg(long)]
    small: bool,
    /// Seed for the choice of target processes.
    #[arg(long)]
    seed: Option<u64>,
}

impl Options {
    fn sized(&self) -> Self {
        if !self.small {
            return self.clone();
        }
        Self {
            messages: 1_600,
            relays: 3,
            every_ms: 250,
            faults: self.faults.or(Some(12)),
            ..self.clone()
        }
    }

    fn time(&self) -> Duration {
        Duration::from_millis(self.every_ms) * self.faults.unwrap_or(0)
    }
}

/// What a relay reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// The outbox table: polling relays.
    Table,
    /// PostgreSQL's WAL: log relays, with one reader.
    Log,
}

#[derive(Debug, Serialize)]
struct Report {
    seed: u64,
    seconds: f64,
    hand_overs: u32,
    slots_dropped: u32,
    #[serde(flatten)]
    torments: Torment,
    #[serde(flatten)]
    servers: ServerKills,
    #[serde(flatten)]
    written: Written,
    unsettled: u64,
}

const PATIENCE: Duration = Duration::from_secs(1800);

/// Lease time of the relays, short so that leases expire often.
pub(super) const LEASE: Duration = Duration::from_millis(1500);

pub(crate) async fn run(options: &Options) -> Result<bool> {
    let options = &options.sized();
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}");
    let servers = Servers::start(options, seed).await?;
    let world = World::make(options, &servers).await?;
    if options.relay == Way::Log {
        log::set_up(&world).await?;
    }
    world.record(0..options.messages / 2, Duration::ZERO).await?;
    eprintln!("{} messages recorded, relays start", options.messages / 2);
    let began = Instant::now();
    let mut torture = Torture {
        relays: Relays::start(options, &world.ground.place, seed)?,
        servers,
        faults: 0,
        slots_dropped: 0,
    };
    let is_settled = torture.until_settled(options, &world, began).await?;
    if !is_settled {
        eprintln!("not settled after {PATIENCE:?}");
    }
    let seconds = began.elapsed().as_secs_f64();
    let torments = torture.relays.stop().await?;
    let (written, unsettled) = (world.compare().await?, world.unsettled().await?);
    let balanced = written.is_balanced() && unsettled == 0;
    let report = Report {
        seed,
        seconds,
        hand_overs: options.hand_overs,
        slots_dropped: torture.slots_dropped,
        torments,
        servers: torture.servers.kills(),
        written,
        unsettled,
    };
    println!("{}", serde_json::to_string(&report)?);
    if balanced {
        world.ground.remove().await?;
    }
    Ok(balanced)
}

struct Relays {
    groups: Vec<Processes>,
}

impl Relays {
    fn start(options: &Options, place: &Place, seed: u64) -> Result<Self> {
        let polling = match options.hand_overs {
            0 => 0,
            _ => options.relays / 2,
        };
        let (way, table) = (of(options.relay), of(Way::Table));
        let mut groups = Vec::new();
        for (count, way) in [(options.relays - polling, &way), (polling, &table)] {
            let place = ["relay-child", "--relay", way]
                .into_iter()
                .chain(place.arguments());
            let arguments: Vec<&str> = place.collect();
            if count > 0 {
                groups.push(Processes::start(count, &arguments, LEASE, seed)?);
            }
        }
        Ok(Self { groups })
    }

    fn look_after(&mut self) -> Result<()> {
        self.groups.iter_mut().try_for_each(Processes::look_after)
    }

    fn disturb_one(&mut self, turn: u32) -> Result<bool> {
        let groups = self.groups.len();
        for group in 0..groups {
            let group = &mut self.groups[(turn as usize + group) % groups];
            let before = group.done();
            group.disturb_one()?;
            if group.done() != before {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn stop(self) -> Result<Torment> {
        let mut done = Torment::default();
        for group in self.groups {
            done = done.and(group.stop().await?);
        }
        Ok(done)
    }
}

fn of(way: Way) -> String {
    way.to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

struct Torture {
    relays: Relays,
    servers: Servers,
    faults: u32,
    slots_dropped: u32,
}

impl Torture {
    async fn until_settled(&mut self, options: &Options, world: &World, began: Instant) -> Result<bool> {
        let is_written = Cell::new(false);
        let write = async {
            let (half, time) = (options.messages / 2, options.time());
            tokio::try_join!(
                world.record(half..options.messages, time),
                log::hand_over(world, options.hand_overs, time)
            )?;
            is_written.set(true);
            crate::Result::Ok(())
        };
        let torment = async {
            while !is_written.get() || options.faults.is_some() && !self.is_over(options) {
                self.next(options, world).await?;
            }
            Ok(())
        };
        let both = async { tokio::try_join!(write, torment) };
        match tokio::time::timeout(PATIENCE, both).await {
            Ok(done) => drop(done?),
            Err(_) => return Ok(false),
        }
        let mut log_is_on = options.relay == Way::Log;
        while began.elapsed() < PATIENCE {
            self.next(options, world).await?;
            if log_is_on {
                let missing = world.missing().await?;
                eprintln!("{missing} messages to go");
                if missing > 0 {
                    continue;
                }
                log::take_down(world).await?;
                log_is_on = false;
            }
            let unsettled = world.unsettled().await?;
            eprintln!("{unsettled} messages to settle");
            if unsettled == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_over(&self, options: &Options) -> bool {
        options.faults.is_some_and(|faults| self.faults >= faults)
    }

    /// Causes the next fault: two faults hit relays; then each server that the run started, and the
    /// slot, get one fault.
    async fn next(&mut self, options: &Options, world: &World) -> Result<()> {
        tokio::time::sleep(Duration::from_millis(options.every_ms)).await;
        self.relays.look_after()?;
        if self.is_over(options) {
            return Ok(());
        }
        let (turn, own) = (self.faults, self.servers.own());
        let kinds = 2 + own + usize::from(options.relay == Way::Log);
        match turn as usize % kinds {
            0 | 1 if !self.relays.disturb_one(turn)? => return Ok(()),
            0 | 1 => {}
            server if server < 2 + own => self.servers.kill(server - 2).await?,
            _ => {
                self.slots_dropped += u32::from(log::drop_slot(world).await?);
                let is_last = options
                    .faults
                    .is_some_and(|faults| turn as usize + kinds >= faults as usize);
                if is_last && self.slots_dropped == 0 {
                    return Ok(());
                }
            }
        }
        self.faults += 1;
        Ok(())
    }
}
