//! Groups dead letters by consumer, event type and normalised error.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use outbox::inbox::{DeadLetterSelection, DeadLetters};
use sea_orm::DbErr;
use serde::{Serialize, Serializer};
use time::OffsetDateTime;

use super::LetterRow;
use crate::admin::serial;

const PAGE: u32 = 10_000;

/// Fingerprint of a group: 16 hexadecimal digits, stable within one library version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupFingerprint(u64);

impl fmt::Display for GroupFingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

impl Serialize for GroupFingerprint {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Malformed fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid fingerprint; `outbox dead-letters groups` prints fingerprints (16 hexadecimal digits)")]
pub struct GroupFingerprintError;

impl FromStr for GroupFingerprint {
    type Err = GroupFingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_hex);
        number.map(Self).ok_or(GroupFingerprintError)
    }
}

/// Dead letters with the same failure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LetterGroup {
    /// Group fingerprint.
    pub fingerprint: GroupFingerprint,
    /// Consumer that failed.
    pub consumer: String,
    /// Event type; `None` if the bytes are no message.
    pub event_type: Option<String>,
    /// Error, with `<n>` for parts that differ.
    pub error: String,
    /// Number of dead letters.
    pub dead_letters: u64,
    /// Oldest dead-lettering time.
    #[serde(serialize_with = "serial::time")]
    pub first_at: OffsetDateTime,
    /// Newest dead-lettering time.
    #[serde(serialize_with = "serial::time")]
    pub last_at: OffsetDateTime,
}

impl LetterGroup {
    /// Fingerprint of a dead letter's group.
    pub fn fingerprint_of(letter: &LetterRow) -> GroupFingerprint {
        fingerprint(letter, &without_particulars(&letter.error))
    }
}

/// Groups dead letters, largest group first.
pub fn group_letters(letters: &[LetterRow]) -> Vec<LetterGroup> {
    let mut groups: HashMap<GroupFingerprint, LetterGroup> = HashMap::new();
    for letter in letters {
        let error = without_particulars(&letter.error);
        let at = letter.dead_lettered_at;
        let fingerprint = fingerprint(letter, &error);
        let group = groups.entry(fingerprint).or_insert_with(|| LetterGroup {
            fingerprint,
            consumer: letter.consumer.clone(),
            event_type: letter.event_type.clone(),
            error,
            dead_letters: 0,
            first_at: at,
            last_at: at,
        });
        group.dead_letters += 1;
        group.first_at = group.first_at.min(at);
        group.last_at = group.last_at.max(at);
    }
    let mut groups: Vec<LetterGroup> = groups.into_values().collect();
    groups.sort_by(|a, b| {
        let by_count = b.dead_letters.cmp(&a.dead_letters);
        by_count.then_with(|| a.fingerprint.cmp(&b.fingerprint))
    });
    groups
}

/// At most `most` dead letters, oldest first, without payloads, and whether the list is complete.
/// With `group`, reads the selection until enough members are found.
///
/// # Errors
///
/// `DbErr`.
pub async fn read_letters(
    letters: &DeadLetters,
    selection: &DeadLetterSelection,
    group: Option<GroupFingerprint>,
    most: usize,
) -> Result<(Vec<LetterRow>, bool), DbErr> {
    let is_wanted = |row: &LetterRow| group.is_none_or(|group| LetterGroup::fingerprint_of(row) == group);
    let one_more = u32::try_from(most).unwrap_or(PAGE).saturating_add(1);
    let size = if group.is_none() { PAGE.min(one_more) } else { PAGE };
    let (mut rows, mut selection) = (Vec::new(), selection.clone());
    loop {
        let page = letters.list_without_payloads(&selection, size).await?;
        rows.extend(page.iter().map(LetterRow::from).filter(is_wanted));
        if rows.len() > most {
            rows.truncate(most);
            return Ok((rows, false));
        }
        match page.last() {
            Some(last) if page.len() == size as usize => selection = selection.after(last),
            _ => return Ok((rows, true)),
        }
    }
}

