//! Error texts of serde_json without the quoted values.

/// The problem and its position in JSON, without values, which may be personal data: `invalid type:
/// string, expected u64, at line 1 column 12`.
#[must_use]
pub fn json_reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if error.classify() != serde_json::error::Category::Data {
        return text;
    }
    let place = format!(" at line {} column {}", error.line(), error.column());
    let (text, place) = match text.strip_suffix(&place) {
        Some(text) => (text, place.as_str()),
        None => (text.as_str(), ""),
    };
    // Names of fields and variants come from the Rust type. Other texts of serde may quote payload
    // values.
    let reason = if text.starts_with("missing field `") || text.starts_with("duplicate field `") {
        text.to_owned()
    } else {
        let what = WRONG.iter().find(|what| text.starts_with(**what));
        let found = text
            .split_once(": ")
            .and_then(|(_, found)| FOUND.iter().find(|kind| found.starts_with(**kind)));
        let expected = text.rsplit_once(", expected ").filter(|_| {
            !text.ends_with(", there are no variants") && !text.ends_with(", there are no fields")
        });
        match (what, expected) {
            (Some(what), Some((_, expected))) if found.is_some() || !is_of_value(what) => {
                let found = found.map(|found| format!(": {found}")).unwrap_or_default();
                format!("{what}{found}, expected {expected}")
            }
            (Some(what), _) => (*what).to_owned(),
            (None, _) => "a type rejected its value".to_owned(),
        }
    };
    format!("{reason},{place}").trim_end_matches(',').to_owned()
}

const WRONG: &[&str] = &[
    "invalid type",
    "invalid value",
    "invalid length",
    "unknown variant",
    "unknown field",
];

fn is_of_value(what: &str) -> bool {
    matches!(what, "invalid type" | "invalid value")
}

const FOUND: &[&str] = &[
    "string",
    "integer",
    "floating point",
    "boolean",
    "number",
    "null",
    "map",
    "sequence",
];
