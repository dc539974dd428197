//! Runs tests of the running test program again, in another process, against other servers.

use std::process::Command;

use crate::Failure;

/// Tests of the running test program.
#[derive(Debug, Clone)]
pub struct Rerun {
    words: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Rerun {
    /// Selects all tests with any of these texts in their names.
    #[must_use]
    pub fn of(tests: &[&str]) -> Self {
        Self {
            words: tests.iter().map(|test| (*test).to_owned()).collect(),
            variables: Vec::new(),
        }
    }

    /// Skips the tests with any of these texts in their names.
    #[must_use]
    pub fn without(mut self, tests: &[&str]) -> Self {
        let skip = |test: &&str| ["--skip".to_owned(), (*test).to_owned()];
        self.words.extend(tests.iter().flat_map(skip));
        self
    }

    /// Sets an environment variable of the tests, for example the address of another server.
    #[must_use]
    pub fn with(mut self, variable: &str, value: &str) -> Self {
        self.variables.push((variable.to_owned(), value.to_owned()));
        self
    }

    /// Runs the selected tests, and returns how many have passed.
    ///
    /// # Errors
    ///
    /// The output of the tests, if a test failed or no test ran.
    pub async fn run(self) -> Result<u64, Failure> {
        let program = std::env::current_exe()?;
        let run = move || {
            Command::new(program)
                .args(self.words)
                .envs(self.variables)
                .output()
        };
        let output = tokio::task::spawn_blocking(run).await??;
        let text = String::from_utf8_lossy(&output.stdout);
        let passed = passed(&text);
        match output.status.success() && passed > 0 {
            true => Ok(passed),
            false => Err(format!("{text}\n{}", String::from_utf8_lossy(&output.stderr)).into()),
        }
    }
}

fn passed(output: &str) -> u64 {
    let mut words = output
        .rsplit_once("test result: ")
        .unwrap_or_default()
        .1
        .split_whitespace();
    words
        .nth(1)
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}
