//! The device pool: device memory that is used again, under a budget.
//!
//! A block comes back with the events of its last users, and is handed out again only when all of them have fired. So a
//! copy into it waits for nothing, and the copy stream never queues behind a training step.

mod adrift;

use self::adrift::{Adrift, AdriftBytes, Lost};
pub(super) use self::adrift::{Origin, Outside};
use super::captures::Captures;
use crate::driver::{Driver, RawEvent};
use crate::error::{Error, Result};
use crate::meter::Sum;
use crate::sync::log;
use crate::sync::{Arc, Mutex, Weak, planted};
use crate::tuning::{OVERSIZE_FACTOR, SMALL_BLOCK_BYTES};

pub(crate) struct Pool {
    driver: Driver,
    state: Mutex<PoolState>,
    /// What came back without an event. It counts as held until it is swept.
    adrift: Adrift,
    captures: Arc<Captures>,
    leaked: Sum,
}

struct PoolState {
    idle: Vec<Idle>,
    /// All bytes allocated, held or idle.
    total_bytes: usize,
    held_bytes: usize,
    held: usize,
    budget_bytes: usize,
}

/// Device memory that was lent out. It must be returned with [`Pool::put`]; it has no `Drop`.
pub(super) struct Memory {
    pub(super) address: u64,
    pub(super) capacity: usize,
    /// An empty list, for the events of its next users: memory is used again and again, and so is its list.
    pub(super) list: Vec<RawEvent>,
}

/// Memory that came back, and the events after which it is free.
struct Idle {
    memory: Memory,
    pending: Vec<RawEvent>,
}

impl Idle {
    /// Whether all users are done; an error if one of the events cannot be queried.
    fn fired(&mut self) -> Result<bool> {
        while let Some(event) = self.pending.last() {
            if !event.is_complete()? {
                return Ok(false);
            }
            self.pending.pop();
        }
        Ok(true)
    }

    /// Whether a user comes after an event.
    fn is_behind(&self, event: Option<&RawEvent>) -> bool {
        let last = self.pending.last().zip(event);
        last.is_some_and(|(last, event)| last.is_behind(event))
    }

    /// A user that may not be done.
    fn awaits(&self) -> Option<Pending> {
        let event = self.pending.last()?.clone();
        Some(Pending {
            address: self.memory.address,
            event,
        })
    }

    fn has_fired(&mut self) -> bool {
        matches!(self.fired(), Ok(true))
    }

    /// Large enough, and not so large that others would miss it.
    fn fits(&self, size: usize) -> bool {
        let capacity = self.memory.capacity;
        let most = size.saturating_mul(OVERSIZE_FACTOR).max(SMALL_BLOCK_BYTES);
        (size..=most).contains(&capacity)
    }
}

/// Blocks are multiples of this: large enough for any alignment, small enough to waste little.
const GRAIN_BYTES: usize = 512;

impl Pool {
    pub(super) fn new(driver: Driver, budget_bytes: usize, captures: Arc<Captures>) -> Pool {
        Pool {
            driver,
            state: Mutex::new(PoolState {
                idle: Vec::new(),
                total_bytes: 0,
                held_bytes: 0,
                held: 0,
                budget_bytes,
            }),
            adrift: Adrift::default(),
            captures,
            leaked: Sum::default(),
        }
    }

    /// Takes a block of at least `bytes`, aligned to 256 bytes.
    ///
    /// It waits only if the budget, or the device's memory, is used up by memory that the program gave back but whose
    /// last kernels have not finished: then the program is as far ahead of the device as they allow. Unless it `waits`,
    /// it fails instead.
    pub(super) fn take(&self, bytes: usize, waits: bool) -> Result<Memory> {
        let memory = self.find(bytes, waits)?;
        // SAFETY: the memory is held by the caller alone, and all of its last users' events have fired (*memory outlives
        // its events*).
        unsafe { self.driver.poison(memory.address, memory.capacity) };
        Ok(memory)
    }

    fn find(&self, bytes: usize, waits: bool) -> Result<Memory> {
        // A wait that failed says more than that there is no memory.
        let mut failed = None;
        self.find_behind(bytes, waits, &mut failed)
            .map_err(|error| failed.unwrap_or(error))
    }

