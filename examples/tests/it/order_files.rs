//! The demo with orders from files. The consumers' sums must equal independently computed sums.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are tests, but the exemption in clippy.toml excludes helpers"
)]

use std::fs;
use std::path::{Path, PathBuf};

use outbox::testing::not_applicable;
use serde_json::{Value, json};

use crate::demo::Demo;

fn exported(folder: &Path, file: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(folder.join(file)).unwrap();
    text.lines()
        .skip(1)
        .map(|line| line.split_once(',').unwrap())
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn total(rows: &[(String, String)]) -> i64 {
    rows.iter().map(|(_, value)| value.parse::<i64>().unwrap()).sum()
}

fn with_files(orders: &Path, lines: &Path) -> (Demo, Value, PathBuf) {
    let mut demo = Demo::new(None).args(["--broker", "memory"]);
    let export = demo.path("export");
    demo.command
        .arg("--orders")
        .arg(orders)
        .arg("--lines")
        .arg(lines)
        .arg("--export")
        .arg(&export);
    let ledger = demo.ledger();
    (demo, ledger, export)
}

/// Expected amounts: BLAUS has 2 x 9.80 less 5 % plus 12 x 14.00; ANÄTR has 1 x 0.30 less 5 % (28.5
/// cents, rounded up).
#[test]
fn orders_from_files_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let (orders, lines) = (folder.path().join("orders.csv"), folder.path().join("lines.csv"));
    fs::write(
        &orders,
        "orderID,customerID,orderDate,shippedDate,city\n7,BLAUS,1996-07-04 00:00:00.000,1996-07-16 00:00:00.000,Reims\n\
         8,ANÄTR,1996-07-05,NULL,\"São\nPaulo\"\n9,BLAUS,1996-07-05,1996-07-06,Reims\n",
    )
    .unwrap();
    fs::write(
        &lines,
        "orderID,productID,unitPrice,quantity,discount\n9,11,14.00,12,0\n7,42,9.80,2,0.05\n8,11,0.30,1,0.05\n",
    )
    .unwrap();
    let (_demo, ledger, export) = with_files(&orders, &lines);
    assert_eq!(
        (&ledger["orders"], &ledger["messages_committed"]),
        (&json!(3), &json!(7))
    );
    let row = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(
        exported(&export, "inventory.csv"),
        [row("11", "13"), row("42", "2")]
    );
    assert_eq!(
        exported(&export, "billing.csv"),
        [row("ANÄTR", "29"), row("BLAUS", "18662")]
    );
    assert_eq!(
        exported(&export, "shipments.csv"),
        [row("7", "1996-07-16"), row("9", "1996-07-06")]
    );
}

/// Needs `orders.csv` and `order_details.csv` of Microsoft's sample database in the folder
/// `OUTBOX_TEST_NORTHWIND`.
#[test]
fn northwind_adds_up() {
    let Some(folder) = std::env::var_os("OUTBOX_TEST_NORTHWIND").map(PathBuf::from) else {
        return not_applicable("OUTBOX_TEST_NORTHWIND names no folder with Northwind's files");
    };
    let lines = folder.join("order_details.csv");
    let (_demo, ledger, export) = with_files(&folder.join("orders.csv"), &lines);
    assert_eq!(
        (&ledger["orders"], &ledger["messages_committed"]),
        (&json!(830), &json!(2_448))
    );
    assert_eq!(exported(&export, "shipments.csv").len(), 809);
    assert_eq!(total(&exported(&export, "billing.csv")), 126_579_329);
    let text = fs::read_to_string(lines).unwrap();
    let quantities = text.lines().skip(1).map(|line| line.split(',').nth(3).unwrap());
    let quantities: Vec<i64> = quantities.map(|quantity| quantity.parse().unwrap()).collect();
    assert_eq!(quantities.len(), 2_155);
    assert_eq!(
        total(&exported(&export, "inventory.csv")),
        quantities.iter().sum::<i64>()
    );
}
