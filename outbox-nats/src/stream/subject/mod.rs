//! Maps messages to subjects, and event types to filters.
//!
//! The default subject is `<prefix>.<aggregate>.<aggregate id>.<event name>`. Invariant: for every
//! aggregate id the subject is literal and outside `$`, and [`decode_token`] returns the id.
//! nats-server does not check subjects: it stores messages on `a.*` and executes commands sent to
//! `$JS.API.…`.

use std::borrow::Cow;
use std::fmt;

use outbox_core::{Aggregate, EventDescriptor, Message};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Maximum length of a prefix in bytes. With the longest aggregate id, 255 characters of four
/// bytes, a subject stays below 3.4 KB. nats-server accepts 4 KB for subject, reply subject and
/// sizes together.
pub const PREFIX_BYTES_MAX: usize = 128;

const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-');

/// The first tokens of all default subjects: one or more dot-separated tokens of `[A-Za-z0-9_-]`,
/// at most [`PREFIX_BYTES_MAX`] bytes.
///
/// ```
/// use outbox_nats::SubjectPrefix;
///
/// assert_eq!(SubjectPrefix::default().as_str(), "events");
/// assert_eq!(SubjectPrefix::new("shop.events")?.wildcard(), "shop.events.>");
/// assert!(SubjectPrefix::new("$JS.API").is_err());
/// # Ok::<(), outbox_nats::SubjectError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SubjectPrefix(String);

impl SubjectPrefix {
    /// Checks a prefix.
    ///
    /// # Errors
    ///
    /// [`SubjectError::Prefix`] if a token is empty or has other characters, or the prefix is too
    /// long.
    pub fn new(prefix: impl Into<String>) -> Result<Self, SubjectError> {
        let prefix = prefix.into();
        let tokens_are_plain = prefix
            .split('.')
            .all(|token| !token.is_empty() && token.bytes().all(is_plain));
        if tokens_are_plain && prefix.len() <= PREFIX_BYTES_MAX {
            return Ok(Self(prefix));
        }
        Err(SubjectError::Prefix {
            prefix: prefix.escape_debug().to_string(),
        })
    }

    /// The prefix as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The pattern of all default subjects: `<prefix>.>`.
    #[must_use]
    pub fn wildcard(&self) -> String {
        format!("{self}.>")
    }

    /// The subject of a message: its fixed subject, or the default subject.
    ///
    /// # Errors
    ///
    /// [`SubjectError::Override`] if the fixed subject is not literal, because the stored row was
    /// changed.
    pub fn subject(&self, message: &Message) -> Result<String, SubjectError> {
        if let Some(subject) = &message.subject {
            return if is_literal_subject(subject) {
                Ok(subject.clone())
            } else {
                Err(SubjectError::Override {
                    subject: subject.escape_debug().to_string(),
                })
            };
        }
        Ok(self.subject_at(message, &encode_token(&message.aggregate.id)))
    }

    pub(crate) fn subject_at(&self, message: &Message, token: &str) -> String {
        let tokens: [&str; 7] = [
            &self.0,
            ".",
            &encode_token(&message.aggregate.aggregate_type),
            ".",
            token,
            ".",
            &encode_token(message.event_name()),
        ];
        tokens.concat()
    }

    /// Whether `subject` is a default subject of the message: with aggregate id, shard, or in
    /// strong mode.
    pub(crate) fn is_default(&self, message: &Message, subject: &str) -> bool {
        let tokens = subject
            .strip_prefix(&self.0)
            .and_then(|rest| rest.strip_prefix('.'));
        let mut tokens = tokens.unwrap_or_default().split('.');
        let is_aggregates = tokens.next() == Some(&encode_token(&message.aggregate.aggregate_type));
        let token = tokens.next().unwrap_or_default();
        let is_own = token == encode_token(&message.aggregate.id);
        let is_at_its_place = match tokens.next() {
            Some(name) => (is_own || is_shard(token)) && name == encode_token(message.event_name()),
            None => is_own && message.sequence.is_some(),
        };
        // The event type selects the handler, so it must match the aggregate type in the header.
        let is_one_type = message.event_type.strip_prefix(&message.aggregate.aggregate_type);
        let is_one_type = is_one_type.and_then(|rest| rest.strip_prefix('.')) == Some(message.event_name());
        is_one_type && is_aggregates && is_at_its_place && tokens.next().is_none()
    }

