//! The dashboard with a viewer login that has only the statements of `outbox print grants`.

use outbox::core::RelayHealth;
use outbox_cli::admin::rights::Role;

use super::answer::ask;
use super::plant::{Planted, dead};
use super::rights::Login;
use super::serve::Served;
use crate::place::{Kind, on_both_servers};

async fn pages(planted: &Planted) -> Vec<String> {
    let handled = planted.placed("0").await;
    planted.publish().await;
    planted.handle().await;
    let halting = planted.placed("1").await;
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&leases, halting, dead(true)).await;
    ask(&planted.place, "pause --yes").expect(0);
    let mut pages: Vec<String> = [
        "/",
        "/messages",
        "/aggregate?of=order/0",
        "/aggregate?of=order/1",
        "/dead-letters",
    ]
    .map(str::to_owned)
    .into();
    pages.push(format!("/messages/{handled}"));
    pages
}

async fn pages_need_viewer_rights_only(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let pages = pages(&planted).await;
    let place = &planted.place;
    let viewer = Login::new(kind, place, &[Role::Viewer]).await;
    let served = Served::start_over(place, &viewer.url, &[]);
    for path in &pages {
        let (status, page) = served.get(path, &[]).await;
        assert_eq!(status, 200, "{path}: {page}");
        assert!(!page.contains("denied"), "{path}: {page}");
    }
    drop(served);
    viewer.close(kind, place).await;
    planted.close().await;
}

on_both_servers!(pages_need_viewer_rights_only);