    fn find_behind(&self, bytes: usize, waits: bool, failed: &mut Option<Error>) -> Result<Memory> {
        let size = bytes
            .max(1)
            .checked_next_multiple_of(GRAIN_BYTES)
            .unwrap_or(usize::MAX);
        loop {
            let step = self.step(size, waits)?;
            match step {
                PoolStep::Reuse(memory) => return Ok(memory),
                PoolStep::Allocate(evicted) => {
                    self.free(evicted);
                    match self.driver.alloc_device(size) {
                        Ok(address) => {
                            return Ok(Memory {
                                address,
                                capacity: size,
                                list: Vec::new(),
                            });
                        }
                        Err(error) => {
                            let mut state = self.state.lock();
                            state.total_bytes -= size;
                            state.lend(size, -1);
                            if !waits {
                                // A later call may find memory, or what is wrong.
                                drop(state);
                                return Err(self.exhausted(size));
                            }
                            // Idle memory may be what is missing: give it to the driver, and try again. If kernels still
                            // use it, wait for them, as with a budget that is used up.
                            let idle = state.take_fired();
                            let pending = state.pending();
                            drop(state);
                            match pending {
                                _ if !idle.is_empty() => self.free(idle),
                                Some(pending) => self.wait(&pending, failed),
                                None => return Err(error),
                            }
                        }
                    }
                }
                PoolStep::Wait(pending) => self.wait(&pending, failed),
            }
        }
    }

    /// Waits for a user of an idle block. A block that cannot be waited for is given up, and the search goes on.
    fn wait(&self, pending: &Pending, failed: &mut Option<Error>) {
        let Err(error) = pending.event.sleep() else {
            return;
        };
        failed.get_or_insert(error);
        let mut state = self.state.lock();
        // Another thread may have given it up, or found it free after all.
        let is_it = |idle: &Idle| {
            let mut events = idle.pending.iter();
            idle.memory.address == pending.address && events.any(|event| event.same(&pending.event))
        };
        if let Some(index) = state.idle.iter().position(is_it) {
            self.give_up(&mut state, index);
        }
    }

    fn step(&self, size: usize, waits: bool) -> Result<PoolStep> {
        let mut state = self.state.lock();
        if let Some(memory) = self.reuse(&mut state, size) {
            return Ok(PoolStep::Reuse(memory));
        }
        if state.reserve(size) {
            return Ok(PoolStep::Allocate(Vec::new()));
        }
        if !waits {
            drop(state);
            return Err(self.exhausted(size)); // also where eviction would help: freeing waits for kernels
        }
        // A block that will fit once its kernels are done is worth waiting for: freeing others waits for kernels, too.
        let mut fitting = state.idle.iter().filter(|idle| idle.fits(size));
        if let Some(pending) = fitting.find_map(Idle::awaits) {
            return Ok(PoolStep::Wait(pending));
        }
        if state.held_bytes.saturating_add(size) > state.budget_bytes {
            return Err(state.exhausted(size, self.adrift.bytes()));
        }
        self.give_up_failed(&mut state);
        let mut evicted = Vec::new();
        while !state.has_room(size) {
            match state.take_one_fired() {
                Some(memory) => evicted.push(memory),
                None => break,
            }
        }
        if state.reserve(size) {
            return Ok(PoolStep::Allocate(evicted));
        }
        // Memory that was given back and that kernels still use will be free without any action of the program.
        let event = state.pending();
        drop(state);
        self.free(evicted);
        match event {
            Some(pending) => Ok(PoolStep::Wait(pending)),
            None => Err(self.exhausted(size)),
        }
    }

