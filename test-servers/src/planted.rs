//! Overloads of PostgreSQL's functions and operators, planted into schemas of the search path.
//!
//! PostgreSQL prefers an overload in another schema to `pg_catalog` if its argument types match
//! better. So if a statement leaves an argument type open, a user who may create objects in the
//! search path can replace a function. A call of a planted object fails with [`MARK`], or has the
//! wrong type.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Text in the server's log after a planted object was called.
pub const MARK: &str = "a planted object was called";

/// Text in the server's log after a planted object was chosen although its result type does not
/// fit.
const WRONG_TYPE: &str = " type point";

/// Argument types of the planted objects, most used types first.
const TYPES: [&str; 25] = [
    "text",
    "int4",
    "int8",
    "bytea",
    "uuid",
    "timestamptz",
    "anyelement",
    "json",
    "int2",
    "name",
    "bool",
    "interval",
    "regclass",
    "oid",
    "varchar",
    "numeric",
    "date",
    "timestamp",
    "xid",
    "xid8",
    "anyarray",
    "text[]",
    "int8[]",
    "uuid[]",
    "\"char\"",
];

/// Types planted for an argument of unknown or any type. They may match or make the call ambiguous.
const UNKNOWN: [&str; 6] = ["text", "varchar", "name", "uuid", "anyelement", "anyarray"];

/// Operators that PostgreSQL uses for `IN`, `ANY`, `BETWEEN`, `CASE … WHEN`, `NULLIF` and `LIKE`.
const IMPLIED: [&str; 8] = ["=", "<>", "<", "<=", ">", ">=", "~~", "!~~"];

/// The functions and operators that statements call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Called {
    /// Functions by name and number of arguments. The set may hold other words before an opening
    /// bracket.
    pub functions: BTreeSet<(String, usize)>,
    /// Operators by symbol.
    pub operators: BTreeSet<String>,
}

impl Called {
    /// Reads the calls in the log of a server with `log_statement=all` and `log_line_prefix=@`.
    #[must_use]
    pub fn in_log(log: &str) -> Self {
        let mut called = Self::default();
        called.operators.extend(IMPLIED.map(str::to_owned));
        for entry in log.split("\n@") {
            let statement = entry.split_once("LOG:  statement: ").or_else(|| {
                let (_, rest) = entry.split_once("LOG:  execute ")?;
                rest.split_once(": ")
            });
            if let Some((_, statement)) = statement {
                called.read(statement);
            }
        }
        called
    }

