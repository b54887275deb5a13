//! A server that stops to answer: what it does not send is logged, and the run goes on with the other batches.

use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use pinfeed::{BoxError, DataLoader, Dataset, SampleRng};

type Request = (u64, Sender<Vec<f32>>);

/// Samples from a server, which is a thread here.
struct Remote {
    requests: Mutex<Sender<Request>>,
}

impl Dataset for Remote {
    type Sample = Vec<f32>;

    fn len(&self) -> u64 {
        24
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Vec<f32>, BoxError> {
        let (reply, replies) = channel();
        let requests = self.requests.lock().map_err(|error| error.to_string())?.clone();
        requests.send((index, reply))?;
        Ok(replies.recv()?) // for as long as it takes
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(format!("http://example.org/{index}"))
    }
}

const STOP: u64 = u64::MAX;

/// Answers all requests but one, which it keeps until it is stopped.
fn serve(requests: Receiver<Request>) {
    let mut kept = Vec::new();
    for (index, reply) in requests {
        match index {
            STOP => break,
            10 => kept.push(reply),
            index => _ = reply.send(vec![index as f32; 4]),
        }
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let (sender, requests) = channel();
    let stop = sender.clone();
    let server = thread::Builder::new().name("server".into());
    let server = server.spawn(move || serve(requests))?;
    let loader = DataLoader::builder(Remote {
        requests: Mutex::new(sender),
    })
    .batch_size(4)
    .num_workers(2)
    .timeout(Duration::from_millis(500))
    .build()?;

    let (mut samples, mut log) = (0, Vec::new());
    for batch in &loader {
        match batch {
            Ok(batch) => samples += batch.shape()[0],
            Err(pinfeed::Error::TimedOut(late)) => log.push(late.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    assert_eq!(samples, 20);
    assert_eq!(log.len(), 1);
    assert!(log[0].contains("sample 10 (http://example.org/10)"), "{log:?}");

    drop(loader); // without waiting for the answer
    stop.send((STOP, channel().0))?;
    server.join().map_err(|_| "the server panicked")?;
    Ok(())
}
