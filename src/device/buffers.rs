//! Device memory at addresses that stay: batch after batch lies in the same few buffers, in turn.
//!
//! A buffer is handed out when its turn has come (in any order: when no batch lies in it) and the last users of the batch that lay in it
//! are done, so copies into it wait for nothing, as with the pool's memory. Its tensors' places follow from the first batch, with room
//! for the largest one of an epoch.

use std::fmt;

use super::block::DeviceBlock;
use super::pool::Memory;
use super::{Device, DeviceInner};
use crate::driver::RawEvent;
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::sync::{Arc, Mutex};
use crate::system::room::room_for;
use crate::tensor::ALIGNMENT;

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
/// A batch is [`Error::Buffers`] if one of its tensors is larger than that, or if the batch that lies in its
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

/// Which buffer a batch takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The one whose turn it is.
    InTurn,
    /// The next in which no batch lies: a batch that was sent earlier may come to the program later.
    Any,
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
            Place::Buffers(buffers, _) => &buffers.set.device,
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

pub(super) struct BufferSet {
    device: Device,
    count: usize,
    state: Mutex<Turns>,
}

struct Turns {
    /// Where each tensor of a batch lies, and how many bytes it may have; follows from the first batch.
    layout: Option<Layout>,
    /// The buffer whose turn it is.
    next: usize,
    buffers: Vec<Buffer>,
}

#[derive(Clone)]
struct Layout {
    /// Offset and size.
    tensors: Vec<(usize, usize)>,
    bytes: usize,
}

/// How many bytes a tensor of a batch has, and how many one in its place may come to have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) bytes: usize,
    pub(super) most: usize,
}

enum Buffer {
    /// No batch has come to it yet.
    Unmade,
    /// It is free once these events have fired.
    Idle(Memory, Vec<RawEvent>),
    /// A batch lies in it.
    Held,
    /// There is no way to tell when its last user is done.
    Lost,
}

/// Where a block of device memory goes when its last tensor is dropped.
pub(super) enum Home {
    Pool,
    /// To the buffer of this number.
    Buffer(Arc<BufferSet>, usize),
}

impl DeviceBuffers {
    /// Describes `count` buffers. Memory is taken when batches come.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if `count` is 0, or so large that the list of buffers exceeds the memory that the process may use.
    pub fn new(device: &Device, count: usize) -> Result<DeviceBuffers> {
        if count == 0 {
            return Err(Error::option(
                "buffers",
                "are 0: a batch needs one, and another for the next to travel meanwhile",
            ));
        }
        let mut buffers = room_for(count as u64).map_err(|no_room| {
            let reason = format!(
                "are {count}, and the list of so many takes {no_room}: a program needs two or three"
            );
            Error::option("buffers", reason)
        })?;
        buffers.resize_with(count, || Buffer::Unmade);
        let set = BufferSet {
            device: device.clone(),
            count,
            state: Mutex::new(Turns {
                layout: None,
                next: 0,
                buffers,
            }),
        };
        Ok(DeviceBuffers { set: Arc::new(set) })
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.set.count
    }
}

impl BufferSet {
    /// Takes a buffer for a batch of tensors of these sizes; returns their addresses, too. If it `waits`, it waits for kernels that use
    /// what lay in it before; what the program holds is never waited for.
    fn take(
        self: &Arc<BufferSet>,
        order: Order,
        sizes: &[Size],
        meter: Option<Arc<Meter>>,
        waits: bool,
    ) -> Result<(DeviceBlock, Vec<u64>)> {
        let (memory, index, layout) = self.find(order, sizes, waits)?;
        let device = &self.device.inner;
        // SAFETY: the memory is held by the caller alone, and all of its last users' events have fired (*memory outlives its events*).
        unsafe { device.driver.poison(memory.address, memory.capacity) };
        let offsets = layout.tensors.iter().take(sizes.len());
        let addresses = offsets.map(|(offset, _)| memory.address + *offset as u64);
        let addresses = addresses.collect();
        let home = Home::Buffer(Arc::clone(self), index);
        Ok((DeviceBlock::new(memory, device, meter, home), addresses))
    }

    fn find(&self, order: Order, sizes: &[Size], waits: bool) -> Result<(Memory, usize, Layout)> {
        loop {
            let mut state = self.state.lock();
            let layout = state.layout(sizes)?;
            let index = match order {
                Order::InTurn => state.next,
                Order::Any => state.next_free(),
            };
            let buffer = std::mem::replace(&mut state.buffers[index], Buffer::Held);
            let pending = match buffer {
                Buffer::Unmade => {
                    drop(state);
                    return self.make(index, layout, waits);
                }
                Buffer::Idle(memory, pending) => match unfired(pending) {
                    Ok(pending) if pending.is_empty() => {
                        state.next = (index + 1) % self.count;
                        return Ok((memory, index, layout));
                    }
                    Ok(pending) => {
                        let last = pending.last().cloned();
                        state.buffers[index] = Buffer::Idle(memory, pending);
                        last
                    }
                    Err(error) => {
                        state.buffers[index] = Buffer::Lost;
                        self.device.inner.pool.leak(&memory);
                        return Err(error);
                    }
                },
                Buffer::Held => {
                    return Err(Error::Buffers {
                        reason: format!(
                            "it has a batch that the program holds, or that was sent ahead for another epoch ({} buffers): drop a batch \
                             before asking for the next, or have more buffers",
                            self.count
                        ),
                    });
                }
                Buffer::Lost => {
                    state.buffers[index] = Buffer::Lost;
                    return Err(Error::Buffers {
                        reason: "the end of its last use cannot be known (the log says why)"
                            .to_owned(),
                    });
                }
            };
            drop(state);
            match pending {
                Some(pending) if waits => pending.sleep()?,
                _ => {
                    return Err(Error::Buffers {
                        reason: "kernels that use it are not done".to_owned(),
                    });
                }
            }
        }
    }

