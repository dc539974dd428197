//! The pages of a group of dead letters on the dashboard, and the actions of the group.

use super::answer::ask;
use super::plant::Planted;
use super::serve::{Served, links};
use crate::place::Kind;

const FORM: [&str; 2] = [
    "content-type: application/x-www-form-urlencoded",
    "sec-fetch-site: same-origin",
];

/// Opens the preview of a change and sends its form.
async fn change(served: &Served, link: &str) {
    let (status, page) = served.get(link, &[]).await;
    assert_eq!(status, 200, "{page}");
    let (_, token) = page.split_once("name=\"token\" value=\"").unwrap();
    let token = token.split('"').next().unwrap();
    let form = format!("{}&token={token}", link.split_once('?').unwrap().1);
    let (status, done) = served.ask("POST /change", &FORM, &form).await;
    assert_eq!(status, 303, "{done}");
}

#[tokio::test]
async fn a_group_is_paged_retried_and_discarded_in_a_browser() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    for order in 1..=51 {
        planted.placed(&order.to_string()).await;
    }
    planted.placed("card-1").await;
    planted.publish().await;
    planted.handle().await;
    let groups = ask(place, &["dead-letters", "groups", "-o", "json"]).json();
    let mut groups = groups.as_array().unwrap().iter();
    let group = groups.find(|group| group["dead_letters"] == 51).unwrap();
    let group = group["fingerprint"].as_str().unwrap();

    let served = Served::start(place, &["--role", "operator"]);
    let path = format!("/dead-letters?consumer=billing&fingerprint={group}");
    let (_, first) = served.get(&path, &[]).await;
    assert!(first.contains("Page 1 of 2."), "{first}");
    assert_eq!(links(&first, "/dead-letters/").len(), 50);
    let next = links(&first, "/dead-letters?");
    assert_eq!(next.len(), 1, "{next:?}");
    let (_, second) = served.get(&next[0], &[]).await;
    assert_eq!(links(&second, "/dead-letters/").len(), 1, "{second}");
    assert!(second.contains("rel=\"prev\"") && !second.contains("rel=\"next\""));

    let marked = || {
        let letters = ask(place, &["dead-letters", "list", "--limit", "100", "-o", "json"]).json();
        let letters = letters.as_array().unwrap().iter();
        letters.filter(|letter| letter["status"] == "retry").count()
    };
    let changes = links(&first, "/change?");
    let [oldest, all, discard] = changes.as_slice() else {
        panic!("{changes:?}");
    };
    change(&served, oldest).await;
    assert_eq!(marked(), 1);
    change(&served, all).await;
    assert_eq!(marked(), 51);
    change(&served, discard).await;
    let left = ask(place, &["dead-letters", "list", "-o", "json"])
        .expect(0)
        .json();
    assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
    assert_eq!(left[0]["aggregate_id"], "card-1", "{left}");
    drop(served);
    planted.close().await;
}