/// FNV-1a, stable across programs. A collision merges two groups.
fn fingerprint(letter: &LetterRow, error: &str) -> GroupFingerprint {
    let event_type = letter.event_type.as_deref().unwrap_or_default();
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in [&letter.consumer, event_type, error] {
        // The byte 0xff separates the parts, because UTF-8 never contains it.
        for byte in part.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    GroupFingerprint(hash)
}

pub(crate) fn without_particulars(error: &str) -> String {
    let mut text = String::with_capacity(error.len());
    let mut word = String::new();
    let mut quote: Option<char> = None;
    for character in error.chars() {
        if let Some(open) = quote {
            if character == open {
                quote = None;
                text.push(character);
            }
            continue;
        }
        if character.is_alphanumeric() || (character == '-' && !word.is_empty()) {
            word.push(character);
            continue;
        }
        push_word(&mut text, &mut word);
        text.push(character);
        if matches!(character, '"' | '`') {
            quote = Some(character);
            text.push_str("<n>");
        }
    }
    push_word(&mut text, &mut word);
    text
}

fn push_word(text: &mut String, word: &mut String) {
    if word.chars().any(|character| character.is_numeric()) {
        text.push_str("<n>");
    } else {
        text.push_str(word);
    }
    word.clear();
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn letter(consumer: &str, error: &str, at: i64) -> LetterRow {
        LetterRow {
            id: Uuid::nil(),
            consumer: consumer.to_owned(),
            status: "open",
            event_id: None,
            event_type: Some("order.paid".to_owned()),
            aggregate_type: None,
            aggregate_id: None,
            sequence: None,
            subject: "events.order.paid".to_owned(),
            stream_sequence: 1,
            attempts: 1,
            error: error.to_owned(),
            dead_lettered_at: OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(at),
        }
    }

    #[test]
    fn numbers_ids_and_quotes_do_not_split_groups() {
        let check = |error: &str, expected: &str| assert_eq!(without_particulars(error), expected);
        check(
            "card service answered 503: timeout after 30ms",
            "card service answered <n>: timeout after <n>",
        );
        check("no order 019ab000-0000-7000-8000-000000000001", "no order <n>");
        check(
            "unknown field `naem` at line 3",
            "unknown field `<n>` at line <n>",
        );
        check("unknown \"unclosed", "unknown \"<n>");
        check("well-known - and plain", "well-known - and plain");
        check("", "");
    }

    #[test]
    fn fingerprint_parses_its_printed_form() {
        let fingerprint = LetterGroup::fingerprint_of(&letter("billing", "no card 17", 5));
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        for text in [
            "",
            "1",
            "+123456789abcdef",
            "0123456789abcdeg",
            "00123456789abcdef",
        ] {
            assert_eq!(
                text.parse::<GroupFingerprint>(),
                Err(GroupFingerprintError),
                "{text}"
            );
        }
    }

    #[test]
    fn letter_groups_are_sorted_by_size() {
        let letters = [
            letter("billing", "no card 17", 5),
            letter("search", "no answer", 1),
            letter("billing", "no card 4", 2),
            letter("search", "no card 4", 3),
        ];
        let groups = group_letters(&letters);
        assert_eq!(groups.len(), 3, "{groups:?}");
        let first = &groups[0];
        assert_eq!(
            (first.consumer.as_str(), first.error.as_str(), first.dead_letters),
            ("billing", "no card <n>", 2)
        );
        assert_eq!(
            (first.first_at, first.last_at),
            (letters[2].dead_lettered_at, letters[0].dead_lettered_at)
        );
        for letter in &letters {
            let fingerprint = LetterGroup::fingerprint_of(letter);
            let of = groups.iter().find(|group| group.fingerprint == fingerprint);
            assert_eq!(
                of.map(|group| group.consumer.as_str()),
                Some(letter.consumer.as_str())
            );
        }
    }
}
