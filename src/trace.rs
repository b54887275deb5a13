//! Spans for `tracing`, if the feature is on.

/// Enters a span until the end of the enclosing block.
macro_rules! span {
    ($name:literal $(, $field:ident = $value:expr)*) => {
        #[cfg(feature = "tracing")]
        let _entered = tracing::trace_span!(target: "pinfeed", $name $(, $field = $value)*).entered();
        #[cfg(not(feature = "tracing"))]
        { $(let _ = &$value;)* }
    };
}

pub(crate) use span;