    /// Takes the memory of a buffer.
    fn make(&self, index: usize, layout: Layout, waits: bool) -> Result<(Memory, usize, Layout)> {
        let memory = self.device.inner.pool.take(layout.bytes, waits);
        let mut state = self.state.lock();
        match memory {
            Ok(memory) => {
                state.next = (index + 1) % self.count;
                Ok((memory, index, layout))
            }
            Err(error) => {
                state.buffers[index] = Buffer::Unmade;
                Err(error)
            }
        }
    }

    /// Takes a buffer back. It is free once all of the events have fired; `None`: there is no way to tell.
    pub(super) fn put(&self, index: usize, memory: Memory, pending: Option<Vec<RawEvent>>) {
        let mut state = self.state.lock();
        state.buffers[index] = match pending {
            Some(pending) => Buffer::Idle(memory, pending),
            None => {
                self.device.inner.pool.leak(&memory);
                Buffer::Lost
            }
        };
    }
}

impl Turns {
    /// The next buffer in which no batch lies; if one lies in each, the one whose turn it is.
    fn next_free(&self) -> usize {
        let count = self.buffers.len();
        let mut turns = (self.next..self.next + count).map(|turn| turn % count);
        let free =
            turns.find(|&index| matches!(self.buffers[index], Buffer::Unmade | Buffer::Idle(..)));
        free.unwrap_or(self.next)
    }

    /// Where tensors of these sizes lie. The first batch determines it.
    fn layout(&mut self, sizes: &[Size]) -> Result<Layout> {
        let most = || Layout::of(sizes.iter().map(|size| size.most));
        let layout = self.layout.get_or_insert_with(most);
        let rooms = layout.tensors.iter().map(|(_, room)| *room);
        let too_large = sizes
            .iter()
            .zip(rooms)
            .position(|(size, room)| size.bytes > room);
        if layout.tensors.len() != sizes.len() {
            return Err(Error::Buffers {
                reason: format!(
                    "the batch has {} tensors, and the first one had {}: have buffers for each kind of batch",
                    sizes.len(),
                    layout.tensors.len()
                ),
            });
        }
        match too_large {
            Some(index) => Err(Error::Buffers {
                reason: format!(
                    "tensor {index} of the batch has {} bytes, and the first batch left room for {}: what lies at fixed addresses cannot grow, \
                     so pad samples to one length, have a loader's buffers for itself, or send what differs in size to the device instead",
                    sizes[index].bytes, layout.tensors[index].1
                ),
            }),
            None => Ok(layout.clone()),
        }
    }
}

impl Layout {
    fn of(sizes: impl Iterator<Item = usize>) -> Layout {
        let mut bytes = 0usize;
        let tensors = sizes.map(|size| {
            let offset = bytes;
            let end = bytes.saturating_add(size);
            bytes = end
                .checked_next_multiple_of(ALIGNMENT)
                .unwrap_or(usize::MAX);
            (offset, size)
        });
        let tensors = tensors.collect();
        Layout { tensors, bytes }
    }
}

/// The events that have not fired.
fn unfired(pending: Vec<RawEvent>) -> Result<Vec<RawEvent>> {
    let mut left = Vec::new();
    for event in pending {
        if !event.is_complete()? {
            left.push(event);
        }
    }
    Ok(left)
}

impl Drop for BufferSet {
    /// No batch lies in any of them, for each holds the set.
    fn drop(&mut self) {
        let pool = &self.device.inner.pool;
        for buffer in std::mem::take(&mut self.state.get_mut().buffers) {
            if let Buffer::Idle(memory, pending) = buffer {
                pool.put(memory, pending);
            }
        }
    }
}

impl fmt::Debug for DeviceBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffers")
            .field("device", &self.set.device)
            .field("count", &self.set.count)
            .finish()
    }
}

/// Takes device memory for tensors of these sizes; returns its end and where each of them goes.
pub(super) fn take(
    target: &Target,
    sizes: &[Size],
    meter: Option<Arc<Meter>>,
    waits: bool,
) -> Result<(DeviceBlock, Vec<u64>)> {
    match target.buffers() {
        Some((buffers, order)) => buffers.take(order, sizes, meter, waits),
        None => {
            let layout = Layout::of(sizes.iter().map(|size| size.bytes));
            let device: &Arc<DeviceInner> = &target.device().inner;
            let block = DeviceBlock::take(device, layout.bytes, meter, waits)?;
            let offsets = layout.tensors.iter();
            let addresses =
                offsets.map(|(offset, _)| block.address().saturating_add(*offset as u64));
            let addresses = addresses.collect();
            Ok((block, addresses))
        }
    }
}
