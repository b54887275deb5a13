use std::sync::mpsc;

use super::*;
use crate::driver::cpu::Cpu;
use crate::sync::is_own_thread;

fn driver() -> Driver {
    Driver::Cpu(Cpu::new(None))
}

/// What is told runs on one of the library's threads, and must not wait for another.
#[test]
fn the_thread_is_the_librarys_own() {
    let decoder = Decoder::start(&driver()).unwrap();
    let (sender, told) = mpsc::channel();
    let tell = move |outcome: Result<(), NotDecoded>| {
        sender.send((outcome.is_ok(), is_own_thread())).unwrap();
    };
    decoder.decode(Undecoded::default(), Box::new(tell));
    assert_eq!(told.recv().unwrap(), (true, true));
}

/// The decoder says that it is ready once pictures would not have to wait for it.
#[test]
fn a_decoder_opens_before_it_has_work() {
    let device = crate::device::Device::open(driver()).unwrap();
    assert!(!device.inner.is_decoder_ready());
    device.inner.open_decoder();
    while !device.inner.is_decoder_ready() {
        thread::yield_now();
    }
    device.inner.open_decoder(); // once is enough
    assert!(device.inner.is_decoder_ready());
}

/// A caller that hands something over to a thread that has ended is told so, and so is one that did before it ended.
#[test]
fn a_thread_that_ended_is_no_silence() {
    let decoder = Decoder::start(&driver()).unwrap();
    let (sender, told) = mpsc::channel();
    let tell = |number| {
        let sender = sender.clone();
        let tell = move |outcome: Result<(), NotDecoded>| {
            let Err(NotDecoded::Failed(error)) = outcome else {
                panic!("it was decoded by nobody");
            };
            sender.send((number, error.to_string())).unwrap();
        };
        Box::new(tell)
    };
    let job = |number| Job::new(Vec::new(), tell(number));
    let shared = Shared::default();
    shared.queue.lock().jobs.push_back(job(0));
    drop(Closing(&shared));
    drop(Closing(&decoder.shared));
    decoder.decode(Undecoded::default(), tell(1));
    for number in 0..2 {
        let (told, error) = told.recv().unwrap();
        assert_eq!(told, number);
        assert!(error.contains("has ended"), "{error}");
    }
}
