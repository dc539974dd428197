//! Child processes and temporary folders that never outlive their task.
//!
//! Invariant: one registry holds each child until it is reaped. `Drop` stops a child after a normal
//! end or a failure, `stop_on_signals` after a signal. If `setpriv` exists, the kernel kills the
//! child when this process is killed. After a signal, every thread that needs the registry parks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Polling interval for the end of a child. Waiting in the kernel would keep the registry locked.
const POLL: Duration = Duration::from_millis(20);

static NEXT_ID: AtomicU64 = AtomicU64::new(0);
static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    is_closing: false,
    children: BTreeMap::new(),
    folders: BTreeSet::new(),
});

#[derive(Debug)]
struct Registry {
    is_closing: bool,
    /// Running children by registry id, because a process id may be reused before its `Process` is
    /// dropped.
    children: BTreeMap<u64, Running>,
    folders: BTreeSet<PathBuf>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    manners: Manners,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    pub(crate) signal: Signal,
    pub(crate) patience: Duration,
    /// Whether the child has its own process group. Ctrl-C then reaches only this task, and signals
    /// of this task also reach the child's children.
    pub(crate) own_group: bool,
}

impl Manners {
    pub(crate) const GROUP: Self = Self {
        signal: Signal::TERM,
        patience: Duration::from_secs(10),
        own_group: true,
    };

    pub(crate) const FOREGROUND: Self = Self {
        own_group: false,
        ..Self::GROUP
    };
}

#[derive(Debug)]
pub(crate) struct Process {
    id: u64,
    stdout: Option<ChildStdout>,
}

impl Process {
    pub(crate) fn launch(mut command: Command, manners: Manners) -> Result<Self> {
        command.stdin(Stdio::null());
        if manners.own_group {
            command.process_group(0);
        }
        let name = words(&command);
        // The lock spans the spawn: no signal may arrive between spawn and registration.
        let mut registry = registry();
        let mut child = spawn(command).with_context(|| format!("cannot run {name}"))?;
        let stdout = child.stdout.take();
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        registry.children.insert(id, Running { child, manners });
        Ok(Self { id, stdout })
    }

    pub(crate) fn stdout(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    pub(crate) fn exited(&self) -> Result<Option<ExitStatus>> {
        let mut registry = registry();
        let running = registry.children.get_mut(&self.id);
        let running = running.context("the child process is not registered")?;
        running
            .child
            .try_wait()
            .context("cannot wait for a child process")
    }

    pub(crate) fn wait(&self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.wait_at_most(Duration::from_secs(3600))? {
                return Ok(status);
            }
        }
    }

    pub(crate) fn wait_at_most(&self, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.exited()?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
    }

    pub(crate) fn ask_to_stop(&self) {
        if let Some(running) = registry().children.get_mut(&self.id) {
            running.ask_to_stop();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.ask_to_stop();
        let asked = Instant::now();
        // The entry stays registered until the child has ended, so that a signal handler can stop
        // the child.
        let is_gone = |registry: &mut Registry| {
            let running = registry.children.get_mut(&self.id);
            running.is_none_or(|running| running.is_gone(asked))
        };
        while !is_gone(&mut registry()) {
            thread::sleep(POLL);
        }
        registry().children.remove(&self.id);
    }
}

impl Running {
    fn ask_to_stop(&mut self) {
        // After a child is reaped, its process id may belong to another process.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.send(self.manners.signal);
        }
    }

    fn is_gone(&mut self, asked: Instant) -> bool {
        match self.child.try_wait() {
            Ok(None) if asked.elapsed() < self.manners.patience => return false,
            Ok(None) => {
                self.send(Signal::KILL);
                self.child.wait().ok();
            }
            Ok(Some(_)) if self.manners.own_group => self.send(Signal::KILL),
            // `try_wait` fails if another part of the process has reaped the child.
            Ok(Some(_)) | Err(_) => {}
        }
        true
    }

    fn send(&self, signal: Signal) {
        if let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let sent = match self.manners.own_group {
                true => kill_process_group(id, signal),
                false => kill_process(id, signal),
            };
            sent.ok();
        }
    }
}

