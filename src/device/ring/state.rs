//! The state of a ring: its idle blocks, and the counts of all blocks. Its methods decide, under the lock, which caller gets which
//! block.

use super::super::host_memory::{HostBlock, block_bytes};
use super::idle::Idle;
use crate::sync::planted;
use crate::tuning::{OVERSIZE_FACTOR, SMALL_BLOCK_BYTES};

pub(super) struct RingState {
    /// Blocks for whole batches, and blocks for parts of batches. Parts borrow the others only while no epoch has whole
    /// batches: otherwise large blocks would be missing where they are needed, and more would be made.
    pub(super) shelves: [Shelf; 2],
    /// The bytes of all page-locked blocks, idle or out.
    pub(super) pinned_bytes: usize,
    /// The bytes of all blocks, idle or out. They may exceed a budget that was lowered.
    pub(super) total_bytes: usize,
    pub(super) budget_bytes: usize,
    /// The size of the block that is being made ahead, which will be idle.
    pub(super) ahead_bytes: usize,
    /// The bytes of evicted blocks that are being unlocked: part of `total_bytes` until that is done. 0 unless some
    /// thread holds `Ring::unlocking`.
    pub(super) leaving_bytes: usize,
    /// How many idle blocks a ring of pageable blocks keeps.
    pub(super) keep: usize,
}

/// What a block is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Whole = 0,
    Part = 1,
}

#[derive(Default)]
pub(super) struct Shelf {
    pub(super) free: Idle,
    /// How many blocks there are, idle or out.
    pub(super) blocks: usize,
    /// How many of them are out without a quota: downloads, tensors that the program pinned, staged copies.
    pub(super) strays: usize,
    /// How many slabs the open quotas together may have out.
    pub(super) shares: usize,
}

/// A request for a block.
pub(super) struct BlockRequest {
    /// A block of this many bytes is large enough.
    pub(super) size: usize,
    /// A new block is made for this many bytes, if the budget has room for them.
    pub(super) largest: usize,
    /// The kind, and whether there may be more blocks than the open quotas have shares; `None` for a stray, which
    /// counts in no share.
    pub(super) share: Option<(Kind, bool)>,
    /// How many blocks of `largest` bytes the budget must have room for beside it: those of earlier batches.
    pub(super) reserve: usize,
}

/// The answer to a request.
pub(super) enum BlockAnswer {
    Free(HostBlock, Kind),
    /// Room for a new block of this many bytes is reserved; but these blocks must be unlocked first.
    Room(usize, Vec<HostBlock>),
    /// A block is being made ahead that is worth waiting for: going without, or making another one, would be worse.
    Ahead,
    /// Blocks must be evicted, which takes `Ring::unlocking`.
    Evict,
    Nothing,
}

impl BlockRequest {
    pub(super) fn kind(&self) -> Kind {
        self.share.map_or(Kind::Whole, |(kind, _)| kind)
    }

    pub(super) fn is_stray(&self) -> bool {
        self.share.is_none()
    }
}

impl RingState {
    /// The bytes of idle blocks that are page-locked.
    pub(super) fn idle_pinned_bytes(&self) -> usize {
        self.shelves
            .iter()
            .map(|shelf| shelf.free.pinned_bytes())
            .sum()
    }

    /// How many blocks the quotas of one kind have, or may have once they are idle.
    pub(super) fn blocks_for(&self, kind: Kind) -> usize {
        let own = |kind| {
            let shelf: &Shelf = &self.shelves[kind as usize];
            shelf.blocks - shelf.strays
        };
        match kind {
            Kind::Part if self.lends() => own(Kind::Part) + own(Kind::Whole),
            _ => own(kind),
        }
    }

    /// Whether parts may borrow the blocks of whole batches.
    fn lends(&self) -> bool {
        self.shelves[Kind::Whole as usize].shares == 0
    }

