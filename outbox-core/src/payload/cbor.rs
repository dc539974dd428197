//! CBOR through serde, one value per payload.
//!
//! Invariant: no error text quotes the payload.

use std::any::type_name;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::CodecError;

/// Content type of CBOR.
pub const CBOR: &str = "application/cbor";

/// Maximum nesting, as in serde_json: the parser is recursive.
const DEPTH_MAX: usize = 128;

pub(super) fn to_vec<T: Serialize + ?Sized>(event: &T) -> Result<Vec<u8>, CodecError> {
    let mut bytes = Vec::with_capacity(128);
    ciborium::into_writer(event, &mut bytes)?;
    Ok(bytes)
}

pub(super) fn from_slice<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    use ciborium::de::Error;
    let mut rest = payload;
    let read = ciborium::de::from_reader_with_recursion_limit(&mut rest, DEPTH_MAX);
    let value = read.map_err(|error| match error {
        Error::Io(_) => "CBOR ends in the middle of a value".to_owned(),
        Error::Syntax(at) => format!("not CBOR at byte {at}"),
        // serde's error text quotes values.
        Error::Semantic(Some(at), _) => format!("CBOR at byte {at} does not fit `{}`", type_name::<T>()),
        Error::Semantic(None, _) => format!("CBOR does not fit `{}`", type_name::<T>()),
        Error::RecursionLimitExceeded => format!("CBOR is nested more than {DEPTH_MAX} levels deep"),
    })?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(format!("{} bytes follow the CBOR value", rest.len()))
    }
}
