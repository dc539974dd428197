//! Removes row values from database errors, because logs and tables keep an error longer than the
//! row.
//!
//! Invariant: if the end of a value in the text is ambiguous, the text is removed up to the last
//! candidate.

const GONE: &str = "…";

struct Form {
    mark: &'static str,
    start: &'static str,
    end: &'static str,
}

const fn form(mark: &'static str, start: &'static str, end: &'static str) -> Form {
    Form { mark, start, end }
}

const FORMS: &[Form] = &[
    form("Duplicate entry", " '", "' for key "),
    form("ncorrect ", " value: '", "'"),
    form("invalid input ", ": \"", "\""),
    form("malformed ", ": \"", "\""),
    form("out of range", ": \"", "\""),
    form("value", " \"", "\" is out of range"),
    form("PgDatabaseError {", " message: \"", "\", detail: "),
    form("PgDatabaseError {", " detail: Some(\"", "\"), hint: "),
    form("PgDatabaseError {", " hint: Some(\"", "\"), position: "),
    form("PgDatabaseError {", " query: \"", "\" }), where: "),
    form("PgDatabaseError {", " where: Some(\"", "\"), schema: "),
    form("MySqlDatabaseError {", " message: \"", "\" }"),
    form("Key (", ")=(", ") already exists"),
    form("Key (", ")=(", ") is not present in table"),
    form("Key (", ")=(", ") is still referenced"),
    form("Key (", ")=(", ") conflicts with"),
    form("Failing row contains", " (", ")."),
];

pub(crate) fn without_values(text: String) -> String {
    FORMS.iter().fold(text, |text, form| match form.find(&text) {
        Some((from, to)) => format!("{}{GONE}{}", &text[..from], &text[to..]),
        None => text,
    })
}

impl Form {
    fn find(&self, text: &str) -> Option<(usize, usize)> {
        let marked = text.find(self.mark)? + self.mark.len();
        let from = marked + text[marked..].find(self.start)? + self.start.len();
        let to = from + text[from..].rfind(self.end)?;
        Some((from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_removed_and_the_rest_stays() {
        for (text, expected) in [
            (
                "1062 (23000): Duplicate entry 'x@y.z' for key 'people.email'",
                "1062 (23000): Duplicate entry '…' for key 'people.email'",
            ),
            (
                "Duplicate entry 'O'Neil' for key 'a' for key 'name'",
                "Duplicate entry '…' for key 'name'",
            ),
            (
                "1366 (22007): Incorrect integer value: 'x@y.z' for column `a`.`people`.`age` at row 1",
                "1366 (22007): Incorrect integer value: '…' for column `a`.`people`.`age` at row 1",
            ),
            (
                "1292 (22007): Truncated incorrect DOUBLE value: 'x@y.z'",
                "1292 (22007): Truncated incorrect DOUBLE value: '…'",
            ),
            (
                "invalid input syntax for type integer: \"x@y.z\"",
                "invalid input syntax for type integer: \"…\"",
            ),
            (
                "value \"99999999999\" is out of range for type integer",
                "value \"…\" is out of range for type integer",
            ),
            (
                "date/time field value out of range: \"2020-13-01\"",
                "date/time field value out of range: \"…\"",
            ),
            (
                "PgDatabaseError { detail: Some(\"Key (email)=(x@y.z) already exists.\") }",
                "PgDatabaseError { detail: Some(\"Key (email)=(…) already exists.\") }",
            ),
            (
                "PgDatabaseError { code: \"22P02\", message: \"»x@y.z«\", detail: Some(\"(x@y.z)\"), hint: None, line: Some(1) }",
                "PgDatabaseError { code: \"22P02\", message: \"…\", detail: Some(\"…\"), hint: None, line: Some(1) }",
            ),
            (
                "PgDatabaseError { hint: Some(\"x@y.z\"), position: Some(Internal { position: 1, query: \"'x@y.z'\" }), where: Some(\"line 1: x@y.z\"), schema: None }",
                "PgDatabaseError { hint: Some(\"…\"), position: Some(Internal { position: 1, query: \"…\" }), where: Some(\"…\"), schema: None }",
            ),
            (
                "MySqlDatabaseError { code: Some(\"23000\"), number: 1062, message: \"Eintrag 'x@y.z'\" }",
                "MySqlDatabaseError { code: Some(\"23000\"), number: 1062, message: \"…\" }",
            ),
            ("Failing row contains (7, x@y.z).", "Failing row contains (…)."),
        ] {
            assert_eq!(without_values(text.to_owned()), expected);
        }
    }

    #[test]
    fn names_stay() {
        for text in [
            "duplicate key value violates unique constraint \"people_email\"",
            "null value in column \"email\" of relation \"people\" violates not-null constraint",
            "UNIQUE constraint failed: people.email",
            "1364 (HY000): Field 'email' doesn't have a default value",
            "order 7 is out of stock",
            "Duplicate entry 'cut",
        ] {
            assert_eq!(without_values(text.to_owned()), text);
        }
    }
}
