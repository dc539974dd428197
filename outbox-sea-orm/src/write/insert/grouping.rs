//! Groups messages by aggregate.

use std::collections::HashMap;

use outbox_core::{Aggregate, NewMessage};

pub(crate) struct Grouped {
    pub(crate) heads: Vec<(Aggregate, i64)>,
    pub(crate) lasts: Vec<i64>,
    /// Per message: index in `heads`, position in its aggregate (from 1). `None` if unsequenced.
    pub(crate) places: Vec<Option<(usize, i64)>>,
}

impl Grouped {
    pub(crate) fn new(messages: &[NewMessage]) -> Self {
        let mut met: HashMap<&Aggregate, usize> = HashMap::new();
        let mut counts: Vec<(&Aggregate, i64)> = Vec::new();
        let mut places: Vec<Option<(usize, i64)>> = Vec::with_capacity(messages.len());
        for message in messages {
            if !message.is_sequenced() {
                places.push(None);
                continue;
            }
            let aggregate = message.aggregate();
            let place = *met.entry(aggregate).or_insert_with(|| {
                counts.push((aggregate, 0));
                counts.len() - 1
            });
            counts[place].1 += 1;
            places.push(Some((place, counts[place].1)));
        }
        let mut order: Vec<usize> = (0..counts.len()).collect();
        order.sort_unstable_by_key(|place| counts[*place].0);
        let mut sorted = vec![0; order.len()];
        for (to, from) in order.iter().enumerate() {
            sorted[*from] = to;
        }
        for (place, _) in places.iter_mut().flatten() {
            *place = sorted[*place];
        }
        let mut lasts = vec![0; order.len()];
        for (n, (head, _)) in (0_i64..)
            .zip(&places)
            .filter_map(|(n, place)| Some((n, place.as_ref()?)))
        {
            lasts[*head] = n;
        }
        let heads = order
            .into_iter()
            .map(|place| (counts[place].0.clone(), counts[place].1));
        Self {
            heads: heads.collect(),
            lasts,
            places,
        }
    }

    /// One number per message, -1 if unsequenced.
    pub(crate) fn numbers(&self, number: impl Fn(usize, i64) -> i64) -> Vec<i64> {
        let number =
            |place: &Option<(usize, i64)>| place.map_or(-1, |(head, position)| number(head, position));
        self.places.iter().map(number).collect()
    }
}
