//! Batches that are given out more than once.

use super::Batch;
use crate::tensor::{Element, Host, PackedBatch, PaddedTensor, RaggedTensor, Tensor};

/// A batch that can be given out several times over the same memory, for [`DataLoader::replay`](crate::DataLoader::replay).
///
/// Tensors are shared, and what stays on the host is cloned. So batches of [`Tensor`]s and of `Vec`s and [`Host`]s of values that are
/// [`Clone`] can be shared, and so can tuples of them, and structs with `#[derive(pinfeed::Sample)]` or `#[derive(pinfeed::Batch)]`.
///
/// # Examples
///
/// For a batch that implements [`Batch`] by hand:
///
/// ```
/// # use pinfeed::collate::{Relocation, Tensors, Upload};
/// use pinfeed::collate::Share;
/// # use pinfeed::{Batch, DeviceTensor};
/// use pinfeed::Tensor;
///
/// struct Clips {
///     frames: Tensor<u8>,
///     names: Vec<String>,
/// }
/// #
/// # impl Batch for Clips {
/// #     type OnDevice = (DeviceTensor<u8>, Vec<String>);
/// #     fn tensors(&self, visit: &mut Tensors<'_>) { visit.add(&self.frames); }
/// #     fn relocate(self, slab: &mut Relocation) -> Self { Clips { frames: slab.tensor(self.frames), ..self } }
/// #     fn upload(self, upload: &mut Upload) -> Self::OnDevice { (upload.tensor(self.frames), self.names) }
/// # }
///
/// impl Share for Clips {
///     fn share(&self) -> Self {
///         Clips { frames: self.frames.share(), names: self.names.clone() }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be given out again and again",
    label = "this batch cannot be shared",
    note = "tensors can be shared, and Vec and pinfeed::Host of values that are Clone; so can tuples and derived structs of these",
    note = "for a batch of your own, implement pinfeed::collate::Share"
)]
pub trait Share: Batch {
    /// Returns the same batch over the same memory. While there are several, none of them can be written ([`Tensor::as_mut_slice`] is
    /// `None`).
    fn share(&self) -> Self;
}

impl<T: Element> Share for Tensor<T> {
    fn share(&self) -> Self {
        self.view()
    }
}

impl<X: Clone + Send + 'static> Share for Vec<X> {
    fn share(&self) -> Self {
        self.clone()
    }
}

impl<X: Clone + Send + 'static> Share for Host<X> {
    fn share(&self) -> Self {
        self.clone()
    }
}

impl Share for () {
    fn share(&self) -> Self {}
}

impl<T: Element> Share for RaggedTensor<T> {
    fn share(&self) -> Self {
        RaggedTensor {
            values: self.values.view(),
            offsets: self.offsets.view(),
        }
    }
}

impl<T: Element> Share for PaddedTensor<T> {
    fn share(&self) -> Self {
        PaddedTensor {
            values: self.values.view(),
            lengths: self.lengths.view(),
        }
    }
}

impl<T: Element> Share for PackedBatch<T> {
    fn share(&self) -> Self {
        PackedBatch {
            tokens: self.tokens.view(),
            position_ids: self.position_ids.view(),
            segment_ids: self.segment_ids.view(),
            mask: self.mask.view(),
            cu_seqlens: self.cu_seqlens.view(),
            max_seqlen: self.max_seqlen,
        }
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+);)*) => {$(
        impl<$($name: Share),+> Share for ($($name,)+) {
            fn share(&self) -> Self {
                ($(self.$index.share(),)+)
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
