//! The dashboard in a real browser: Debian's chromium, by its driver. Pictures of the pages: [`super::browser_pages`].

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fantoccini::{Client, ClientBuilder, Locator};
use outbox::core::{Fitness, Lease, MessageId, MessageStatus, OutboxReader as _, OwnerId};
use outbox::testing::{backend_url, eventually};
use serde_json::json;

use super::plant::{Planted, dead};
use super::serve::{PASSWORD, Served, users};
use crate::place::Kind;

/// Chrome does not start each time that it is asked ("session not created").
const STARTS_MAX: u32 = 3;

/// The driver of a browser. Killing it ends the browser.
pub(super) struct Driver {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Driver {
    /// `None` if there is no driver, and the test is skipped.
    pub(super) fn start() -> Option<Self> {
        let program = backend_url("OUTBOX_TEST_CHROMEDRIVER_BIN")?;
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(program)
            .arg("--port=0")
            .env("HOME", folder.path())
            .env("XDG_CONFIG_HOME", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = loop {
            let line = lines.next().unwrap().unwrap();
            if let Some((_, port)) = line.split_once("successfully on port ") {
                break port.trim_end_matches('.').to_owned();
            }
        };
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Some(Self {
            child,
            address: format!("http://127.0.0.1:{port}"),
            _folder: folder,
        })
    }

    async fn browser(&self) -> Client {
        self.browser_of(1200, false).await
    }

    /// A browser of this width, on a system that is dark or not. A window has a least width, so a narrow one is that of a phone.
    pub(super) async fn browser_of(&self, width: u32, is_dark: bool) -> Client {
        // A browser of root has no sandbox; what it opens here is only ours.
        let size = format!("--window-size={width},800");
        let mut words = vec![
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            size.as_str(),
        ];
        if is_dark {
            words.push("--force-dark-mode");
        }
        let mut options = json!({ "goog:chromeOptions": { "args": words } });
        if width < 500 {
            let metrics = json!({ "width": width, "height": 800, "pixelRatio": 1.0 });
            options["goog:chromeOptions"]["mobileEmulation"] = json!({ "deviceMetrics": metrics });
        }
        let capabilities = options.as_object().unwrap().clone();
        let mut builder = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new());
        builder.capabilities(capabilities);
        for _ in 1..STARTS_MAX {
            if let Ok(browser) = builder.connect(&self.address).await {
                return browser;
            }
        }
        builder.connect(&self.address).await.unwrap()
    }
}

/// Follows the link with this text to another page.
async fn follow(browser: &Client, text: &str) {
    let before = browser.current_url().await.unwrap();
    eventually(&format!("a page behind the link `{text}`"), async || {
        if browser.current_url().await.is_ok_and(|url| url != before) {
            return true;
        }
        // The page may be made anew at any time. What was found on it is gone then, and a click may be lost.
        if let Ok(link) = browser.find(Locator::LinkText(text)).await {
            let _ = link.click().await;
        }
        false
    })
    .await;
}

/// Waits for a page with this text: a click returns before its page is there.
async fn shows(browser: &Client, expected: &str) {
    eventually(&format!("a page with `{expected}`"), async || {
        let Ok(page) = browser.find(Locator::Css("main")).await else {
            return false;
        };
        page.text().await.is_ok_and(|text| text.contains(expected))
    })
    .await;
}

/// Whether the pictures of the documents are made anew.
pub(super) fn keeps_pictures() -> bool {
    std::env::var_os("OUTBOX_BLESS").is_some()
}

/// Keeps a picture of the page.
pub(super) async fn picture(browser: &Client, name: &str) {
    let picture = browser.screenshot().await.unwrap();
    assert!(picture.starts_with(b"\x89PNG"));
    if keeps_pictures() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/images");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), picture).unwrap();
    }
}

async fn status(planted: &Planted, id: MessageId) -> MessageStatus {
    planted.store.find(id).await.unwrap().unwrap().stored.status
}

