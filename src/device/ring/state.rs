//! What a ring has: the free blocks, and the counts of all. Under its lock it is decided who gets which block.

use super::super::host_memory::HostBlock;
use crate::tuning::{OVERSIZE_FACTOR, SMALL_BLOCK_BYTES};

pub(super) struct RingState {
    /// Blocks for whole batches, and blocks for parts of batches. Parts are lent the others only while no epoch has whole
    /// batches: or large ones would be missing where they are needed, and more be made.
    pub(super) shelves: [Shelf; 2],
    /// The bytes of all blocks that are alive and page-locked, free or out.
    pub(super) pinned_bytes: usize,
    /// The bytes of all blocks that are alive, free or out. They may be beyond a budget that was lowered.
    pub(super) total_bytes: usize,
    pub(super) budget_bytes: usize,
    /// The size of the block that is being made ahead, and is free when it is made.
    pub(super) ahead_bytes: usize,
    /// The bytes of evicted blocks that are being unlocked: `total_bytes` counts them until that is done. Not 0 only while
    /// somebody holds `Ring::unlocking`.
    pub(super) leaving_bytes: usize,
    /// How many free blocks a ring of pageable blocks keeps.
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
    pub(super) free: Vec<HostBlock>,
    /// How many blocks there are, free or out.
    pub(super) blocks: usize,
    /// How many of them are out without an account: downloads, and tensors that the program pinned.
    pub(super) strays: usize,
    /// How many slabs the open accounts may have out, all together.
    pub(super) shares: usize,
}

impl Shelf {
    /// Takes the smallest free block that is large enough, and not too large; one that is not page-locked only where there is
    /// no other; of equal ones the one that came back last, which the processor's cache may still hold.
    pub(super) fn take_best(&mut self, size: usize, most: usize) -> Option<HostBlock> {
        let fits = |(_, block): &(usize, &HostBlock)| (size..=most).contains(&block.capacity());
        let free = self.free.iter().enumerate().rev();
        let (best, _) = free
            .filter(fits)
            .min_by_key(|(_, block)| (!block.is_pinned(), block.capacity()))?;
        Some(self.free.remove(best))
    }
}

/// What somebody wants of the ring.
pub(super) struct BlockRequest {
    /// A block of so many bytes is large enough.
    pub(super) size: usize,
    /// If one must be made, it is of so many bytes, where the budget has room for them.
    pub(super) wished: usize,
    /// Of which kind, and whether there may be more blocks than the open accounts have shares; `None` for a stray, which counts
    /// in no share.
    pub(super) share: Option<(Kind, bool)>,
}

/// What the ring has for somebody.
pub(super) enum BlockAnswer {
    Free(HostBlock, Kind),
    /// Room for a new block of so many bytes, which is reserved; but these must be unlocked first.
    Room(usize, Vec<HostBlock>),
    /// A block is being made ahead that is better waited for than done without, or made a second time.
    Ahead,
    /// Blocks must be evicted, by somebody who holds `Ring::unlocking`.
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
    pub(super) fn free(&self) -> impl Iterator<Item = &HostBlock> {
        self.shelves.iter().flat_map(|shelf| &shelf.free)
    }

    /// How many blocks the accounts of one kind have, or may have when they are free.
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

    /// Whether parts may have the blocks of whole batches.
    fn lends(&self) -> bool {
        self.shelves[Kind::Whole as usize].shares == 0
    }

