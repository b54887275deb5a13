//! The program's code uses the loader that calls it, its device, and its log: it gets what it asks for, or an error that says why it
//! cannot. None of it runs under a lock of the library's.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use pinfeed::collate::{Arena, Relocation, Tensors, Upload};
use pinfeed::dataset::Pass;
use pinfeed::device::Hostile;
use pinfeed::loader::{Iterable, OnError, TryNext};
use pinfeed::sampler::{BatchSampler, Batches, Sampler};
use pinfeed::{
    Batch, BoxError, DataLoader, Dataset, Device, DeviceTensor, Error, SampleRng, Tensor, iterable,
};

const LEN: u64 = 8;

/// Which code of the program's uses the loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Get,
    Len,
    Describe,
    WillNeed,
    PassEnded,
    Fingerprint,
    Index,
    Batches,
    Collate,
    Tensors,
    Relocate,
    Upload,
    Drop,
}

const PLACES: [Place; 13] = [
    Place::Get,
    Place::Len,
    Place::Describe,
    Place::WillNeed,
    Place::PassEnded,
    Place::Fingerprint,
    Place::Index,
    Place::Batches,
    Place::Collate,
    Place::Tensors,
    Place::Relocate,
    Place::Upload,
    Place::Drop,
];

/// What it does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It asks how it is doing.
    Ask,
    /// It asks where the run stands.
    State,
    /// It begins another epoch, and drops it.
    Begin,
    /// It waits for a batch of another epoch.
    Wait,
    /// It gives page-locked memory back.
    Release,
}

const USES: [Use; 5] = [Use::Ask, Use::State, Use::Begin, Use::Wait, Use::Release];

/// The program's code, with the loader that calls it.
struct Own {
    loader: OnceLock<Weak<DataLoader<Mine>>>,
    device: Device,
    place: Place,
    what: Use,
    /// It is used no more than once at a time, or there would be no end to epochs within epochs.
    is_inside: AtomicBool,
    used: AtomicUsize,
    /// What waiting came to.
    errors: Mutex<Vec<String>>,
}

impl Own {
    fn at(&self, place: Place) {
        assert_eq!(Device::locks_held(), 0, "{place:?}");
        if place != self.place || self.is_inside.swap(true, Ordering::SeqCst) {
            return;
        }
        let _outside = Outside(&self.is_inside);
        let Some(loader) = self.loader.get().and_then(Weak::upgrade) else {
            return;
        };
        self.used.fetch_add(1, Ordering::SeqCst);
        match self.what {
            Use::Ask => {
                let _ = (loader.len(), loader.batch_size(), format!("{loader:?}"));
                let _ = (loader.stats().to_string(), loader.total_stats());
            }
            Use::State => drop(loader.state()),
            Use::Begin => drop(loader.epoch(70)),
            Use::Wait => {
                let mut epoch = loader.epoch(80);
                if let Some(Err(error)) = epoch.next() {
                    let is_refused = matches!(error, Error::CannotWait { .. });
                    if is_refused {
                        assert_eq!((epoch.len(), epoch.next().is_none()), (0, true));
                    }
                    self.errors.lock().unwrap().push(error.to_string());
                }
            }
            Use::Release => {
                let _ = (self.device.release_pinned(), self.device.memory());
            }
        }
    }
}

struct Outside<'a>(&'a AtomicBool);

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

struct Data(Arc<Own>);

impl Dataset for Data {
    type Sample = i64;

    fn len(&self) -> u64 {
        self.0.at(Place::Len);
        LEN
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        self.0.at(Place::Get);
        match self.0.place == Place::Describe && index == 3 {
            true => Err("bad".into()),
            false => Ok(index as i64),
        }
    }

    fn describe(&self, _: u64) -> Option<String> {
        self.0.at(Place::Describe);
        None
    }

    fn lookahead(&self) -> usize {
        3
    }

    fn will_need(&self, _: &[u64], _: Pass) {
        self.0.at(Place::WillNeed);
    }

    fn pass_ended(&self, _: Pass) {
        self.0.at(Place::PassEnded);
    }

