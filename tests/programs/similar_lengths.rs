//! Reviews of very different lengths: batches of similar ones need little padding. The tokeniser runs on all workers, because the length
//! of a text tells enough; and a run that is interrupted goes on with the same batches.

use std::error::Error;

use pinfeed::iterable::{self, IterableDataset};
use pinfeed::loader::{Iterable, IterableState};
use pinfeed::padded::PaddedTensor;
use pinfeed::{BoxError, DataLoader, Padded, SampleRng};

const BATCH: usize = 16;

/// (A model's tokeniser stands here.)
fn tokenise(text: String, _: &mut SampleRng) -> Result<Padded<u32>, BoxError> {
    Ok(Padded::from(text.split_whitespace().map(|word| word.len() as u32).collect::<Vec<_>>()))
}

fn reviews() -> impl IterableDataset<Sample = String> {
    iterable::from_fn(|_epoch, shard| {
        let own = (0..2_000usize).filter(move |number| shard.keeps(*number as u64));
        Ok(own.map(|number| Ok("fine ".repeat(1 + (number * number) % 241))))
    })
}

fn loader(is_bucketed: bool) -> pinfeed::Result<DataLoader<PaddedTensor<u32>, Iterable>> {
    let shuffled = reviews().shuffle(500);
    match is_bucketed {
        true => {
            let bucketed = shuffled.bucket_by_length(BATCH, String::len)?.with_buffer(50);
            DataLoader::iterable(bucketed.map(tokenise)).batch_size(BATCH).num_workers(2).build()
        }
        false => DataLoader::iterable(shuffled.map(tokenise)).batch_size(BATCH).num_workers(2).build(),
    }
}

/// Tokens that are computed, and those that are learned from.
fn computed(is_bucketed: bool) -> Result<(usize, usize), Box<dyn Error>> {
    let (mut computed, mut real) = (0, 0);
    for batch in loader(is_bucketed)?.epoch(0) {
        let batch = batch?;
        computed += batch.values.len();
        real += batch.lengths.as_slice().iter().sum::<i64>() as usize;
    }
    Ok((computed, real))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let ((shuffled, real), (bucketed, same)) = (computed(false)?, computed(true)?);
    assert_eq!(real, same);
    println!("{real} tokens: {shuffled} with padding, {bucketed} in batches of similar lengths");
    assert!(10 * bucketed < 11 * real && 2 * shuffled > 3 * real);

    let lengths = |batch: pinfeed::Result<PaddedTensor<u32>>| Ok::<_, pinfeed::Error>(batch?.lengths.to_vec());
    let whole = loader(true)?.epoch(0).map(lengths).collect::<Result<Vec<_>, _>>()?;
    let checkpoint = {
        let loader = loader(true)?;
        let mut epoch = loader.epoch(0);
        for _ in 0..70 {
            epoch.next().ok_or("too few batches")??;
        }
        epoch.state().to_string() // the power goes off
    };
    let state: IterableState = checkpoint.parse()?;
    let loader = loader(true)?;
    let resumed = loader.resume(0..1, &state)?.next().ok_or("no epoch is left")?;
    assert_eq!(resumed.map(lengths).collect::<Result<Vec<_>, _>>()?, whole[70..]);
    Ok(())
}