    pub(crate) fn is_of_others(&self, message: &Message, subject: &str) -> bool {
        let tokens = subject
            .strip_prefix(&self.0)
            .and_then(|rest| rest.strip_prefix('.'));
        let tokens: Vec<&str> = tokens.unwrap_or_default().split('.').collect();
        matches!(tokens[..], [aggregate, _] | [aggregate, _, _]
            if aggregate != encode_token(&message.aggregate.aggregate_type))
    }

    /// The subject of all sequenced messages of an aggregate in strong mode:
    /// `<prefix>.<aggregate>.<aggregate id>`.
    #[must_use]
    pub fn aggregate_subject(&self, aggregate: &Aggregate) -> String {
        format!(
            "{self}.{}.{}",
            encode_token(&aggregate.aggregate_type),
            encode_token(&aggregate.id)
        )
    }

    /// The filter for all sequenced messages of an aggregate type in strong mode:
    /// `<prefix>.<aggregate>.*`. `None` for events outside strong mode.
    #[must_use]
    pub fn fenced_filter(&self, event: &EventDescriptor) -> Option<String> {
        let fenced = event.sequenced && event.subject.is_none();
        fenced.then(|| format!("{self}.{}.*", encode_token(event.aggregate)))
    }

    /// The filter for all messages of an event's aggregate type on default subjects:
    /// `<prefix>.<aggregate>.*.*`.
    #[must_use]
    pub fn aggregate_filter(&self, event: &EventDescriptor) -> String {
        format!("{self}.{}.*.*", encode_token(event.aggregate))
    }

    /// The filter for all messages of an event type: `<prefix>.<aggregate>.*.<event name>`, or the
    /// fixed subject.
    ///
    /// For a selection ([`EventDescriptor::is_selection`]), returns the filter of the selected
    /// event type, [`Self::aggregate_filter`], or `>`.
    #[must_use]
    pub fn filter(&self, event: &EventDescriptor) -> String {
        if event.is_everything() {
            return ">".to_owned();
        }
        if event.is_whole_aggregate() {
            return self.aggregate_filter(event);
        }
        event.subject.map_or_else(
            || {
                format!(
                    "{self}.{}.*.{}",
                    encode_token(event.aggregate),
                    encode_token(event.name)
                )
            },
            str::to_owned,
        )
    }
}

impl Default for SubjectPrefix {
    /// The prefix `events`.
    fn default() -> Self {
        Self("events".to_owned())
    }
}

impl fmt::Display for SubjectPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Encodes a text as one token of a subject: bytes outside `[A-Za-z0-9_-]` become `%XX`, the empty
/// text becomes `%`.
///
/// ```
/// assert_eq!(outbox_nats::encode_token("a.b *ü"), "a%2Eb%20%2A%C3%BC");
/// ```
#[must_use]
pub fn encode_token(text: &str) -> Cow<'_, str> {
    match text {
        // No other text encodes to a single `%`.
        "" => Cow::Borrowed("%"),
        text => utf8_percent_encode(text, ENCODED).into(),
    }
}

/// Decodes a token. Returns `None` if [`encode_token`] cannot have produced the token.
///
/// ```
/// assert_eq!(outbox_nats::decode_token("a%2Eb").as_deref(), Some("a.b"));
/// assert_eq!(outbox_nats::decode_token("a.b"), None);
/// ```
#[must_use]
pub fn decode_token(token: &str) -> Option<String> {
    let text = match token {
        "%" => Cow::Borrowed(""),
        token => percent_decode_str(token).decode_utf8().ok()?,
    };
    (encode_token(&text) == token).then(|| text.into_owned())
}