    fn fingerprint(&self) -> u32 {
        self.0.at(Place::Fingerprint);
        7
    }
}

struct Order(Arc<Own>);

impl Sampler for Order {
    fn len(&self) -> u64 {
        LEN
    }

    fn index(&self, _: u64, position: u64) -> u64 {
        self.0.at(Place::Index);
        position
    }
}

struct Listing(Arc<Own>);

impl BatchSampler for Listing {
    fn batches(&self, _: u64) -> Batches {
        self.0.at(Place::Batches);
        vec![vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 7]].into()
    }
}

struct Mine {
    numbers: Tensor<i64>,
    own: Arc<Own>,
}

impl Batch for Mine {
    type OnDevice = DeviceTensor<i64>;

    fn tensors(&self, tensors: &mut Tensors<'_>) {
        self.own.at(Place::Tensors);
        tensors.add(&self.numbers);
    }

    fn relocate(mut self, relocation: &mut Relocation) -> Mine {
        self.own.at(Place::Relocate);
        let numbers = std::mem::replace(&mut self.numbers, Tensor::from(Vec::new()));
        self.numbers = relocation.tensor(numbers);
        self
    }

    fn upload(mut self, upload: &mut Upload) -> DeviceTensor<i64> {
        self.own.at(Place::Upload);
        upload.tensor(std::mem::replace(
            &mut self.numbers,
            Tensor::from(Vec::new()),
        ))
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        self.own.at(Place::Drop);
    }
}

/// Runs two epochs on the host and two on the device. Returns the code, and the errors that came in batches' places.
fn run(place: Place, what: Use, workers: usize) -> (Arc<Own>, Vec<String>) {
    let device = Device::cpu();
    let own = Arc::new(Own {
        loader: OnceLock::new(),
        device: device.clone(),
        place,
        what,
        is_inside: AtomicBool::new(false),
        used: AtomicUsize::new(0),
        errors: Mutex::default(),
    });
    let builder = DataLoader::builder(Data(Arc::clone(&own)))
        .num_workers(workers)
        .pin_memory(&device);
    let builder = match place {
        Place::Describe => builder.on_error(OnError::Skip { at_most: 9 }).batch_size(2),
        Place::Index => builder.sampler(Order(Arc::clone(&own))).batch_size(2),
        Place::Batches => builder.batch_sampler(Listing(Arc::clone(&own))),
        _ => builder.batch_size(2),
    };
    let collated = Arc::clone(&own);
    let loader = builder.collate_fn(move |samples: Vec<i64>, _: &mut Arena| {
        collated.at(Place::Collate);
        let own = Arc::clone(&collated);
        Ok(Mine {
            numbers: Tensor::from(samples), // not in the arena, so it has to move
            own,
        })
    });
    let loader = Arc::new(loader.build().unwrap());
    own.loader.set(Arc::downgrade(&loader)).unwrap();
    let mut errors = Vec::new();
    for epoch in loader.epochs(0..2) {
        errors.extend(epoch.filter_map(|batch| Some(batch.err()?.to_string())));
    }
    for epoch in loader.epochs(2..4).prefetch_to_device(&device, 1) {
        errors.extend(epoch.filter_map(|batch| Some(batch.err()?.to_string())));
    }
    if what != Use::State || !matches!(place, Place::Fingerprint | Place::Index) {
        let _ = loader.state();
    }
    (own, errors)
}

