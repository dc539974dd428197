//! What fails, and since when? Three orders failed for the same reason.

use super::page::check;
use crate::operate::answer::ask;
use crate::operate::plant::Planted;
use crate::place::Kind;

#[tokio::test]
async fn groups_count_dead_letters_by_error_and_since_when() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    for order in ["4710", "4711", "4712"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    planted.handle().await;
    let answer = check(&planted, "dead-letters groups", 0);
    assert!(
        answer
            .said
            .contains("next: outbox dead-letters list --consumer billing --group "),
        "{answer:?}"
    );
    let place = &planted.place;
    let groups = ask(place, "dead-letters groups -o json").expect(0).json();
    let letters = ask(place, "dead-letters list -o json").expect(0).json();
    let times = letters.as_array().unwrap().iter();
    let mut times: Vec<&str> = times
        .map(|letter| letter["dead_lettered_at"].as_str().unwrap())
        .collect();
    times.sort_unstable();
    assert_eq!(groups.as_array().unwrap().len(), 1, "{groups}");
    assert_eq!(groups[0]["dead_letters"], 3);
    assert_eq!(groups[0]["first_at"], times[0]);
    assert_eq!(groups[0]["last_at"], times[2]);
    planted.close().await;
}
