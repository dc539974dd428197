//! Writes the setters of settings, for all crates.

/// Writes methods that take one setting, store it, and return `self`. The documentation of a setter without a name of its own points to its field.
///
/// | form | writes |
/// |---|---|
/// | `attempts_max: u32,` | `attempts_max(self, u32)`, which converts the value into the field's type |
/// | `fn with_max_age(max_age: Duration);` | `with_max_age(self, Duration)`, which does the same |
/// | `const batch: u32 as Some(batch),` | `batch(self, u32)`, a `const fn` that stores the expression |
#[doc(hidden)]
#[macro_export]
macro_rules! __setters {
    ($($(#[$doc:meta])* $field:ident: $ty:ty,)+) => {$(
        #[doc = concat!("Sets [`Self::", stringify!($field), "`](#structfield.", stringify!($field), ").")]
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $ty) -> Self {
            self.$field = $field.into();
            self
        }
    )+};
    ($($(#[$doc:meta])* fn $setter:ident($field:ident: $ty:ty $(, in $part:ident)?);)+) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $setter(mut self, $field: $ty) -> Self {
            self.$($part.)?$field = $field.into();
            self
        }
    )+};
    ($(const $field:ident: $ty:ty as $value:expr,)+) => {$(
        #[doc = concat!("Sets [`Self::", stringify!($field), "`](#structfield.", stringify!($field), ").")]
        #[must_use]
        pub const fn $field(mut self, $field: $ty) -> Self {
            self.$field = $value;
            self
        }
    )+};
}
