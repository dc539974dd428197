//! The command line of the program `outbox`: all commands, and what only the program itself can tell of them.

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::commands::OutboxCommand;
use crate::failure::{CommandError, Outcome};
use crate::{hint, output};

/// Publishes what services record in their databases, and says why something does not arrive.
#[derive(Debug, Parser)]
#[command(name = "outbox", version)]
pub struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one in a program")]
enum Command {
    #[command(flatten)]
    Outbox(OutboxCommand),
    /// Print a script that completes commands and options in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page; with a command, such as `relay run`, its own.
    Man {
        /// The command.
        #[arg(value_name = "COMMAND")]
        command: Vec<String>,
    },
}

impl Program {
    /// Does what the command line says. Call it inside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// As [`OutboxCommand::run`].
    ///
    /// # Cancellation
    ///
    /// As [`OutboxCommand::run`].
    pub async fn run(self) -> Result<Outcome, CommandError> {
        hint::know(Self::command());
        match self.command {
            Command::Outbox(command) => command.run().await,
            Command::Completions { shell } => print(&completions(shell)),
            Command::Man { command } => print(&manual(&command)?),
        }
    }
}

fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Program::command(), "outbox", &mut script);
    script
}

fn manual(words: &[String]) -> Result<Vec<u8>, CommandError> {
    let mut program = Program::command();
    program.build();
    let mut command = &program;
    for word in words {
        let found = command.find_subcommand(word).ok_or_else(|| {
            CommandError::Configuration(
                format!("there is no command `{}`", words.join(" ").escape_debug()).into(),
            )
        });
        command = found?;
    }
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command.clone()).render(&mut page);
    rendered.map_err(|error| CommandError::Failed(error.into()))?;
    Ok(page)
}

fn print(text: &[u8]) -> Result<Outcome, CommandError> {
    output::write_bytes(text)?;
    Ok(Outcome::Well)
}
