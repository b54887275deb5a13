//! A server that is overloaded now and then: samples are asked for again, and a few that stay away are replaced.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pinfeed::error::Temporary;
use pinfeed::loader::OnError;
use pinfeed::{BoxError, DataLoader, from_fn};

/// Stands for a server with objects of 16 bytes, of which every fifth request fails.
struct Server {
    requests: AtomicU64,
}

impl Server {
    fn get(&self, index: u64) -> Result<Vec<u8>, BoxError> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        match index {
            13 => Err("404 Not Found".into()),
            _ if request % 5 == 4 => Err(Temporary::new("503 Service Unavailable").into()),
            _ => Ok(vec![index as u8; 16]),
        }
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let server = Server {
        requests: AtomicU64::new(0),
    };
    let objects = from_fn(100, move |index, _| server.get(index))
        .describe(|index| format!("objects/{index}"));
    let loader = DataLoader::builder(objects)
        .batch_size(10)
        .num_workers(4)
        .retry(5, Duration::from_millis(1))
        .on_error(OnError::Replace { at_most: 5 })
        .build()?;
    for batch in &loader {
        assert_eq!(batch?.shape()[..], [10, 16]);
    }
    let stats = loader.stats();
    println!("{stats}");
    assert!(stats.bad.retried >= 20 && stats.bad.replaced == 1, "{stats}");
    assert!(stats.bad.listed.iter().any(|bad| bad.contains("objects/13") && bad.contains("404")));
    Ok(())
}
