//! Random numbers from a range.

use std::ops::{Range, RangeInclusive};

use super::SampleRng;

/// A range that [`SampleRng::range`] draws from: `a..b` or `a..=b`, of integers of up to 64 bits, `f32` or `f64`. The
/// trait is sealed.
///
/// # Examples
///
/// In [`SampleRng::range`](crate::SampleRng::range).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a range to draw a number from",
    label = "not `a..b` or `a..=b` of numbers",
    note = "both ends are integers of up to 64 bits, f32 or f64, of one type"
)]
pub trait NumberRange: sealed::Range {
    /// The type of the numbers.
    type Number;

    /// Draws a number from the range.
    #[doc(hidden)]
    fn draw(self, rng: &mut SampleRng) -> Self::Number;
}

mod sealed {
    use super::SampleRng;

    pub trait Range {}

    /// A number that can be drawn from a range.
    pub trait Number: Copy + PartialOrd {
        /// Draws from `start` to `end`, excluding `end`.
        fn below(rng: &mut SampleRng, start: Self, end: Self) -> Self;

        /// Draws from `start` to `end`, including `end`.
        fn up_to(rng: &mut SampleRng, start: Self, end: Self) -> Self;
    }

    impl<T: Number> Range for std::ops::Range<T> {}
    impl<T: Number> Range for std::ops::RangeInclusive<T> {}
}

use sealed::Number;

impl<T: Number> NumberRange for Range<T> {
    type Number = T;

    #[inline]
    fn draw(self, rng: &mut SampleRng) -> T {
        T::below(rng, self.start, self.end)
    }
}

impl<T: Number> NumberRange for RangeInclusive<T> {
    type Number = T;

