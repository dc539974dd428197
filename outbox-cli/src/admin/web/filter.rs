//! Parses the query of a message list.

use outbox::core::{Aggregate, PageFrom, Selection};
use serde::Deserialize;

use super::visit::Problem;
use crate::admin::input;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Filter {
    pub(super) status: String,
    pub(super) aggregate: String,
    pub(super) after: String,
    pub(super) before: String,
}

impl Filter {
    pub(super) fn fields(&self) -> [(&'static str, &str); 2] {
        [("status", &self.status), ("aggregate", &self.aggregate)]
    }

    pub(super) fn page(&self) -> Result<PageFrom, Problem> {
        let Some(before) = given(&self.before) else {
            return Ok(PageFrom::Newest);
        };
        Ok(PageFrom::Before(
            input::place(before).map_err(Problem::Malformed)?,
        ))
    }

    pub(super) fn selection(&self) -> Result<Selection, Problem> {
        for (_, value) in self.fields() {
            storable(value)?;
        }
        let mut selection = Selection::all();
        if let Some(word) = given(&self.status) {
            selection = selection.status(input::status(word).map_err(Problem::Malformed)?);
        }
        if let Some(name) = given(&self.aggregate) {
            selection = match name.split_once('/') {
                Some(_) => selection.aggregate(&aggregate(name)?),
                None => selection.aggregate_type(name),
            };
        }
        after(selection, &self.after)
    }
}

pub(super) fn after(selection: Selection, after: &str) -> Result<Selection, Problem> {
    let Some(after) = given(after) else {
        return Ok(selection);
    };
    let row_id = after.parse();
    let malformed = |_| Problem::Malformed("`after` is not a row id (a number)".to_owned());
    Ok(selection.after(row_id.map_err(malformed)?))
}

/// PostgreSQL rejects NUL in text, so a text with NUL cannot match a stored name.
pub(super) fn storable(text: &str) -> Result<(), Problem> {
    if text.contains('\0') {
        let what = "the address contains NUL (`%00`), which no name contains; remove it";
        return Err(Problem::Malformed(what.to_owned()));
    }
    Ok(())
}

pub(super) fn given(field: &str) -> Option<&str> {
    Some(field.trim()).filter(|field| !field.is_empty())
}

pub(super) fn aggregate(text: &str) -> Result<Aggregate, Problem> {
    storable(text)?;
    input::aggregate(text).map_err(Problem::Malformed)
}

#[cfg(test)]
mod tests {
    use outbox::core::MessageStatus;

    use super::*;

    fn filter(change: impl FnOnce(&mut Filter)) -> Filter {
        let mut filter = Filter::default();
        change(&mut filter);
        filter
    }

    #[test]
    fn empty_filter_selects_all_messages() {
        assert_eq!(Filter::default().selection().unwrap(), Selection::all());
        let dead = filter(|filter| filter.status = "dead".to_owned());
        assert_eq!(
            dead.selection().unwrap(),
            Selection::all().status(MessageStatus::Dead)
        );
        let one = filter(|filter| filter.aggregate = " order/47/11 ".to_owned());
        let order = Aggregate::new("order", "47/11");
        assert_eq!(one.selection().unwrap(), Selection::all().aggregate(&order));
        let kind = filter(|filter| filter.aggregate = "order".to_owned());
        assert_eq!(
            kind.selection().unwrap(),
            Selection::all().aggregate_type("order")
        );
    }

    #[test]
    fn malformed_filter_field_is_rejected() {
        for filter in [
            filter(|filter| filter.status = "lost".to_owned()),
            filter(|filter| filter.aggregate = "/1".to_owned()),
            filter(|filter| filter.after = "x".to_owned()),
        ] {
            let refused = filter.selection();
            assert!(matches!(refused, Err(Problem::Malformed(_))), "{filter:?}");
        }
    }
}
