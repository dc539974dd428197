//! Every page of the dashboard in a real browser: axe-core finds nothing that keeps somebody from using it, in light and dark, wide and narrow; and its
//! pictures for the documents, which `OUTBOX_BLESS=1` keeps.

use std::path::Path;
use std::time::Duration;

use fantoccini::Client;
use fantoccini::key::Key;
use outbox::core::{Fitness, MessageId, PauseRequest};
use outbox::testing::Operator as _;
use outbox::testing::{backend_url, eventually};
use serde_json::{Value, json};

use super::answer::ask;
use super::browser::{Driver, keeps_pictures, picture};
use super::plant::{LONG, Planted, dead, failed};
use super::serve::{PASSWORD, Served, basic, users};
use crate::place::Kind;

/// A window: its name, its width, and whether the system is dark.
const WINDOWS: [(&str, u32, bool); 4] = [
    ("", 1200, false),
    ("-dark", 1200, true),
    ("-narrow", 400, false),
    ("-narrow-dark", 400, true),
];

/// What addresses name.
struct Filled {
    handled: MessageId,
    halting: MessageId,
    operation: String,
    letter: String,
    fingerprint: String,
}

/// Something of everything: handled, refused by a consumer, in back-off, halted, waiting, skipped by an operator.
async fn fill(planted: &Planted) -> Filled {
    let handled = planted.placed("4710").await;
    planted.publish().await;
    planted.handle().await;
    let (in_back_off, halting) = (planted.placed("4711").await, planted.placed("4712").await);
    planted.placed("4712").await;
    let skipped = planted.placed("4713").await;
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, in_back_off, failed()).await;
    planted.settle(&leases, halting, dead(true)).await;
    planted.settle(&leases, skipped, dead(true)).await;
    let id = skipped.to_string();
    let why = ["--reason", "INC-2231", "--actor", "olga", "--yes"];
    ask(
        &planted.place,
        &[&["retry", "--skip", id.as_str()][..], &why].concat(),
    )
    .expect(0);
    let operation = ask(&planted.place, &["audit", "-o", "name"]).expect(0).out;
    let letter = ask(&planted.place, &["dead-letters", "list", "-o", "name"]);
    let groups = ask(&planted.place, &["dead-letters", "groups", "-o", "json"]);
    let groups = groups.expect(0).json();
    Filled {
        handled,
        halting,
        operation: operation.trim().to_owned(),
        letter: letter.expect(0).out.trim().to_owned(),
        fingerprint: groups[0]["fingerprint"].as_str().unwrap().to_owned(),
    }
}

/// The pages with the names of their pictures.
fn pages(filled: &Filled) -> Vec<(&'static str, String)> {
    let Filled {
        handled,
        halting,
        operation,
        letter,
        fingerprint,
    } = filled;
    vec![
        ("overview", "/".to_owned()),
        ("messages", "/messages".to_owned()),
        ("message", format!("/messages/{handled}")),
        ("aggregate", "/aggregate?of=order/4712".to_owned()),
        ("dead-letters", "/dead-letters".to_owned()),
        (
            "dead-letters-alike",
            format!("/dead-letters?consumer=billing&fingerprint={fingerprint}"),
        ),
        ("dead-letter", format!("/dead-letters/{letter}")),
        (
            "pause",
            "/change?change=pause&aggregate_type=order&lasts=2h".to_owned(),
        ),
        (
            "pause-consumer",
            "/change?change=pause-consumer&consumer=billing".to_owned(),
        ),
        (
            "retry-letters",
            format!("/change?change=retry-letters&id={letter}"),
        ),
        ("audit", "/audit".to_owned()),
        ("operation", format!("/operations/{operation}")),
        ("preview", format!("/change?change=retry&id={halting}")),
        ("nothing", "/nothing".to_owned()),
    ]
}

/// The pages that look otherwise while something is paused.
const PAUSED: [(&str, &str); 2] = [
    ("overview-paused", "/"),
    ("unpause", "/change?change=unpause&aggregate_type=order"),
];

/// The pages whose pictures the guide shows, of the first window.
const SHOWN: [&str; 6] = [
    "overview",
    "messages",
    "aggregate",
    "dead-letters",
    "preview",
    "audit",
];

/// The name of the picture of a page in a window, if the picture is kept.
fn name_of_picture(page: &str, suffix: &str) -> Option<String> {
    (suffix.is_empty() && SHOWN.contains(&page)).then(|| format!("dashboard-{page}"))
}

/// How often a page may load itself anew while it is looked at.
const ANEW_MAX: u32 = 10;

/// What axe-core finds wrong with the page: each rule with the elements.
async fn violations(browser: &Client, axe: &str) -> Vec<String> {
    let script = format!(
        "const done = arguments[arguments.length - 1]; {axe}; axe.run(document, {{ resultTypes: ['violations'] }}).then(\
         (found) => done(found.violations.map((rule) => rule.id + ': ' + rule.nodes.map((node) => node.html).join(' | '))),\
         (error) => done([String(error)]));"
    );
    let mut anew = 0;
    let found = loop {
        match browser.execute_async(&script, Vec::new()).await {
            // The overview replaces its values. The driver calls that a timeout at once.
            Err(error) if error.is_script_timeout() && anew < ANEW_MAX => anew += 1,
            found => break found.unwrap(),
        }
    };
    let found = found.as_array().unwrap().iter();
    found.map(|rule| rule.as_str().unwrap().to_owned()).collect()
}

