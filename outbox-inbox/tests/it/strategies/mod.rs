//! One suite for every strategy: duplicate, concurrent duplicate, crash, reorder, poison.
//!
//! Each handler notes a line of an account in the way of its strategy. [`Traits`] names the differences between the strategies.

mod handlers;
mod results;
mod suite;

use handlers::{
    Traits, note_by_constraint, note_by_external, note_by_key, note_by_message_id, note_by_sequence,
    note_naturally,
};

use crate::on_every_backend;
use crate::support::TestDb;

async fn message_id(test: TestDb) {
    suite::run::<note_by_message_id>(&test, Traits::new("message_id")).await;
}

async fn sequence(test: TestDb) {
    suite::run::<note_by_sequence>(
        &test,
        Traits {
            ordered: true,
            ..Traits::new("sequence")
        },
    )
    .await;
}

async fn natural(test: TestDb) {
    suite::run::<note_naturally>(&test, Traits::new("natural")).await;
}

async fn key(test: TestDb) {
    suite::run::<note_by_key>(
        &test,
        Traits {
            by_key: true,
            ..Traits::new("key")
        },
    )
    .await;
}

async fn constraint(test: TestDb) {
    suite::run::<note_by_constraint>(&test, Traits::new("constraint")).await;
}

async fn store(test: TestDb) {
    suite::run::<note_by_external>(
        &test,
        Traits {
            leased: true,
            ..Traits::new("store")
        },
    )
    .await;
}

on_every_backend!(without memory: message_id, sequence, natural, key, constraint, store);
