//! `outbox contexts`: the named contexts of a person, and which of them is chosen.
//!
//! Invariant: no value of a variable is shown, only whether it is set.

use clap::Args;
use outbox_admin::quoted;
use serde::Serialize;

use super::arguments::EXIT_CODES;
use super::text;
use crate::config::{Contexts, Environment};
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Column, Format, Print, say, say_next};

/// Arguments of `outbox contexts`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
#[non_exhaustive]
pub struct ContextsCommand {
    /// The form of the answer.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

impl ContextsCommand {
    pub(super) fn run(&self) -> Result<Outcome, CommandError> {
        let environment = Environment::of_process();
        let contexts = Contexts::load(&environment).map_err(CommandError::configuration)?;
        let chosen = environment.get("OUTBOX_CONTEXT");
        let rows = contexts.contexts.iter().map(|(name, context)| ContextRow {
            context: name.clone(),
            production: context.production,
            chosen: chosen == Some(name.as_str()),
            config: context.config.as_ref().map(|path| path.display().to_string()),
            variables: context.env.values().cloned().collect(),
            missing: context
                .env
                .values()
                .filter(|source| environment.get(source).is_none())
                .cloned()
                .collect(),
        });
        let rows: Vec<ContextRow> = rows.collect();
        output::many(self.output, &rows)?;
        if rows.is_empty() {
            let place = contexts.path.map(|path| path.display().to_string());
            say(&format!(
                "there is no context; write `[context.NAME]` into {}",
                place.as_deref().unwrap_or("the file that OUTBOX_CONTEXTS names")
            ));
            return Ok(Outcome::NothingMatched);
        }
        if let Some(row) = rows.first() {
            say_next(format!("outbox status --context {}", quoted(&row.name())));
        }
        Ok(Outcome::Well)
    }
}

/// A context as a list shows it.
#[derive(Debug, Serialize)]
struct ContextRow {
    context: String,
    production: bool,
    /// Whether `OUTBOX_CONTEXT` names it.
    chosen: bool,
    config: Option<String>,
    /// The environment variables that it reads.
    variables: Vec<String>,
    /// Those of them that are not set.
    missing: Vec<String>,
}

impl Print for ContextRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("context", |row| row.context.clone()),
        Column::new("production", |row| text::yes(row.production)),
        Column::new("chosen", |row| text::yes(row.chosen)),
        Column::new("config", |row| text::any(row.config.clone())),
        Column::wide("variables", |row| row.variables.join(" ")),
        Column::new("missing", |row| row.missing.join(" ")),
    ];

    fn name(&self) -> String {
        self.context.clone()
    }
}
