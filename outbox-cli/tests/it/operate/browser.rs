//! Accessibility of every page in a real browser (Debian's chromium with its driver), checked by
//! axe-core. `OUTBOX_BLESS=1` saves the pictures of the guide.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fantoccini::{Client, ClientBuilder};
use outbox::core::Fitness;
use outbox::testing::backend_url;
use serde_json::{Value, json};

use super::answer::ask;
use super::plant::{Planted, dead, failed};
use super::serve::Served;
use crate::place::Kind;

/// Chrome sometimes fails to start ("session not created").
const STARTS_MAX: u32 = 3;

/// A page may reload itself during a check.
const ANEW_MAX: u32 = 10;

const SHOWN: [&str; 4] = ["overview", "messages", "aggregate", "dead-letters"];

/// Killing the driver ends the browser.
struct Driver {
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
    /// `None` without a driver; the test is skipped.
    fn start() -> Option<Self> {
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

    /// Windows have a minimum width, so a narrow one emulates a phone.
    async fn browser(&self, width: u32, is_dark: bool) -> Client {
        // As root, chromium has no sandbox; it opens only our pages.
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

/// Messages in every state. Returns the pages with their picture names.
async fn fill(planted: &Planted) -> Vec<(&'static str, String)> {
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
    let place = &planted.place;
    let id = skipped.to_string();
    let why = ["--reason", "INC-2231", "--actor", "olga", "--yes"];
    ask(place, &[&["retry", "--skip", id.as_str()][..], &why].concat()).expect(0);
    let letter = ask(place, "dead-letters list -o name").expect(0).out;
    let groups = ask(place, "dead-letters groups -o name").expect(0).out;
    vec![
        ("overview", "/".to_owned()),
        ("messages", "/messages".to_owned()),
        ("message", format!("/messages/{handled}")),
        ("aggregate", "/aggregate?of=order/4712".to_owned()),
        ("dead-letters", "/dead-letters".to_owned()),
        (
            "dead-letters-alike",
            format!("/dead-letters?consumer=billing&fingerprint={}", groups.trim()),
        ),
        ("dead-letter", format!("/dead-letters/{}", letter.trim())),
        ("nothing", "/nothing".to_owned()),
    ]
}

async fn violations(browser: &Client, axe: &str) -> Vec<String> {
    let script = format!(
        "const done = arguments[arguments.length - 1]; {axe}; axe.run(document, {{ resultTypes: ['violations'] }}).then(\
         (found) => done(found.violations.map((rule) => rule.id + ': ' + rule.nodes.map((node) => node.html).join(' | '))),\
         (error) => done([String(error)]));"
    );
    let mut anew = 0;
    let found = loop {
        match browser.execute_async(&script, Vec::new()).await {
            // The overview replaces its values, which the driver reports as a timeout.
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
            // The page reloaded itself; the driver reports this with several errors.
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
    let pages = fill(&planted).await;
    let served = Served::start(&planted.place, &[]);
    let mut found = Vec::new();
    for (width, is_dark) in [(1200, false), (400, true)] {
        let browser = driver.browser(width, is_dark).await;
        for (name, path) in &pages {
            let url = format!("http://{}{path}", served.address);
            browser.goto(&url).await.unwrap();
            for violation in violations(&browser, &axe).await {
                found.push(format!("{path}, {width} pixels: {violation}"));
            }
            // Only tables may be wider than the window, because they scroll.
            let wider = "return document.documentElement.scrollWidth - window.innerWidth";
            let wider = evaluate(&browser, wider).await.as_i64().unwrap();
            if wider > 0 {
                found.push(format!("{path}: {wider} pixels wider than the window"));
            }
            if !is_dark && SHOWN.contains(name) && std::env::var_os("OUTBOX_BLESS").is_some() {
                keep_picture(&browser, name, width).await;
            }
        }
        browser.close().await.unwrap();
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    drop(served);
    planted.close().await;
}

async fn keep_picture(browser: &Client, name: &str, width: u32) {
    // A page is at least as high as the window.
    browser.set_window_size(width, 500).await.unwrap();
    // The browser's bars are part of the window.
    let height = "return document.documentElement.scrollHeight + window.outerHeight - window.innerHeight";
    let height = evaluate(browser, height).await;
    let height = u32::try_from(height.as_u64().unwrap()).unwrap();
    browser
        .set_window_size(width, height.clamp(500, 2200))
        .await
        .unwrap();
    let picture = browser.screenshot().await.unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/images");
    std::fs::write(folder.join(format!("dashboard-{name}.png")), picture).unwrap();
}
