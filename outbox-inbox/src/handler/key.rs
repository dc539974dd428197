//! The business key of a message, for the strategy `key`.

use std::any::type_name;
use std::fmt::Display;

use outbox_core::Message;
use outbox_core::payload::{Decode, EventCodec};

use super::error::HandlerError;
use super::extract::Event;

const KEY_BYTES_MAX: usize = 1024;

/// Decodes the event of a message and computes its key.
///
/// # Errors
///
/// Fatal: a payload that cannot be decoded as `E`, an empty key, or a key that is too long.
#[doc(hidden)]
pub fn business_key<E: EventCodec>(
    message: &Message,
    key: impl FnOnce(&E) -> String,
) -> Result<String, HandlerError>
where
    E::Codec: Decode<E>,
{
    let Event(event) = Event::decode(message)?;
    let key = key(&event);
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(key);
    }
    Err(HandlerError::fatal(KeyError {
        rust_type: type_name::<E>(),
        bytes: key.len(),
    }))
}

/// The key as text.
#[doc(hidden)]
pub fn key_text<K: Display + ?Sized>(key: &K) -> String {
    key.to_string()
}

// The key may be personal data.
#[derive(Debug, thiserror::Error)]
#[error("business key of `{rust_type}` has {bytes} bytes, expected 1 to {KEY_BYTES_MAX}")]
struct KeyError {
    rust_type: &'static str,
    bytes: usize,
}

#[cfg(test)]
mod tests {
    use outbox_core::{DomainEvent, NewMessage};
    use serde::{Deserialize, Serialize};
    use time::OffsetDateTime;

    use super::*;

    #[derive(DomainEvent, Serialize, Deserialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        number: String,
    }

    fn message(number: &str) -> Message {
        let event = OrderPlaced {
            number: number.to_owned(),
        };
        NewMessage::from_event(&event)
            .unwrap()
            .into_message(Some(1), OffsetDateTime::UNIX_EPOCH)
    }

    fn key_of(message: &Message) -> Result<String, HandlerError> {
        business_key::<OrderPlaced>(message, |event| key_text(&event.number))
    }

    #[test]
    fn a_key_is_text_of_the_event() {
        assert_eq!(key_of(&message("A-7")).unwrap(), "A-7");
        assert_eq!(key_of(&message(&"ä".repeat(512))).unwrap().len(), 1024);
    }

    #[test]
    fn unusable_business_key_is_fatal() {
        for (number, bytes) in [(String::new(), 0), ("secret".repeat(200), 1200)] {
            let error = key_of(&message(&number)).unwrap_err();
            assert!(error.is_fatal());
            let text = error.to_string();
            assert!(text.starts_with("business key of `"), "{text}");
            assert!(
                text.ends_with(&format!("has {bytes} bytes, expected 1 to 1024")),
                "{text}"
            );
        }
    }

    #[test]
    fn undecodable_payload_has_no_key() {
        let mut message = message("A-7");
        message.payload = "{}".into();
        let error = key_of(&message).unwrap_err();
        assert!(error.is_fatal());
        assert!(error.to_string().contains("cannot be decoded"), "{error}");
    }
}
