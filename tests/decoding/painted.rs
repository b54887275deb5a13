//! Pictures of one colour, whose decoders do what a test tells them.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use pinfeed::collate::Stack;
use pinfeed::error::CollateError;
use pinfeed::iterable::{self, IterableDataset};
use pinfeed::loader::Builder;
use pinfeed::picture::{Drawing, EncodedPicture, Filter, Sampling};
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::{Batch, BoxError, DataLoader, Dataset, Device, Sample, SampleRng, Tensor};

/// What becomes of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum How {
    /// It can be decoded, by anybody.
    #[default]
    Well,
    /// No device is asked.
    OnCpu,
    /// It cannot be decoded at all.
    Damaged,
    /// The same, but whoever gets it again gets a good one.
    DamagedOnce,
    /// Who decodes it panics.
    Panics,
    /// The device's decoder does not take it, and the CPU does.
    Refused,
    /// The same, where a library stands in for nvJPEG.
    RefusedByLibrary,
    /// A library fails at it, in words that do not speak of the picture.
    Breaks,
    /// It says once what becomes of its pixels, and then something else.
    Lies,
}

/// What a test decides, and sees.
#[derive(Default)]
pub struct Script {
    state: Mutex<State>,
    changed: Condvar,
    /// How many files there are that were left to a device.
    files: AtomicUsize,
}

/// A file that is left to a device.
struct File(Vec<u8>, Arc<Script>);

impl File {
    fn new(bytes: Vec<u8>, script: &Arc<Script>) -> File {
        script.files.fetch_add(1, Ordering::SeqCst);
        File(bytes, Arc::clone(script))
    }
}

impl AsRef<[u8]> for File {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.1.files.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct State {
    how: HashMap<u64, How>,
    sides: HashMap<u64, usize>,
    /// The device's decoder hangs at pictures from this one on.
    draws_held_from: Option<u64>,
    /// Pictures from this one on are not got.
    loads_held_from: Option<u64>,
    got: Vec<u64>,
    begun: Vec<u64>,
}

impl Script {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn set(&self, number: u64, how: How) {
        self.lock().how.insert(number, how);
    }

    pub fn set_side(&self, number: u64, side: usize) {
        self.lock().sides.insert(number, side);
    }

    /// From now on, the device's decoder hangs; or it goes on.
    pub fn hold_draws(&self, held: bool) {
        self.hold_draws_from(held.then_some(0));
    }