    #[inline]
    fn draw(self, rng: &mut SampleRng) -> T {
        T::up_to(rng, *self.start(), *self.end())
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            #[inline]
            fn below(rng: &mut SampleRng, start: $type, end: $type) -> $type {
                assert!(start < end, "there is no whole number in {start}..{end}");
                // In 64 bits the difference is right for all signs, and the result fits the type again.
                let width = (end as u64).wrapping_sub(start as u64);
                start.wrapping_add(rng.below(width) as $type)
            }

            #[inline]
            fn up_to(rng: &mut SampleRng, start: $type, end: $type) -> $type {
                assert!(start <= end, "there is no whole number in {start}..={end}");
                let width = (end as u64).wrapping_sub(start as u64);
                let drawn = match width.checked_add(1) {
                    Some(bound) => rng.below(bound),
                    None => rng.next_u64(),
                };
                start.wrapping_add(drawn as $type)
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);

macro_rules! floats {
    ($($type:ident: $steps:expr, $bits:expr;)*) => {$(
        impl Number for $type {
            #[inline]
            fn below(rng: &mut SampleRng, start: $type, end: $type) -> $type {
                let drawn = start + width(start, end) * rng.$type();
                // If the ends are close together, the sum may round up to the end.
                if drawn < end { drawn } else { end.next_down().max(start) }
            }

            #[inline]
            fn up_to(rng: &mut SampleRng, start: $type, end: $type) -> $type {
                let unit = $bits(rng) as $type / ($steps - 1) as $type;
                (start + width(start, end) * unit).min(end)
            }
        }
    )*};
}

floats! {
    f32: 1u32 << 24, |rng: &mut SampleRng| rng.next_u32() >> 8;
    f64: 1u64 << 53, |rng: &mut SampleRng| rng.next_u64() >> 11;
}

/// The width of the range.
#[inline]
fn width<T>(start: T, end: T) -> T
where
    T: Number + std::ops::Sub<Output = T> + std::fmt::Debug + Into<f64>,
{
    let width = end - start;
    assert!(
        start <= end && width.into().is_finite(),
        "there is no number to draw from {start:?} to {end:?}"
    );
    width
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RngKey;

    fn rng() -> SampleRng {
        SampleRng::for_sample(RngKey {
            seed: 1,
            epoch: 2,
            position: 3,
        })
    }

    /// The results of a fixed number of draws.
    fn draws<R: NumberRange + Clone>(range: R) -> Vec<R::Number> {
        let mut rng = rng();
        (0..2_000).map(|_| rng.range(range.clone())).collect()
    }

    #[test]
    fn every_integer_of_a_range_comes_up_and_no_other() {
        fn seen<R: NumberRange<Number: Ord> + Clone>(range: R) -> Vec<R::Number> {
            let mut seen = draws(range);
            seen.sort_unstable();
            seen.dedup();
            seen
        }
        assert_eq!(seen(0..3), [0, 1, 2]);
        assert_eq!(seen(-2..=2), [-2, -1, 0, 1, 2]);
        assert_eq!(seen(250u8..=255), [250, 251, 252, 253, 254, 255]);
        assert_eq!(seen(i64::MIN..i64::MIN + 2), [i64::MIN, i64::MIN + 1]);
        assert_eq!(seen(7usize..=7), [7]);
        assert_eq!(seen(i8::MIN..=i8::MAX).len(), 256);
        assert_eq!(seen(-100i8..100).len(), 200);
    }

    #[test]
    fn the_widest_ranges_are_drawn_from_evenly() {
        for draw in [
            |rng: &mut SampleRng| rng.range(0..=u64::MAX) >> 63,
            |rng: &mut SampleRng| rng.range(0..u64::MAX) >> 63,
            |rng: &mut SampleRng| u64::from(rng.range(i64::MIN..=i64::MAX) >= 0),
            |rng: &mut SampleRng| u64::from(rng.range(isize::MIN..isize::MAX) >= 0),
        ] {
            let mut rng = rng();
            let ones: u64 = (0..2_000).map(|_| draw(&mut rng)).sum();
            assert!((900..1_100).contains(&ones), "{ones}");
        }
    }

    #[test]
    fn types_follow_from_where_the_number_goes() {
        let words = ["a", "b", "c"];
        let word = words[rng().range(0..words.len())];
        assert_eq!(word, words[rng().below(3) as usize]); // the same number
        assert!(words.contains(&words[rng().range(0..3)]));
        let label: i64 = rng().range(0..10);
        let scale: f32 = rng().range(0.5..2.0);
        assert!((0..10).contains(&label) && (0.5..2.0).contains(&scale));
    }

    /// Numbers for fixed seeds must never change.
    #[test]
    fn floats_are_drawn_as_ever() {
        let by_hand = 0.08 + (1.0 - 0.08) * rng().f64();
        assert_eq!(rng().range(0.08..1.0), by_hand);
    }

    #[test]
    fn floats_keep_to_their_range() {
        assert!(draws(-1.0..1.0f64).iter().all(|x| (-1.0..1.0).contains(x)));
        assert!(
            draws(-1.0..=1.0f32)
                .iter()
                .all(|x| (-1.0..=1.0).contains(x))
        );
        let next = 1.0f32.next_up();
        assert!(draws(1.0..next).iter().all(|x| *x == 1.0));
        let both = draws(1.0..=next);
        assert!(both.contains(&1.0) && both.contains(&next));
        assert_eq!(rng().range(2.0..2.0), 2.0); // no width, as a strength of zero asks for
        assert_eq!(rng().range(2.0f32..=2.0), 2.0);
    }

    #[test]
    fn an_empty_range_panics_and_says_so() {
        fn message<R: NumberRange + std::panic::UnwindSafe>(range: R) -> String {
            let panic = std::panic::catch_unwind(|| drop(rng().range(range))).unwrap_err();
            crate::error::panic_message(panic)
        }
        assert_eq!(message(3..3), "there is no whole number in 3..3");
        assert!(message(RangeInclusive::new(4u8, 3)).contains("4..=3"));
        assert!(message(1.0..0.5).contains("from 1.0 to 0.5"));
        assert!(message(0.0..f64::NAN).contains("NaN"));
        assert!(message(0.0..=f32::INFINITY).contains("inf"));
        assert!(message(f64::MIN..f64::MAX).contains("no number"));
    }
}
