//! `cargo run -p examples --example 21_nested_models`
//!
//! An aggregate with nested models, which SeaORM saves in one call, with its event. No server is
//! needed.

use outbox::prelude::*;
use outbox::testing::{TestDatabase, recorded_in};
use serde::{Deserialize, Serialize};

mod basket {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "baskets")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        #[sea_orm(has_many)]
        pub items: HasMany<super::article::Entity>,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

mod article {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "articles")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub basket_id: i32,
        pub name: String,
        #[sea_orm(belongs_to, from = "basket_id", to = "id")]
        pub basket: BelongsTo<super::basket::Entity>,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "basket", name = "filled")]
struct BasketFilled {
    #[domain_event(aggregate_id)]
    basket: i32,
    items: usize,
}

/// The basket, its items and the event.
async fn fill(db: &impl outbox::sea_orm::Executor, names: [&str; 2]) -> Result<i32, SaveError> {
    let empty = basket::ActiveModel::builder();
    let items = names.map(|name| article::ActiveModel::builder().set_name(name));
    let mut basket = AggregateRoot::nested(
        items
            .into_iter()
            .fold(empty, |basket, item| basket.add_item(item)),
    );
    basket.raise_with(|basket| {
        [BasketFilled {
            basket: basket.id,
            items: basket.items.len(),
        }]
    });
    let saved = basket
        .save_by(db, |basket, tx| Box::pin(basket.insert(tx)))
        .await?;
    Ok(saved.id)
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    tracing_subscriber::fmt()
        .with_env_filter("warn")
        .with_writer(std::io::stderr)
        .init();
    let database = TestDatabase::create().await?;
    let db = database.connect().await?;
    db.get_schema_builder()
        .register(basket::Entity)
        .register(article::Entity)
        .apply(&db)
        .await?;

    for names in [["chai", "chang"], ["konbu", "tofu"]] {
        let basket = fill(&db, names).await?;
        println!("filled {basket}");
    }

    for message in recorded_in(&db, &Default::default()).await? {
        let text = String::from_utf8_lossy(&message.payload);
        println!("{} {:?} {text}", message.event_type, message.sequence);
    }
    Ok(())
}
