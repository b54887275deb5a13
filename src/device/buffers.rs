//! Device memory at addresses that stay: batch after batch lies in the same few buffers, in turn.
//!
//! A buffer is handed out when its turn has come (in any order: when no batch lies in it) and the last users of the batch that lay in it
//! are done, so copies into it wait for nothing, as with the pool's memory. Its tensors' places follow from the first batch, with room
//! for the largest one of an epoch.

use std::fmt;

use super::block::DeviceBlock;
use super::buffer_set::{BufferSet, Home, Layout, Order, Passing, Size};
use super::handle::Device;
use crate::error::Result;
use crate::meter::Meter;
use crate::sync::Arc;
use crate::tensor::Shape;

/// A few buffers in device memory, in which batches lie in turn, at addresses that stay: what a captured CUDA graph needs.
///
/// Name them where a device could be named: [`Epoch::prefetch_to_device`](crate::loader::Epoch::prefetch_to_device),
/// [`Epochs::prefetch_to_device`](crate::loader::Epochs::prefetch_to_device), [`Epoch::split`](crate::loader::Epoch::split). The first
/// batch fills the first buffer, the next one the next, and after the last buffer it is the first one's turn again, across epochs too. So
/// there are as many addresses as buffers, and a program captures as many graphs.
///
/// With [`in_order(false)`](crate::loader::Builder::in_order), a batch takes the next buffer in which no batch lies, and batches that are
/// sent at once may arrive in reverse order. So go by the address, and do not count.
///
/// At most one batch less than there are buffers is sent ahead, whatever `depth` says. With two, the next batch travels while one is
/// used. A buffer is written again after the batch that it held was dropped, and the kernels are done that used it.
///
/// Iterate one epoch at a time with the same buffers: what is sent ahead for another one lies in them, too, such as the first batches of
/// the next epoch of [`epochs`](crate::DataLoader::epochs).
///
/// The first batch determines where in the buffers each of its tensors lies; memory is taken when it comes, and given back with the last
/// clone of this handle and the last batch. There is room for as many rows as the largest batch of the epoch has, even if the first one has
/// fewer (a run was resumed at an epoch's last batch, or bad samples were left out). Tensors that have no row for each sample, such as
/// [`Ragged`](crate::ragged::Ragged) ones, have as much room as they needed in the first batch.
///
/// # Errors
///
/// A batch is [`Error::Buffers`](crate::Error::Buffers) if one of its tensors is larger than that, or if the batch that lies in its
/// buffer is still held: drop each batch before you ask for the next.
///
/// # Examples
///
/// ```
/// use std::collections::HashMap;
///
/// use pinfeed::device::DeviceBuffers;
/// use pinfeed::{DataLoader, Device, from_fn};
///
/// let device = Device::cpu(); // or Device::cuda(0)?
/// let stream = device.stream()?;
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok([index as f32; 8])))
///     .batch_size(10)
///     .drop_last(true) // a graph's shapes stay what they are
///     .num_workers(2)
///     .pin_memory(&device)
///     .build()?;
///
/// let buffers = DeviceBuffers::new(&device, 2)?;
/// let mut graphs = HashMap::new();
/// for epoch in loader.epochs(0..3).prefetch_to_device(&buffers, 1) {
///     for batch in epoch {
///         let batch = batch?;
///         let x = batch.on(&stream)?;
///         let graph = graphs.entry(x.address()).or_insert_with(|| "capture the step here, for this address");
///         // launch the graph on the stream here
///         # let _ = graph;
///     }
/// }
/// assert_eq!(graphs.len(), 2);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct DeviceBuffers {
    device: Device,
    set: Arc<BufferSet>,
}

/// Where the batches of an epoch go: a device, or buffers on it. `&Device` and `&DeviceBuffers` can be named in its place.
///
/// # Examples
///
/// A program that captures graphs only where there are any:
///
/// ```
/// use pinfeed::device::{DeviceBuffers, Target};
/// use pinfeed::{DataLoader, Device, from_fn};
///
/// fn target(device: &Device, captures: bool) -> pinfeed::Result<Target> {
///     Ok(match captures {
///         true => Target::from(&DeviceBuffers::new(device, 2)?),
///         false => Target::from(device),
///     })
/// }
///
/// let device = Device::cpu();
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64))).batch_size(10).build()?;
/// let batches = loader.epoch(0).prefetch_to_device(&target(&device, false)?, 1);
/// assert_eq!(batches.count(), 10);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Target(Place);

#[derive(Debug, Clone)]
enum Place {
    Pool(Device),
    /// These, in this order.
    Buffers(DeviceBuffers, Order),
}

