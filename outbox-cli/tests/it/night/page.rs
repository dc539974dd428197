//! Compares the page with real output, ignoring ids, times, durations, server names and column
//! widths. A line `…` stands for omitted lines.

use uuid::Uuid;

use crate::operate::answer::{Answer, ask};
use crate::operate::plant::Planted;

const PAGE: &str = include_str!("../../../../docs/guide/16-night.md");

fn shown() -> Vec<(String, Vec<String>)> {
    let mut shown: Vec<(String, Vec<String>)> = Vec::new();
    for block in PAGE.split("```text\n").skip(1) {
        let mut is_in = false;
        for line in block.split("```").next().unwrap().lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                shown.push((normal(command), Vec::new()));
                is_in = true;
            } else if is_in {
                shown.last_mut().unwrap().1.push(normal(line));
            }
        }
    }
    shown
}

fn normal(line: &str) -> String {
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

fn word(word: &str) -> String {
    let core = word.trim_matches(|character: char| "().,;:+".contains(character));
    let is_time = core.len() >= 20 && core.as_bytes()[10] == b'T' && core.ends_with('Z');
    let number = core.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let unit = &core[number.len()..];
    let is_duration = number.parse::<f64>().is_ok() && ["ms", "s", "m", "h", "d"].contains(&unit);
    let is_fingerprint = core.len() == 16 && core.bytes().all(|byte| byte.is_ascii_hexdigit());
    let stands = if Uuid::parse_str(core).is_ok() {
        "<id>"
    } else if is_time {
        "<time>"
    } else if is_duration {
        "<duration>"
    } else if is_fingerprint {
        "<fingerprint>"
    } else {
        return word.to_owned();
    };
    word.replace(core, stands)
}

pub(super) fn check(planted: &Planted, command: &str, code: i32) -> Answer {
    let answer = ask(&planted.place, command).expect(code);
    let command = normal(&format!("outbox {command}"));
    let found: Vec<String> = answer
        .out
        .replace(&planted.place.name, "SHOP")
        .lines()
        .map(normal)
        .collect();
    let pages = shown();
    let page = pages.iter().find(|(shown, _)| *shown == command);
    let expected = page.map(|(_, lines)| lines.as_slice()).unwrap_or_default();
    assert!(
        fits(expected, &found),
        "the page does not show this:\n$ {command}\n{}\nbut:\n{}",
        answer.out,
        expected.join("\n")
    );
    answer
}

fn fits(expected: &[String], found: &[String]) -> bool {
    match expected.split_first() {
        None => found.is_empty(),
        Some((line, rest)) if line == "…" => (0..=found.len()).any(|skipped| fits(rest, &found[skipped..])),
        Some((line, rest)) => found.first() == Some(line) && fits(rest, &found[1..]),
    }
}

#[test]
fn the_page_has_ten_questions_and_an_answer_to_each() {
    let questions = PAGE.lines().filter(|line| line.starts_with("## ")).count();
    assert_eq!(questions, 10);
    for part in PAGE.split("\n## ").skip(1) {
        assert!(part.contains("```text\n$ outbox "), "{part}");
    }
    assert!(shown().iter().all(|(_, lines)| !lines.is_empty()));
}

#[test]
fn a_line_is_compared_without_what_differs_in_each_run() {
    assert_eq!(
        normal("2026-11-24T02:41:07Z  #1 (019ab4c2-7d1e-7a41-9e0f-3c5d2b1a0f9e): +0.012s, 14"),
        "<time> #1 (<id>): +<duration>, 14"
    );
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(fits(&lines("a\n…\nc"), &lines("a\nb\nc")));
    assert!(!fits(&lines("a\nc"), &lines("a\nb\nc")));
    assert!(!fits(&lines("a\n…"), &lines("b\na")));
}
