//! Reads what the Containerfile of the relay does: the commands that build, the files that are copied, the command that starts.
//!
//! It knows the instructions that this file has, and refuses others: what is not understood is not tested either.

use anyhow::{Result, anyhow};

/// What a Containerfile does.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Containerfile {
    /// The commands of the stage that builds, for a shell.
    pub(super) runs: Vec<String>,
    /// What the image gets from that stage: a path there, and one in the image.
    pub(super) copies: Vec<(String, String)>,
    /// The user and the group that the program runs as.
    pub(super) user: (u32, u32),
    /// The words that start the program: ENTRYPOINT and CMD.
    pub(super) command: Vec<String>,
}

impl Containerfile {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut file = Self::default();
        let mut stages = 0;
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let unknown = || anyhow!("`{line}` of the Containerfile is unknown to xtask; teach it");
            let (instruction, rest) = line.split_once(' ').ok_or_else(unknown)?;
            match (instruction, stages) {
                ("FROM", 0) => stages += 1,
                ("FROM", 1) if rest == "scratch" => stages += 1,
                ("RUN", 1) => file.runs.push(rest.to_owned()),
                // The sources are where this task runs.
                ("WORKDIR", 1) if rest == "/src" => {}
                ("COPY", 1) if rest == ". ." => {}
                ("COPY", 2) => {
                    let paths = rest.strip_prefix("--from=build ").ok_or_else(unknown)?;
                    let (from, to) = paths.split_once(' ').ok_or_else(unknown)?;
                    file.copies.push((from.to_owned(), to.to_owned()));
                }
                ("USER", 2) => file.user = user(rest).ok_or_else(unknown)?,
                ("ENTRYPOINT" | "CMD", 2) => {
                    let words: Vec<String> = serde_json::from_str(rest).map_err(|_| unknown())?;
                    file.command.extend(words);
                }
                ("EXPOSE" | "STOPSIGNAL", 2) => {}
                _ => return Err(unknown()),
            }
        }
        Ok(file)
    }
}

fn user(text: &str) -> Option<(u32, u32)> {
    let (user, group) = text.split_once(':')?;
    Some((user.parse().ok()?, group.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_does_is_read() {
        let text = "# A comment.\nFROM rust AS build\nRUN make it\nWORKDIR /src\nCOPY . .\n\nFROM scratch\n\
            COPY --from=build /src/a /bin/a\nEXPOSE 1\nUSER 5:6\nENTRYPOINT [\"/bin/a\"]\nCMD [\"run\", \"it\"]\n";
        let expected = Containerfile {
            runs: vec!["make it".to_owned()],
            copies: vec![("/src/a".to_owned(), "/bin/a".to_owned())],
            user: (5, 6),
            command: ["/bin/a", "run", "it"].map(str::to_owned).to_vec(),
        };
        assert_eq!(Containerfile::parse(text).unwrap(), expected);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in ["ADD x /y", "COPY x /y", "USER somebody", "CMD run"] {
            let text = format!("FROM rust AS build\nFROM scratch\n{line}\n");
            let failure = Containerfile::parse(&text).unwrap_err();
            assert!(failure.to_string().contains(line), "{failure}");
        }
        // An image with files of its own is more than what this task makes.
        assert!(Containerfile::parse("FROM rust AS build\nFROM debian\n").is_err());
    }
}