impl From<&Device> for Target {
    fn from(device: &Device) -> Target {
        Target(Place::Pool(device.clone()))
    }
}

impl From<&DeviceBuffers> for Target {
    fn from(buffers: &DeviceBuffers) -> Target {
        Target(Place::Buffers(buffers.clone(), Order::InTurn))
    }
}

impl From<&Target> for Target {
    fn from(target: &Target) -> Target {
        target.clone()
    }
}

impl Target {
    pub(crate) fn device(&self) -> &Device {
        match &self.0 {
            Place::Pool(device) => device,
            Place::Buffers(buffers, _) => &buffers.device,
        }
    }

    /// The same, for batches that come to the program in any order.
    pub(crate) fn in_any_order(&self) -> Target {
        match &self.0 {
            Place::Buffers(buffers, _) => Target(Place::Buffers(buffers.clone(), Order::Any)),
            place @ Place::Pool(_) => Target(place.clone()),
        }
    }

    pub(super) fn buffers(&self) -> Option<(&Arc<BufferSet>, Order)> {
        match &self.0 {
            Place::Pool(_) => None,
            Place::Buffers(buffers, order) => Some((&buffers.set, *order)),
        }
    }

    /// The caller is about to send a batch there, or has one that was sent: see [`Passing`].
    pub(crate) fn passing(&self) -> Option<Passing> {
        let (set, _) = self.buffers()?;
        Some(Passing::new(set))
    }

    /// Whether each batch has its place there.
    pub(crate) fn has_places(&self) -> bool {
        self.buffers().is_some()
    }

    /// How many batches may be sent ahead, of those that were asked for.
    pub(crate) fn depth(&self, depth: usize) -> usize {
        match &self.0 {
            Place::Pool(_) => depth,
            Place::Buffers(buffers, _) => depth.min(buffers.set.count - 1),
        }
    }
}

impl DeviceBuffers {
    /// Describes `count` buffers. Memory is taken when batches come.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`](crate::Error::InvalidOption) if `count` is 0, or so large that the list of buffers exceeds the memory that the process may use.
    pub fn new(device: &Device, count: usize) -> Result<DeviceBuffers> {
        Ok(DeviceBuffers {
            device: device.clone(),
            set: Arc::new(BufferSet::new(&device.inner, count)?),
        })
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.set.count
    }
}

impl fmt::Debug for DeviceBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffers")
            .field("device", &self.device)
            .field("count", &self.set.count)
            .finish()
    }
}

/// Some of a batch's rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// The number of samples that the whole batch is made of. (It has fewer rows if some were left out.)
    pub(crate) of: usize,
    /// That of the largest batch of an epoch.
    pub(crate) most: usize,
    /// Every tensor has a row for each sample of its batch, and nothing else.
    pub(crate) is_dense: bool,
}

impl Rows {
    /// How many bytes a batch's tensor may come to have: as many as it would have in the largest batch, if it is known to have a row for
    /// each sample. `element_bytes`: of each of its elements.
    pub(super) fn most_bytes(&self, shape: &[usize], element_bytes: usize, bytes: usize) -> usize {
        let rows = shape.first().copied().unwrap_or(0);
        if rows == 0 && self.is_dense && !shape.is_empty() {
            // An empty batch tells what rows are like.
            let row = Shape::elements(&shape[1..]).unwrap_or(usize::MAX);
            return row.saturating_mul(element_bytes).saturating_mul(self.most);
        }
        let has_row_each = self.is_dense || rows == self.of;
        match rows > 0 && rows < self.most && has_row_each {
            true => (bytes / rows).saturating_mul(self.most),
            false => bytes,
        }
    }
}

/// Takes device memory for tensors of these sizes; returns it, and where each of them goes.
pub(super) fn take(
    target: &Target,
    sizes: &[Size],
    meter: Option<Arc<Meter>>,
    waits: bool,
) -> Result<(DeviceBlock, Vec<u64>)> {
    let device = &target.device().inner;
    match target.buffers() {
        Some((set, order)) => {
            let (memory, index, addresses) = set.take(order, sizes, waits)?;
            let home = Home::Buffer(Arc::clone(set), index);
            let block = DeviceBlock::new(memory, device, meter, home);
            Ok((block, addresses))
        }
        None => {
            let layout = Layout::of(sizes.iter().map(|size| size.bytes));
            let block = DeviceBlock::take(device, layout.bytes, meter, waits)?;
            let offsets = layout.tensors.iter();
            let addresses =
                offsets.map(|(offset, _)| block.address().saturating_add(*offset as u64));
            let addresses = addresses.collect();
            Ok((block, addresses))
        }
    }
}
