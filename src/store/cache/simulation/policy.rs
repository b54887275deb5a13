//! How many reads are hits where there is not room for all: beside an optimum that knows everything, and beside evicting what was used
//! least recently.

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet, HashMap};
    use std::ops::Range;
    use std::rc::Rc;

    use super::super::world::World;
    use super::super::{Objects, PAGE, PAGE_FILE, cache};
    use crate::sampler::{BlockSampler, Blocks, Opening, Sampler};
    use crate::store::next_use::{AskNextUse, NextUse, with_next_use};
    use crate::sync::plain::AtomicU64;
    use crate::sync::{Arc, Ordering};

    /// A data set: one object, whose blocks have so many bytes, and 100 samples each.
    struct Data {
        blocks: u64,
        block_bytes: u64,
        epochs: u64,
        ranks: u64,
    }

    const SAMPLES: u64 = 100;

    /// A read of one epoch: whose it is, what it reads, and when that is read again.
    struct Read {
        epoch: u64,
        rank: u64,
        range: Range<u64>,
        next_use: NextUse,
    }

    impl Data {
        fn sampler(&self, seed: u64) -> BlockSampler {
            let blocks = Blocks::even(self.blocks * SAMPLES, SAMPLES).unwrap();
            BlockSampler::new(Arc::new(blocks)).with_seed(seed)
        }

        /// The bytes of an opening: its samples', as they lie.
        fn bytes(&self, opening: &Opening) -> Range<u64> {
            let at = |sample: u64| sample * self.block_bytes / SAMPLES;
            at(opening.samples.start)..at(opening.samples.end)
        }

        /// All reads of all ranks, in the order in which they begin.
        fn reads(&self, sampler: &BlockSampler, epochs: Range<u64>) -> Vec<Read> {
            let mut reads = Vec::new();
            for epoch in epochs {
                let mut of_epoch: Vec<Read> = Vec::new();
                for rank in 0..self.ranks {
                    let openings = sampler.openings(epoch, 0, rank, self.ranks).unwrap();
                    let again = openings.again().unwrap();
                    of_epoch.extend(openings.map(|opening| Read {
                        epoch,
                        rank,
                        range: self.bytes(&opening),
                        next_use: again.next_use(&opening),
                    }));
                }
                of_epoch.sort_by_key(|read| read.next_use.now);
                reads.extend(of_epoch);
            }
            reads
        }

        fn pages(&self) -> u64 {
            (self.blocks * self.block_bytes).div_ceil(PAGE)
        }

        /// How many pages of each epoch are hits, with room for so many: with the cache as it is, each rank a process.
        fn hits(&self, runs: &[(u64, Range<u64>)], room: u64) -> Vec<u64> {
            let world = World::new(1, self.ranks as usize, false, &[]);
            let objects = Objects::new(&[self.blocks * self.block_bytes], None);
            let mut hits = Vec::new();
            for (seed, epochs) in runs {
                let caches: Vec<_> = (0..self.ranks as usize)
                    .map(|rank| cache(&world, rank, &objects, room))
                    .collect();
                for cache in &caches {
                    cache.enter().unwrap();
                    cache.know(&objects.all);
                }
                let count = || {
                    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
                    let hits = caches.iter().map(|cache| count(&cache.counters.hits));
                    hits.sum::<u64>()
                };
                let mut before = 0;
                for epoch in epochs.clone() {
                    for read in self.reads(&self.sampler(*seed), epoch..epoch + 1) {
                        let cache = &caches[read.rank as usize];
                        let object = &objects.all[0];
                        let next_use = read.next_use;
                        let ask: AskNextUse = Rc::new(move || next_use);
                        with_next_use(Some(ask), || cache.read(object, read.range)).unwrap();
                    }
                    hits.push(count() - before);
                    before = count();
                }
                assert!(world.most_bytes() <= room * PAGE_FILE);
            }
            hits
        }

        /// The pages that are used one after the other, each with its epoch.
        fn uses(&self) -> Vec<(u64, u64)> {
            let reads = self.reads(&self.sampler(3), 0..self.epochs);
            let pages = |read: &Read| {
                let epoch = read.epoch;
                let pages = read.range.start / PAGE..(read.range.end - 1) / PAGE + 1;
                pages.map(move |page| (epoch, page)).collect::<Vec<_>>()
            };
            reads.iter().flat_map(pages).collect()
        }

        /// Belady's optimum: the page goes, or does not come, that is used last.
        fn best(&self, room: u64) -> Vec<u64> {
            let uses = self.uses();
            let mut next = vec![usize::MAX; uses.len()];
            let mut later: HashMap<u64, usize> = HashMap::new();
            for (at, (_, page)) in uses.iter().enumerate().rev() {
                next[at] = later.insert(*page, at).unwrap_or(usize::MAX);
            }
            let mut kept: BTreeMap<u64, usize> = BTreeMap::new();
            let mut by_use: BTreeSet<(usize, u64)> = BTreeSet::new();
            let mut hits = vec![0; self.epochs as usize];
            for (at, (epoch, page)) in uses.iter().enumerate() {
                if let Some(due) = kept.remove(page) {
                    by_use.remove(&(due, *page));
                    hits[*epoch as usize] += 1;
                }
                kept.insert(*page, next[at]);
                by_use.insert((next[at], *page));
                if kept.len() as u64 > room
                    && let Some((_, page)) = by_use.pop_last()
                {
                    kept.remove(&page);
                }
            }
            hits
        }

        /// What was used least recently goes.
        fn least_recently_used(&self, room: u64) -> Vec<u64> {
            let mut kept: BTreeMap<u64, usize> = BTreeMap::new();
            let mut by_use: BTreeSet<(usize, u64)> = BTreeSet::new();
            let mut hits = vec![0; self.epochs as usize];
            for (at, (epoch, page)) in self.uses().iter().enumerate() {
                if let Some(used) = kept.insert(*page, at) {
                    by_use.remove(&(used, *page));
                    hits[*epoch as usize] += 1;
                }
                by_use.insert((at, *page));
                if kept.len() as u64 > room
                    && let Some((_, page)) = by_use.pop_first()
                {
                    kept.remove(&page);
                }
            }
            hits
        }
    }

    /// Of all uses in the epochs behind the first, the share that hits, in percent.
    fn share(hits: &[u64], uses: u64) -> f64 {
        let hits: u64 = hits[1..].iter().sum();
        100.0 * hits as f64 / uses as f64
    }

    #[test]
    fn what_is_said_of_the_next_use_is_so() {
        let data = Data {
            blocks: 400,
            block_bytes: 4 * PAGE,
            epochs: 4,
            ranks: 2,
        };
        let reads = data.reads(&data.sampler(3), 0..data.epochs);
        let mut is_later = 0;
        for (at, read) in reads.iter().enumerate().filter(|(_, read)| read.epoch < 3) {
            let has_some = |other: &&Read| {
                other.epoch > read.epoch
                    && other.range.start < read.range.end
                    && read.range.start < other.range.end
            };
            let next = reads[at..].iter().find(has_some).unwrap();
            let said = read.next_use;
            let first = said.rest.map_or(said.next, |rest| rest.next.min(said.next));
            assert_eq!(first, next.next_use.now, "{:?}", read.range);
            is_later += 1;
        }
        assert!(is_later > 1_000);
    }

    #[test]
    fn hits_are_near_the_optimum_and_above_what_is_used_least_recently() {
        println!("| room | of pages | ranks | LRU | room / all | the cache | optimum |");
        for (block_bytes, ranks) in [(4 * PAGE, 1), (4 * PAGE, 4), (8 * PAGE + 17, 2)] {
            let data = Data {
                blocks: 400,
                block_bytes,
                epochs: 5,
                ranks,
            };
            let pages = data.pages();
            let uses = data.uses().iter().filter(|(epoch, _)| *epoch > 0).count() as u64;
            for percent in [10, 25, 50, 75] {
                let room = pages * percent / 100;
                let own = share(&data.hits(&[(3, 0..data.epochs)], room), uses);
                let best = share(&data.best(room), uses);
                let least = share(&data.least_recently_used(room), uses);
                println!(
                    "| {percent} % | {pages} | {ranks} | {least:.1} % | {percent} % | {own:.1} % | {best:.1} % |"
                );
                // (The optimum knows, too, when a neighbour comes that shares a page. With little room, such pages are half of what it
                // hits.)
                let near = if percent < 50 { 0.5 } else { 0.85 };
                assert!(own > least, "{own} {least}");
                assert!(own >= near * best, "{own} {best}");
                assert!(own >= percent as f64 * 0.95, "{own} of {percent}");
            }
        }
    }

    #[test]
    fn with_room_for_all_a_second_epoch_makes_no_request() {
        for (block_bytes, ranks) in [(4 * PAGE, 1), (8 * PAGE + 17, 4)] {
            let data = Data {
                blocks: 100,
                block_bytes,
                epochs: 3,
                ranks,
            };
            let hits = data.hits(&[(3, 0..3)], data.pages());
            let uses = |epoch| {
                let uses = data.uses();
                uses.iter().filter(|(of, _)| *of == epoch).count() as u64
            };
            assert_eq!(hits[1..], [uses(1), uses(2)]);
        }
    }

    /// What another order has left is a hit where it can be, and goes when it was of no use for an epoch.
    #[test]
    fn a_run_of_another_order_takes_over_what_is_there() {
        let data = Data {
            blocks: 400,
            block_bytes: 4 * PAGE,
            epochs: 4,
            ranks: 2,
        };
        let (pages, room) = (data.pages(), data.pages() / 2);
        let hits = data.hits(&[(3, 0..2), (4, 0..4), (4, 2..4)], room);
        println!(
            "hits by epoch of three runs, the second with another seed, the third resumed: {hits:?} of {pages}"
        );
        assert!(hits[2] > pages * 2 / 5, "{hits:?}");
        assert!(hits[5] > pages * 9 / 20, "{hits:?}");
        assert!(hits[6] > pages * 9 / 20, "{hits:?}");
    }
}
