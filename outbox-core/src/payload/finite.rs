//! Rejects NaN and infinity in JSON, which serde_json writes as `null`.

use std::fmt::{self, Write as _};

use serde::{Serialize, ser};

use super::CodecError;

/// NaN or infinity, which JSON cannot express.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the number at `{path}` is NaN or infinite, which JSON cannot express; leave the field out, or use an `Option`"
)]
pub struct NotFinite {
    /// Path of the number, without payload values: field and variant names, `[2]` for the third
    /// element, `{0}` for the first map entry, `.` for the whole value.
    pub path: String,
}

/// Writes JSON, and rejects NaN and infinity.
///
/// # Errors
///
/// [`NotFinite`], or serde_json's error.
#[doc(hidden)]
pub fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = serde_json::to_vec(value)?;
    // serde_json writes NaN and infinity as `null`. A payload without `null` therefore needs no
    // second pass.
    if bytes.windows(4).any(|word| word == b"null")
        && let Err(Stop::NotFinite(mut path)) = value.serialize(Finite)
    {
        path.reverse();
        let path = path.concat();
        let path = path.strip_prefix('.').unwrap_or(&path);
        let path = if path.is_empty() { "." } else { path }.to_owned();
        return Err(NotFinite { path }.into());
    }
    Ok(bytes)
}

#[derive(Debug)]
enum Stop {
    /// Path, innermost part first.
    NotFinite(Vec<String>),
    /// serde_json reports the error.
    Unwritable,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the search for numbers that are not finite has ended")
    }
}

impl std::error::Error for Stop {}

impl ser::Error for Stop {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Unwritable
    }
}

impl Stop {
    fn within(mut self, place: impl FnOnce() -> String) -> Self {
        if let Self::NotFinite(path) = &mut self {
            path.push(place());
        }
        self
    }
}

fn field(name: &str) -> String {
    format!(".{name}")
}

struct Finite;

#[derive(Default)]
struct Parts {
    variant: Option<&'static str>,
    seen: usize,
}

impl Parts {
    fn of(variant: &'static str) -> Self {
        Self {
            variant: Some(variant),
            seen: 0,
        }
    }

    fn look<T: Serialize + ?Sized>(
        &mut self,
        name: Option<&str>,
        brackets: [char; 2],
        part: &T,
    ) -> Result<(), Stop> {
        let place = self.seen;
        self.seen += 1;
        part.serialize(Finite).map_err(|stop| {
            stop.within(|| {
                let mut path = self.variant.map(field).unwrap_or_default();
                match name {
                    Some(name) => path.push_str(&field(name)),
                    None => {
                        let [open, close] = brackets;
                        let _ = write!(path, "{open}{place}{close}");
                    }
                }
                path
            })
        })
    }
}

const ELEMENT: [char; 2] = ['[', ']'];
const ENTRY: [char; 2] = ['{', '}'];

macro_rules! nothing_to_see {
    ($($method:ident: $kind:ty),* $(,)?) => {
        $(fn $method(self, _: $kind) -> Result<(), Stop> {
            Ok(())
        })*
    };
}

impl ser::Serializer for Finite {
    type Ok = ();
    type Error = Stop;
    type SerializeSeq = Parts;
    type SerializeTuple = Parts;
    type SerializeTupleStruct = Parts;
    type SerializeTupleVariant = Parts;
    type SerializeMap = Parts;
    type SerializeStruct = Parts;
    type SerializeStructVariant = Parts;

    nothing_to_see! {
        serialize_bool: bool,
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64,
        serialize_i128: i128,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_u128: u128,
        serialize_char: char,
        serialize_str: &str,
        serialize_bytes: &[u8],
        serialize_unit_struct: &'static str,
    }

    fn serialize_f32(self, number: f32) -> Result<(), Stop> {
        self.serialize_f64(number.into())
    }

    fn serialize_f64(self, number: f64) -> Result<(), Stop> {
        if number.is_finite() {
            Ok(())
        } else {
            Err(Stop::NotFinite(Vec::new()))
        }
    }

