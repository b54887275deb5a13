//! What a ring has: the free blocks, and the counts of all.

use super::super::host_memory::HostBlock;

pub(super) struct State {
    /// Blocks for whole batches, and blocks for parts of batches. Parts are lent the others only while no epoch has whole
    /// batches: or large ones would be missing where they are needed, and more be made.
    pub(super) shelves: [Shelf; 2],
    /// The bytes of all blocks that are alive and page-locked, free or out.
    pub(super) pinned_bytes: usize,
    /// The bytes of all blocks that are alive, free or out.
    pub(super) total_bytes: usize,
    pub(super) budget_bytes: usize,
    /// The size of the block that is being made ahead, and is free when it is made.
    pub(super) ahead_bytes: usize,
    /// Blocks beyond the budget, which are to be unlocked.
    pub(super) leaving: Vec<HostBlock>,
    /// Their bytes, and those of the one that is being unlocked: `total_bytes` has them until they are gone.
    pub(super) leaving_bytes: usize,
    /// Somebody unlocks what is leaving, or is about to.
    pub(super) is_unlocking: bool,
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

impl State {
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
    pub(super) fn lends(&self) -> bool {
        self.shelves[Kind::Whole as usize].shares == 0
    }

    /// How many bytes a new block may have if all free ones went, and what is leaving.
    pub(super) fn room_bytes(&self) -> usize {
        let idle_bytes: usize = self.free().map(HostBlock::capacity).sum();
        let in_use = self.total_bytes - idle_bytes - self.leaving_bytes;
        self.budget_bytes.saturating_sub(in_use)
    }

    /// Takes a free block out for good, from the first of the shelves that has one.
    pub(super) fn evict(&mut self, shelves: &[Kind]) -> Option<HostBlock> {
        let mut shelves = shelves.iter();
        let (block, kind) =
            shelves.find_map(|&kind| Some((self.shelves[kind as usize].free.pop()?, kind)))?;
        self.forget(&block, kind);
        Some(block)
    }

    /// Puts a block on its way out; says whether somebody has to be told to unlock it.
    pub(super) fn leave(&mut self, block: HostBlock, kind: Kind) -> bool {
        self.shelves[kind as usize].blocks -= 1;
        self.leaving_bytes += block.capacity();
        self.leaving.push(block);
        !std::mem::replace(&mut self.is_unlocking, true)
    }

    /// The next block to be unlocked.
    pub(super) fn next_leaving(&mut self) -> Option<HostBlock> {
        let block = self.leaving.pop();
        self.is_unlocking = block.is_some();
        block
    }

    /// So many bytes were unlocked.
    pub(super) fn left(&mut self, bytes: usize) {
        self.leaving_bytes -= bytes;
        self.pinned_bytes -= bytes;
        self.total_bytes -= bytes;
    }

    pub(super) fn forget(&mut self, block: &HostBlock, kind: Kind) {
        self.shelves[kind as usize].blocks -= 1;
        self.total_bytes -= block.capacity();
        if block.is_pinned() {
            self.pinned_bytes -= block.capacity();
        }
    }
}
