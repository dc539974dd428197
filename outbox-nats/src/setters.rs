//! Writes the setters of settings.

/// Each `setter(field: type)` is a method that takes the value, converts it into the field's type, and returns `self`.
macro_rules! setters {
    ($($(#[$doc:meta])* $setter:ident($field:ident: $ty:ty),)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $setter(mut self, $field: $ty) -> Self {
            self.$field = $field.into();
            self
        }
    )*};
}
pub(crate) use setters;
