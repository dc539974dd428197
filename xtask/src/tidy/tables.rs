//! Tables of Markdown: each row has as many cells as the header row. Renderers drop or add cells silently.

pub(super) fn problems(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".md") {
        return Vec::new();
    }
    let (mut problems, mut expected, mut in_code) = (Vec::new(), None, false);
    for (index, line) in text.lines().map(str::trim).enumerate() {
        in_code ^= line.starts_with("```");
        if in_code || !line.starts_with('|') {
            expected = None;
            continue;
        }
        let found = cells(line);
        let expected = *expected.get_or_insert(found);
        if found != expected {
            problems.push(format!(
                "{path}:{}: this row has {found} cells and its header {expected}; repair the row, and write `\\|` for a bar in a cell",
                index + 1
            ));
        }
    }
    problems
}

/// A bar behind a backslash belongs to a cell, in code as well.
fn cells(row: &str) -> usize {
    let inner = row.strip_prefix('|').unwrap_or(row);
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    1 + inner.replace("\\|", "").matches('|').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_cells_of_their_header() {
        let table = "| a | b |\n|---|---|\n| `x \\| y` | 2 |\n\n| only one |\n";
        assert_eq!(problems("docs/a.md", table), Vec::<String>::new());
        assert_eq!(problems("src/a.rs", "| a | b |\n| 1 |\n"), Vec::<String>::new());
        assert_eq!(
            problems("a.md", "```\n| a | b |\n| 1 |\n```\n"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn torn_row_is_named_with_its_line() {
        let problems = problems("docs/a.md", "| a | b |\n|---|---|\n| 1 | 2 | 3 |\n| 1 |\n");
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems[0].starts_with("docs/a.md:3: this row has 3 cells"),
            "{problems:?}"
        );
        assert!(
            problems[1].starts_with("docs/a.md:4: this row has 1 cells"),
            "{problems:?}"
        );
    }
}