    /// Whether the budget has room for so many bytes more as it is.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.total_bytes.saturating_add(bytes) <= self.budget_bytes
    }

    /// Whether the budget will have room for so many bytes more when what is leaving has left.
    fn will_have_room(&self, bytes: usize) -> bool {
        let staying = self.total_bytes - self.leaving_bytes;
        staying.saturating_add(bytes) <= self.budget_bytes
    }

    /// Whether more is alive than the budget allows, beside what is leaving.
    pub(super) fn is_beyond_budget(&self) -> bool {
        !self.will_have_room(0)
    }

    /// How many bytes the budget has room for if all free blocks go.
    fn room_bytes(&self) -> usize {
        let idle_bytes: usize = self.free().map(HostBlock::capacity).sum();
        let in_use = self.total_bytes - idle_bytes - self.leaving_bytes;
        self.budget_bytes.saturating_sub(in_use)
    }

    /// Takes a free block, or reserves room for a new one. `evicts`: the caller holds `Ring::unlocking`.
    pub(super) fn take(&mut self, request: &BlockRequest, evicts: bool) -> BlockAnswer {
        let (size, kind) = (request.size, request.kind());
        // A stray (a download of one number, say) leaves large blocks to the batches that they were made for; a batch takes any,
        // for the last one of an epoch is small.
        let mut most = match request.is_stray() && self.has_room(size) {
            true => size.saturating_mul(OVERSIZE_FACTOR).max(SMALL_BLOCK_BYTES),
            false => usize::MAX,
        };
        if self.is_beyond_budget() {
            most = most.min(self.room_bytes()); // what is in use stays below the budget, however much is idle
        }
        let shelves: &[Kind] = match request.share {
            Some((Kind::Whole, _)) => &[Kind::Whole],
            Some((Kind::Part, _)) if self.lends() => &[Kind::Part, Kind::Whole],
            Some((Kind::Part, _)) => &[Kind::Part],
            None => &[Kind::Whole, Kind::Part],
        };
        for &kind in shelves {
            let shelf = &mut self.shelves[kind as usize];
            if let Some(block) = shelf.take_best(size, most) {
                shelf.strays += usize::from(request.is_stray());
                return BlockAnswer::Free(block, kind);
            }
        }
        // What would not fit if all free blocks went costs none of them.
        let room_bytes = self.room_bytes();
        if self.ahead_bytes > 0 && (size > room_bytes || (size..=most).contains(&self.ahead_bytes))
        {
            return BlockAnswer::Ahead;
        }
        let mut sizes = [request.wished, size].into_iter();
        let Some(size) = sizes.find(|size| *size <= room_bytes) else {
            return BlockAnswer::Nothing;
        };
        let shelf = &self.shelves[kind as usize];
        if let Some((_, false)) = request.share
            && shelf.free.is_empty()
            && self.blocks_for(kind) >= shelf.shares.max(1)
        {
            return BlockAnswer::Nothing;
        }
        // One goes for a batch's new one, so that a ring whose batches grow does not keep all the sizes that there ever were;
        // more go while the budget needs it.
        let outgrown = !request.is_stray() && !shelf.free.is_empty();
        if (outgrown || !self.has_room(size)) && !evicts {
            return BlockAnswer::Evict;
        }
        let mut evicted = Vec::new();
        if outgrown {
            evicted.extend(self.evict(&[kind]));
        }
        while !self.will_have_room(size)
            && let Some(block) = self.evict(&[kind, Kind::Whole, Kind::Part])
        {
            evicted.push(block);
        }
        self.total_bytes += size;
        let shelf = &mut self.shelves[kind as usize];
        shelf.blocks += 1;
        shelf.strays += usize::from(request.is_stray());
        BlockAnswer::Room(size, evicted)
    }

    /// Takes a free block out for good, from the first of the shelves that has one. If it is page-locked, its bytes count until
    /// they [`left`](RingState::left).
    pub(super) fn evict(&mut self, shelves: &[Kind]) -> Option<HostBlock> {
        let mut shelves = shelves.iter();
        let (block, kind) =
            shelves.find_map(|&kind| Some((self.shelves[kind as usize].free.pop()?, kind)))?;
        self.shelves[kind as usize].blocks -= 1;
        match block.is_pinned() {
            true => self.leaving_bytes += block.capacity(),
            false => self.total_bytes -= block.capacity(),
        }
        Some(block)
    }

    /// All that was leaving was unlocked.
    pub(super) fn left(&mut self) {
        let bytes = std::mem::take(&mut self.leaving_bytes);
        self.pinned_bytes -= bytes;
        self.total_bytes -= bytes;
    }
}