/// Whatever code of the program's uses its own loader, the loader goes on.
#[test]
fn code_that_uses_its_own_loader_waits_for_nothing_that_waits_for_it() {
    for place in PLACES {
        for what in USES {
            for workers in [0, 1, 3] {
                let context = format!("{place:?}: {what:?}, {workers} workers");
                let _watch = watch::on(context.clone());
                let (own, errors) = run(place, what, workers);
                let refused = own.errors.lock().unwrap().clone();
                // The one that asks itself for its lists is told so, and its epochs are that error.
                let asks_itself = place == Place::Batches && what != Use::Release;
                let is_stateful = place == Place::Index && what == Use::State;
                for error in &errors {
                    match place {
                        Place::Batches => {
                            assert!(
                                asks_itself && error.contains("waits for itself"),
                                "{context}: {error}"
                            );
                        }
                        Place::Index => {
                            assert!(
                                is_stateful && error.contains("waits for itself"),
                                "{context}: {error}"
                            );
                        }
                        _ => panic!("{context}: {error}"),
                    }
                }
                for error in &refused {
                    assert!(
                        error.contains("one of the loader's own threads"),
                        "{context}: {error}"
                    );
                }
                let is_on_workers = [Place::Get, Place::Collate, Place::WillNeed, Place::Relocate];
                if what == Use::Wait && workers > 0 && is_on_workers.contains(&place) {
                    assert!(!refused.is_empty(), "{context}");
                }
                // (Where lists are refused, nothing else runs; a fingerprint is asked for with the state.)
                let is_quiet = matches!(place, Place::Fingerprint) && what == Use::State;
                assert!(is_quiet || own.used.load(Ordering::SeqCst) > 0, "{context}");
            }
        }
    }
}

/// A state needs a fingerprint, and so it must not be asked for within one.
#[test]
fn a_fingerprint_that_needs_the_state_is_refused() {
    for workers in [0, 2] {
        for place in [Place::Fingerprint, Place::Index] {
            let device = Device::cpu();
            let own = Arc::new(Own {
                loader: OnceLock::new(),
                device,
                place,
                what: Use::State,
                is_inside: AtomicBool::new(false),
                used: AtomicUsize::new(0),
                errors: Mutex::default(),
            });
            let code = Arc::clone(&own);
            let loader = DataLoader::builder(Data(Arc::clone(&own)))
                .sampler(Order(Arc::clone(&own)))
                .batch_size(2)
                .num_workers(workers)
                .collate_fn(move |samples: Vec<i64>, _: &mut Arena| {
                    let own = Arc::clone(&code);
                    Ok(Mine {
                        numbers: Tensor::from(samples),
                        own,
                    })
                });
            let loader = Arc::new(loader.build().unwrap());
            own.loader.set(Arc::downgrade(&loader)).unwrap();
            let asked = std::panic::AssertUnwindSafe(|| loader.state());
            let panic = std::panic::catch_unwind(asked).unwrap_err();
            let message = panic.downcast_ref::<&str>().copied().unwrap_or_default();
            assert!(message.contains("waits for itself"), "{message}");
        }
    }
}

/// A stream that takes batches of its own loader is told so, or takes them from another epoch, which pulls another stream.
#[test]
fn a_stream_that_uses_its_own_loader_waits_for_nothing_that_waits_for_it() {
    type Loader = DataLoader<Tensor<i64>, Iterable>;
    for workers in [0, 1, 3] {
        let loader: Arc<OnceLock<Weak<Loader>>> = Arc::default();
        let refused = Arc::new(Mutex::new(Vec::new()));
        let (code, errors) = (Arc::clone(&loader), Arc::clone(&refused));
        let source = iterable::from_fn(move |epoch, _| {
            let (code, errors) = (Arc::clone(&code), Arc::clone(&errors));
            Ok((0..10i64).map(move |number| {
                assert_eq!(Device::locks_held(), 0);
                if let (0, Some(loader)) = (epoch, code.get().and_then(Weak::upgrade)) {
                    let _ = (loader.stats(), loader.state());
                    if let Some(Err(error)) = loader.epoch(5).next() {
                        errors.lock().unwrap().push(error.to_string());
                    }
                }
                Ok(number)
            }))
        });
        let built = DataLoader::iterable(source)
            .batch_size(4)
            .num_workers(workers);
        let built = Arc::new(built.build().unwrap());
        loader.set(Arc::downgrade(&built)).unwrap();
        let samples: usize = built.epoch(0).map(|batch| batch.unwrap().len()).sum();
        assert_eq!(samples, 10);
        let refused = refused.lock().unwrap();
        assert_eq!(refused.len(), if workers > 0 { 10 } else { 0 });
        for error in refused.iter() {
            assert!(error.contains("one of the loader's own threads"), "{error}");
        }
    }
}