    /// From now on, the device's decoder hangs at pictures from this one on.
    pub fn hold_draws_from(&self, first: Option<u64>) {
        let mut state = self.lock();
        state.draws_held_from = first;
        state.begun.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Pictures from this one on are not got from now on.
    pub fn hold_loads_from(&self, first: Option<u64>) {
        self.lock().loads_held_from = first;
        self.changed.notify_all();
    }

    /// Waits until the device's decoder has begun this picture, since draws were held or not.
    pub fn wait_for_draw(&self, number: u64) {
        let mut state = self.lock();
        while !state.begun.contains(&number) {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// Whether the device's decoder has begun this picture, since draws were held or not.
    pub fn draws(&self, number: u64) -> bool {
        self.lock().begun.contains(&number)
    }

    /// How many files there are beside their rows.
    pub fn files(&self) -> usize {
        self.files.load(Ordering::SeqCst)
    }

    /// How many pictures were asked for in all.
    pub fn loads(&self) -> usize {
        self.lock().got.len()
    }

    /// Waits until so many pictures were asked for in all.
    pub fn wait_for_loads(&self, count: usize) {
        let mut state = self.lock();
        while state.got.len() < count {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// How often a picture was asked for.
    pub fn times_got(&self, number: u64) -> usize {
        let state = self.lock();
        state.got.iter().filter(|got| **got == number).count()
    }

    fn get<B>(self: &Arc<Script>, number: u64) -> Painted<B> {
        let mut state = self.lock();
        state.got.push(number);
        self.changed.notify_all();
        while state.loads_held_from.is_some_and(|first| number >= first) {
            state = self.changed.wait(state).unwrap();
        }
        let how = state.how.get(&number).copied().unwrap_or_default();
        if how == How::DamagedOnce {
            state.how.remove(&number);
        }
        let side = state.sides.get(&number).copied().unwrap_or(SIDE);
        Painted {
            paint: Paint {
                number,
                how,
                side,
                drawing: drawing(side),
                other: drawing(100 * side),
                asked: AtomicUsize::new(0),
                file: file(number, how, side),
                was_refused: AtomicBool::new(false),
                script: Arc::clone(self),
            },
            batch: PhantomData,
        }
    }
}

/// Opens everything when a test ends, or fails.
pub struct Open(pub Arc<Script>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.hold_draws(false);
        self.0.hold_loads_from(None);
    }
}

pub const SIDE: usize = 4;
pub const ROW_BYTES: usize = SIDE * SIDE * 3;

fn drawing(side: usize) -> Drawing {
    let pixels = side as u32;
    Drawing {
        source: [pixels; 2],
        sampling: Sampling::None,
        bounds: [0, 0, pixels, pixels],
        window: [0.0, 0.0, f64::from(pixels), f64::from(pixels)],
        place: [0, 0, pixels, pixels],
        size: [pixels; 2],
        filter: Filter::Bilinear,
        flip: [false; 2],
        fill: [0; 3],
    }
}

/// How many batches of so many bytes, whose pictures are all decoded by the device, have memory there: they are sent. (Nothing of them is copied,
/// so no copies count.)
pub fn sent(device: &Device, bytes: usize) -> usize {
    device.memory().device_held_bytes / bytes.next_multiple_of(512)
}

/// A file of tests/drivers/libnvjpeg.c. One of three is larger than its row.
fn file(number: u64, how: How, side: usize) -> Vec<u8> {
    let kind = match how {
        How::Well | How::OnCpu | How::Lies => b'c',
        How::Breaks => b'#',
        _ => b'b',
    };
    let [low, high] = (side as u16).to_le_bytes();
    let mut file = match kind {
        b'#' => vec![kind, 6, 0, 0, 0, 0, 0, 0],
        _ => vec![kind, colour(number), low, high, low, high, 0, 0],
    };
    if number.is_multiple_of(3) {
        file.resize(side * side * 3 + 1, 0);
    }
    file
}

/// The byte that a picture consists of.
pub fn colour(number: u64) -> u8 {
    (number as u8).wrapping_add(1)
}

/// A picture as a sample, of batches of one kind.
pub struct Painted<B> {
    paint: Paint,
    batch: PhantomData<fn() -> B>,
}

struct Paint {
    number: u64,
    how: How,
    side: usize,
    drawing: Drawing,
    other: Drawing,
    asked: AtomicUsize,
    file: Vec<u8>,
    was_refused: AtomicBool,
    script: Arc<Script>,
}

impl EncodedPicture for Paint {
    fn drawing(&self) -> &Drawing {
        match self.asked.fetch_add(1, Ordering::Relaxed) {
            1.. if self.how == How::Lies => &self.other,
            _ => &self.drawing,
        }
    }

    fn draw(&self, file: &[u8], row: &mut [u8]) -> Result<(), BoxError> {
        assert_eq!(file, self.file, "picture {}", self.number);
        {
            let script = &self.script;
            let mut state = script.lock();
            state.begun.push(self.number);
            script.changed.notify_all();
            while state
                .draws_held_from
                .is_some_and(|first| self.number >= first)
            {
                state = script.changed.wait(state).unwrap();
            }
        }
        if self.how == How::Refused && !self.was_refused.swap(true, Ordering::Relaxed) {
            return Err("this decoder does not take it".into());
        }
        self.paint(row)
    }
}

impl Paint {
    fn paint(&self, row: &mut [u8]) -> Result<(), BoxError> {
        assert_eq!(row.len(), self.side * self.side * 3);
        match self.how {
            How::Well
            | How::OnCpu
            | How::Refused
            | How::RefusedByLibrary
            | How::Breaks
            | How::Lies => {}
            How::Damaged | How::DamagedOnce => {
                return Err(format!("picture {} is damaged", self.number).into());
            }
            How::Panics => panic!("picture {} makes its decoder panic", self.number),
        }
        row.fill(colour(self.number));
        Ok(())
    }
}

/// A batch of pictures.
pub trait OfPixels: Batch {
    fn of(pixels: Tensor<u8>) -> Self;
}

impl OfPixels for Tensor<u8> {
    fn of(pixels: Tensor<u8>) -> Self {
        pixels
    }
}

impl<B: OfPixels> Sample for Painted<B> {
    type Batch = B;
    type Plan = Field<u8>;
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        let side = samples.next().map_or(SIDE, |first| first.paint.side);
        layout.pictures(&[side, side, 3])
    }

    fn fill(self, field: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
        let paint = self.paint;
        let reason = match row.decoder(field, false) {
            Some(Ok(_)) if paint.how != How::OnCpu => {
                let file = File::new(paint.file.clone(), &paint.script);
                return row.leave_encoded(field, Box::new(paint), file);
            }
            Some(Err(reason)) => reason,
            _ => "the test says so",
        };
        let pixels = row.slice_mut(field)?;
        paint.paint(pixels).map_err(CollateError::Load)?;
        row.is_left_to_cpu(field, reason);
        Ok(())
    }

    fn finish(field: Field<u8>, _: Vec<()>, filled: &mut Filled) -> B {
        B::of(filled.take(field))
    }
}

/// Pictures 0, 1, 2, ...
pub struct Pictures<B> {
    pub script: Arc<Script>,
    pub len: u64,
    pub batch: PhantomData<fn() -> B>,
}

impl<B: OfPixels> Dataset for Pictures<B> {
    type Sample = Painted<B>;

    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Painted<B>, BoxError> {
        Ok(self.script.get(index))
    }
}

/// A loader's options for pictures 0 to `len`; they hold nothing up until the script says so.
pub fn builder<B: OfPixels>(
    script: &Arc<Script>,
    len: u64,
    device: &Device,
) -> Builder<Pictures<B>, Stack> {
    let pictures = Pictures {
        script: Arc::clone(script),
        len,
        batch: PhantomData,
    };
    DataLoader::builder(pictures).pin_memory(device)
}

/// The same pictures, as a stream.
pub fn stream<B: OfPixels>(
    script: &Arc<Script>,
    len: u64,
) -> impl IterableDataset<Sample = Painted<B>> {
    let script = Arc::clone(script);
    iterable::from_fn(move |_, _| Ok((0..len).map(Ok))).map(move |number, _| Ok(script.get(number)))
}