    /// Lends the smallest idle block that fits and is free; among equal ones, the one that came back first.
    fn reuse(&self, state: &mut PoolState, size: usize) -> Option<Memory> {
        let mut best: Option<(usize, usize)> = None;
        // A user that is not done. Those behind it on its stream are not done either, and need not be asked for.
        let mut late: Option<RawEvent> = None;
        let mut index = 0;
        while index < state.idle.len() {
            let idle = &mut state.idle[index];
            let capacity = idle.memory.capacity;
            if !idle.fits(size) || best.is_some_and(|(_, smallest)| capacity >= smallest) {
                index += 1;
                continue;
            }
            let fired = match planted("device memory is lent before it is free") {
                true => Ok(true),
                false if idle.is_behind(late.as_ref()) => Ok(false),
                false => idle.fired(),
            };
            match fired {
                Ok(true) => best = Some((index, capacity)),
                Ok(false) => late = idle.pending.last().cloned(),
                Err(_) => {
                    self.give_up(state, index);
                    continue;
                }
            }
            if best == Some((index, size)) {
                break;
            }
            index += 1;
        }
        let (index, capacity) = best?;
        let Idle {
            mut memory,
            mut pending,
        } = state.idle.remove(index);
        pending.clear();
        memory.list = pending;
        state.lend(capacity, 1);
        Some(memory)
    }

    /// Leaked or abandoned memory fills the budget.
    fn exhausted(&self, size: usize) -> Error {
        self.state.lock().exhausted(size, self.adrift.bytes())
    }

    /// Gives up a block that cannot be queried: one bad event (recorded into a graph, say) must not block all others.
    fn give_up(&self, state: &mut PoolState, index: usize) {
        state.idle.remove(index);
        self.leaked.add(1);
    }

    fn give_up_failed(&self, state: &mut PoolState) {
        for index in (0..state.idle.len()).rev() {
            if state.idle[index].fired().is_err() {
                self.give_up(state, index);
            }
        }
    }

    /// Takes memory back. It is free once all of the events have fired.
    pub(super) fn put(&self, memory: Memory, pending: Vec<RawEvent>) {
        let mut state = self.state.lock();
        state.lend(memory.capacity, -1);
        state.idle.push(Idle { memory, pending });
    }

    /// Takes memory back whose last users are not known by their streams: it is adrift until a sweep. Calls no driver, and waits for no
    /// thread that does. `outside`: where it belongs, if it is not the pool's own.
    pub(super) fn put_adrift(&self, memory: Memory, outside: Option<Outside>) {
        if planted("adrift memory is free at once") && outside.is_none() {
            return self.put(memory, Vec::new());
        }
        self.adrift.add(Lost { memory, outside });
    }

    /// Puts all memory that is adrift behind one event of the whole context, and sends it home. Returns the number of bytes: none if a
    /// capture of a graph may be in progress, or nothing is adrift.
    pub(super) fn sweep(&self) -> Result<usize> {
        if self.adrift.is_empty() {
            return Ok(0);
        }
        let swept = self.captures.unless_capturing(&self.driver, || {
            // Before the event, which is then behind the last holder of each.
            let lost = self.adrift.take();
            match self.driver.record_everywhere() {
                Ok(event) => Ok((lost, event)),
                Err(error) => {
                    self.adrift.put_back(lost);
                    Err(error)
                }
            }
        })?;
        let mut bytes = 0;
        for (lost, event) in swept.into_iter().flat_map(|(lost, event)| {
            let event: Vec<RawEvent> = event.into_iter().collect();
            lost.into_iter().map(move |lost| (lost, event.clone()))
        }) {
            let Lost { memory, outside } = lost;
            bytes += memory.capacity;
            let origin = outside.and_then(|(origin, number)| Some((origin.upgrade()?, number)));
            match origin {
                Some((origin, number)) => origin.take_back(number, memory, event),
                None => self.put(memory, event),
            }
        }
        Ok(bytes)
    }

    /// Whether memory that belongs elsewhere is adrift.
    pub(super) fn is_adrift(&self, place: &Weak<dyn Origin>, number: usize) -> bool {
        self.adrift.has(place, number)
    }

    /// Keeps memory forever: there is no way to tell when its last user is done.
    pub(super) fn leak(&self, memory: &Memory) {
        self.state.lock().lend(memory.capacity, -1);
        self.leaked.add(1);
    }

    fn free(&self, blocks: Vec<Memory>) {
        for memory in blocks {
            // SAFETY: the block came from `alloc_device`, all of its users' events have fired (`take_fired`), and it
            // is in no list any more (*memory outlives its events*).
            if unsafe { self.driver.free_device(memory.address, memory.capacity) }.is_err() {
                self.leaked.add(1);
            }
        }
    }

