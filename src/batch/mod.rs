//! Batches: what a loader yields, and how they get to a device.

#[expect(unsafe_code, reason = "it cuts a slab into tensors")]
mod arena;
mod collate;
mod collate_fn;
mod packed;
mod padded;
mod ragged;
#[expect(unsafe_code, reason = "it cuts a slab into tensors")]
mod relocation;
mod share;
#[expect(unsafe_code, reason = "it promises that each row has one writer")]
mod stack;

pub use arena::Arena;
pub use collate::Collate;
pub(crate) use collate::{Failure, Needs, NotLoaded, Opening, Table, Took};
pub use collate_fn::CollateFn;
pub use packed::PackedDeviceBatch;
pub use padded::PaddedDeviceTensor;
pub use ragged::RaggedDeviceTensor;
pub use relocation::Relocation;
pub(crate) use relocation::relocated_bytes;
pub use share::Share;
pub use stack::Stack;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::device::{
    Assembly, Device, DeviceTensor, Rows, Target, Tensors, Undecoded, Unsent, Upload,
};
use crate::error::{Error, Result};
use crate::tensor::{Element, Host, Tensor};

/// What a loader yields: tensors, values that stay on the host, and tuples and structs of these.
///
/// [`Tensor`], [`RaggedTensor`](crate::ragged::RaggedTensor), [`PaddedTensor`](crate::padded::PaddedTensor), `Vec` and [`Host`] (which stay
/// on the host), tuples of up to eight elements and the batches that `#[derive(pinfeed::Sample)]` makes are batches. Derive it for your own
/// struct with `#[derive(pinfeed::Batch)]`. An implementation by hand lists the parts in the same order in each of the three methods.
///
/// # Examples
///
/// ```
/// use pinfeed::collate::{Relocation, Tensors, Upload};
/// use pinfeed::{Batch, Device, DeviceTensor, Tensor};
///
/// /// A batch of your own, made by a `collate_fn`.
/// struct Clips {
///     frames: Tensor<u8>,
///     names: Vec<String>,
/// }
///
/// impl Batch for Clips {
///     type OnDevice = (DeviceTensor<u8>, Vec<String>);
///
///     fn tensors(&self, visit: &mut Tensors<'_>) {
///         visit.add(&self.frames);
///     }
///
///     fn relocate(self, slab: &mut Relocation) -> Self {
///         Clips { frames: slab.tensor(self.frames), ..self }
///     }
///
///     fn upload(self, upload: &mut Upload) -> Self::OnDevice {
///         (upload.tensor(self.frames), self.names)
///     }
/// }
///
/// let clips = Clips { frames: Tensor::zeros(&[2, 8, 8]), names: vec!["a".into(), "b".into()] };
/// let (frames, names) = clips.to_device(&Device::cpu(), true)?;
/// assert_eq!(frames.shape()[0], names.len());
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch",
    label = "not a batch",
    note = "batches are made of pinfeed::Tensor, of Vec and pinfeed::Host (which stay on the host), tuples of these, and structs with #[derive(pinfeed::Batch)]",
    note = "a field of any other type stays on the host by #[pinfeed(host)]"
)]
pub trait Batch: Sized + Send + 'static {
    /// The batch on a device.
    type OnDevice: Send + 'static;

    /// Passes each host tensor of the batch to `visit`, in a fixed order.
    fn tensors(&self, visit: &mut Tensors<'_>);

    /// Moves each host tensor into the slab, in the order of [`tensors`](Batch::tensors).
    fn relocate(self, slab: &mut Relocation) -> Self;

    /// Takes each host tensor into the upload, in the order of [`tensors`](Batch::tensors).
    ///
    /// The copies are enqueued then, so it may lend the device tensors to kernels. In an epoch that goes to a device, it runs on whichever
    /// thread sends the batch. But if the device decodes pictures of the batch (`Decode::Device`, with the feature `nvjpeg`), it runs on
    /// the consumer's thread, when all of them are decoded and the program asks for the batch.
    fn upload(self, upload: &mut Upload) -> Self::OnDevice;

    /// Moves the batch to the device. Its host memory is reused once the copy is done.
    ///
    /// Tensors in one slab travel in one copy; one event follows all copies.
    ///
    /// # Synchronization
    ///
    /// With `non_blocking` the call returns at once, and the copy's event guards the device tensors:
    /// [`DeviceTensor::on`] makes a stream wait for it. Without, the call blocks until the copy is done. From pageable
    /// memory ([`Tensor::is_pinned`] is false) the call blocks until the source has been read, whatever `non_blocking`
    /// says: several threads copy large tensors through page-locked slabs of the device's ring, and the driver copies
    /// small ones (and, slowly, all of them if the ring has no room:
    /// [`MemoryStats::unstaged`](crate::device::MemoryStats::unstaged)).
    ///
    /// If the pool's budget is used up by tensors that were dropped but whose kernels have not finished, the call waits
    /// for the oldest of those.
    ///
    /// # Errors
    ///
    /// [`DeviceBudget`](crate::Error::DeviceBudget) if live device tensors hold the whole budget,
    /// [`Device`](crate::Error::Device) if the device failed.
    fn to_device(self, device: &Device, non_blocking: bool) -> Result<Self::OnDevice> {
        device.inner.sweep_with_batch();
        let mut tensors = Tensors::default();
        self.tensors(&mut tensors);
        let mut upload = Upload::start(&Target::from(device), tensors, None, true)?;
        let on_device = self.upload(&mut upload);
        if !non_blocking {
            upload.wait()?;
        }
        Ok(on_device)
    }
}

