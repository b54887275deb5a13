//! The device pool: device memory that is used again, under a budget.
//!
//! A block goes back with the events of its last users, and is handed out again only when all of them have fired: a
//! copy into it then waits for nobody, so the copy stream never stands behind a training step.

use crate::driver::{Driver, RawEvent};
use crate::error::{Error, Result};
use crate::meter::Sum;
use crate::sync::{Mutex, planted};

pub(crate) struct Pool {
    driver: Driver,
    state: Mutex<State>,
    leaked: Sum,
}

struct State {
    idle: Vec<Idle>,
    /// All bytes allocated, held or idle.
    total_bytes: usize,
    held_bytes: usize,
    held: usize,
    budget_bytes: usize,
}

/// Device memory, held by somebody. It must be given back with [`Pool::put`]; it has no `Drop`.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) address: u64,
    pub(super) capacity: usize,
}

/// Memory that came back, and the events behind which it is free.
struct Idle {
    memory: Memory,
    pending: Vec<RawEvent>,
}

impl Idle {
    /// Whether all users are done; an error if one cannot be asked.
    fn fired(&mut self) -> Result<bool> {
        while let Some(event) = self.pending.last() {
            if !event.is_complete()? {
                return Ok(false);
            }
            self.pending.pop();
        }
        Ok(true)
    }

    /// A user that is not known to be done.
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
        capacity >= size && capacity <= size.saturating_mul(2).max(1 << 20)
    }
}

/// Blocks are multiples of this: large enough for any alignment, small enough to waste nothing.
const GRAIN_BYTES: usize = 512;

impl Pool {
    pub(super) fn new(driver: Driver, budget_bytes: usize) -> Pool {
        Pool {
            driver,
            state: Mutex::new(State {
                idle: Vec::new(),
                total_bytes: 0,
                held_bytes: 0,
                held: 0,
                budget_bytes,
            }),
            leaked: Sum::default(),
        }
    }

    /// Takes a block of at least `bytes`, aligned to 256 bytes.
    ///
    /// It waits only where the budget, or the device's memory, is used up by memory that the program has given back,
    /// and whose last kernels have not run yet: then the program is as far ahead of the device as they let it. Unless it
    /// `waits`, there is none then.
    pub(super) fn take(&self, bytes: usize, waits: bool) -> Result<Memory> {
        let memory = self.find(bytes, waits)?;
        // SAFETY: the memory is the caller's alone, and all of its last users' events have fired (*memory outlives its
        // events*).
        unsafe { self.driver.poison(memory.address, memory.capacity) };
        Ok(memory)
    }

