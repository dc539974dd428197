//! The child processes of a run: starts, kills, pauses and restarts them.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::Result;

const STOP_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Torment {
    pub(crate) kills: u32,
    pub(crate) pauses: u32,
    pub(crate) ends: u32,
}

impl Torment {
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            kills: self.kills + other.kills,
            pauses: self.pauses + other.pauses,
            ends: self.ends + other.ends,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Processes {
    arguments: Vec<String>,
    processes: Vec<Target>,
    rng: fastrand::Rng,
    pause: Duration,
    done: Torment,
}

#[derive(Debug)]
struct Target {
    process: Child,
    paused_until: Option<Instant>,
}

impl Processes {
    pub(crate) fn start(count: usize, arguments: &[&str], pause: Duration, seed: u64) -> Result<Self> {
        let mut processes = Self {
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            processes: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            pause,
            done: Torment::default(),
        };
        for _ in 0..count {
            let target = processes.spawn()?;
            processes.processes.push(target);
        }
        Ok(processes)
    }

    fn spawn(&self) -> Result<Target> {
        let process = Command::new(std::env::current_exe()?)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Target {
            process,
            paused_until: None,
        })
    }

    pub(crate) fn done(&self) -> Torment {
        self.done
    }

    pub(crate) fn look_after(&mut self) -> Result<()> {
        let now = Instant::now();
        for index in 0..self.processes.len() {
            let target = &mut self.processes[index];
            if target.paused_until.is_some_and(|until| until <= now) {
                target.signal(Signal::CONT)?;
                target.paused_until = None;
            }
            if target.process.try_wait()?.is_some() {
                self.done.ends += 1;
                self.processes[index] = self.spawn()?;
            }
        }
        Ok(())
    }

    pub(crate) fn disturb_one(&mut self) -> Result<()> {
        if self.rng.bool() {
            self.kill_one()
        } else {
            self.pause_one()
        }
    }

    pub(crate) fn kill_one(&mut self) -> Result<()> {
        while let Some(index) = self.choose() {
            let successor = self.spawn()?;
            let mut target = std::mem::replace(&mut self.processes[index], successor);
            target.process.kill()?;
            if target.process.wait()?.signal() == Some(Signal::KILL.as_raw()) {
                self.done.kills += 1;
                break;
            }
            self.done.ends += 1;
        }
        Ok(())
    }

    pub(crate) fn pause_one(&mut self) -> Result<()> {
        if let Some(index) = self.choose() {
            self.done.pauses += 1;
            let pause = self.pause.mul_f64(0.3 + 2.0 * self.rng.f64());
            self.processes[index].signal(Signal::STOP)?;
            self.processes[index].paused_until = Some(Instant::now() + pause);
        }
        Ok(())
    }

    fn choose(&mut self) -> Option<usize> {
        let awake: Vec<usize> = (0..self.processes.len())
            .filter(|index| self.processes[*index].paused_until.is_none())
            .collect();
        self.rng.choice(awake)
    }

    pub(crate) async fn stop(mut self) -> Result<Torment> {
        for target in &mut self.processes {
            target.signal(Signal::CONT)?;
            target.signal(Signal::TERM)?;
        }
        let deadline = Instant::now() + STOP_MAX;
        for target in &mut self.processes {
            while target.process.try_wait()?.is_none() {
                if Instant::now() > deadline {
                    return Err(format!("a process did not stop within {STOP_MAX:?}").into());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(self.done)
    }
}

impl Target {
    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.ok_or("a process without a number")?, signal)?)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for target in &mut self.processes {
            let _ = target.process.kill();
            let _ = target.process.wait();
        }
    }
}
