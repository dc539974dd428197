//! Forwards methods of a subscriber from a test double.

/// Forwards methods to a wrapped subscriber, subscription or delivery: `__forward!(double =>
/// double.inner; facts, standing)`.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward {
    ($this:ident => $inner:expr; $($method:ident),+) => {
        $($crate::__forward!(@$method $this $inner);)+
    };
    (@subscribe $this:ident $inner:expr) => {
        async fn subscribe(
            &self,
            consumer: &$crate::__core::ConsumerSpec,
        ) -> Result<Self::Subscription, $crate::__core::SubscriberError> {
            let $this = self;
            $inner.subscribe(consumer).await
        }
    };
    (@facts $this:ident $inner:expr) => {
        async fn facts(&self) -> Result<$crate::__core::StreamFacts, $crate::__core::SubscriberError> {
            let $this = self;
            $inner.facts().await
        }
    };
    (@standing $this:ident $inner:expr) => {
        async fn standing(
            &self,
            consumer: &str,
        ) -> Result<Option<$crate::__core::ConsumerStanding>, $crate::__core::SubscriberError> {
            let $this = self;
            $inner.standing(consumer).await
        }
    };
    (@belongs $this:ident $inner:expr) => {
        fn belongs(
            &self,
            message: &$crate::__core::Message,
            subject: &str,
            fixed: Option<&[&'static str]>,
        ) -> bool {
            let $this = self;
            $inner.belongs(message, subject, fixed)
        }
    };
    (@next $this:ident $inner:expr) => {
        async fn next(&mut self) -> Result<Self::Delivery, $crate::__core::SubscriberError> {
            let $this = self;
            $inner.next().await
        }
    };
    (@backlog $this:ident $inner:expr) => {
        async fn backlog(&mut self) -> Result<u64, $crate::__core::SubscriberError> {
            let $this = self;
            $inner.backlog().await
        }
    };
    (@stop $this:ident $inner:expr) => {
        async fn stop(&mut self) -> Vec<Self::Delivery> {
            let $this = self;
            $inner.stop().await
        }
    };
    (@flush $this:ident $inner:expr) => {
        async fn flush(&mut self) -> Result<(), $crate::__core::SubscriberError> {
            let $this = self;
            $inner.flush().await
        }
    };
}
