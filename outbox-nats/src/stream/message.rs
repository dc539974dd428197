//! Reads single messages of a stream through the JSON API.
//!
//! async-nats closes the connection at a delivery that it cannot parse, for example a header that
//! is not UTF-8. The JSON API encodes subject and headers, so every message is readable. Invariant:
//! [`RawMessage::breaks_client`] marks messages that async-nats cannot receive; their invalid
//! headers are left out.

use std::str::FromStr as _;

use async_nats::header::{HeaderName, HeaderValue};
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{Context, RequestError};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use async_nats::{HeaderMap, StatusCode, jetstream};
use bytes::Bytes;
use data_encoding::BASE64;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

#[derive(Debug, Clone)]
pub(crate) struct RawMessage {
    pub(crate) subject: String,
    pub(crate) stream_sequence: u64,
    pub(crate) stored_at: OffsetDateTime,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
    /// async-nats closes the connection at a delivery of this message, or takes the delivery for a
    /// server status.
    pub(crate) breaks_client: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RawError {
    #[error("no answer about a message of the stream")]
    Request(#[from] RequestError),
    #[error("the server rejects the read of a stream message: {0}")]
    Refused(String),
    #[error("the answer about a message of the stream is malformed")]
    Malformed,
}

pub(crate) async fn next(
    context: &Context,
    stream: &str,
    from: u64,
    subject: &str,
) -> Result<Option<RawMessage>, RawError> {
    let request = serde_json::json!({ "seq": from, "next_by_subj": subject });
    get(context, stream, &request).await
}

pub(crate) async fn at(
    context: &Context,
    stream: &str,
    stream_sequence: u64,
) -> Result<Option<RawMessage>, RawError> {
    get(context, stream, &serde_json::json!({ "seq": stream_sequence })).await
}

/// Reads the last message of a subject from the stream's leader, because a replica may lag.
pub(crate) async fn last(
    context: &Context,
    stream: &str,
    subject: &str,
) -> Result<Option<StreamMessage>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = context.get_stream_no_info(stream).await?;
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(last) => Ok(Some(last)),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn get(context: &Context, stream: &str, request: &Value) -> Result<Option<RawMessage>, RawError> {
    let api = format!("STREAM.MSG.GET.{stream}");
    read(&context.request(api, request).await?)
}

fn read(answer: &Value) -> Result<Option<RawMessage>, RawError> {
    if let Some(error) = answer.get("error") {
        // A missing stream has the same `code`, 404.
        return match error["err_code"].as_u64().map(ErrorCode) {
            Some(ErrorCode::NO_MESSAGE_FOUND) => Ok(None),
            _ => Err(RawError::Refused(error["description"].to_string())),
        };
    }
    decode(&answer["message"]).map(Some).ok_or(RawError::Malformed)
}

fn decode(message: &Value) -> Option<RawMessage> {
    let subject = message["subject"].as_str()?.to_owned();
    let bytes = |name: &str| match message.get(name) {
        Some(text) => BASE64.decode(text.as_str()?.as_bytes()).ok(),
        None => Some(Vec::new()),
    };
    let block = bytes("hdrs")?;
    let (headers, are_whole) = parse(&block);
    Some(RawMessage {
        stream_sequence: message["seq"].as_u64()?,
        stored_at: OffsetDateTime::parse(message["time"].as_str()?, &Rfc3339).ok()?,
        headers,
        payload: bytes("data")?.into(),
        // The server replaces non-UTF-8 bytes of a subject. In async-nats, white space ends a
        // subject.
        breaks_client: !are_whole
            || subject.contains(|c: char| c == char::REPLACEMENT_CHARACTER || c.is_whitespace()),
        subject,
    })
}

/// Parses a header block. Returns also whether async-nats parses the block as exactly these headers
/// and no status.
fn parse(block: &[u8]) -> (HeaderMap, bool) {
    let mut headers = HeaderMap::new();
    if block.is_empty() {
        return (headers, true);
    }
    let mut are_whole = std::str::from_utf8(block).is_ok();
    let mut lines = block
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    are_whole &= lines.next().map(<[u8]>::trim_ascii_end) == Some(b"NATS/1.0");
    let mut last: Option<(HeaderName, String)> = None;
    let add = |headers: &mut HeaderMap, header: Option<(HeaderName, String)>| {
        if let Some((name, value)) = header {
            headers.append(name, HeaderValue::from(value.trim()));
        }
    };
    for line in lines.filter(|line| !line.is_empty()) {
        let Ok(line) = std::str::from_utf8(line) else {
            are_whole = false;
            continue;
        };
        if line.starts_with(char::is_whitespace) {
            match &mut last {
                Some((_, value)) if !line.contains(['\r', '\0']) => value.push_str(line),
                _ => {
                    are_whole = false;
                    last = None;
                }
            }
            continue;
        }
        add(&mut headers, last.take());
        last = line.split_once(':').and_then(|(name, value)| {
            let name = HeaderName::from_str(name).ok().filter(|_| !name.is_empty())?;
            let value = value.trim_start();
            (!value.contains(['\r', '\0'])).then(|| (name, value.to_owned()))
        });
        are_whole &= last.is_some();
    }
    add(&mut headers, last);
    (headers, are_whole)
}

impl RawMessage {
    pub(crate) fn into_delivery(self, context: &Context, stream: &str, consumer: &str) -> jetstream::Message {
        let stored_at = self.stored_at.unix_timestamp_nanos();
        let reply = format!(
            "$JS.ACK.{stream}.{consumer}.1.{}.0.{stored_at}.0",
            self.stream_sequence
        );
        jetstream::Message {
            message: async_nats::Message {
                length: self.payload.len(),
                subject: self.subject.into(),
                reply: Some(reply.into()),
                payload: self.payload,
                headers: Some(self.headers),
                status: Some(StatusCode::OK),
                description: None,
            },
            context: context.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(headers: &HeaderMap) -> Vec<String> {
        let mut names: Vec<_> = headers.iter().map(|(name, _)| name.to_string()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_a_missing_message_is_none() {
        let of = |code| read(&serde_json::json!({ "error": { "code": 404, "err_code": code } }));
        assert!(matches!(of(10037), Ok(None)));
        assert!(matches!(of(10059), Err(RawError::Refused(_))), "stream not found");
    }

    #[test]
    fn headers_that_async_nats_parses_are_whole() {
        for block in [
            &b""[..],
            b"NATS/1.0\r\n\r\n",
            b"NATS/1.0\r\na: b\r\n\r\n",
            b"NATS/1.0\r\na:\r\nb: c: d\r\n\r\n",
            "NATS/1.0\r\na: ü\r\n\r\n".as_bytes(),
        ] {
            assert!(parse(block).1, "{}", block.escape_ascii());
        }
    }

    #[test]
    fn headers_that_async_nats_refuses_are_left_out() {
        for bad in [
            &b"X-Bad: \xff\xfe"[..],
            b"no colon",
            b"\xff: x",
            b"a b: x",
            "ü: x".as_bytes(),
            b": x",
            b"a: x\ry",
            b"a: x\r\n y\rz",
        ] {
            let block = [b"NATS/1.0\r\ngood: 1\r\n", bad, b"\r\nalso: 2\r\n\r\n"].concat();
            let (headers, are_whole) = parse(&block);
            assert!(!are_whole, "{}", bad.escape_ascii());
            assert_eq!(names(&headers), ["also", "good"], "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn status_of_a_sender_is_no_server_status() {
        for line in ["NATS/1.0 503", "NATS/1.0 404 No Messages", "NATS/2.0", "x"] {
            let block = format!("{line}\r\na: b\r\n\r\n");
            let (headers, are_whole) = parse(block.as_bytes());
            assert!(!are_whole, "{line}");
            assert_eq!(names(&headers), ["a"], "{line}");
        }
    }
}
