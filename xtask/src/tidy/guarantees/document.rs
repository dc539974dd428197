//! Reads GUARANTEES.md: the promises, and the tests that each claim names.
//!
//! A promise is a section with a table. It says in two sentences what holds, names what is not promised, and has a line
//! `| claim | where it holds | tests |` for each claim.

use super::DOCUMENT;

/// What the table of each promise begins with.
const COLUMNS: &str = "| Claim | Where it holds | Proof |";

const NOT_PROMISED: &str = "**Not promised:**";

#[derive(Debug, Default)]
pub(super) struct Promise {
    pub(super) title: String,
    pub(super) claims: Vec<Claim>,
}

#[derive(Debug)]
pub(super) struct Claim {
    /// In the document, from 1.
    pub(super) line: usize,
    /// Names of tests, with modules before them where the name alone is not unique.
    pub(super) proofs: Vec<String>,
}

/// The promises of the document, and one sentence for each that is not in the form of the others.
pub(super) fn promises(text: &str) -> (Vec<Promise>, Vec<String>) {
    let mut promises: Vec<Promise> = Vec::new();
    let mut problems = Vec::new();
    let (mut names_limits, mut in_table) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let line_number = number + 1;
        if let Some(title) = line.strip_prefix("## ") {
            promises.push(Promise {
                title: title.to_owned(),
                claims: Vec::new(),
            });
            (names_limits, in_table) = (false, false);
        }
        names_limits |= line.starts_with(NOT_PROMISED);
        let Some(promise) = promises.last_mut() else {
            continue;
        };
        if line == COLUMNS {
            in_table = true;
            if !names_limits {
                problems.push(format!(
                    "{DOCUMENT}:{line_number}: {} does not say what is left out; start a line above its table with {NOT_PROMISED}",
                    promise.title
                ));
            }
        } else if in_table && line.starts_with("| ") {
            match claim(line_number, line) {
                Some(claim) => promise.claims.push(claim),
                None => problems.push(format!(
                    "{DOCUMENT}:{line_number}: this claim has no proof; write `| claim | where it holds | `name_of_the_test` |`"
                )),
            }
        } else if !line.starts_with('|') {
            in_table = false;
        }
    }
    promises.retain(|promise| !promise.claims.is_empty());
    (promises, problems)
}

/// A line of a table; nothing if it has another form or names no test.
fn claim(line_number: usize, line: &str) -> Option<Claim> {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [claim, place, proof] = cells[..] else {
        return None;
    };
    let proofs: Vec<String> = proof.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let is_complete = !claim.is_empty() && !place.is_empty() && !proofs.is_empty();
    is_complete.then_some(Claim {
        line: line_number,
        proofs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "| Claim | Where it holds | Proof |\n|---|---|---|\n";

    #[test]
    fn claims_name_one_test_or_several() {
        let text = format!(
            "## One\n\n**Not promised:** x.\n\n{TABLE}| a | b | `c`, `d::e` |\n| f | g | `h` |\n\n## Not promised\n\nText.\n"
        );
        let (promises, problems) = promises(&text);
        assert_eq!(problems, Vec::<String>::new());
        let [Promise { title, claims }] = &promises[..] else {
            panic!("{promises:?}")
        };
        assert_eq!(title, "One");
        let found: Vec<_> = claims
            .iter()
            .map(|claim| (claim.line, claim.proofs.join(" ")))
            .collect();
        assert_eq!(found, [(7, "c d::e".to_owned()), (8, "h".to_owned())]);
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let (_, problems) = promises(text);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(expected), "{problems:?}");
    }

    #[test]
    fn a_promise_names_its_limits() {
        check(
            &format!("## One\n\n{TABLE}| a | b | `c` |\n"),
            "GUARANTEES.md:3: One does not say",
        );
    }

    #[test]
    fn a_claim_has_a_place_and_a_proof() {
        let start = format!("## One\n\n**Not promised:** x.\n\n{TABLE}");
        check(
            &format!("{start}| a | b | by design |\n"),
            "GUARANTEES.md:7: this claim has no proof",
        );
        check(
            &format!("{start}| a |  | `c` |\n"),
            "GUARANTEES.md:7: this claim has no proof",
        );
        check(
            &format!("{start}| a | `c` |\n"),
            "GUARANTEES.md:7: this claim has no proof",
        );
    }
}
