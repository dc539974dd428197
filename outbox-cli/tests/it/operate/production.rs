//! Confirmation of production changes.

use outbox::core::RelayHealth;

use super::answer::{Answer, run};
use super::plant::{Planted, dead};
use crate::place::Kind;

struct Shop {
    planted: Planted,
    file: String,
}

impl Shop {
    async fn open() -> Option<Self> {
        let planted = Planted::open(Kind::Postgres).await?;
        let id = planted.placed("1").await;
        let (_, leases) = planted.relay(RelayHealth::Healthy).await;
        planted.settle(&leases, id, dead(true)).await;
        let file = planted.place.folder.path().join("shop.toml");
        let text = format!("production = true\n{}", planted.place.outbox("shop"));
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap().to_owned();
        Some(Self { planted, file })
    }

    fn variables(&self) -> Vec<(&str, &str)> {
        vec![
            ("OUTBOX_CONFIG", &self.file),
            ("DATABASE_URL", &self.planted.place.url),
            ("NATS_URL", &self.planted.place.nats),
        ]
    }

    fn ask(&self, words: &str) -> Answer {
        run(words, &self.variables())
    }

    fn is_dead(&self) -> bool {
        self.ask("list --status dead").code == Some(0)
    }
}

#[tokio::test]
async fn production_change_needs_the_confirmed_count() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let preview = shop.ask("retry --all").expect(0);
    assert!(preview.out.starts_with("would retry 1 message "), "{preview:?}");
    assert!(
        preview.said.contains("production, outbox `shop`: postgres "),
        "{preview:?}"
    );
    let refused = shop.ask("retry --all --yes").expect(2);
    assert!(refused.said.contains("re-run with `--confirm 1`"), "{refused:?}");
    let refused = shop.ask("retry --all --yes --confirm 2").expect(2);
    assert!(
        refused
            .said
            .contains("the preview counts 1, not 2: nothing was changed"),
        "{refused:?}"
    );
    shop.ask("retry --all --confirm 1").expect(2);
    assert!(shop.is_dead());
    shop.ask("retry --all --yes --confirm 1").expect(0);
    assert!(!shop.is_dead());
    shop.ask("retry --all --yes").expect(5);
    shop.planted.close().await;
}
