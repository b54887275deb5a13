//~ ERROR E0277
//~ says: Receiver<()>: Clone` is not satisfied

use std::sync::mpsc::Receiver;

use pinfeed::{DataLoader, from_fn};

#[derive(pinfeed::Sample)]
struct Pictures {
    pixels: Vec<u8>,
    #[pinfeed(host)]
    reply: Receiver<()>, // there is one of it
}

fn main() -> pinfeed::Result<()> {
    let pictures = from_fn(8, |_, _| {
        let (_, reply) = std::sync::mpsc::channel();
        Ok(Pictures { pixels: vec![0; 4], reply })
    });
    let loader = DataLoader::builder(pictures).batch_size(4).build()?;
    for batch in loader.replay(0)? { //~ HERE
        let _ = batch?;
    }
    Ok(())
}