    fn find(&self, bytes: usize, waits: bool) -> Result<Memory> {
        // What could not be waited for says more than that there is no memory.
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
            let step = self.step(size)?;
            match step {
                Step::Reuse(memory) => return Ok(memory),
                Step::Allocate(evicted) => {
                    self.free(evicted);
                    match self.driver.alloc_device(size) {
                        Ok(address) => {
                            return Ok(Memory {
                                address,
                                capacity: size,
                            });
                        }
                        Err(error) => {
                            let mut state = self.state.lock();
                            state.total_bytes -= size;
                            state.lend(size, -1);
                            // What is idle may be what is missing: give it to the driver, and try once more. Where
                            // kernels still use it, wait for them, as a budget that is used up does.
                            let idle = state.take_fired();
                            let pending = state.pending();
                            drop(state);
                            match pending {
                                _ if !idle.is_empty() => self.free(idle),
                                Some(_) if !waits => return Err(self.exhausted(size)),
                                Some(pending) => self.wait(&pending, failed),
                                None => return Err(error),
                            }
                        }
                    }
                }
                Step::Wait(_) if !waits => return Err(self.exhausted(size)),
                Step::Wait(pending) => self.wait(&pending, failed),
            }
        }
    }

    /// Waits for a user of an idle block. A block that cannot be waited for is given up, and others are looked at.
    fn wait(&self, pending: &Pending, failed: &mut Option<Error>) {
        let Err(error) = pending.event.sleep() else {
            return;
        };
        failed.get_or_insert(error);
        let mut state = self.state.lock();
        // Somebody else may have given it up, or found it free after all.
        let is_it = |idle: &Idle| {
            let mut events = idle.pending.iter();
            idle.memory.address == pending.address && events.any(|event| event.same(&pending.event))
        };
        if let Some(index) = state.idle.iter().position(is_it) {
            self.give_up(&mut state, index);
        }
    }

    fn step(&self, size: usize) -> Result<Step> {
        let mut state = self.state.lock();
        // The smallest block that fits; of equal ones the one that came back first.
        let fits = |idle: &Idle| idle.fits(size);
        let mut best: Option<(usize, usize)> = None;
        let mut index = 0;
        while index < state.idle.len() {
            let capacity = state.idle[index].memory.capacity;
            if !fits(&state.idle[index]) || best.is_some_and(|(_, smallest)| capacity >= smallest) {
                index += 1;
                continue;
            }
            let fired = match planted("device memory is lent before it is free") {
                true => Ok(true),
                false => state.idle[index].fired(),
            };
            match fired {
                Ok(true) => best = Some((index, capacity)),
                Ok(false) => {}
                Err(_) => {
                    self.give_up(&mut state, index);
                    continue;
                }
            }
            if best == Some((index, size)) {
                break;
            }
            index += 1;
        }
        if let Some((index, capacity)) = best {
            let memory = state.idle.remove(index).memory;
            state.lend(capacity, 1);
            return Ok(Step::Reuse(memory));
        }
        if state.total_bytes.saturating_add(size) <= state.budget_bytes {
            state.total_bytes += size;
            state.lend(size, 1);
            return Ok(Step::Allocate(Vec::new()));
        }
        // A block that will fit when its kernels are done is worth waiting for: freeing others waits for kernels too.
        let pending = |state: &State, fits: &dyn Fn(&Idle) -> bool| {
            let mut idle = state.idle.iter().filter(|idle| fits(idle));
            idle.find_map(Idle::awaits)
        };
        if let Some(pending) = pending(&state, &fits) {
            return Ok(Step::Wait(pending));
        }
        if state.held_bytes.saturating_add(size) > state.budget_bytes {
            return Err(Error::DeviceBudget {
                requested_bytes: size,
                budget_bytes: state.budget_bytes,
                held_bytes: state.held_bytes,
                held_blocks: state.held,
            });
        }
        self.give_up_failed(&mut state);
        let mut evicted = Vec::new();
        while state.total_bytes.saturating_add(size) > state.budget_bytes {
            match state.take_one_fired() {
                Some(memory) => evicted.push(memory),
                None => break,
            }
        }
        if state.total_bytes.saturating_add(size) <= state.budget_bytes {
            state.total_bytes += size;
            state.lend(size, 1);
            return Ok(Step::Allocate(evicted));
        }
        // What was given back and is still in use by kernels will be free without the program's doing.
        let event = pending(&state, &|_| true);
        drop(state);
        self.free(evicted);
        match event {
            Some(pending) => Ok(Step::Wait(pending)),
            None => Err(self.exhausted(size)),
        }
    }

    /// Leaked memory, or memory that was given up, fills the budget.
    fn exhausted(&self, size: usize) -> Error {
        let state = self.state.lock();
        Error::DeviceBudget {
            requested_bytes: size,
            budget_bytes: state.budget_bytes,
            held_bytes: state.held_bytes,
            held_blocks: state.held,
        }
    }

    /// Gives up a block that nobody can ask about any more: one event that cannot be queried (it was recorded into a
    /// graph, say) must not stand in the way of all others.
    fn give_up(&self, state: &mut State, index: usize) {
        state.idle.remove(index);
        self.leaked.add(1);
    }

    fn give_up_failed(&self, state: &mut State) {
        for index in (0..state.idle.len()).rev() {
            if state.idle[index].fired().is_err() {
                self.give_up(state, index);
            }
        }
    }

    /// Takes memory back, free once all of the events have fired.
    pub(super) fn put(&self, memory: Memory, pending: Vec<RawEvent>) {
        let mut state = self.state.lock();
        state.lend(memory.capacity, -1);
        state.idle.push(Idle { memory, pending });
    }

    /// Keeps memory for good: nobody can say when its last user is done.
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

    /// Gives all idle memory back to the driver, waiting for its last users; returns its bytes.
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
        // What cannot be waited for is given up, and the others are free all the same.
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

    /// (all bytes, bytes held, budget, blocks leaked)
    pub(super) fn bytes(&self) -> (usize, usize, usize, u64) {
        let state = self.state.lock();
        (
            state.total_bytes,
            state.held_bytes,
            state.budget_bytes,
            self.leaked.get(),
        )
    }
}

enum Step {
    Reuse(Memory),
    /// The bytes are reserved; these are in their way.
    Allocate(Vec<Memory>),
    Wait(Pending),
}

/// A user of an idle block.
struct Pending {
    address: u64,
    event: RawEvent,
}

impl State {
    fn lend(&mut self, bytes: usize, blocks: isize) {
        self.held = self.held.saturating_add_signed(blocks);
        if blocks > 0 {
            self.held_bytes += bytes;
        } else {
            self.held_bytes -= bytes;
        }
    }

    fn take_one_fired(&mut self) -> Option<Memory> {
        let index = self.idle.iter_mut().position(|idle| idle.has_fired())?;
        let memory = self.idle.swap_remove(index).memory;
        self.total_bytes -= memory.capacity;
        Some(memory)
    }

    /// An event behind which memory that was given back is free.
    fn pending(&self) -> Option<Pending> {
        self.idle.iter().find_map(Idle::awaits)
    }

    fn take_fired(&mut self) -> Vec<Memory> {
        std::iter::from_fn(|| self.take_one_fired()).collect()
    }
}

impl Drop for Pool {
    /// Everything held is gone, for tensors hold their device. What is still in use by kernels is waited for; on a
    /// failed device it is leaked.
    fn drop(&mut self) {
        let _ = self.release();
    }
}