/// A batch all of whose copies are enqueued.
pub(crate) enum Whole<B: Batch> {
    There(B::OnDevice),
    /// Pictures of it are being decoded. [`Batch::upload`] may be the program's, and do anything with the device's tensors: it runs when
    /// they are made. Until then the host's tensors are kept, too, for it may read those.
    Later(Box<(B, Upload)>),
}

impl<B: Batch> Whole<B> {
    fn new(batch: B, mut upload: Upload, is_decoded: bool) -> Whole<B> {
        match is_decoded {
            true => Whole::There(batch.upload(&mut upload)),
            false => Whole::Later(Box::new((batch, upload))),
        }
    }

    /// The batch on the device, whose pictures are decoded. It may run code of the program's.
    pub(crate) fn upload(self) -> B::OnDevice {
        match self {
            Whole::There(there) => there,
            Whole::Later(later) => {
                let (batch, mut upload) = *later;
                batch.upload(&mut upload)
            }
        }
    }
}

/// A batch that was sent.
pub(crate) struct SentWhole<B: Batch> {
    pub(crate) whole: Whole<B>,
    /// What is still to be decoded.
    pub(crate) undecoded: Undecoded,
    /// How large its tensors are.
    pub(crate) bytes: usize,
}

/// Sends a batch to the device, or returns it with the error. `waits`: for device memory that the program gave back but
/// whose kernels have not finished.
pub(crate) fn send<B: Batch>(
    batch: B,
    target: &Target,
    rows: Rows,
    waits: bool,
) -> std::result::Result<SentWhole<B>, (Option<B>, Error)> {
    let mut tensors = Tensors::default();
    batch.tensors(&mut tensors);
    let bytes = tensors.size_bytes();
    match Upload::start(target, tensors, Some(rows), waits) {
        Ok(mut upload) => {
            let undecoded = upload.take_undecoded();
            Ok(SentWhole {
                whole: Whole::new(batch, upload, undecoded.is_empty()),
                undecoded,
                bytes,
            })
        }
        Err(error) => Err((Some(batch), error)),
    }
}

/// What came of a call, or how it panicked.
type Caught<T> = std::result::Result<T, Box<dyn Any + Send>>;

/// Sends several small batches to the device at once: each is the batch on the device, or how its `upload` panicked. Returns them if that
/// is not possible, for whatever reason, which shows when they are sent one by one.
pub(crate) fn send_all<B: Batch>(
    batches: Vec<B>,
    target: &Target,
) -> std::result::Result<Vec<Caught<B::OnDevice>>, Vec<B>> {
    // Unwind safety, here and below: a batch whose function panicked is only dropped.
    let shown = |batch: &B| {
        let mut tensors = Tensors::default();
        let shown = catch_unwind(AssertUnwindSafe(|| batch.tensors(&mut tensors)));
        shown.is_ok().then_some(tensors)
    };
    let Some(tensors) = batches.iter().map(shown).collect::<Option<Vec<_>>>() else {
        return Err(batches);
    };
    if tensors.iter().any(Tensors::has_pictures) {
        return Err(batches); // each is decoded on its own
    }
    let Ok(uploads) = Upload::start_all(target, tensors) else {
        return Err(batches);
    };
    let both = batches.into_iter().zip(uploads);
    let sent = both
        .map(|(batch, mut upload)| catch_unwind(AssertUnwindSafe(|| batch.upload(&mut upload))));
    Ok(sent.collect())
}

