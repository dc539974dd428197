//! The values of a handler's keys that are more than one literal. Without these rules, a wrong
//! option would fail only when the consumer starts.

use std::time::Duration;

use proc_macro2::Ident;
use quote::ToTokens;
use syn::{Expr, ExprArray, ExprPath, LitStr, Member};

use super::attr::Keys;
use crate::diagnostics::{Diagnostics, Fault};
use crate::{durations, keys, names};

pub(super) enum Strategy {
    MessageId,
    Sequence { gap: Option<Duration> },
    Natural,
    Key(BusinessKey),
    Constraint(Vec<LitStr>),
    External,
}

pub(super) enum BusinessKey {
    Field(Member),
    Function(ExprPath),
}

#[derive(Debug, PartialEq)]
pub(super) enum Pattern {
    /// Messages of one event in any version, such as `order.placed`.
    EventType { aggregate: String, name: String },
    /// All events of an aggregate, such as `order.*`.
    Aggregate(String),
    /// All messages: `*`.
    Everything,
}

const ORDERS: &[&str] = &["aggregate", "none", "strict"];

pub(super) fn order(word: Ident, diagnostics: &Diagnostics) -> Option<Ident> {
    if ORDERS.iter().any(|order| word == order) {
        return Some(word);
    }
    let fix = format!("legal values are {}", keys::enumerate(ORDERS));
    diagnostics.error(&word, format!("`order` cannot be `{word}`"), fix);
    None
}

pub(super) fn strategy(value: &Expr, diagnostics: &Diagnostics) -> Option<Strategy> {
    let strategy = match value {
        // Of a macro that writes the attribute.
        Expr::Group(group) => return strategy(&group.expr, diagnostics),
        Expr::Path(word) => match word.path.to_token_stream().to_string().as_str() {
            "message_id" => Some(Strategy::MessageId),
            "sequence" => Some(Strategy::Sequence { gap: None }),
            "natural" => Some(Strategy::Natural),
            "external" => Some(Strategy::External),
            _ => None,
        },
        Expr::Call(call) => {
            let arguments: Vec<&Expr> = call.args.iter().collect();
            match (call.func.to_token_stream().to_string().as_str(), &arguments[..]) {
                ("sequence", _) => {
                    let list = call.args.to_token_stream();
                    let mut keys = keys::Keys::read([list], &["gap"], diagnostics);
                    let gap = keys.text("gap", "30s", durations::duration);
                    let gap = gap.map(|(_, gap)| gap);
                    Some(Strategy::Sequence { gap })
                }
                ("key", [key]) => business_key(key).map(Strategy::Key),
                ("constraint", [_, ..]) => {
                    let names = arguments.into_iter().map(constraint);
                    names.collect::<Option<_>>().map(Strategy::Constraint)
                }
                _ => None,
            }
        }
        _ => None,
    };
    if strategy.is_none() {
        let wrong = format!("`{}` is no strategy", value.to_token_stream());
        let fix = "legal values are `message_id`, `sequence`, `sequence(gap = \"30s\")`, `natural`, `key(field)`, `key(Event::function)`, \
                   `constraint(\"reservations_pkey\")` and `external`";
        diagnostics.error(value, wrong, fix);
    }
    strategy
}

/// A path to a function must be written `self::function`, because a single word is a field.
fn business_key(key: &Expr) -> Option<BusinessKey> {
    let field = syn::parse2(key.to_token_stream()).map(BusinessKey::Field);
    match key {
        Expr::Path(function) => Some(field.unwrap_or(BusinessKey::Function(function.clone()))),
        Expr::Lit(_) => field.ok(),
        _ => None,
    }
}

fn constraint(name: &Expr) -> Option<LitStr> {
    let name: LitStr = syn::parse2(name.to_token_stream()).ok()?;
    (!name.value().is_empty()).then_some(name)
}

/// Wrong patterns are reported and left out.
pub(super) fn patterns(array: &ExprArray, diagnostics: &Diagnostics) -> Vec<Pattern> {
    if array.elems.is_empty() {
        diagnostics.error(array, "`messages` selects no messages", SELECTIONS);
    }
    let mut patterns = Vec::new();
    for element in &array.elems {
        let outcome = pattern(element).and_then(|pattern| match patterns.contains(&pattern) {
            true => Err(Fault {
                wrong: format!("{} is written twice", element.to_token_stream()),
                fix: "keep one".to_owned(),
            }),
            false => Ok(pattern),
        });
        patterns.extend(diagnostics.accept(element, outcome));
    }
    patterns
}

const SELECTIONS: &str = "write an event type (`\"order.placed\"`), all of an aggregate type (`\"order.*\"`) or all messages (`\"*\"`)";

fn pattern(element: &Expr) -> Result<Pattern, Fault> {
    let literal = syn::parse2::<LitStr>(element.to_token_stream());
    let text = literal.map(|literal| literal.value()).unwrap_or_default();
    if text == "*" {
        return Ok(Pattern::Everything);
    }
    let Some((aggregate, name)) = text.split_once('.') else {
        return Err(Fault {
            wrong: format!("`{}` selects no messages", text.escape_debug()),
            fix: SELECTIONS.to_owned(),
        });
    };
    checked("aggregate", aggregate)?;
    if name == "*" {
        return Ok(Pattern::Aggregate(aggregate.to_owned()));
    }
    checked("name", name)?;
    Ok(Pattern::EventType {
        aggregate: aggregate.to_owned(),
        name: name.to_owned(),
    })
}

fn checked(what: &str, text: &str) -> Result<(), Fault> {
    names::event_name(text).map_err(|wrong| Fault {
        wrong: format!("`{what}` {wrong}"),
        fix: SELECTIONS.to_owned(),
    })
}

pub(super) fn check_combinations(keys: &Keys, diagnostics: &Diagnostics) {
    let options = &keys.options;
    if let (Some(order), Some(Strategy::Sequence { .. })) = (&options.order, &options.strategy)
        && order == "none"
    {
        let wrong = "strategy `sequence` requires order, so messages cannot run in any order";
        let fix = "leave `order` out, or choose another strategy";
        diagnostics.error(order, wrong, fix);
    }
    if let (Some(_), Some(Strategy::Key(key))) = (&keys.messages, &options.strategy) {
        let at = match key {
            BusinessKey::Field(field) => field.to_token_stream(),
            BusinessKey::Function(function) => function.to_token_stream(),
        };
        let wrong =
            "strategy `key` reads its key from an event, but a handler with `messages` receives no event";
        let fix = "choose another strategy, or take `Event<T>` without `messages`";
        diagnostics.error(at, wrong, fix);
    }
}
