//! Generates orders for a run without files.
//!
//! Invariant: the same count gives the same orders on every machine.

use time::Date;
use time::ext::NumericalDuration;

use crate::order::{Line, Order};
use crate::values::{Day, Discount};

const SEED: u64 = 1996;

const DISCOUNTS: &[&str] = &["0", "0", "0", "0.05", "0.1", "0.125", "0.15", "0.2", "0.25"];

/// Generates `count` orders; about one in thirty is not shipped yet.
pub(crate) fn generate(count: u32) -> Vec<Order> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    (1..=i64::from(count))
        .map(|order_id| order(order_id, &mut rng))
        .collect()
}

fn order(order_id: i64, rng: &mut fastrand::Rng) -> Order {
    let ordered = FIRST_DAY + (order_id % 700).days();
    let shipped = rng.u32(0..30) != 0;
    let lines = (0..rng.usize(1..=5)).map(|_| line(rng)).collect();
    Order {
        order_id,
        customer_id: format!("KUNDE-{:02}-Ä", rng.u32(1..90)),
        order_date: Day(ordered),
        shipped_date: shipped.then(|| Day(ordered + rng.i64(1..20).days())),
        lines,
    }
}

const FIRST_DAY: Date = time::macros::date!(1996 - 07 - 04);

fn line(rng: &mut fastrand::Rng) -> Line {
    let discount: Result<Discount, _> = DISCOUNTS[rng.usize(0..DISCOUNTS.len())].parse();
    Line {
        product_id: rng.i64(1..=77),
        quantity: rng.i64(1..=60),
        unit_price_cents: rng.i64(50..=26_350),
        discount: discount.expect("the list holds discounts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_is_the_same_orders() {
        assert_eq!(generate(50), generate(50));
        assert_eq!(generate(50)[..20], generate(20));
    }
}
