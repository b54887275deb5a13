//! Runs of a loader whose process dies at any operation, and that are resumed: no sample is lost, doubled or wrong.

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use crate::dataset::{BlockSource, Blocked};
    use crate::error::BoxError;
    use crate::loader::{LoaderState, World as Ranks};
    use crate::rng::SampleRng;
    use crate::sampler::Blocks;
    use crate::store::Object;
    use crate::store::cache::reading::Cache;
    use crate::store::cache::simulation::world::{Fault, SimulatedFiles, World};
    use crate::store::cache::simulation::{Draws, Objects, PAGE_FILE, cache, each_seed};
    use crate::sync::Arc;
    use crate::{DataLoader, Result};

    const SAMPLES: u64 = 240;
    const OF_A_BLOCK: u64 = 12;
    const BYTES: u64 = 20;

    /// Samples of 20 bytes each, one behind the other.
    struct Records {
        cache: Cache<SimulatedFiles>,
        object: Object,
    }

    impl Records {
        fn range(samples: Range<u64>) -> Range<u64> {
            samples.start * BYTES..samples.end * BYTES
        }
    }

    impl BlockSource for Records {
        type Block = (u64, Vec<u8>);
        type Sample = i64;

        fn blocks(&self) -> Arc<Blocks> {
            Arc::new(Blocks::even(SAMPLES, OF_A_BLOCK).unwrap())
        }

        fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
            ((samples.end - samples.start) * BYTES) as usize
        }

        fn fetch(&self, _: u64, samples: Range<u64>) -> Result<(u64, Vec<u8>), BoxError> {
            let bytes = self
                .cache
                .read(&self.object, Records::range(samples.clone()))?;
            Ok((samples.start, bytes))
        }

        /// Its index, if its bytes are right.
        fn decode(
            &self,
            (first, bytes): &(u64, Vec<u8>),
            index: u64,
            _: &mut SampleRng,
        ) -> Result<i64, BoxError> {
            let at = ((index - first) * BYTES) as usize;
            let right = Objects::bytes(&self.object, Records::range(index..index + 1));
            match bytes.get(at..at + BYTES as usize) == Some(&right) {
                true => Ok(index as i64),
                false => Err(format!("sample {index} is wrong").into()),
            }
        }
    }

    /// A step of a program: what it had of a batch, and what it saved then.
    type Step = (Vec<i64>, LoaderState);

    /// Trains until the process dies, or two epochs are over. A batch that comes when the process is dead has not come.
    fn live(
        world: &Arc<World>,
        process: usize,
        objects: &Arc<Objects>,
        (rank, ranks): (usize, usize),
        (state, seed): (LoaderState, u64),
        steps: &mut Vec<Step>,
    ) -> Result<()> {
        let cache = cache(world, process, objects, 30);
        if cache.enter().is_err() {
            assert!(world.is_dead(process));
            return Ok(());
        }
        let object = objects.all[0].clone();
        let data = Blocked::new(Records { cache, object }).with_in_flight(3);
        let loader = DataLoader::builder(data)
            .global_batch_size(12)
            .shuffle(true)
            .seed(seed)
            .world(Ranks::new(rank, ranks)?)
            .num_workers(2)
            .build()?;
        for epoch in loader.resume(0..2, &state)? {
            for batch in epoch {
                let batch = batch?.to_vec();
                if world.is_dead(process) {
                    return Ok(());
                }
                steps.push((batch, loader.state()));
            }
        }
        Ok(())
    }

    fn check(steps: &[Step], seed: u64) -> usize {
        let mut all: Vec<i64> = steps.iter().flat_map(|(batch, _)| batch).copied().collect();
        let count = all.len();
        all.sort_unstable();
        let twice = (0..SAMPLES as i64).flat_map(|sample| [sample, sample]);
        assert!(
            all.into_iter().eq(twice),
            "seed {seed}: {count} samples, some lost or doubled"
        );
        count
    }

    #[test]
    fn no_sample_is_lost_or_doubled_when_runs_die_and_are_resumed() {
        let (mut kills, mut samples) = (0, 0);
        let seeds = each_seed(2_000..2_060, |seed| {
            let objects = Objects::new(&[SAMPLES * BYTES], None);
            let world = World::new(seed, 0, false, &[]);
            let (mut draws, mut steps) = (Draws(seed), Vec::new());
            for life in 0.. {
                let process = world.another();
                let operation = 1 + draws.below(500);
                let kill = [Fault::Kill { process, operation }];
                world.set_faults(if life < 4 { &kill } else { &[] });
                let state = steps
                    .last()
                    .map_or(LoaderState::default(), |(_, state)| *state);
                let alone = (0, 1);
                live(&world, process, &objects, alone, (state, seed), &mut steps).unwrap();
                if !world.is_dead(process) {
                    break;
                }
                kills += 1;
            }
            samples += check(&steps, seed);
            assert_eq!(world.open_files(), 0, "seed {seed}");
            assert!(world.most_bytes() <= 30 * PAGE_FILE, "seed {seed}");
        });
        println!("{seeds} seeds, {kills} kills, {samples} samples, none lost or doubled");
    }

    /// Two ranks share the folder, and die at different moments. One goes on alone, from the last step that both had.
    #[test]
    fn ranks_that_share_a_folder_die_and_one_goes_on() {
        let (mut kills, mut samples) = (0, 0);
        let seeds = each_seed(3_000..3_030, |seed| {
            let objects = Objects::new(&[SAMPLES * BYTES], None);
            let world = World::new(seed, 0, false, &[]);
            let mut draws = Draws(seed);
            let of_ranks = [0, 1].map(|rank| {
                let process = world.another();
                let operation = 1 + draws.below(400);
                world.set_faults(&[Fault::Kill { process, operation }]);
                let (mut steps, start) = (Vec::new(), (LoaderState::default(), seed));
                live(&world, process, &objects, (rank, 2), start, &mut steps).unwrap();
                kills += usize::from(world.is_dead(process));
                steps
            });
            let common = of_ranks[0].len().min(of_ranks[1].len());
            let mut steps: Vec<Step> = of_ranks
                .iter()
                .flat_map(|steps| &steps[..common])
                .cloned()
                .collect();
            let state = steps
                .last()
                .map_or(LoaderState::default(), |(_, state)| *state);
            world.set_faults(&[]);
            let process = world.another();
            live(&world, process, &objects, (0, 1), (state, seed), &mut steps).unwrap();
            samples += check(&steps, seed);
            assert!(world.most_bytes() <= 30 * PAGE_FILE, "seed {seed}");
        });
        println!("{seeds} seeds, {kills} kills of ranks, {samples} samples, none lost or doubled");
    }
}
