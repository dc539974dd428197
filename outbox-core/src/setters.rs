//! The macro for setters of settings, used by all crates.

/// Generates methods that set one field and return `self`.
///
/// | form | generates |
/// |---|---|
/// | `attempts_max: u32,` | `attempts_max(self, u32)`, converts to the field's type |
/// | `fn with_max_age(max_age: Duration);` | `with_max_age(self, Duration)`, likewise |
/// | `const batch: u32 as Some(batch),` | `batch(self, u32)`, a `const fn` with the expression |
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
