//! Named contexts of a person: which configuration a command works on, and whether that is production.
//!
//! They stand in `contexts.toml` below the folder of the user's configuration. Invariants: the file holds no address and no secret, only names of environment
//! variables; an unknown key is an error; a context reads no variable of the environment but those that it names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Config, ConfigError, Environment};

/// The variables of one outbox, as in `OUTBOX_ORDERS_DATABASE_URL`, and of all.
const VARIABLES: [&str; 4] = ["DATABASE_URL", "DATABASE_LOG_URL", "NATS_URL", "NATS_CREDS"];

/// The contexts of a person. No file stands for no context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contexts {
    /// The file; `None` if the environment says of no home.
    pub path: Option<PathBuf>,
    /// The contexts by name.
    pub contexts: BTreeMap<String, Context>,
}

/// One context.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Context {
    /// The configuration file; a relative path begins at the folder of the contexts.
    pub config: Option<PathBuf>,
    /// For each variable that a configuration reads (`DATABASE_URL`), the variable of the environment that holds its value here.
    pub env: BTreeMap<String, String>,
    /// Whether a change must be confirmed by the number of what it changes.
    pub production: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    context: BTreeMap<String, Context>,
}

impl Contexts {
    /// Where the file is: `OUTBOX_CONTEXTS`, or `outbox/contexts.toml` below `XDG_CONFIG_HOME`, which is `~/.config` by default.
    #[must_use]
    pub fn path(environment: &Environment) -> Option<PathBuf> {
        if let Some(file) = environment.get("OUTBOX_CONTEXTS") {
            return Some(file.into());
        }
        let folder = environment.get("XDG_CONFIG_HOME").map(PathBuf::from);
        // The specification of XDG has relative paths ignored.
        let folder = folder.filter(|folder| folder.is_absolute());
        let home = || Some(Path::new(environment.get("HOME")?).join(".config"));
        Some(folder.or_else(home)?.join("outbox").join("contexts.toml"))
    }

    /// Reads the file. Without one there are no contexts.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first mistake.
    pub fn load(environment: &Environment) -> Result<Self, ConfigError> {
        let Some(path) = Self::path(environment) else {
            return Ok(Self::default());
        };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            // A file that the environment names has to be there.
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound
                    && environment.get("OUTBOX_CONTEXTS").is_none() =>
            {
                String::new()
            }
            Err(source) => return Err(ConfigError::Unreadable { path, source }),
        };
        Self::parse(path, &text)
    }

    fn parse(path: PathBuf, text: &str) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let mut contexts = super::file::parse::<File>(&name, text)?.context;
        for (context, section) in &mut contexts {
            check(&name, context, section)?;
            if let (Some(config), Some(folder)) = (&section.config, path.parent()) {
                section.config = Some(folder.join(config));
            }
        }
        Ok(Self {
            path: Some(path),
            contexts,
        })
    }

    /// The context of this name.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Setting`] with the names that there are.
    pub fn get(&self, name: &str) -> Result<&Context, ConfigError> {
        self.contexts.get(name).ok_or_else(|| {
            let place = self.path.as_ref().map(|path| path.display().to_string());
            let names: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let remedy = if names.is_empty() {
                format!(
                    "write `[context.{}]` into {}",
                    name.escape_debug(),
                    place.as_deref().unwrap_or("the file that OUTBOX_CONTEXTS names")
                )
            } else {
                format!("the file has `{}`", names.join("`, `"))
            };
            ConfigError::setting(format!("there is no context `{}`", name.escape_debug()), remedy)
        })
    }
}

impl Context {
    /// Reads the configuration of this context. Of the environment it takes only what the context names.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first mistake.
    pub fn load(&self, environment: &Environment) -> Result<Config, ConfigError> {
        let mut chosen = Vec::new();
        for (variable, source) in &self.env {
            let value = environment.get(source).ok_or_else(|| {
                ConfigError::setting(
                    format!("{source} is not set, which this context names for {variable}"),
                    format!("set {source}"),
                )
            })?;
            chosen.push((variable.as_str(), value));
        }
        Config::load(self.config.as_deref(), &chosen.into_iter().collect())
    }
}

