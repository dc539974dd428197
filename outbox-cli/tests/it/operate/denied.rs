//! An error names a missing right and the command that prints its statement.

use outbox_cli::admin::rights::Role;
use sea_orm::ConnectionTrait as _;

use super::answer::{Answer, logged_in, run};
use super::plant::Planted;
use super::rights::Login;
use crate::place::{Kind, on_both_servers};

fn printed(text: &str) -> String {
    let at = text
        .find("outbox print grants")
        .unwrap_or_else(|| panic!("no command: {text}"));
    let command = text[at..].lines().next().unwrap();
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    run(&words, &[]).expect(0).out
}

async fn missing_right_has_the_grants_command(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    planted.placed("0").await;
    planted.publish().await;
    planted.handle().await;
    let relay = Login::new(kind, place, &[Role::Relay]).await;
    let ask = |words: &str| -> Answer { logged_in(place, &relay.url, &place.nats, words) };
    let timeline = ask("timeline order/0");
    let told = format!("{}{}", timeline.out, timeline.said);
    assert!(told.contains("the role viewer has SELECT on "), "{told}");
    assert!(
        !told.contains(" at line "),
        "a line of the server's source: {told}"
    );
    let change = ask("retry --skip --all --yes").expect(1);
    assert!(change.said.contains("--role operator"), "{change:?}");
    for statement in printed(&told).lines().filter(|line| !line.starts_with("--")) {
        place.db.execute_unprepared(statement).await.unwrap();
    }
    let timeline = ask("timeline order/0").expect(0);
    assert!(timeline.out.contains("billing"), "{timeline:?}");
    assert!(!timeline.out.contains("denied"), "{timeline:?}");
    relay.close(kind, place).await;
    planted.close().await;
}

on_both_servers!(missing_right_has_the_grants_command);
