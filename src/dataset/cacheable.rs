//! Samples that a cache can keep: how large they are, and how they are handed out again.

use std::path::PathBuf;

use crate::sync::Arc;
use crate::tensor::padded::Padded;
use crate::tensor::ragged::Ragged;
use crate::tensor::{Element, Host, Tensor};

/// A sample that [`Dataset::cached`](super::Dataset::cached) can keep: numbers, strings, vectors, `Arc`s of slices, [`Tensor`]s, [`Ragged`]
/// and [`Padded`] rows, arrays, `Option`s, tuples of up to eight, [`Host`] values, and your own types.
///
/// # Examples
///
/// A struct is the sum of its fields:
///
/// ```
/// use pinfeed::dataset::Cacheable;
/// use pinfeed::rng::RngKey;
/// use pinfeed::{Dataset, SampleRng, Tensor, from_fn};
///
/// #[derive(pinfeed::Sample)]
/// struct Example {
///     image: Tensor<u8>,
///     label: i64,
/// }
///
/// impl Cacheable for Example {
///     fn share(&self) -> Example {
///         Example { image: self.image.share(), label: self.label }
///     }
///
///     fn heap_bytes(&self) -> usize {
///         self.image.heap_bytes()
///     }
/// }
///
/// let examples = from_fn(10, |_, _| Ok(Example { image: Tensor::zeros(&[32, 32, 3]), label: 1 }));
/// let cached = examples.cached(1 << 20);
/// cached.get(3, &mut SampleRng::for_sample(RngKey { seed: 0, epoch: 0, position: 0 }))?;
/// assert!(cached.stats().bytes > 32 * 32 * 3);
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a cache cannot tell how large a `{Self}` is",
    note = "numbers, strings, vectors, Arc<[T]>, tensors and tuples of these can be cached; for a struct, implement pinfeed::dataset::Cacheable",
    note = "a LazyImage cannot: cache the bytes of its file, or its pixels as a Tensor, and make the image in a `map` after `cached`"
)]
pub trait Cacheable: Send + Sync + Sized + 'static {
    /// Makes another sample with the same content: a clone, or a view of the same memory. Called each time that a kept
    /// sample is asked for.
    fn share(&self) -> Self;

    /// The memory that the sample keeps allocated besides its own `size_of`, in bytes: the capacity of a vector, not its length.
    /// Called once, when the sample was loaded. Its sum is what the cache's budget limits.
    fn heap_bytes(&self) -> usize;
}

/// Cloned, without memory of their own.
macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Cacheable for $type {
            fn share(&self) -> $type {
                *self
            }

            fn heap_bytes(&self) -> usize {
                0
            }
        }
    )*};
}

plain!(
    u8,
    i8,
    i16,
    u16,
    i32,
    u32,
    i64,
    u64,
    usize,
    isize,
    half::f16,
    half::bf16,
    f32,
    f64,
    bool,
    char,
    (),
    &'static str
);

impl Cacheable for String {
    fn share(&self) -> String {
        self.clone()
    }

    fn heap_bytes(&self) -> usize {
        self.capacity()
    }
}

impl Cacheable for PathBuf {
    fn share(&self) -> PathBuf {
        self.clone()
    }

    fn heap_bytes(&self) -> usize {
        self.capacity()
    }
}

impl<A: Cacheable + Clone> Cacheable for Vec<A> {
    fn share(&self) -> Vec<A> {
        self.clone()
    }

    fn heap_bytes(&self) -> usize {
        (self.capacity() * size_of::<A>()).saturating_add(heap_bytes_of(self))
    }
}

/// Shared, not copied.
impl<A: Cacheable> Cacheable for Arc<[A]> {
    fn share(&self) -> Arc<[A]> {
        Arc::clone(self)
    }

    fn heap_bytes(&self) -> usize {
        let own = 2 * size_of::<usize>() + size_of_val(&**self);
        own.saturating_add(heap_bytes_of(self))
    }
}

/// What entries own. (Those that need no drop own nothing, and are not looked at.) A program's type may say anything, so the sum saturates.
fn heap_bytes_of<A: Cacheable>(entries: &[A]) -> usize {
    match std::mem::needs_drop::<A>() {
        true => {
            let each = entries.iter().map(A::heap_bytes);
            each.fold(0, usize::saturating_add)
        }
        false => 0,
    }
}

impl<A: Cacheable, const N: usize> Cacheable for [A; N] {
    fn share(&self) -> [A; N] {
        self.each_ref().map(A::share)
    }

    fn heap_bytes(&self) -> usize {
        heap_bytes_of(self)
    }
}

impl<A: Cacheable> Cacheable for Option<A> {
    fn share(&self) -> Option<A> {
        self.as_ref().map(A::share)
    }

    fn heap_bytes(&self) -> usize {
        self.as_ref().map_or(0, A::heap_bytes)
    }
}

impl<X: Cacheable> Cacheable for Host<X> {
    fn share(&self) -> Host<X> {
        Host(self.0.share())
    }

    fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

/// A view of the same memory: it cannot be written ([`Tensor::as_mut_slice`] is `None`) as long as the cache has it.
///
/// A tensor that shares its memory with others, such as a [row](Tensor::row) of one that the data set holds, counts as its own
/// elements. If nothing else holds that memory, all of it counts, for all of it stays allocated.
impl<T: Element> Cacheable for Tensor<T> {
    fn share(&self) -> Tensor<T> {
        self.view()
    }

    fn heap_bytes(&self) -> usize {
        self.held_bytes()
    }
}

/// As its [`Tensor`].
impl<T: Element> Cacheable for Ragged<T> {
    fn share(&self) -> Ragged<T> {
        self.view()
    }

    fn heap_bytes(&self) -> usize {
        self.rows().held_bytes()
    }
}

/// As its [`Tensor`].
impl<T: Element> Cacheable for Padded<T> {
    fn share(&self) -> Padded<T> {
        self.view()
    }

    fn heap_bytes(&self) -> usize {
        self.rows().held_bytes()
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+);)*) => {$(
        impl<$($name: Cacheable),+> Cacheable for ($($name,)+) {
            fn share(&self) -> Self {
                ($(self.$index.share(),)+)
            }

            fn heap_bytes(&self) -> usize {
                0usize$(.saturating_add(self.$index.heap_bytes()))+
            }
        }
    )*};
}

tuples! {
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
}
