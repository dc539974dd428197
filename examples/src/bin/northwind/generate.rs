//! Generates orders for a run without files. The same count gives the same orders on every machine.

use time::ext::NumericalDuration as _;
use time::macros::date;

use crate::order::{Line, Order};

const SEED: u64 = 1996;

const DISCOUNTS_PER_MILLE: &[u32] = &[0, 0, 0, 50, 100, 125, 150, 200, 250];

pub(crate) fn generate(count: u32) -> Vec<Order> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    (1..=i64::from(count))
        .map(|order_id| order(order_id, &mut rng))
        .collect()
}

fn order(order_id: i64, rng: &mut fastrand::Rng) -> Order {
    let order_date = date!(1996 - 07 - 04) + (order_id % 700).days();
    let shipped = rng.u32(0..30) != 0;
    let lines = (0..rng.usize(1..=5)).map(|_| line(rng)).collect();
    Order {
        order_id,
        customer_id: format!("KUNDE-{:02}-Ä", rng.u32(1..90)),
        order_date,
        shipped_date: shipped.then(|| order_date + rng.i64(1..20).days()),
        lines,
    }
}

fn line(rng: &mut fastrand::Rng) -> Line {
    Line {
        discount_billionths: DISCOUNTS_PER_MILLE[rng.usize(0..DISCOUNTS_PER_MILLE.len())] * 1_000_000,
        product_id: rng.i64(1..=77),
        quantity: rng.u16(1..=60),
        unit_price_cents: rng.u32(50..=26_350),
    }
}
