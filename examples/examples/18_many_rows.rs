//! `cargo run -p examples --example 18_many_rows`
//!
//! Many rows with an event each, in one transaction: inserted by one call, updated with recorded
//! events. Errors are mapped to HTTP status codes. No server is needed.

use outbox::prelude::*;
use outbox::sea_orm::ErrorKind;
use outbox::testing::{TestDatabase, recorded_in};
use sea_orm::entity::prelude::*;
use sea_orm::sea_query::Expr;
use sea_orm::{ExprTrait as _, Set, TransactionTrait as _};
use serde::{Deserialize, Serialize};

mod product {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "products")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        #[sea_orm(unique)]
        pub name: String,
        pub cents: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "product", name = "priced")]
struct ProductPriced {
    #[domain_event(aggregate_id)]
    product: i32,
    cents: i64,
}

fn priced(product: &product::Model) -> [ProductPriced; 1] {
    [ProductPriced {
        product: product.id,
        cents: product.cents,
    }]
}

fn catalogue(names: &[&str]) -> Vec<product::ActiveModel> {
    let product = |(n, name): (i64, &&str)| product::ActiveModel {
        name: Set((*name).to_owned()),
        cents: Set(100 * n),
        ..Default::default()
    };
    (1..).zip(names).map(product).collect()
}

fn status(error: &SaveError) -> u16 {
    match error.kind() {
        ErrorKind::Refused | ErrorKind::InvalidEvent => 422,
        kind if kind.is_retryable() => 503,
        _ => 500,
    }
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    let database = TestDatabase::create().await?;
    let db = database.connect().await?;
    db.get_schema_builder()
        .register(product::Entity)
        .apply(&db)
        .await?;

    let products = catalogue(&["chai", "chang", "konbu", "tofu"]);
    let saved = product::Entity::insert_many_with_events(products, &db, priced).await?;
    println!("inserted {}", saved.len());

    // Each row changed by SeaORM's statement has an event in the same transaction.
    let tx = db.begin().await?;
    let dearer = product::Entity::update_many()
        .col_expr(product::Column::Cents, Expr::col(product::Column::Cents).add(50))
        .filter(product::Column::Cents.lt(300))
        .exec_with_returning(&tx)
        .await?;
    record(&tx, dearer.iter().flat_map(priced).collect::<Vec<_>>()).await?;
    tx.commit().await?;
    println!("updated {}", dearer.len());

    // One of the rows already exists, so the call stores none.
    let again = catalogue(&["ikura", "chai"]);
    if let Err(error) = product::Entity::insert_many_with_events(again, &db, priced).await {
        println!("{error}: answer {}", status(&error));
    }
    for message in recorded_in(&db, &Default::default()).await? {
        let text = String::from_utf8_lossy(&message.payload);
        println!("{} {text}", message.event_type);
    }
    Ok(())
}
