//! Buffers at addresses that stay: which of them a batch takes, and where in it each of its tensors lies.

use super::inner::DeviceInner;
use super::pool::{Memory, Origin, Outside};
use crate::driver::RawEvent;
use crate::error::{Error, Result};
use crate::sync::{Arc, Mutex, Weak};
use crate::system::room::room_for;
use crate::tensor::ALIGNMENT;

/// Which buffer a batch takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The one whose turn it is.
    InTurn,
    /// The next in which no batch lies: a batch that was sent earlier may come to the program later.
    Any,
}

/// Some buffers of a device, and what lies in each.
pub(super) struct BufferSet {
    device: Arc<DeviceInner>,
    pub(super) count: usize,
    state: Mutex<Turns>,
}

struct Turns {
    /// Where each tensor of a batch lies, and how many bytes it may have; follows from the first batch.
    layout: Option<Layout>,
    /// The buffer whose turn it is.
    next: usize,
    buffers: Vec<Buffer>,
    /// How many [`Passing`] there are.
    passing: usize,
}

/// While it exists, a batch may lie in one of the buffers that neither the program has nor an epoch's queue: a thread of the library is
/// sending it, or decodes its pictures. If its epoch is left meanwhile, the buffer comes back without any action of the program, so a
/// caller that needs it waits.
pub(crate) struct Passing(Arc<BufferSet>);

impl Passing {
    pub(super) fn new(set: &Arc<BufferSet>) -> Passing {
        set.state.lock().passing += 1;
        Passing(Arc::clone(set))
    }
}

impl Drop for Passing {
    /// The buffer has come back by now, or the batch is the program's or a queue's.
    fn drop(&mut self) {
        self.0.state.lock().passing -= 1;
        self.0.device.ring.news().notify_interested();
    }
}

/// Where tensors lie, one behind the other.
#[derive(Clone)]
pub(super) struct Layout {
    /// Offset and size.
    pub(super) tensors: Vec<(usize, usize)>,
    pub(super) bytes: usize,
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
    /// A batch lies in it, or is about to.
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

impl Home {
    /// The same, if it is not the pool, for memory that is adrift.
    pub(super) fn outside(&self) -> Option<Outside> {
        match self {
            Home::Pool => None,
            Home::Buffer(set, index) => Some((set.origin(), *index)),
        }
    }
}

impl BufferSet {
    pub(super) fn new(device: &Arc<DeviceInner>, count: usize) -> Result<BufferSet> {
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
        Ok(BufferSet {
            device: Arc::clone(device),
            count,
            state: Mutex::new(Turns {
                layout: None,
                next: 0,
                buffers,
                passing: 0,
            }),
        })
    }

    /// Takes a buffer for a batch of tensors of these sizes; returns its number and their addresses, too. If it `waits`, it waits for kernels
    /// that use what lay in it before, and for a batch that is [passing](Passing); what the program holds is never waited for.
    pub(super) fn take(
        self: &Arc<Self>,
        order: Order,
        sizes: &[Size],
        waits: bool,
    ) -> Result<(Memory, usize, Vec<u64>)> {
        let (memory, index, layout) = self.find(order, sizes, waits)?;
        // SAFETY: the memory is held by the caller alone, and all of its last users' events have fired (*memory outlives its events*).
        unsafe { self.device.driver.poison(memory.address, memory.capacity) };
        let offsets = layout.tensors.iter().take(sizes.len());
        let addresses = offsets.map(|(offset, _)| memory.address + *offset as u64);
        let addresses = addresses.collect();
        Ok((memory, index, addresses))
    }

    fn find(
        self: &Arc<Self>,
        order: Order,
        sizes: &[Size],
        waits: bool,
    ) -> Result<(Memory, usize, Layout)> {
        let news = self.device.ring.news();
        let mut interest = None;
        loop {
            let ticket = interest.as_ref().map(|_| news.ticket());
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
                        self.device.pool.leak(&memory);
                        return Err(error);
                    }
                },
                Buffer::Held if waits && state.passing > 0 && !self.device.held.is_late() => {
                    drop(state);
                    match ticket {
                        Some(ticket) => news.wait(ticket),
                        None => interest = Some(news.interest()),
                    }
                    continue;
                }
                Buffer::Held if self.device.pool.is_adrift(&self.origin(), index) => {
                    return Err(Error::Buffers {
                        reason: "what lay in it is adrift: it was lent to all streams (`end_everywhere`), and the device has not been told \
                                 since that it may look when they are done (Device::sweep, or Device::sweep_with_batches)"
                            .to_owned(),
                    });
                }
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
        let memory = self.device.pool.take(layout.bytes, waits);
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

    fn origin(self: &Arc<Self>) -> Weak<dyn Origin> {
        let set: Arc<dyn Origin> = Arc::clone(self) as _;
        Arc::downgrade(&set)
    }

    /// Takes a buffer back. It is free once all of the events have fired; `None`: there is no way to tell.
    pub(super) fn put(&self, index: usize, memory: Memory, pending: Option<Vec<RawEvent>>) {
        let mut state = self.state.lock();
        state.buffers[index] = match pending {
            Some(pending) => Buffer::Idle(memory, pending),
            None => {
                self.device.pool.leak(&memory);
                Buffer::Lost
            }
        };
    }
}

impl Origin for BufferSet {
    fn take_back(&self, number: usize, memory: Memory, pending: Vec<RawEvent>) {
        self.put(number, memory, Some(pending));
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
    pub(super) fn of(sizes: impl Iterator<Item = usize>) -> Layout {
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
        let pool = &self.device.pool;
        for buffer in std::mem::take(&mut self.state.get_mut().buffers) {
            if let Buffer::Idle(memory, pending) = buffer {
                pool.put(memory, pending);
            }
        }
    }
}
