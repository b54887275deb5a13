//! Copying bytes past the processor's cache.

/// Copies bytes with non-temporal stores, if the processor has them: for targets of megabytes that this thread will not
/// read soon, such as slabs that a device is about to read.
///
/// An ordinary store first fetches the line that it writes, so a copy moves three bytes over the memory bus for each byte
/// copied. This one moves two, and leaves the cache to others
/// ([`STREAMED_COPY_BYTES`](crate::tuning::STREAMED_COPY_BYTES) has figures). Data that fits into the cache and is read
/// at once is better copied by ordinary stores.
///
/// When it returns, the stores are ordered like ordinary ones: they are visible to another thread that synchronizes
/// through a lock or a release store, and to a device after a call of its driver.
///
/// # Safety
///
/// `from` must be valid for reading `bytes`, and `to` for writing as many; they must not overlap.
pub(crate) unsafe fn copy_streaming(from: *const u8, to: *mut u8, bytes: usize) {
    // Miri does not support such stores.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if std::is_x86_feature_detected!("avx") {
            // SAFETY: the processor supports AVX; the rest is the caller's contract.
            unsafe { x86::copy_by_32(from, to, bytes) };
        } else {
            // SAFETY: every x86-64 processor has SSE2; the rest is the caller's contract.
            unsafe { x86::copy_by_16(from, to, bytes) };
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256,
    };
    use std::ptr::copy_nonoverlapping;

    /// Whole lines only: a partial line would be read, merged and written.
    const LINE: usize = 64;

    macro_rules! copy_by {
        ($name:ident, $feature:literal, $word:ty, $load:ident, $stream:ident) => {
            /// # Safety
            ///
            /// As `copy_streaming`; and the processor must have the feature.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(from: *const u8, to: *mut u8, bytes: usize) {
                /// Four words per step, to keep several loads in flight.
                const STEP: usize = 4 * size_of::<$word>();
                let head = (to as usize).wrapping_neg() % LINE;
                let head = head.min(bytes);
                let body = (bytes - head) / STEP * STEP;
                let tail = head + body;
                // SAFETY: the head lies within both ranges, which do not overlap.
                unsafe { copy_nonoverlapping(from, to, head) };
                let mut at = head;
                while at < tail {
                    // SAFETY: `at + STEP` is at most `tail`, so all four words lie within both ranges. Loads may be
                    // unaligned; stores are aligned, because `to + head` is, and steps are a multiple of a word.
                    unsafe {
                        let source = from.add(at).cast::<$word>();
                        let target = to.add(at).cast::<$word>();
                        let words = (
                            $load(source),
                            $load(source.add(1)),
                            $load(source.add(2)),
                            $load(source.add(3)),
                        );
                        $stream(target, words.0);
                        $stream(target.add(1), words.1);
                        $stream(target.add(2), words.2);
                        $stream(target.add(3), words.3);
                    }
                    at += STEP;
                }
                // SAFETY: the tail lies within both ranges.
                unsafe { copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail) };
                // A release store or lock of this thread does not wait for non-temporal stores. Without the fence, a
                // thread that is told the bytes are there could still read the old ones.
                #[allow(
                    unused_unsafe,
                    reason = "safe in newer Rust than the oldest that is served"
                )]
                // SAFETY: it only orders stores; every x86-64 processor has it.
                unsafe {
                    _mm_sfence();
                }
            }
        };
    }

    copy_by!(
        copy_by_32,
        "avx",
        __m256i,
        _mm256_loadu_si256,
        _mm256_stream_si256
    );
    copy_by!(
        copy_by_16,
        "sse2",
        __m128i,
        _mm_loadu_si128,
        _mm_stream_si128
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    /// All implementations that this processor can run.
    fn ways() -> Vec<Copy> {
        #[cfg_attr(not(all(target_arch = "x86_64", not(miri))), expect(unused_mut))]
        let mut ways: Vec<Copy> = vec![copy_streaming];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            ways.push(|from, to, bytes| {
                // SAFETY: every x86-64 processor has SSE2; the rest is the caller's contract.
                unsafe { x86::copy_by_16(from, to, bytes) }
            });
        }
        ways
    }

    /// Copies within larger buffers, and compares the whole target: the bytes around the range must not change.
    fn check(from: usize, to: usize, bytes: usize) {
        let source: Vec<u8> = (0..from + bytes)
            .map(|at| (at * 7 + at / 251) as u8)
            .collect();
        for copy in ways() {
            let mut target = vec![0xEE; to + bytes + 64];
            let mut expected = target.clone();
            expected[to..to + bytes].copy_from_slice(&source[from..]);
            // SAFETY: both ranges lie inside two different vectors.
            unsafe { copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), bytes) };
            assert!(target == expected, "{bytes} bytes from {from} to {to}");
        }
    }

    #[test]
    fn every_alignment_and_small_size_is_copied() {
        for to in 0..66 {
            for bytes in 0..300 {
                check((to * 5 + bytes) % 67, to, bytes);
            }
        }
    }

    proptest! {
        #[test]
        fn any_range_is_copied(from in 0..130usize, to in 0..130usize, bytes in 0..100_000usize) {
            check(from, to, bytes);
        }
    }
}