/// What a logger does for each line of the library's: it gives memory back, and looks at the locks.
struct Logger;

static GIVES_BACK: Mutex<Option<Device>> = Mutex::new(None);
static LINES: AtomicUsize = AtomicUsize::new(0);

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        std::thread_local! {
            static IS_INSIDE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
        }
        if !record.target().starts_with("pinfeed") || IS_INSIDE.replace(true) {
            return;
        }
        // (A panic here is somebody else's error, or nobody's.)
        if Device::locks_held() > 0 {
            eprintln!("logged under a lock: {}", record.args());
            std::process::abort();
        }
        LINES.fetch_add(1, Ordering::SeqCst);
        let device = GIVES_BACK.lock().unwrap().clone();
        if let Some(device) = device {
            device.release_pinned();
        }
        IS_INSIDE.set(false);
    }

    fn flush(&self) {}
}

/// A logger is the program's code like any other, even where the library is making page-locked memory: it may ask for that to be given
/// back.
#[test]
fn a_logger_gives_memory_back() {
    let _ = log::set_logger(&Logger);
    log::set_max_level(log::LevelFilter::Debug);
    for call in 0..3 {
        let mut options = Hostile::default();
        options.fail_operation = Some("lock_pages");
        options.fail_call = Some(call);
        let device = Device::hostile(options).unwrap();
        *GIVES_BACK.lock().unwrap() = Some(device.clone());
        let before = LINES.load(Ordering::SeqCst);
        let loader = DataLoader::builder(vec![[1.0f32; 64]; 100])
            .batch_size(8)
            .num_workers(2)
            .pin_memory(&device)
            .min_slab_bytes(1 << 16)
            .build()
            .unwrap();
        let batches = loader.epoch(0).prefetch_to_device(&device, 1);
        assert_eq!(
            batches.map(|batch| batch.unwrap().len()).sum::<usize>(),
            100 * 64
        );
        assert!(LINES.load(Ordering::SeqCst) > before);
        *GIVES_BACK.lock().unwrap() = None;
    }
}

/// A worker looks whether there is a batch, and cannot know: another thread of the program's gets it all the same.
#[test]
fn who_does_not_wait_ends_no_epoch() {
    type Shared = Mutex<Option<pinfeed::loader::Epoch<'static, Tensor<i64>>>>;
    struct Looks(Arc<(Shared, AtomicUsize)>);
    impl Dataset for Looks {
        type Sample = i64;
        fn len(&self) -> u64 {
            LEN
        }
        fn get(&self, index: u64, rng: &mut SampleRng) -> Result<i64, BoxError> {
            let _ = rng;
            let Ok(mut epoch) = self.0.0.try_lock() else {
                return Ok(index as i64); // the other one has it
            };
            if let Some(epoch) = &mut *epoch {
                for zero in [false, true] {
                    let looked = match zero {
                        true => epoch.next_timeout(std::time::Duration::ZERO),
                        false => epoch.try_next(),
                    };
                    let TryNext::Batch(Err(error)) = looked else {
                        panic!("a batch, or none");
                    };
                    assert!(matches!(error, Error::CannotWait { .. }), "{error}");
                }
                self.0.1.fetch_add(1, Ordering::SeqCst);
            }
            Ok(index as i64)
        }
    }
    let looks = Arc::new((Shared::default(), AtomicUsize::new(0)));
    let loader = DataLoader::builder(Looks(Arc::clone(&looks))).num_workers(1);
    let loader = Arc::new(loader.build::<Tensor<i64>>().unwrap());
    *looks.0.lock().unwrap() = Some(loader.owned_epoch(0));
    for batch in loader.epoch(1) {
        batch.unwrap();
    }
    assert!(looks.1.load(Ordering::SeqCst) > 0);
    let epoch = looks.0.lock().unwrap().take().unwrap();
    assert_eq!(epoch.len(), LEN as usize);
    assert_eq!(
        epoch.map(|batch| batch.unwrap().len()).sum::<usize>(),
        LEN as usize
    );
}