/// Takes device memory for the batch that this part belongs to. Waits for memory that the program gave back but whose
/// kernels have not finished.
pub(crate) fn begin_part<B: Batch>(part: &B, target: &Target, rows: Rows) -> Result<Assembly> {
    let mut tensors = Tensors::default();
    part.tensors(&mut tensors);
    Assembly::begin(target, &tensors, rows, true)
}

/// What is left of a part that was sent.
pub(crate) enum SentPart<B: Batch> {
    /// The part, whose copy is in flight. It may be the user's to drop. And what is still to be decoded of it.
    Part(B, Undecoded),
    /// It was the last one, and this is the batch.
    Whole(Whole<B>, Undecoded),
}

/// Which part of a batch is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) rows: Rows,
    /// All others were sent.
    pub(crate) is_last: bool,
    /// Pictures of others are, or were, left to the device's decoder.
    pub(crate) decodes: bool,
}

/// Sends a part of a batch to the device, or returns it with the error. Does not wait for device memory.
pub(crate) fn send_part<B: Batch>(
    part: B,
    target: &Target,
    Part {
        rows,
        is_last,
        decodes,
    }: Part,
    assembly: &mut Option<Assembly>,
) -> std::result::Result<SentPart<B>, (B, Unsent)> {
    let mut tensors = Tensors::default();
    part.tensors(&mut tensors);
    let begun = match assembly {
        Some(begun) => begun,
        None => match Assembly::begin(target, &tensors, rows, false) {
            Ok(begun) => assembly.insert(begun),
            Err(error) => return Err((part, Unsent::Failed(error))),
        },
    };
    match begun.send(tensors, rows) {
        Ok(mut upload) => {
            let undecoded = upload.take_undecoded();
            let is_decoded = !decodes && undecoded.is_empty();
            Ok(match is_last {
                true => SentPart::Whole(Whole::new(part, upload, is_decoded), undecoded),
                false => SentPart::Part(part, undecoded),
            })
        }
        Err(error) => Err((part, error)),
    }
}

impl<T: Element> Batch for Tensor<T> {
    type OnDevice = DeviceTensor<T>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        visit.add(self);
    }

    fn relocate(self, slab: &mut Relocation) -> Self {
        slab.tensor(self)
    }

    fn upload(self, upload: &mut Upload) -> DeviceTensor<T> {
        upload.tensor(self)
    }
}

/// Values that stay on the host.
impl<X: Send + 'static> Batch for Vec<X> {
    type OnDevice = Vec<X>;

    fn tensors(&self, _: &mut Tensors<'_>) {}

    fn relocate(self, _: &mut Relocation) -> Self {
        self
    }

    fn upload(self, _: &mut Upload) -> Vec<X> {
        self
    }
}

/// One value for the whole batch. It stays on the host. (A batch of `Host` *samples* is a `Vec` of their values.)
impl<X: Send + 'static> Batch for Host<X> {
    type OnDevice = Host<X>;

    fn tensors(&self, _: &mut Tensors<'_>) {}

    fn relocate(self, _: &mut Relocation) -> Self {
        self
    }

    fn upload(self, _: &mut Upload) -> Host<X> {
        self
    }
}

/// Nothing.
impl Batch for () {
    type OnDevice = ();

    fn tensors(&self, _: &mut Tensors<'_>) {}

    fn relocate(self, _: &mut Relocation) -> Self {}

    fn upload(self, _: &mut Upload) {}
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+);)*) => {$(
        impl<$($name: Batch),+> Batch for ($($name,)+) {
            type OnDevice = ($($name::OnDevice,)+);

            fn tensors(&self, visit: &mut Tensors<'_>) {
                $(self.$index.tensors(visit);)+
            }

            fn relocate(self, slab: &mut Relocation) -> Self {
                ($(self.$index.relocate(slab),)+)
            }

            fn upload(self, upload: &mut Upload) -> Self::OnDevice {
                ($(self.$index.upload(upload),)+)
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
