//! Spans: for `tracing`, and as ranges of NVTX for NVIDIA's profilers, if these features are on.

#[cfg(feature = "nvtx")]
#[expect(unsafe_code, reason = "it calls the profiler's library")]
pub(crate) mod nvtx;

/// Enters a span until the end of the enclosing block. The value of its last field (the batch, or what it is the number of) is the payload
/// of the range.
macro_rules! span {
    ($name:literal $(, $field:ident = $value:expr)*) => {
        #[cfg(feature = "tracing")]
        let _entered = tracing::trace_span!(target: "pinfeed", $name $(, $field = $value)*).entered();
        #[cfg(feature = "nvtx")]
        let _range = crate::trace::nvtx::Range::enter(concat!($name, "\0"), || [$($value as u64),*].last().copied());
        #[cfg(not(any(feature = "tracing", feature = "nvtx")))]
        { $(let _ = &$value;)* }
    };
}

pub(crate) use span;
