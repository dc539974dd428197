//! Values of the order book: days, discounts and amounts.
//!
//! Invariant: no floating point. A discount keeps its written digits and an amount is whole cents, so any two programs compute the same amount.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use time::Date;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

const DAY: &[BorrowedFormatItem<'_>] = format_description!("[year]-[month]-[day]");

/// Maximum number of decimals of a discount. More are taken for a mistake in the input.
const DISCOUNT_DECIMALS_MAX: usize = 9;

/// A calendar day, written `YYYY-MM-DD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Day(pub(crate) Date);

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.format(DAY).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Day {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Date::parse(text, DAY)
            .map(Self)
            .map_err(|_| format!("`{text}` is not a date; write YYYY-MM-DD"))
    }
}

/// A share of a price from 0 to 1, as an exact decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Discount {
    digits: u64,
    decimals: usize,
}

impl fmt::Display for Discount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { digits, decimals } = *self;
        let unit = self.unit();
        match decimals {
            0 => write!(f, "{digits}"),
            _ => write!(f, "{}.{:0decimals$}", digits / unit, digits % unit),
        }
    }
}

impl FromStr for Discount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, decimals) = decimal(text, DISCOUNT_DECIMALS_MAX)?;
        let discount = Self { digits, decimals };
        if digits > discount.unit() {
            return Err(format!("`{text}` is outside 0 to 1"));
        }
        Ok(discount)
    }
}

impl Discount {
    /// The value of `digits` that stands for 1.
    fn unit(self) -> u64 {
        std::iter::repeat_n(10, self.decimals).product()
    }
}

macro_rules! text_in_serde {
    ($($ty:ty),*) => {$(
        impl From<$ty> for String {
            fn from(value: $ty) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $ty {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    )*};
}

text_in_serde!(Day, Discount);

/// Reads a price with at most two decimals as cents.
pub(crate) fn cents(text: &str) -> Result<i64, String> {
    let (digits, decimals) = decimal(text, 2)?;
    let cents = digits * [100, 10, 1][decimals];
    i64::try_from(cents)
        .ok()
        .filter(|cents| *cents <= PRICE_CENTS_MAX)
        .ok_or_else(|| format!("`{text}` is too large"))
}

/// Highest unit price. Together with [`QUANTITY_MAX`] it keeps every amount of a run within 64 bits.
const PRICE_CENTS_MAX: i64 = 1_000_000_000;

/// Highest quantity of a line.
pub(crate) const QUANTITY_MAX: i64 = 1_000_000;

/// Unit price × quantity × (1 − discount), rounded half up to whole cents.
pub(crate) fn line_amount_cents(unit_price_cents: i64, quantity: i64, discount: Discount) -> i64 {
    let unit = i128::from(discount.unit());
    let scaled = i128::from(unit_price_cents) * i128::from(quantity) * (unit - i128::from(discount.digits));
    let cents = (2 * scaled + unit).div_euclid(2 * unit);
    i64::try_from(cents).unwrap_or(i64::MAX)
}

/// Reads an unsigned decimal in plain notation; returns its digits without the point, and the number of digits after the point.
fn decimal(text: &str, decimals_max: usize) -> Result<(u64, usize), String> {
    let malformed = || format!("`{text}` is not a number; write digits with a decimal point, as in 12.50");
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return Err(malformed()),
        None => (text, ""),
    };
    if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return Err(malformed());
    }
    if fraction.len() > decimals_max {
        return Err(format!("`{text}` has more than {decimals_max} decimals"));
    }
    let digits = format!("{whole}{fraction}")
        .parse::<u64>()
        .ok()
        .filter(|digits| *digits <= u64::MAX / 100);
    Ok((
        digits.ok_or_else(|| format!("`{text}` is too large"))?,
        fraction.len(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_rounded_half_up_per_line() {
        for (price, quantity, discount, amount) in [
            ("14.00", 12, "0", 16_800),
            ("9.8", 10, "0.15", 8_330),
            ("0.10", 1, "0.05", 10),  // 9.5
            ("0.30", 1, "0.05", 29),  // 28.5
            ("0.30", 1, "0.051", 28), // 28.47
            ("3", 3, "1", 0),
            ("0.01", 1, "0.500000001", 0),
            ("0.01", 1, "0.5", 1),
        ] {
            let discount = discount.parse().unwrap();
            assert_eq!(
                line_amount_cents(cents(price).unwrap(), quantity, discount),
                amount,
                "{price} {discount}"
            );
        }
    }

    #[test]
    fn numbers_in_any_other_notation_are_refused() {
        for text in [
            "",
            "-1",
            "+1",
            "1,5",
            "1.",
            ".5",
            "1e2",
            " 1",
            "NaN",
            "١",
            "1.234",
            "99999999999999999999",
        ] {
            assert!(cents(text).is_err(), "{text:?}");
        }
        for text in ["1.01", "2", "-0.1", "0.1234567890", "NULL"] {
            assert!(text.parse::<Discount>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn days_and_discounts_keep_their_spelling() {
        for text in ["0", "1", "0.05", "0.150", "1.0"] {
            assert_eq!(text.parse::<Discount>().unwrap().to_string(), text);
        }
        assert_eq!("1996-02-29".parse::<Day>().unwrap().to_string(), "1996-02-29");
        for text in ["1997-02-29", "96-01-01", "1996-1-1", "1996-01-01 ", ""] {
            assert!(text.parse::<Day>().is_err(), "{text:?}");
        }
    }
}