    /// Gives all idle memory back to the driver once its last users are done. Returns the number of bytes.
    pub(super) fn release(&self) -> Result<usize> {
        let pending: Vec<Pending> = {
            let mut state = self.state.lock();
            self.give_up_failed(&mut state);
            let idle = state.idle.iter();
            let pending = idle.flat_map(|idle| {
                let address = idle.memory.address;
                let events = idle.pending.iter().cloned();
                events.map(move |event| Pending { address, event })
            });
            pending.collect()
        };
        // What cannot be waited for is given up; the others are freed all the same.
        let mut failed = None;
        let each = pending.iter();
        each.for_each(|pending| self.wait(pending, &mut failed));
        let idle = self.state.lock().take_fired();
        let bytes = idle.iter().map(|memory| memory.capacity).sum();
        self.free(idle);
        failed.map_or(Ok(bytes), Err)
    }

    pub(super) fn set_budget_bytes(&self, bytes: usize) {
        self.state.lock().budget_bytes = bytes;
    }

    /// (all bytes, bytes held, bytes adrift, budget, blocks leaked)
    pub(super) fn bytes(&self) -> (usize, usize, usize, usize, u64) {
        let state = self.state.lock();
        let adrift = self.adrift.bytes();
        (
            state.total_bytes,
            state.held_bytes - adrift.of_pool,
            adrift.all,
            state.budget_bytes,
            self.leaked.get(),
        )
    }
}

enum PoolStep {
    Reuse(Memory),
    /// The bytes are reserved, but these blocks must be freed first.
    Allocate(Vec<Memory>),
    Wait(Pending),
}

/// A user of an idle block.
struct Pending {
    address: u64,
    event: RawEvent,
}

impl PoolState {
    fn lend(&mut self, bytes: usize, blocks: isize) {
        self.held = self.held.saturating_add_signed(blocks);
        if blocks > 0 {
            self.held_bytes += bytes;
        } else {
            self.held_bytes -= bytes;
        }
    }

    fn has_room(&self, size: usize) -> bool {
        self.total_bytes.saturating_add(size) <= self.budget_bytes
    }

    /// Counts a block that is to be allocated, and lent, if the budget has room for it.
    fn reserve(&mut self, size: usize) -> bool {
        let has_room = self.has_room(size);
        if has_room {
            self.total_bytes += size;
            self.lend(size, 1);
        }
        has_room
    }

    fn exhausted(&self, size: usize, adrift: AdriftBytes) -> Error {
        Error::DeviceBudget {
            requested_bytes: size,
            budget_bytes: self.budget_bytes,
            held_bytes: self.held_bytes - adrift.of_pool,
            held_blocks: self.held - adrift.blocks_of_pool,
            adrift_bytes: adrift.all,
        }
    }

    fn take_one_fired(&mut self) -> Option<Memory> {
        let index = self.idle.iter_mut().position(|idle| idle.has_fired())?;
        let memory = self.idle.swap_remove(index).memory;
        self.total_bytes -= memory.capacity;
        Some(memory)
    }

    /// An event after which some memory that was given back is free.
    fn pending(&self) -> Option<Pending> {
        self.idle.iter().find_map(Idle::awaits)
    }

    fn take_fired(&mut self) -> Vec<Memory> {
        std::iter::from_fn(|| self.take_one_fired()).collect()
    }
}

impl Drop for Pool {
    /// Nothing is held any more, for tensors hold their device. What kernels still use is waited for; on a failed device
    /// it is leaked.
    fn drop(&mut self) {
        let kept = match self.sweep() {
            Ok(_) if self.adrift.is_empty() => None,
            Ok(_) => Some("a graph is being captured".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = kept {
            let bytes = self.adrift.bytes().all;
            log::warn!(
                "{}: {bytes} bytes of device memory are leaked: they are adrift, and the device cannot be asked whether they are free ({reason})",
                self.driver.name()
            );
        }
        let _ = self.release();
    }
}