/// A dead letter that halts order 4711, one event behind it, and the relay that has made it.
async fn stuck(planted: &Planted) -> (MessageId, (OwnerId, Vec<Lease>)) {
    let id = planted.placed("4711").await;
    planted.placed("4711").await;
    let relay = planted.relay(Fitness::Fit).await;
    planted.settle(&relay.1, id, dead(true)).await;
    (id, relay)
}

#[tokio::test]
async fn an_operator_finds_a_stuck_aggregate_reads_why_and_retries_it() {
    let Some(driver) = Driver::start() else {
        return;
    };
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let (id, relay) = stuck(&planted).await;
    let file = users(&planted.place, &["olga:operator"]);
    let served = Served::start(&planted.place, &["--users", &file]);
    let browser = driver.browser().await;
    let password = PASSWORD.replace(' ', "%20");
    let url = format!("http://olga:{password}@{}/", served.address);
    browser.goto(&url).await.unwrap();
    shows(&browser, "1 aggregate is halted by a dead letter").await;
    follow(&browser, "outbox list --status dead").await;
    follow(&browser, "order/4711").await;
    shows(&browser, "dead-letter").await;
    shows(&browser, "maximum payload exceeded").await;
    follow(&browser, &format!("outbox retry {id}")).await;
    shows(&browser, "It would retry 1 message of 1 aggregate.").await;
    // Its relay is alive, and the stream was never made.
    shows(&browser, "Does the cause still hold?").await;
    shows(&browser, "still 1 message: there is no stream").await;
    assert_eq!(status(&planted, id).await, MessageStatus::Dead);
    let button = browser.find(Locator::Css("button.do")).await.unwrap();
    button.click().await.unwrap();
    shows(&browser, "retry: 0 published, 1 to be published, 0 failed again.").await;
    assert_ne!(status(&planted, id).await, MessageStatus::Dead);
    let operation = browser.current_url().await.unwrap();
    follow(&browser, "Overview").await;
    // The script has its values from the server, under the policy that forbids all others.
    planted.placed("1").await;
    eventually(
        "a page that shows the event without being loaded again",
        async || {
            // The page may be made anew at any time, and what was found on it is gone then.
            let Ok(pending) = browser.find(Locator::Css("[data-fresh] .counts dd")).await else {
                return false;
            };
            pending.text().await.is_ok_and(|pending| pending == "3")
        },
    )
    .await;
    // The stream is made, and the relay goes on: the page of the retry says that it has worked.
    planted.publish_after(&relay).await;
    browser.goto(operation.as_str()).await.unwrap();
    shows(&browser, "retry: 1 published, 0 to be published, 0 failed again.").await;
    assert_eq!(status(&planted, id).await, MessageStatus::Published);
    browser.close().await.unwrap();
    drop(served);
    planted.close().await;
}

#[tokio::test]
async fn a_viewer_in_a_browser_has_no_form_and_cannot_make_one() {
    let Some(driver) = Driver::start() else {
        return;
    };
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let (id, _) = stuck(&planted).await;
    let file = users(&planted.place, &["vera:viewer"]);
    let served = Served::start(&planted.place, &["--users", &file]);
    let browser = driver.browser().await;
    let password = PASSWORD.replace(' ', "%20");
    let url = format!(
        "http://vera:{password}@{}/change?change=retry&id={id}",
        served.address
    );
    browser.goto(&url).await.unwrap();
    shows(&browser, "Your role (viewer) may not make changes.").await;
    assert!(browser.find(Locator::Css("form")).await.is_err());
    // A request by hand, from the page itself: same site, own login.
    let script = "const [id, done] = arguments; fetch(`${location.protocol}//${location.host}/change`, { method: 'POST', body: new URLSearchParams({ change: 'retry', id }) })\
                  .then((answer) => done(answer.status), (error) => done(String(error)));";
    let answered = browser
        .execute_async(script, vec![json!(id.to_string())])
        .await
        .unwrap();
    assert_eq!(answered, json!(403));
    assert_eq!(status(&planted, id).await, MessageStatus::Dead);
    browser.close().await.unwrap();
    drop(served);
    planted.close().await;
}
