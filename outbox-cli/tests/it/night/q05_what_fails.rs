//! What fails, since when, and since which deployment? A consumer has given up three orders for the same reason.

use super::page::check;
use crate::operate::answer::ask;
use crate::operate::plant::Planted;
use crate::place::Kind;

#[tokio::test]
async fn groups_count_dead_letters_by_error_since_when_and_since_which_deployment() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    for order in ["4710", "4711", "4712"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    planted.handle().await;
    let answer = check(&planted, "dead-letters groups --deploy v41=7d --deploy v42=2h", 0);
    assert!(
        answer
            .said
            .contains("next: outbox dead-letters list --consumer billing --group "),
        "{answer:?}"
    );
    let place = &planted.place;
    // What was deployed when they had failed already, or was not named, is no beginning of theirs.
    let groups = |deployments: &[&str]| {
        let words = ["dead-letters", "groups", "-o", "json"];
        ask(place, &[&words[..], deployments].concat()).expect(0).json()
    };
    let later = ["--deploy", "v43=0s"];
    assert!(groups(&later)[0]["deploy"].is_null());
    assert!(groups(&[])[0]["deploy"].is_null());
    let groups = groups(&[&later[..], &["--deploy", "v42=2h"]].concat());
    let letters = ask(place, &["dead-letters", "list", "-o", "json"])
        .expect(0)
        .json();
    let times = letters.as_array().unwrap().iter();
    let mut times: Vec<&str> = times
        .map(|letter| letter["dead_lettered_at"].as_str().unwrap())
        .collect();
    times.sort_unstable();
    assert_eq!(groups.as_array().unwrap().len(), 1, "{groups}");
    assert_eq!(groups[0]["dead_letters"], 3);
    assert_eq!(groups[0]["deploy"], "v42");
    assert_eq!(groups[0]["first_at"], times[0]);
    assert_eq!(groups[0]["last_at"], times[2]);
    planted.close().await;
}