/// What can be said of a context without the environment. A value that is no name of a variable may be an address, so it is not shown.
fn check(file: &str, name: &str, context: &Context) -> Result<(), ConfigError> {
    let is_name = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let is_known = |variable: &str| {
        VARIABLES.contains(&variable)
            || variable.strip_prefix("OUTBOX_").is_some_and(|rest| {
                VARIABLES.iter().any(|known| {
                    rest.strip_suffix(known)
                        .and_then(|outbox| outbox.strip_suffix('_'))
                        .is_some_and(is_name)
                })
            })
    };
    for (variable, source) in &context.env {
        if !is_known(variable) {
            return Err(ConfigError::setting(
                format!(
                    "{file}: context `{}` has `{}` in `env`, which no configuration reads",
                    name.escape_debug(),
                    variable.escape_debug()
                ),
                "use DATABASE_URL, DATABASE_LOG_URL, NATS_URL, NATS_CREDS, or one of them for an outbox, such as OUTBOX_ORDERS_NATS_URL",
            ));
        }
        if !is_name(source) {
            return Err(ConfigError::setting(
                format!(
                    "{file}: context `{}` gives {variable} a value that is no name of an environment variable",
                    name.escape_debug()
                ),
                "name the variable that holds the address, such as SHOP_DATABASE_URL; the file is no place for secrets",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Contexts, ConfigError> {
        Contexts::parse("/users/ada/.config/outbox/contexts.toml".into(), text)
    }

    #[test]
    fn the_file_is_in_the_folder_of_the_users_configuration() {
        let path = |variables: &[(&str, &str)]| Contexts::path(&variables.iter().copied().collect());
        let home = ("HOME", "/users/ada");
        let default = Some("/users/ada/.config/outbox/contexts.toml".into());
        assert_eq!(path(&[home]), default);
        assert_eq!(path(&[home, ("XDG_CONFIG_HOME", "relative")]), default);
        let xdg = Some("/etc/ada/outbox/contexts.toml".into());
        assert_eq!(path(&[home, ("XDG_CONFIG_HOME", "/etc/ada")]), xdg);
        assert_eq!(
            path(&[home, ("OUTBOX_CONTEXTS", "mine.toml")]),
            Some("mine.toml".into())
        );
        assert_eq!(path(&[]), None);
    }

    #[test]
    fn a_context_names_a_file_and_variables() {
        let contexts = parse(
            "[context.prod]\nconfig = \"shop.toml\"\nproduction = true\nenv = { DATABASE_URL = \"PROD_DB\", OUTBOX_SHOP_NATS_URL = \"PROD_NATS\" }\n",
        )
        .unwrap();
        let prod = contexts.get("prod").unwrap();
        assert!(prod.production);
        let config = Some("/users/ada/.config/outbox/shop.toml".into());
        assert_eq!(prod.config, config);
        let unknown = contexts.get("dev").unwrap_err().to_string();
        assert_eq!(unknown, "there is no context `dev`; the file has `prod`");
    }

    #[test]
    fn a_context_reads_no_variable_that_it_does_not_name() {
        let contexts = parse("[context.a]\nenv = { DATABASE_URL = \"A_DB\" }\n").unwrap();
        let of = |variables: &[(&str, &str)]| {
            let environment = variables.iter().copied().collect();
            contexts.get("a").unwrap().load(&environment)
        };
        let (db, nats) = (("A_DB", "postgres://a/shop"), ("NATS_URL", "nats://other"));
        let error = of(&[db, nats]).unwrap_err().to_string();
        assert!(error.contains("no address of its NATS servers"), "{error}");
        let error = of(&[("DATABASE_URL", "postgres://other/shop")])
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("A_DB is not set"), "{error}");
    }

    #[test]
    fn unknown_keys_and_addresses_are_refused_and_not_shown() {
        for text in [
            "[context.a]\nproducton = true\n",
            "[contexts.a]\n",
            "[context.a]\nenv = { PASSWORD = \"A_PASSWORD\" }\n",
            "[context.a]\nenv = { OUTBOX__DATABASE_URL = \"A\" }\n",
        ] {
            parse(text).unwrap_err();
        }
        let error =
            parse("[context.a]\nenv = { DATABASE_URL = \"postgres://u:hunter2@db/shop\" }\n").unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