    fn serialize_none(self) -> Result<(), Stop> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Stop> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Stop> {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<(), Stop> {
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Stop> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Stop> {
        value
            .serialize(self)
            .map_err(|stop| stop.within(|| field(variant)))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Parts, Stop> {
        Ok(Parts::default())
    }

    fn serialize_tuple(self, _: usize) -> Result<Parts, Stop> {
        Ok(Parts::default())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Parts, Stop> {
        Ok(Parts::default())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Parts, Stop> {
        Ok(Parts::of(variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Parts, Stop> {
        Ok(Parts::default())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Parts, Stop> {
        Ok(Parts::default())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Parts, Stop> {
        Ok(Parts::of(variant))
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, _: &T) -> Result<(), Stop> {
        Ok(())
    }

    /// True as in serde_json, because some types serialize differently for binary formats.
    fn is_human_readable(&self) -> bool {
        true
    }
}

macro_rules! elements {
    ($($kind:ident :: $method:ident),* $(,)?) => {
        $(impl ser::$kind for Parts {
            type Ok = ();
            type Error = Stop;

            fn $method<T: Serialize + ?Sized>(&mut self, part: &T) -> Result<(), Stop> {
                self.look(None, ELEMENT, part)
            }

            fn end(self) -> Result<(), Stop> {
                Ok(())
            }
        })*
    };
}

elements!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field,
);

macro_rules! fields {
    ($($kind:ident),*) => {
        $(impl ser::$kind for Parts {
            type Ok = ();
            type Error = Stop;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, part: &T) -> Result<(), Stop> {
                self.look(Some(name), ELEMENT, part)
            }

            fn end(self) -> Result<(), Stop> {
                Ok(())
            }
        })*
    };
}

fields!(SerializeStruct, SerializeStructVariant);

/// serde_json rejects keys that are not finite. Keys may be personal data, so paths do not contain
/// them.
impl ser::SerializeMap for Parts {
    type Ok = ();
    type Error = Stop;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), Stop> {
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, part: &T) -> Result<(), Stop> {
        self.look(None, ENTRY, part)
    }

    fn end(self) -> Result<(), Stop> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Serialize)]
    struct Reading {
        site: Option<u32>,
        kind: Kind,
        levels: BTreeMap<&'static str, Vec<f32>>,
    }

    #[derive(Serialize)]
    enum Kind {
        Off,
        Single(f64),
        Pair(f64, f64),
        Named { value: Option<f64> },
    }

    fn path(kind: Kind, level: f32) -> Option<String> {
        let levels = BTreeMap::from([("a@example.com", vec![]), ("b@example.com", vec![0.5, level])]);
        let reading = Reading {
            site: None,
            kind,
            levels,
        };
        let error = to_json(&reading).err()?;
        Some(error.downcast_ref::<NotFinite>().unwrap().path.clone())
    }

    #[test]
    fn non_finite_numbers_are_reported_by_path() {
        let nan = f64::NAN;
        assert_eq!(path(Kind::Off, 1.0), None);
        assert_eq!(path(Kind::Named { value: None }, 1.0), None);
        for (kind, level, expected) in [
            (Kind::Off, f32::NAN, "levels{1}[1]"),
            (Kind::Off, f32::NEG_INFINITY, "levels{1}[1]"),
            (Kind::Single(nan), 1.0, "kind.Single"),
            (Kind::Pair(1.0, f64::INFINITY), 1.0, "kind.Pair[1]"),
            (Kind::Named { value: Some(nan) }, 1.0, "kind.Named.value"),
        ] {
            assert_eq!(path(kind, level).as_deref(), Some(expected));
        }
        let error = to_json(&nan).unwrap_err();
        assert_eq!(error.downcast_ref::<NotFinite>().unwrap().path, ".");
        assert!(!error.to_string().contains('@'));
    }

    #[test]
    fn finite_values_are_written_like_serde_json() {
        let value = serde_json::json!({"a": null, "b": [1.5, "null"], "c": {"d": -1e300}});
        assert_eq!(to_json(&value).unwrap(), serde_json::to_vec(&value).unwrap());
        assert!(to_json(&BTreeMap::from([((1, 2), 3)])).is_err());
    }
}
