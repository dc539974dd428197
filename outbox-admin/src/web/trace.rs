//! Links from a message to its trace in another program.
//!
//! Invariant: an address is only made of a trace id that the W3C's form allows: 32 hexadecimal digits, not all of them zero. What else a header holds never
//! reaches a link.

/// The address of a trace, with `{trace_id}` where its id belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceLink(String);

/// Why an address cannot be that of traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceLinkError {
    /// It is neither `http` nor `https`.
    #[error("the address of traces begins with `https://` or `http://`")]
    Scheme,
    /// It has no place for the id.
    #[error("the address of traces has no `{{trace_id}}`; write it where the id of the trace belongs")]
    Place,
}

const PLACE: &str = "{trace_id}";

impl TraceLink {
    /// An address such as `https://traces.example.org/trace/{trace_id}`.
    ///
    /// # Errors
    ///
    /// [`TraceLinkError`].
    pub fn new(address: impl Into<String>) -> Result<Self, TraceLinkError> {
        let address = address.into();
        if !address.starts_with("https://") && !address.starts_with("http://") {
            return Err(TraceLinkError::Scheme);
        }
        if !address.contains(PLACE) {
            return Err(TraceLinkError::Place);
        }
        Ok(Self(address))
    }

    /// The address of the trace that a `traceparent` names.
    pub(super) fn of(&self, traceparent: &str) -> Option<String> {
        Some(self.0.replace(PLACE, trace_id(traceparent)?))
    }
}

/// `00-<32 digits>-<16 digits>-<2 digits>`; a later version may have more parts.
fn trace_id(traceparent: &str) -> Option<&str> {
    let id = traceparent.split('-').nth(1)?;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_id = id.len() == 32 && id.bytes().all(is_digit) && id.bytes().any(|byte| byte != b'0');
    is_id.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_a_scheme_and_a_place() {
        assert_eq!(
            TraceLink::new("javascript:{trace_id}"),
            Err(TraceLinkError::Scheme)
        );
        assert_eq!(TraceLink::new("https://x/"), Err(TraceLinkError::Place));
    }

    #[test]
    fn only_an_id_of_the_right_form_becomes_a_link() {
        let link = TraceLink::new("https://t/{trace_id}?x").expect("an address");
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let shown = link.of(&format!("00-{id}-00f067aa0ba902b7-01"));
        assert_eq!(shown, Some(format!("https://t/{id}?x")));
        for wrong in [
            "",
            "00",
            "00-4bf9-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-\"><script>x</script>xxxxxxxxxxxxxx-1-1",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(link.of(wrong), None, "{wrong}");
        }
    }
}