    /// Adds the functions and operators of an SQL text, including bodies of functions.
    pub fn read(&mut self, sql: &str) {
        let bytes = sql.as_bytes();
        let (mut at, mut word) = (0, None);
        let mut calls: Vec<(Option<String>, usize)> = Vec::new();
        let until = |from: usize, end: &str| sql[from..].find(end).map_or(sql.len(), |n| from + n);
        while at < bytes.len() {
            let begins = at;
            let rest = &sql[at..];
            let this = bytes[at];
            if !this.is_ascii_whitespace()
                && !matches!(this, b'(' | b')')
                && let Some((_, arguments)) = calls.last_mut()
            {
                *arguments = (*arguments).max(1);
            }
            match this {
                b'-' if rest.starts_with("--") => at = until(at, "\n"),
                b'/' if rest.starts_with("/*") => at = until(at, "*/") + 2,
                b'\'' => at = until(at + 1, "'") + 1,
                b'"' => at = until(at + 1, "\"") + 1,
                b'$' if !rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                    let tag = &sql[at..=until(at + 1, "$").min(sql.len() - 1)];
                    let (begin, end) = (at + tag.len(), until(at + tag.len(), tag));
                    self.read(&sql[begin..end]);
                    at = end + tag.len();
                }
                b'(' => {
                    calls.push((word.take(), 0));
                    at += 1;
                }
                b')' => {
                    if let Some((Some(name), arguments)) = calls.pop() {
                        self.functions.insert((name, arguments));
                    }
                    if let Some((_, arguments)) = calls.last_mut() {
                        *arguments = (*arguments).max(1);
                    }
                    at += 1;
                }
                b',' => {
                    if let Some((_, arguments)) = calls.last_mut() {
                        *arguments += 1;
                    }
                    at += 1;
                }
                _ if is_word(this) => {
                    while at < bytes.len() && is_word(bytes[at]) {
                        at += 1;
                    }
                    word = Some(sql[begins..at].to_lowercase());
                    continue;
                }
                _ if is_operator(this) => {
                    while at < bytes.len() && is_operator(bytes[at]) && !sql[at..].starts_with("--") {
                        at += 1;
                    }
                    // PostgreSQL reads `<>-1` as `<>` and a negative number.
                    if !sql[begins..at].contains(|c| "~!@#%^&|`?".contains(c)) {
                        while at > begins + 1 && matches!(bytes[at - 1], b'+' | b'-') {
                            at -= 1;
                        }
                    }
                    let operator = &sql[begins..at];
                    if operator != "=>" {
                        self.operators.insert(operator.to_owned());
                    }
                }
                _ if this.is_ascii_whitespace() => {
                    at += 1;
                    continue;
                }
                _ => at += rest.chars().next().map_or(1, char::len_utf8),
            }
            word = None;
        }
    }

    /// Plants overloads in an existing schema for common types; functions with three and more
    /// arguments get fewer types. More overloads would slow down sessions. So a type is planted
    /// only where an implicit cast allows it. The types of `UNKNOWN` are planted for every
    /// function.
    #[must_use]
    pub fn plant(&self, schema: &str) -> String {
        let (mut functions, mut operators) = (String::new(), String::new());
        for (name, arguments) in &self.functions {
            let _ = write!(functions, "('{name}', {arguments}), ");
        }
        for operator in &self.operators {
            let _ = write!(operators, "('{operator}'), ");
        }
        let types = TYPES.map(|name| format!("'{name}'")).join(", ");
        let unknown = UNKNOWN.map(|name| format!("'{name}'")).join(", ");
        format!(
            r"DO $plant$
DECLARE
    body text := $body$ LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''{MARK}''; END'$body$;
    statement text;
BEGIN
    SET LOCAL check_function_bodies = off;
    SET LOCAL search_path = pg_catalog;
    SET LOCAL log_statement = 'none';
    CREATE TEMPORARY TABLE types ON COMMIT DROP AS
        SELECT t.name, t.place, t.name::regtype::oid AS type FROM unnest(ARRAY[{types}]) WITH ORDINALITY AS t (name, place);
    -- Types that fit a declared type.
    CREATE TEMPORARY TABLE fits ON COMMIT DROP AS
        SELECT t.name, t.place, d.oid AS declared FROM pg_temp.types t, pg_type d
        WHERE t.type = d.oid OR t.name = ANY (ARRAY[{unknown}])
           OR d.typname IN ('any', 'anyelement', 'anynonarray', 'anycompatible', 'anycompatiblenonarray')
           OR d.typname IN ('anyarray', 'anycompatiblearray') AND t.name LIKE '%[]'
           OR EXISTS (SELECT FROM pg_cast c WHERE c.castsource = t.type AND c.casttarget = d.oid AND c.castcontext = 'i');
    CREATE INDEX ON pg_temp.fits (declared);
    FOR statement IN
        WITH RECURSIVE called AS (
            SELECT DISTINCT v.name, v.arguments, p.proargtypes, p.provariadic, p.pronargs
            FROM (VALUES {functions} ('none', 0)) AS v (name, arguments)
            JOIN pg_proc p ON p.proname = v.name AND p.pronamespace = 'pg_catalog'::regnamespace
            WHERE v.arguments BETWEEN 1 AND CASE WHEN p.provariadic = 0 THEN p.pronargs ELSE 5 END
        ), list (name, arguments, types, any_more, declared, joined, length) AS (
            SELECT c.name, c.arguments, c.proargtypes, c.provariadic, c.pronargs, ''::text, 0 FROM called c
            UNION
            SELECT l.name, l.arguments, l.types, l.any_more, l.declared,
                   l.joined || CASE WHEN l.length = 0 THEN '' ELSE ', ' END || f.name, l.length + 1
            FROM list l JOIN pg_temp.fits f
            ON f.declared = CASE WHEN l.any_more <> 0 AND l.length >= l.declared - 1 THEN l.any_more ELSE l.types[l.length] END
            AND f.place <= CASE WHEN l.arguments < 3 THEN 25 WHEN l.arguments = 3 THEN 8 ELSE 4 END
            WHERE l.length < l.arguments)
        SELECT DISTINCT format('CREATE FUNCTION {schema}.%I(%s) RETURNS point', l.name, l.joined) FROM list l
        WHERE l.length = l.arguments
    LOOP
        EXECUTE statement || body;
    END LOOP;
    FOR statement IN
        SELECT format('CREATE FUNCTION {schema}.planted(%s, %s) RETURNS point', l.name, r.name) FROM pg_temp.types l, pg_temp.types r
        UNION ALL SELECT format('CREATE FUNCTION {schema}.planted(%s) RETURNS point', r.name) FROM pg_temp.types r
    LOOP
        EXECUTE statement || body;
    END LOOP;
    FOR statement IN
        SELECT DISTINCT format('CREATE OPERATOR {schema}.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = {schema}.planted)', o.oprname, l.name, r.name)
        FROM (VALUES {operators} ('=')) AS v (name) JOIN pg_operator o ON o.oprname = v.name
        JOIN pg_temp.fits l ON l.declared = o.oprleft JOIN pg_temp.fits r ON r.declared = o.oprright
        UNION
        SELECT format('CREATE OPERATOR {schema}.%s (RIGHTARG = %s, FUNCTION = {schema}.planted)', o.oprname, r.name)
        FROM (VALUES {operators} ('=')) AS v (name) JOIN pg_operator o ON o.oprname = v.name AND o.oprleft = 0
        JOIN pg_temp.fits r ON r.declared = o.oprright
    LOOP
        EXECUTE statement;
    END LOOP;
END
$plant$"
        )
    }
}