/// Why a text cannot be part of a subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// The prefix is malformed.
    #[error(
        "subject prefix `{prefix}` is malformed; use dot-separated tokens of `[A-Za-z0-9_-]`, at most 128 bytes"
    )]
    Prefix {
        /// The prefix, escaped.
        prefix: String,
    },
    /// A fixed subject is malformed.
    #[error(
        "subject `{subject}` is malformed; use dot-separated tokens without wildcards, white space or control characters, not starting with `$`"
    )]
    Override {
        /// The subject, escaped.
        subject: String,
    },
}

const SHARD: &str = "shard-";

pub(crate) fn shard_token(aggregate: &Aggregate, shards: u32) -> String {
    format!("{SHARD}{}", aggregate.bucket(u64::from(shards.max(1))))
}

pub(crate) fn is_shard(token: &str) -> bool {
    let number = token.strip_prefix(SHARD);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether all subjects that match `narrow` match `wide` too. Both patterns may hold wildcards.
///
/// ```
/// assert!(outbox_nats::covers("events.order.*.*", "events.order.*.placed"));
/// assert!(!outbox_nats::covers("events.order.*.placed", "events.order.>"));
/// ```
#[must_use]
pub fn covers(wide: &str, narrow: &str) -> bool {
    let (mut wide, mut narrow) = (wide.split('.'), narrow.split('.'));
    loop {
        match (wide.next(), narrow.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(wide), Some(narrow)) if wide == narrow => {}
            _ => return false,
        }
    }
}

/// Whether some subject matches both patterns. Both patterns may hold wildcards.
///
/// ```
/// assert!(outbox_nats::overlap("events.order.*.placed", "events.*.42.>"));
/// assert!(!outbox_nats::overlap("events.order.>", "events.cart.>"));
/// ```
#[must_use]
pub fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some(one), Some(other)) if one == other || one == "*" || other == "*" => {}
            _ => return false,
        }
    }
}

pub(crate) fn captures(subjects: &[String], pattern: &str) -> bool {
    subjects.iter().any(|subject| covers(subject, pattern))
}

pub(crate) fn without_covered(patterns: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut patterns: Vec<String> = patterns.into_iter().collect();
    patterns.sort();
    patterns.dedup();
    let all = patterns.clone();
    patterns.retain(|pattern| !all.iter().any(|other| other != pattern && covers(other, pattern)));
    patterns
}

/// Returns one pattern that covers all patterns, for servers with one filter per consumer. Returns
/// `None` without patterns.
pub(crate) fn narrowest_cover<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Option<String> {
    patterns.into_iter().map(str::to_owned).reduce(|a, b| {
        let (a, b): (Vec<&str>, Vec<&str>) = (a.split('.').collect(), b.split('.').collect());
        let open_ended = a.last() == Some(&">") || b.last() == Some(&">") || a.len() != b.len();
        // `>` matches one token or more, so the last token of the shorter pattern is also dropped.
        let kept = if open_ended {
            a.len().min(b.len()) - 1
        } else {
            a.len()
        };
        let mut tokens: Vec<&str> = a
            .iter()
            .zip(&b)
            .take(kept)
            .map(|(a, b)| if a == b { *a } else { "*" })
            .collect();
        if open_ended {
            tokens.push(">");
        }
        tokens.join(".")
    })
}

pub(crate) fn is_plain_name(name: &str) -> bool {
    (1..=255).contains(&name.len()) && name.bytes().all(is_plain)
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// Repeats the check of `NewMessage::check`, because a changed database row must not publish to
/// `$JS.API.…`.
fn is_literal_subject(subject: &str) -> bool {
    let legal = |c: char| !(c.is_whitespace() || c.is_control() || c == '*' || c == '>');
    !subject.starts_with('$')
        && subject.chars().all(legal)
        && subject.split('.').all(|token| !token.is_empty())
}

#[cfg(test)]
mod tests;
