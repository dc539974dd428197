//! Tests of codecs: JSON and a custom codec.

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
fn default_codec_writes_unchanged_json() {
    let message = message(&Measured::<Json>::new());
    assert_eq!(message.content_type, "application/json");
    assert_eq!(&*message.payload, br#"{"sensor":7,"values":[0.5,-1.0]}"#);
}

#[test]
fn custom_codec_writes_bytes_and_reads_the_envelope() {
    let message = message(&Measured::<Floats>::new());
    assert_eq!(message.content_type, "application/octet-stream");
    assert_eq!(&*message.payload, [0, 0, 0, 63, 0, 0, 128, 191]);
    assert_eq!(decode::<Measured<Floats>>(&message).unwrap(), Measured::new());
}

#[test]
fn foreign_content_type_is_not_decoded() {
    let message = message(&Measured::<Floats>::new());
    let error = decode::<Measured<Json>>(&message).map(|_| ()).unwrap_err();
    assert!(
        matches!(&error, PayloadError::ContentType { found, expected: "application/json" } if found == "application/octet-stream"),
        "{error}"
    );
}

#[test]
fn codec_error_keeps_the_reason() {
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
fn media_types_ignore_case_and_parameters() {
    for json in [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
    ] {
        assert!(is_media_type(json, JSON), "{json}");
    }
    for other in [
        "",
        "text/plain",
        "application/jsonx",
        "application/cloudevents+json",
    ] {
        assert!(!is_media_type(other, JSON), "{other}");
    }
}

#[test]
fn json_rejects_non_finite_numbers() {
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
