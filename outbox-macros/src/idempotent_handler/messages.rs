//! The rules of the key `messages`, which selects undecoded messages.

use syn::LitStr;

use super::attr::Keys;
use super::model::Pattern;
use crate::diagnostics::Diagnostics;
use crate::keys::{Slot, Word};
use crate::names::{self, Fault};

/// Wrong patterns are reported and left out.
pub(super) fn messages(keys: &Keys, diagnostics: &Diagnostics) -> Option<Vec<Pattern>> {
    let written = keys.messages.as_ref().given()?;
    if let Slot::Given(Word { ident, .. }) = &keys.strategy
        && ident == "key"
    {
        let wrong =
            "strategy `key` reads its key from an event, but a handler with `messages` receives no event";
        diagnostics.error(
            ident,
            wrong,
            "choose another strategy, or take `Event<T>` without `messages`",
        );
    }
    let mut patterns = Vec::new();
    for literal in written {
        match pattern(literal) {
            Err(Fault { wrong, fix }) => diagnostics.error(literal, wrong, fix),
            Ok(pattern) if patterns.contains(&pattern) => {
                let wrong = format!("`{}` is written twice", literal.value());
                diagnostics.error(literal, wrong, "keep one");
            }
            Ok(pattern) => patterns.push(pattern),
        }
    }
    Some(patterns)
}

fn pattern(literal: &LitStr) -> Result<Pattern, Fault> {
    let text = literal.value();
    if text == "*" {
        return Ok(Pattern::Everything);
    }
    let Some((aggregate, name)) = text.split_once('.') else {
        return Err(Fault {
            wrong: format!("`{}` selects no messages", text.escape_debug()),
            fix: "write an event type (`\"order.placed\"`), all of an aggregate type (`\"order.*\"`) or all messages (`\"*\"`)".to_owned(),
        });
    };
    names::event_name("aggregate", aggregate)?;
    if name == "*" {
        return Ok(Pattern::Aggregate(aggregate.to_owned()));
    }
    names::event_name("name", name)?;
    Ok(Pattern::EventType {
        aggregate: aggregate.to_owned(),
        name: name.to_owned(),
    })
}
