//! The relays of a run, each a process that is killed, paused and started again.

use std::fmt;
use std::process::{Child as Process, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use outbox_core::{Relay, RelayConfig};
use outbox_nats::{JetStreamPublisher, PublisherConfig, SubjectPrefix};
use outbox_sea_orm::SqlStore;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::world::{World, connect, names};
use crate::{Options, Result};

/// Short, so that leases are lost often.
const LEASE: Duration = Duration::from_millis(1500);

/// What a child is told.
#[derive(Args, Clone, Debug)]
pub(crate) struct Child {
    #[arg(long)]
    database_url: String,
    #[arg(long)]
    nats_url: String,
    #[arg(long)]
    name: String,
}

/// One relay, until it is told to stop or killed.
pub(crate) async fn child(options: &Child) -> Result<()> {
    let db = connect(&options.database_url, 4).await?;
    let store = SqlStore::new(db).with_names(&names(&options.name)?)?;
    let client = outbox_nats::connect(&options.nats_url, outbox_nats::connect_options()).await?;
    let config = PublisherConfig::default()
        .stream(&options.name)
        .prefix(SubjectPrefix::new(&options.name)?)
        .ack_timeout(LEASE / 3);
    let publisher = JetStreamPublisher::new(client, config);
    let config = RelayConfig::default()
        .lease_ttl(LEASE)
        .poll_max(Duration::from_millis(100));
    let relay = Relay::new(store, publisher).with_config(config);
    relay.run(outbox_core::shutdown::on_signals()).await?;
    Ok(())
}

/// What was done to the relays.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Torment {
    /// Relays killed.
    kills: u32,
    /// Relays paused, most of them beyond their lease.
    pauses: u32,
}

/// The relays of a run. Dropping them kills them.
#[derive(Debug)]
pub(crate) struct Relays {
    arguments: Vec<String>,
    processes: Vec<Victim>,
    rng: fastrand::Rng,
    done: Torment,
}

#[derive(Debug)]
struct Victim {
    process: Process,
    paused_until: Option<Instant>,
}

impl Relays {
    pub(crate) fn start(options: &Options, world: &World, seed: u64) -> Result<Self> {
        let arguments = [
            "child",
            "--database-url",
            &options.database_url,
            "--nats-url",
            &options.nats_url,
            "--name",
            &world.name,
        ];
        let mut relays = Self {
            arguments: arguments.map(str::to_owned).to_vec(),
            processes: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            done: Torment::default(),
        };
        for _ in 0..options.relays {
            let victim = relays.spawn()?;
            relays.processes.push(victim);
        }
        Ok(relays)
    }

    fn spawn(&self) -> Result<Victim> {
        let process = Command::new(std::env::current_exe()?)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Victim {
            process,
            paused_until: None,
        })
    }

    /// Wakes those whose pause is over, then kills or pauses one of the others.
    pub(crate) fn torment_one(&mut self) -> Result<()> {
        let now = Instant::now();
        for victim in &mut self.processes {
            if victim.paused_until.is_some_and(|until| until <= now) {
                victim.signal(Signal::CONT)?;
                victim.paused_until = None;
            }
        }
        let awake: Vec<usize> = (0..self.processes.len())
            .filter(|index| self.processes[*index].paused_until.is_none())
            .collect();
        let Some(index) = self.rng.choice(awake) else {
            return Ok(());
        };
        if self.rng.bool() {
            self.done.kills += 1;
            let heir = self.spawn()?;
            let mut victim = std::mem::replace(&mut self.processes[index], heir);
            victim.process.kill()?;
            victim.process.wait()?;
        } else {
            self.done.pauses += 1;
            let pause = LEASE.mul_f64(0.3 + 2.0 * self.rng.f64());
            self.processes[index].signal(Signal::STOP)?;
            self.processes[index].paused_until = Some(now + pause);
        }
        Ok(())
    }

    /// Stops all relays in an orderly way.
    pub(crate) async fn stop(mut self) -> Result<Torment> {
        for victim in &mut self.processes {
            victim.signal(Signal::CONT)?;
            victim.signal(Signal::TERM)?;
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        for victim in &mut self.processes {
            while victim.process.try_wait()?.is_none() {
                if Instant::now() > deadline {
                    return Err("a relay did not stop within 20 s".into());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(self.done)
    }
}

impl Victim {
    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.ok_or("a process without a number")?, signal)?)
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        for victim in &mut self.processes {
            // It may have ended; nothing is to be done about it.
            let _ = victim.process.kill();
            let _ = victim.process.wait();
        }
    }
}

impl fmt::Display for Relays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kills, {} pauses", self.done.kills, self.done.pauses)
    }
}