async fn evaluate(browser: &Client, script: &str) -> Value {
    let mut anew = 0;
    loop {
        match browser.execute(script, Vec::new()).await {
            // A page that loads itself anew, as above. The driver has several names for that.
            Err(_) if anew < ANEW_MAX => anew += 1,
            value => return value.unwrap(),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn nothing_keeps_anybody_from_using_a_page() {
    let (Some(driver), Some(axe)) = (Driver::start(), backend_url("OUTBOX_TEST_AXE_SCRIPT")) else {
        return;
    };
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let axe = std::fs::read_to_string(axe).unwrap();
    let filled = fill(&planted).await;
    let file = users(&planted.place, &["olga:operator"]);
    let served = Served::start(&planted.place, &["--users", &file]);
    let password = PASSWORD.replace(' ', "%20");
    let mut found = Vec::new();
    for (suffix, width, is_dark) in WINDOWS {
        let browser = driver.browser_of(width, is_dark).await;
        // The login stays with the session.
        let url = format!("http://olga:{password}@{}/", served.address);
        browser.goto(&url).await.unwrap();
        let dark = "return window.matchMedia('(prefers-color-scheme: dark)').matches";
        assert_eq!(evaluate(&browser, dark).await, json!(is_dark), "{suffix}");
        let mut visit = async |name: &str, path: &str| {
            let url = format!("http://{}{path}", served.address);
            browser.goto(&url).await.unwrap();
            for violation in violations(&browser, &axe).await {
                found.push(format!("{path}{suffix}: {violation}"));
            }
            // One column: nothing but a table, which scrolls by itself, is wider than the window.
            let wider = "return document.documentElement.scrollWidth - window.innerWidth";
            let wider = evaluate(&browser, wider).await.as_i64().unwrap();
            if wider > 0 {
                found.push(format!("{path}{suffix}: {wider} pixels wider than the window"));
            }
            if let Some(picture) = name_of_picture(name, suffix) {
                whole_picture(&browser, &picture, width).await;
            }
        };
        for (name, path) in pages(&filled) {
            visit(name, &path).await;
        }
        planted.store.pause(&overrun()).await.unwrap();
        eventually("an overview that says it", async || {
            served
                .get("/", &[&basic("olga", PASSWORD)])
                .await
                .1
                .contains("Publishing is paused")
        })
        .await;
        for (name, path) in PAUSED {
            visit(name, path).await;
        }
        planted.store.unpause(Some("order")).await.unwrap();
        browser.close().await.unwrap();
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    drop(served);
    planted.close().await;
}

/// A pause that stands.
fn overrun() -> PauseRequest {
    PauseRequest {
        aggregate_type: Some("order".to_owned()),
        reason: "billing is overrun".to_owned(),
        by: "olga".to_owned(),
        lasts: Some(LONG * 12),
    }
}

/// A picture of the page from its beginning to its end. Narrow ones are only looked at by whoever keeps them.
async fn whole_picture(browser: &Client, name: &str, width: u32) {
    if !keeps_pictures() {
        return;
    }
    if width > 400 {
        // A page is never lower than its window, which is as high as the page before it.
        browser.set_window_size(width, 500).await.unwrap();
        // The bars of the browser are part of the window: without them the end of each page, such as the button of a preview, was cut off.
        let height = "return document.documentElement.scrollHeight + window.outerHeight - window.innerHeight";
        let height = evaluate(browser, height).await;
        let height = u32::try_from(height.as_u64().unwrap()).unwrap();
        browser
            .set_window_size(width, height.clamp(500, 2200))
            .await
            .unwrap();
    }
    picture(browser, name).await;
}

/// A picture that no test makes shows a page of long ago, and one that no page of the guide shows is seen by nobody.
#[test]
fn each_picture_is_made_here_and_shown_in_the_guide() {
    let mut made = SHOWN.map(|name| format!("dashboard-{name}.png"));
    made.sort();
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide");
    let names_in = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    assert_eq!(names_in(&guide.join("images")), made);
    let pages = names_in(&guide).into_iter().filter(|name| name.ends_with(".md"));
    let pages: String = pages
        .map(|page| std::fs::read_to_string(guide.join(page)).unwrap())
        .collect();
    let unseen: Vec<&String> = made
        .iter()
        .filter(|name| !pages.contains(&format!("](images/{name})")))
        .collect();
    assert!(unseen.is_empty(), "shown nowhere: {unseen:?}");
}

#[tokio::test]
async fn a_keyboard_reaches_the_content_first_and_sees_where_it_is() {
    let Some(driver) = Driver::start() else {
        return;
    };
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let served = Served::start(&planted.place, &[]);
    let browser = driver.browser_of(1200, false).await;
    browser
        .goto(&format!("http://{}/messages", served.address))
        .await
        .unwrap();
    let tab = async || {
        let focused = browser.active_element().await.unwrap();
        focused
            .send_keys(&char::from(Key::Tab).to_string())
            .await
            .unwrap();
    };
    tab().await;
    let skip = "const link = document.activeElement; const box = link.getBoundingClientRect();\
                return [link.getAttribute('href'), box.left >= 0 && box.width > 0, getComputedStyle(link).outlineStyle]";
    assert_eq!(evaluate(&browser, skip).await, json!(["#content", true, "solid"]));
    // From the skip link on, each element that has the focus shows it: 5 links and 6 fields.
    for _ in 0..11 {
        tab().await;
        let shown = "return getComputedStyle(document.activeElement).outlineStyle + ' ' + document.activeElement.outerHTML";
        let shown = evaluate(&browser, shown).await;
        assert!(shown.as_str().unwrap().starts_with("solid "), "{shown}");
    }
    browser.close().await.unwrap();
    drop(served);
    planted.close().await;
}
