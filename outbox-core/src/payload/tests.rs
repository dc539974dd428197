//! Tests of codecs: JSON, a custom codec, and CBOR.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::*;
use crate::event::{AggregateId, DomainEvent, EventDescriptor};
use crate::message::{Limits, NewMessage};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Measured<C> {
    sensor: u32,
    values: Vec<f32>,
    #[serde(skip)]
    codec: std::marker::PhantomData<C>,
}

impl<C> Measured<C> {
    fn new() -> Self {
        Self {
            sensor: 7,
            values: vec![0.5, -1.0],
            codec: std::marker::PhantomData,
        }
    }
}

impl<C: Encode<Self> + Send + Sync + 'static> DomainEvent for Measured<C> {
    const DESCRIPTORS: &'static [EventDescriptor] = &[EventDescriptor {
        version: 1,
        ..EventDescriptor::of_type("sensor", "measured")
    }];

    fn descriptor(&self) -> &'static EventDescriptor {
        &Self::DESCRIPTORS[0]
    }

    fn aggregate_id(&self) -> AggregateId {
        AggregateId::new(self.sensor.to_string())
    }

    fn dedup_key(&self) -> Option<String> {
        None
    }

    fn encode(&self) -> Result<Payload, CodecError> {
        with::<C, Self>(self)
    }
}

impl<C: Encode<Self> + Send + Sync + 'static> EventCodec for Measured<C> {
    type Codec = C;
}

#[derive(Debug, PartialEq)]
enum Floats {}

impl Codec for Floats {
    const CONTENT_TYPE: &'static str = "application/octet-stream";
}

impl Encode<Measured<Floats>> for Floats {
    fn encode(event: &Measured<Floats>) -> Result<Vec<u8>, CodecError> {
        Ok(event
            .values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect())
    }
}

impl Decode<Measured<Floats>> for Floats {
    fn decode(message: &Message) -> Result<Measured<Floats>, CodecError> {
        let (values, rest) = message.payload.as_chunks();
        if !rest.is_empty() {
            return Err("the length is no multiple of four".into());
        }
        Ok(Measured {
            sensor: message.aggregate.id.parse()?,
            values: values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            codec: std::marker::PhantomData,
        })
    }
}

fn message<E: DomainEvent>(event: &E) -> Message {
    let message = NewMessage::from_event(event).unwrap();
    message.check(&Limits::default()).unwrap();
    message.into_message(Some(1), OffsetDateTime::UNIX_EPOCH)
}

#[test]
fn without_a_codec_a_payload_is_the_json_that_it_always_was() {
    let message = message(&Measured::<Json>::new());
    assert_eq!(message.content_type, "application/json");
    assert_eq!(&*message.payload, br#"{"sensor":7,"values":[0.5,-1.0]}"#);
}

#[test]
fn a_codec_of_ones_own_writes_bytes_and_reads_what_the_message_says_besides() {
    let message = message(&Measured::<Floats>::new());
    assert_eq!(message.content_type, "application/octet-stream");
    assert_eq!(&*message.payload, [0, 0, 0, 63, 0, 0, 128, 191]);
    assert_eq!(decode::<Measured<Floats>>(&message).unwrap(), Measured::new());
}

#[test]
fn a_payload_of_another_content_type_is_not_decoded() {
    let message = message(&Measured::<Floats>::new());
    let error = decode::<Measured<Json>>(&message).map(|_| ()).unwrap_err();
    assert!(
        matches!(&error, PayloadError::ContentType { found, expected: "application/json" } if found == "application/octet-stream"),
        "{error}"
    );
}

#[test]
fn bytes_that_a_codec_refuses_are_an_error_with_its_reason() {
    let message = Message {
        payload: vec![1, 2, 3].into(),
        ..message(&Measured::<Floats>::new())
    };
    let error = decode::<Measured<Floats>>(&message).unwrap_err();
    assert!(
        error.to_string().ends_with("the length is no multiple of four"),
        "{error}"
    );
}

#[test]
fn media_types_are_compared_as_such() {
    for json in [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
    ] {
        assert!(is_serde(json), "{json}");
    }
    for other in [
        "",
        "text/plain",
        "application/jsonx",
        "application/cloudevents+json",
    ] {
        assert!(!is_serde(other), "{other}");
    }
}

#[cfg(feature = "cbor")]
mod cbor {
    use super::*;

    #[test]
    fn cbor_is_written_and_read() {
        let message = message(&Measured::<Cbor>::new());
        assert_eq!(message.content_type, "application/cbor");
        // A map of two: "sensor": 7, "values": [0.5, -1.0].
        let bytes = b"\xa2\x66sensor\x07\x66values\x82\xf9\x38\x00\xf9\xbc\x00";
        assert_eq!(&*message.payload, bytes);
        assert_eq!(decode::<Measured<Cbor>>(&message).unwrap(), Measured::new());
    }

    #[test]
    fn an_event_is_understood_before_and_after_its_producer_changed_from_json_to_cbor() {
        let (old, new) = (
            message(&Measured::<Json>::new()),
            message(&Measured::<Cbor>::new()),
        );
        for message in [&old, &new] {
            assert_eq!(decode::<Measured<Json>>(message).unwrap(), Measured::new());
            assert_eq!(decode::<Measured<Cbor>>(message).unwrap(), Measured::new());
        }
    }

    #[test]
    fn broken_cbor_is_an_error_without_its_values() {
        let deep = [vec![0x81; 100_000], vec![0]].concat();
        for (payload, reason) in [
            (b"".as_slice(), "ends in the middle"),
            (b"\xa2\x66sens", "ends in the middle"),
            (b"\x1c", "not CBOR at byte 0"),
            // A personal value of the wrong type.
            (b"\xa1\x66sensor\x66CANARY", "does not fit"),
            (b"\xa2\x66sensor\x07\x66values\x80\x00", "1 bytes follow"),
            (&deep, "does not fit"),
        ] {
            let message = Message {
                payload: payload.to_vec().into(),
                ..message(&Measured::<Cbor>::new())
            };
            let error = decode::<Measured<Cbor>>(&message).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("CANARY"), "{error}");
        }
        let error = super::super::from_serde::<serde_json::Value>(CBOR, &deep).unwrap_err();
        assert!(error.contains("nested more than 128 levels deep"), "{error}");
    }
}

#[test]
fn json_refuses_a_number_that_is_not_finite() {
    for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut event = Measured::<Json>::new();
        event.values.push(number);
        let error = NewMessage::from_event(&event).unwrap_err();
        let crate::EventError::Encode { event_type, source } = &error else {
            panic!("{error:?}");
        };
        let path = &source.downcast_ref::<NotFinite>().unwrap().path;
        assert_eq!(
            (event_type.as_str(), path.as_str()),
            ("sensor.measured", "values[2]")
        );
    }
}

#[cfg(feature = "cbor")]
#[test]
fn cbor_carries_a_number_that_is_not_finite() {
    let mut event = Measured::<Cbor>::new();
    event.values.extend([f32::NAN, f32::INFINITY]);
    let read = decode::<Measured<Cbor>>(&message(&event)).unwrap();
    assert!(read.values[2].is_nan() && read.values[3] == f32::INFINITY);
}
