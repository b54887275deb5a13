//! A trace for Perfetto of an epoch in which the program waited long for a batch; of nothing, if it never does.

use std::error::Error;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pinfeed::{DataLoader, from_fn};

const LONG: Duration = Duration::from_millis(10);

pub fn main() -> Result<(), Box<dyn Error>> {
    let samples = from_fn(60, |index, _| {
        sleep(if index == 37 { 5 * LONG } else { Duration::ZERO });
        Ok(index as i64)
    });
    let loader = DataLoader::builder(samples)
        .batch_size(10)
        .num_workers(2)
        .build()?;
    let recording = loader.record();
    let (mut epoch, mut longest) = (loader.epoch(0), Duration::ZERO);
    loop {
        let asked = Instant::now();
        let Some(batch) = epoch.next() else { break };
        longest = longest.max(asked.elapsed());
        batch?;
    }
    if longest < LONG {
        return Ok(()); // the recording is dropped
    }
    let trace: serde_json::Value = serde_json::from_str(&recording.finish().to_chrome_trace())?;
    let events = trace["traceEvents"].as_array().ok_or("no events")?;
    let loads = events.iter().filter(|event| event["name"] == "load");
    let slow = loads.max_by_key(|event| event["dur"].as_f64().map(|us| us as u64));
    let slow = slow.ok_or("nothing was loaded")?;
    println!("batch {} took a worker {} us", slow["args"]["batch"], slow["dur"]);
    assert!(slow["dur"].as_f64() >= Some(49_000.0));
    Ok(())
}