/// The errors in a server's log after PostgreSQL has chosen a planted object, each with its
/// statement.
#[must_use]
pub fn marks(log: &str) -> Vec<String> {
    let entries: Vec<&str> = log.split("\n@").collect();
    let of_planted =
        |entry: &str| entry.starts_with("ERROR:") && (entry.contains(MARK) || entry.contains(WRONG_TYPE));
    let found = (0..entries.len()).filter(|at| of_planted(entries[*at]));
    // Context and hint may be between error and statement in the log.
    let statement = |at: usize| {
        entries[at..]
            .iter()
            .take(4)
            .find(|entry| entry.starts_with("STATEMENT:"))
    };
    found
        .map(|at| format!("{}\n{}", entries[at], statement(at).unwrap_or(&"")))
        .collect()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn is_operator(byte: u8) -> bool {
    b"+-*/<>=~!@#%^&|?`".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_operators_are_found() {
        let mut called = Called::default();
        called.read(
            "SELECT f(a, 'it''s, (x)'), g ( h() ) -- k(1)\n /* l(1) */ WHERE $1 @> b AND c<>-1 DO $x$ BEGIN m(1, (2, 3), 4); END $x$ n=>2",
        );
        let functions: Vec<_> = called
            .functions
            .iter()
            .map(|(name, n)| (name.as_str(), *n))
            .collect();
        assert_eq!(functions, [("f", 2), ("g", 1), ("h", 0), ("m", 3)]);
        let operators: Vec<_> = called.operators.iter().map(String::as_str).collect();
        assert_eq!(operators, ["-", "<>", "@>"]);
    }
}
