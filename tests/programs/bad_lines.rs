//! A table with lines that are no numbers: they are left out, and batches are smaller by as many rows.

use std::error::Error;

use pinfeed::loader::OnError;
use pinfeed::{DataLoader, from_fn};

const TABLE: &str = "1.5,0\n2.5,1\nn/a,0\n3.5,1\n4.5,0\n,1\n5.5,1\n6.5,0\n";

pub fn main() -> Result<(), Box<dyn Error>> {
    let lines: Vec<&str> = TABLE.lines().collect();
    let rows = from_fn(lines.len(), move |index, _| {
        let (value, label) = lines[index as usize].split_once(',').ok_or("it has no comma")?;
        Ok((value.parse::<f32>()?, label.parse::<i64>()?))
    })
    .describe(|index| format!("line {}", index + 1));
    let loader = DataLoader::builder(rows)
        .batch_size(4)
        .num_workers(1)
        .on_error(OnError::Skip { at_most: 100 })
        .build()?;
    let mut values = Vec::new();
    for batch in &loader {
        let (value, label) = batch?;
        assert_eq!(value.len(), label.len());
        values.extend_from_slice(value.as_slice());
    }
    assert_eq!(values, [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]);
    let stats = loader.stats();
    assert_eq!(stats.bad.skipped, 2);
    println!("{}", stats.bad.listed.join("\n"));
    assert!(stats.bad.listed.iter().any(|bad| bad.contains("line 3") && bad.contains("invalid float")));
    Ok(())
}
