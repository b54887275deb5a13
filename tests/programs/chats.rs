//! Fine-tuning on conversations from a pipe: whole ones share a row, and only the answers are learned.

use std::error::Error;

use pinfeed::loader::OnError;
use pinfeed::packed::PackedRow;
use pinfeed::iterable::{self, IterableDataset};
use pinfeed::{BoxError, DataLoader, Device, SampleRng};

const CONTEXT: usize = 48;
const IGNORED: i64 = -100;

/// `question|answer` becomes tokens: those of the question below 0, because they are not learned.
fn tokenise(line: String, _: &mut SampleRng) -> Result<Vec<i32>, BoxError> {
    let (question, answer) = line.split_once('|').ok_or_else(|| format!("no answer: {line}"))?;
    let question = question.bytes().map(|byte| -i32::from(byte));
    Ok(question.chain(answer.bytes().map(i32::from)).collect())
}

/// The sign becomes labels again.
fn label(row: PackedRow<i32>, _: &mut SampleRng) -> Result<(PackedRow<i32>, Vec<i64>), BoxError> {
    let label = |token: &i32| if *token > 0 { i64::from(*token) } else { IGNORED };
    let labels = row.tokens.iter().map(label).collect();
    let tokens = row.tokens.iter().map(|token| token.abs()).collect();
    Ok((PackedRow { tokens, ..row }, labels))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let lines = iterable::from_fn(|_epoch, shard| {
        let lines = (0..300usize).map(|number| match number {
            123 => "a line without an answer".to_owned(),
            number => format!("why {}?|{}", "oh ".repeat(number % 9), "because ".repeat(number % 4)),
        });
        let numbered = (0..).zip(lines).filter(move |(number, _)| shard.keeps(*number));
        Ok(numbered.map(|(_, line)| Ok(line)))
    });
    let device = Device::cpu();
    let rows = lines.map(tokenise).pack(CONTEXT)?.with_best_fit(64);
    let loader = DataLoader::iterable(rows.map(label))
        .batch_size(8)
        .num_workers(2)
        .pin_memory(&device)
        .on_error(OnError::Skip { at_most: 10 })
        .build()?;
    let (mut real, mut all, mut learned) = (0, 0, 0);
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let (rows, labels) = batch?;
        let mask = rows.mask.to_host(true)?.wait()?;
        let labels = labels.to_host(true)?.wait()?;
        assert_eq!(labels.shape(), mask.shape());
        all += mask.as_slice().len();
        real += mask.as_slice().iter().filter(|real| **real == 1).count();
        learned += labels.as_slice().iter().filter(|label| **label != IGNORED).count();
    }
    let answers: usize = (0..300).filter(|number| *number != 123).map(|number| 8 * (number % 4)).sum();
    assert_eq!(learned, answers);
    assert!(real * 10 > all * 9, "{real} of {all}"); // the rest is padding
    assert_eq!(loader.stats().bad.listed.len(), 1);
    println!("{}", loader.stats().bad.listed[0]);
    assert!(loader.stats().bad.listed[0].ends_with("document 123: no answer: a line without an answer"));
    Ok(())
}