#[derive(Debug)]
pub(crate) struct RemovedOnExit(PathBuf);

impl RemovedOnExit {
    pub(crate) fn new(path: PathBuf) -> Self {
        registry().folders.insert(path.clone());
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RemovedOnExit {
    fn drop(&mut self) {
        remove_folder(&self.0);
        registry().folders.remove(&self.0);
    }
}

pub(crate) fn remove_folder(folder: &Path) {
    for _ in 0..50 {
        match fs::remove_dir_all(folder) {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => thread::sleep(POLL),
        }
    }
    eprintln!("could not remove {}; remove this folder", folder.display());
}

pub(crate) fn stop_on_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for signals")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            stop_everything();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

pub(crate) fn run(command: &mut Command) -> Result<ExitCode> {
    let command = std::mem::replace(command, Command::new("true"));
    let status = Process::launch(command, Manners::FOREGROUND)?.wait()?;
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

pub(crate) fn wait_for_signal() -> ! {
    loop {
        thread::park();
    }
}

pub(crate) fn tied(program: impl AsRef<OsStr>) -> Command {
    static SETPRIV: OnceLock<bool> = OnceLock::new();
    let can_tie = *SETPRIV.get_or_init(|| {
        let mut probe = Command::new("setpriv");
        probe.args(["--pdeathsig", "KILL", "true"]);
        succeeds_quietly(&mut probe)
    });
    if !can_tie {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

pub(crate) fn succeeds_quietly(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = quiet.stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

pub(crate) fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let words = words.join(" ");
    words
        .trim_start_matches("setpriv --pdeathsig KILL -- ")
        .to_owned()
}

/// Spawns from one permanent thread: the kernel sends the signal of `tied` when the spawning
/// *thread* ends.
fn spawn(command: Command) -> io::Result<Child> {
    type Request = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Request>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        thread::spawn(move || {
            for (mut command, reply) in requests {
                reply.send(command.spawn()).ok();
            }
        });
        sender
    });
    let (reply, spawned) = mpsc::channel();
    spawner.send((command, reply)).map_err(io::Error::other)?;
    spawned.recv().map_err(io::Error::other)?
}

fn stop_everything() {
    let mut registry = registry();
    registry.is_closing = true;
    let children = std::mem::take(&mut registry.children);
    let folders = std::mem::take(&mut registry.folders);
    drop(registry);
    let mut children: Vec<Running> = children.into_values().collect();
    children.iter_mut().for_each(Running::ask_to_stop);
    let asked = Instant::now();
    for running in &mut children {
        while !running.is_gone(asked) {
            thread::sleep(POLL);
        }
    }
    folders.iter().for_each(|folder| remove_folder(folder));
}

/// The registry. After the start of a shutdown this function does not return.
fn registry() -> MutexGuard<'static, Registry> {
    // A panic leaves the registry consistent: no update under the lock has two steps.
    let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    if registry.is_closing {
        drop(registry);
        wait_for_signal();
    }
    registry
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};

    use super::*;

    fn start(script: &str, manners: Manners) -> (Process, BufReader<ChildStdout>) {
        let mut command = tied("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        let mut process = Process::launch(command, manners).unwrap();
        let mut stdout = BufReader::new(process.stdout().unwrap());
        stdout.read_line(&mut String::new()).unwrap();
        (process, stdout)
    }

    #[test]
    fn drop_stops_process_and_children() {
        let (process, mut stdout) = start("sleep 600 & echo started; wait", Manners::GROUP);
        drop(process);
        assert_eq!(stdout.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn process_that_ignores_sigterm_is_killed() {
        let manners = Manners {
            patience: Duration::from_millis(50),
            ..Manners::GROUP
        };
        let (process, mut stdout) = start("trap '' TERM; echo started; while :; do sleep 1; done", manners);
        drop(process);
        assert_eq!(stdout.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn process_survives_its_starting_thread() {
        let starting = thread::spawn(|| start("echo started; sleep 600", Manners::GROUP));
        let (process, _stdout) = starting.join().unwrap();
        let status = process.wait_at_most(Duration::from_millis(200));
        assert_eq!(status.unwrap(), None);
    }
}