    /// Whether the budget has room for this many more bytes now.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.total_bytes.saturating_add(bytes) <= self.budget_bytes
    }

    /// Whether the budget will have room for this many more bytes once evicted blocks are unlocked.
    fn will_have_room(&self, bytes: usize) -> bool {
        let staying = self.total_bytes - self.leaving_bytes;
        staying.saturating_add(bytes) <= self.budget_bytes
    }

    /// Whether there is more than the budget allows, apart from evicted blocks.
    pub(super) fn is_beyond_budget(&self) -> bool {
        !self.will_have_room(0)
    }

    /// How many bytes the budget has room for if all idle blocks are evicted.
    fn room_bytes(&self) -> usize {
        let idle_bytes: usize = self.shelves.iter().map(|shelf| shelf.free.bytes()).sum();
        let in_use = self.total_bytes - idle_bytes - self.leaving_bytes;
        self.budget_bytes.saturating_sub(in_use)
    }

    /// How many bytes the request leaves to earlier batches. `None`: the budget does not have room for both, also where the
    /// only idle blocks are larger than the request needs.
    fn reserved_bytes(&self, request: &BlockRequest) -> Option<usize> {
        if request.reserve == 0 || planted("nothing is reserved in the budget") {
            return Some(0);
        }
        let reserved_bytes = block_bytes(request.largest)?.checked_mul(request.reserve)?;
        let shelves = self.shelves.iter();
        let idle = shelves.filter_map(|shelf| shelf.free.best_bytes(request.size));
        let taken = idle.min().unwrap_or(request.size);
        (taken.saturating_add(reserved_bytes) <= self.room_bytes()).then_some(reserved_bytes)
    }

    /// Takes an idle block, if there is one for the request, and the budget has room for it and for earlier batches.
    pub(super) fn take_idle(&mut self, request: &BlockRequest) -> Option<(HostBlock, Kind)> {
        self.reserved_bytes(request)?;
        let (size, most) = (request.size, self.most_bytes(request));
        let shelves: &[Kind] = match request.share {
            Some((Kind::Whole, _)) => &[Kind::Whole],
            Some((Kind::Part, _)) if self.lends() => &[Kind::Part, Kind::Whole],
            Some((Kind::Part, _)) => &[Kind::Part],
            None => &[Kind::Whole, Kind::Part],
        };
        for &kind in shelves {
            let shelf = &mut self.shelves[kind as usize];
            if let Some(block) = shelf.free.take_best(size, most) {
                shelf.strays += usize::from(request.is_stray());
                return Some((block, kind));
            }
        }
        None
    }

    /// How large an idle block may be that is taken for the request.
    fn most_bytes(&self, request: &BlockRequest) -> usize {
        let size = request.size;
        // A stray (a download of one number, say) leaves large blocks to the batches that they were made for. A batch
        // takes any, for the last one of an epoch is small.
        let most = match request.is_stray() && self.has_room(size) {
            true => size.saturating_mul(OVERSIZE_FACTOR).max(SMALL_BLOCK_BYTES),
            false => usize::MAX,
        };
        match self.is_beyond_budget() {
            true => most.min(self.room_bytes()), // what is in use stays within the budget, however much is idle
            false => most,
        }
    }

    /// Takes an idle block, or reserves room for a new one. `evicts`: the caller holds `Ring::unlocking`.
    pub(super) fn take(&mut self, request: &BlockRequest, evicts: bool) -> BlockAnswer {
        let (size, kind) = (request.size, request.kind());
        let Some(reserved_bytes) = self.reserved_bytes(request) else {
            return BlockAnswer::Nothing;
        };
        if let Some((block, kind)) = self.take_idle(request) {
            return BlockAnswer::Free(block, kind);
        }
        let most = self.most_bytes(request);
        // A request that would not fit if all idle blocks were evicted evicts none.
        let room_bytes = self.room_bytes();
        if self.ahead_bytes > 0
            && !planted("what is made ahead is made again")
            && (size > room_bytes || (size..=most).contains(&self.ahead_bytes))
        {
            return BlockAnswer::Ahead;
        }
        let sizes = [block_bytes(request.largest), Some(size)];
        let mut sizes = sizes.into_iter().flatten();
        let Some(size) = sizes.find(|size| size.saturating_add(reserved_bytes) <= room_bytes)
        else {
            return BlockAnswer::Nothing;
        };
        let shelf = &self.shelves[kind as usize];
        if let Some((_, false)) = request.share
            && !planted("more blocks than shares")
            && shelf.free.is_empty()
            && self.blocks_for(kind) >= shelf.shares.max(1)
        {
            return BlockAnswer::Nothing;
        }
        // A batch's new block replaces an idle one, so that a ring whose batches grow does not keep every size that there
        // ever was. More are evicted while the budget needs it.
        let outgrown = !request.is_stray() && !shelf.free.is_empty();
        if (outgrown || !self.has_room(size)) && !evicts {
            return BlockAnswer::Evict;
        }
        let mut evicted = Vec::new();
        if outgrown {
            evicted.extend(self.evict(&[kind], Idle::take_smallest));
        }
        while !self.will_have_room(size)
            && let Some(block) = self.evict(&[kind, Kind::Whole, Kind::Part], Idle::take_largest)
        {
            evicted.push(block);
        }
        self.total_bytes += size;
        let shelf = &mut self.shelves[kind as usize];
        shelf.blocks += 1;
        shelf.strays += usize::from(request.is_stray());
        BlockAnswer::Room(size, evicted)
    }

    /// Removes an idle block for good, from the first of the shelves that has one. If it is page-locked, its bytes count
    /// until they [`left`](RingState::left).
    pub(super) fn evict(
        &mut self,
        shelves: &[Kind],
        take: fn(&mut Idle) -> Option<HostBlock>,
    ) -> Option<HostBlock> {
        let (block, kind) = shelves.iter().find_map(|&kind| {
            let block = take(&mut self.shelves[kind as usize].free)?;
            Some((block, kind))
        })?;
        self.shelves[kind as usize].blocks -= 1;
        match block.is_pinned() {
            true => self.leaving_bytes += block.capacity(),
            false => self.total_bytes -= block.capacity(),
        }
        Some(block)
    }

    /// All evicted blocks were unlocked.
    pub(super) fn left(&mut self) {
        let bytes = std::mem::take(&mut self.leaving_bytes);
        self.pinned_bytes -= bytes;
        self.total_bytes -= bytes;
    }
}
