//! From files to rows, a chunk at a time.

use std::mem::{align_of, size_of};

use super::decoder::{Coded, Decoder, State, Verdict};
use super::fault::{DecoderFault, Status};
use crate::driver::kernels::changes::{self, Passes};
use crate::driver::kernels::picture::{self, Drawn, Picture, Places};
use crate::driver::{Driver, RawCopy, RawEvent, RawStream};
use crate::error::Result;
use crate::picture::{Change, Drawing, PlaneLayout};

/// The most pictures of a chunk.
pub(crate) const MOST_PICTURES: usize = 64;

/// Two sets of memory: while one chunk is drawn, the next is decoded.
pub(crate) const SETS: usize = 2;

/// A file to decode, and the row that is made of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work<'a> {
    /// In the one form that a decoder is given.
    pub(crate) bytes: &'a [u8],
    pub(crate) drawing: Drawing,
    /// How what is drawn is changed.
    pub(crate) changes: &'a [Change],
    /// The row's address.
    pub(crate) row: u64,
}

impl Work<'_> {
    fn decoder_bytes(&self) -> usize {
        self.drawing.decoder_bytes(self.changes)
    }
}

/// What became of a work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its row is made.
    Drawn,
    /// The decoder does not take the file. The row holds anything.
    Refused(Status),
    /// The decoder said nothing, and wrote nothing. The row holds anything.
    Skipped,
    /// The decoder has no memory for it. The row holds anything.
    NoMemory,
}

impl Outcome {
    /// Why there is no row, for the statistics.
    pub(crate) fn why_not_drawn(self) -> Option<&'static str> {
        match self {
            Outcome::Drawn => None,
            Outcome::Refused(_) => Some("the decoder refused it"),
            Outcome::Skipped => Some("the decoder skipped it"),
            Outcome::NoMemory => Some("the decoder had no memory for it"),
        }
    }
}

/// A decoder with its memory. One thread uses it.
pub(crate) struct Station {
    sets: [Set; SETS],
    /// Which set is next.
    turn: usize,
}

struct Set {
    driver: Driver,
    state: State,
    /// Device memory for planes and weights.
    arena: Block,
    /// The list of pictures, their statuses, and then their changes: on the device, and page-locked.
    head: Block,
    locked: Locked,
    /// What was begun and not ended.
    begun: Option<(RawEvent, Vec<Verdict>)>,
    /// Last: the library may still know it, and freeing memory waits for what is on the device's streams, if nobody could.
    stream: RawStream,
}

const LIST_BYTES: usize = MOST_PICTURES * size_of::<Picture>();
const HEAD_BYTES: usize = LIST_BYTES + MOST_PICTURES * size_of::<u32>();
/// With the changes.
const LISTS_BYTES: usize = HEAD_BYTES + MOST_PICTURES * Passes::MOST_BYTES;
const _: () = assert!(LIST_BYTES.is_multiple_of(align_of::<u32>()));
const _: () = assert!(HEAD_BYTES.is_multiple_of(16));

impl Station {
    /// Makes one whose arenas have this many bytes each.
    pub(crate) fn new(
        decoder: &Decoder,
        driver: &Driver,
        arena_bytes: usize,
    ) -> Result<Station, DecoderFault> {
        let set = || Set::new(decoder, driver, arena_bytes);
        Ok(Station {
            sets: [set()?, set()?],
            turn: 0,
        })
    }

    /// What one with such arenas has: of the device, and page-locked.
    pub(crate) const fn own_bytes(arena_bytes: usize) -> [usize; 2] {
        [SETS * (arena_bytes + LISTS_BYTES), SETS * LISTS_BYTES]
    }

    /// How many pictures, from the first on, make a chunk, by their [`decoder_bytes`](Drawing::decoder_bytes). (One that needs more than an
    /// arena makes none: whoever reads files bounds them.)
    pub(crate) fn fits(&self, pictures: impl IntoIterator<Item = usize>) -> usize {
        let mut left = self.sets[self.turn].arena.bytes;
        let takes = |bytes: &usize| {
            left.checked_sub(*bytes)
                .inspect(|rest| left = *rest)
                .is_some()
        };
        pictures
            .into_iter()
            .take(MOST_PICTURES)
            .take_while(takes)
            .count()
    }

    /// Whether the next chunk can begin: the one before the last has ended.
    pub(crate) fn is_free(&self) -> bool {
        self.sets[self.turn].begun.is_none()
    }

    /// Decodes a chunk, and enqueues what makes its rows, behind these events. It blocks while the decoder works. Returns an
    /// event: after it, the rows and the files are nobody's here, and [`end`](Station::end) does not wait.
    ///
    /// # Errors
    ///
    /// If the device or the library fails. Nothing of the chunk is running then, or the device is lost; its rows hold anything.
    ///
    /// # Panics
    ///
    /// If the chunk does not [fit](Station::fits), the set is not [free](Station::is_free), or a drawing or its changes are not sound.
    ///
    /// # Safety
    ///
    /// The rows must be device memory of this device, of the size of what is drawn and changed, and the files must stay, until the event. Until then nothing
    /// else may use the rows but what `after` waits for.
    pub(crate) unsafe fn begin(
        &mut self,
        works: &[Work<'_>],
        after: &[RawEvent],
    ) -> Result<RawEvent, DecoderFault> {
        assert_eq!(
            self.fits(works.iter().map(Work::decoder_bytes)),
            works.len()
        );
        let is_sound = |work: &Work<'_>| {
            work.drawing.is_sound() && Change::are_sound(work.changes, work.drawing.size)
        };
        assert!(works.iter().all(is_sound));
        let set = &mut self.sets[self.turn];
        assert!(set.begun.is_none());
        // SAFETY: the caller's contract; the chunk fits the set.
        let begun = unsafe { set.begin(works, after) };
        let event = begun.inspect_err(|_| {
            // What was enqueued must not run on behind the error. If this fails too, the device is lost.
            let _ = set.driver.synchronize(&set.stream);
        })?;
        self.turn = (self.turn + 1) % SETS;
        Ok(event)
    }

    /// Waits for the chunk that began first of those that have not ended, and says what became of each of its works. `None` if there is
    /// no such chunk.
    pub(crate) fn end(&mut self) -> Option<Result<Vec<Outcome>, DecoderFault>> {
        let oldest = (0..SETS).map(|later| (self.turn + later) % SETS);
        let mut begun = oldest.filter(|set| self.sets[*set].begun.is_some());
        let set = begun.next()?;
        self.sets[set].end()
    }
}

impl Set {
    fn new(decoder: &Decoder, driver: &Driver, arena_bytes: usize) -> Result<Set, DecoderFault> {
        let block = |bytes| Block::new(driver, bytes).map_err(DecoderFault::Device);
        Ok(Set {
            driver: driver.clone(),
            stream: driver.create_stream().map_err(DecoderFault::Device)?,
            state: decoder.state()?,
            arena: block(arena_bytes)?,
            head: block(LISTS_BYTES)?,
            locked: Locked::new(driver, LISTS_BYTES).map_err(DecoderFault::Device)?,
            begun: None,
        })
    }

    /// # Safety
    ///
    /// As `Station::begin`; the works must fit the arena.
    unsafe fn begin(
        &mut self,
        works: &[Work<'_>],
        after: &[RawEvent],
    ) -> Result<RawEvent, DecoderFault> {
        let mut at = self.arena.address;
        let mut pictures = Vec::with_capacity(works.len());
        let mut coded = Vec::with_capacity(works.len());
        let mut passes = Passes::default();
        let statuses = self.head.address + LIST_BYTES as u64;
        for (work, status) in works.iter().zip((statuses..).step_by(size_of::<u32>())) {
            let layout = PlaneLayout::new(work.drawing.sampling, work.drawing.source);
            let planes = at;
            let weights = planes + layout.bytes as u64;
            let (changes, size) = (work.changes, work.drawing.size);
            let change_places = changes::Places {
                memory: weights + work.drawing.table_bytes() as u64,
                row: work.row,
            };
            pictures.push(Picture::new(
                &work.drawing,
                Places {
                    planes,
                    weights,
                    drawn: change_places.drawn(changes, size),
                    status,
                },
            ));
            passes.add(changes, size, change_places);
            let has = |plane: usize| plane < work.drawing.sampling.planes();
            let places = [0, 1, 2].map(|plane| match has(plane) {
                true => planes + layout.starts[plane] as u64,
                false => 0,
            });
            coded.push(Coded {
                bytes: work.bytes,
                planes: places,
                pitch: layout.pitch,
            });
            at += work.decoder_bytes() as u64;
        }
        // The decoder does not wait for the stream. So what this set has on the stream is over before the decoder writes: the last chunk's
        // drawing, which `end` waited for, and the preparation of this one.
        // SAFETY: the set's memory, which nothing uses now; the list fits it.
        unsafe { self.prepare(&pictures, &mut passes) }.map_err(DecoderFault::Device)?;
        // SAFETY: the planes lie in the arena, one behind the other; the caller's contract for the files.
        let verdicts = unsafe { self.state.decode(&self.stream, &coded) }?;
        // SAFETY: the caller's contract for the rows; the planes and weights are the set's.
        let event =
            unsafe { self.draw(&pictures, &passes, after) }.map_err(DecoderFault::Device)?;
        self.begun = Some((event.clone(), verdicts));
        Ok(event)
    }

    /// Computes the weights, and marks the planes. Waits until that is done.
    ///
    /// # Safety
    ///
    /// Nothing may use the set's memory; the pictures must lie in its arena.
    unsafe fn prepare(&mut self, pictures: &[Picture], passes: &mut Passes) -> Result<()> {
        let (head, changes) = self.locked.slice().split_at_mut(HEAD_BYTES);
        head.fill(0);
        for (to, picture) in head.chunks_exact_mut(size_of::<Picture>()).zip(pictures) {
            to.copy_from_slice(picture.as_bytes());
        }
        let bytes = HEAD_BYTES + passes.write(changes);
        let copy = RawCopy::ToDevice {
            from: self.locked.memory,
            to: self.head.address,
            bytes,
        };
        // SAFETY: both are the set's, and stay until the event below.
        unsafe { self.driver.copy(&self.stream, copy) }?;
        let step = Drawn::prepare(self.head.address, pictures);
        // SAFETY: the list is on the device, and the caller's contract.
        unsafe { self.driver.launch(&self.stream, step) }?;
        self.driver.record(&self.stream, false)?.sleep()
    }

    /// # Safety
    ///
    /// As `Station::begin`; the pictures must have been prepared.
    unsafe fn draw(
        &mut self,
        pictures: &[Picture],
        passes: &Passes,
        after: &[RawEvent],
    ) -> Result<RawEvent> {
        for after in after {
            self.driver.stream_wait(&self.stream, after)?;
        }
        let step = Drawn::draw(self.head.address, pictures);
        // SAFETY: the caller's contract.
        unsafe { self.driver.launch(&self.stream, step) }?;
        for step in passes.steps(self.head.address + HEAD_BYTES as u64) {
            // SAFETY: likewise; what is between lies in the arena, behind the picture's weights.
            unsafe { self.driver.launch(&self.stream, step) }?;
        }
        let copy = RawCopy::ToHost {
            from: self.head.address + LIST_BYTES as u64,
            to: self.locked.memory.wrapping_add(LIST_BYTES),
            bytes: HEAD_BYTES - LIST_BYTES,
        };
        // SAFETY: both are the set's, and stay until the event.
        unsafe { self.driver.copy(&self.stream, copy) }?;
        self.driver.record(&self.stream, false)
    }

    fn end(&mut self) -> Option<Result<Vec<Outcome>, DecoderFault>> {
        let (event, verdicts) = self.begun.take()?;
        if let Err(error) = event.sleep() {
            return Some(Err(DecoderFault::Device(error)));
        }
        let (statuses, _) = self.locked.slice()[LIST_BYTES..].as_chunks::<4>();
        let outcomes = verdicts.into_iter().zip(statuses).map(|(verdict, status)| {
            match (verdict, picture::Status::of(u32::from_ne_bytes(*status))) {
                (Verdict::Refused(status), _) => Outcome::Refused(status),
                (Verdict::NoMemory, _) => Outcome::NoMemory,
                (Verdict::Decoded, picture::Status::Drawn) => Outcome::Drawn,
                (Verdict::Decoded, _) => Outcome::Skipped,
            }
        });
        Some(Ok(outcomes.collect()))
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        // What is on the stream uses the memory. If waiting fails, the device is lost, and nothing runs.
        let _ = self.driver.synchronize(&self.stream);
    }
}

/// Device memory.
struct Block {
    driver: Driver,
    address: u64,
    bytes: usize,
}

impl Block {
    fn new(driver: &Driver, bytes: usize) -> Result<Block> {
        Ok(Block {
            address: driver.alloc_device(bytes)?,
            driver: driver.clone(),
            bytes,
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it, and its set has waited for the stream.
        let _ = unsafe { self.driver.free_device(self.address, self.bytes) };
    }
}

/// Page-locked memory.
struct Locked {
    driver: Driver,
    memory: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its memory.
unsafe impl Send for Locked {}

impl Locked {
    fn new(driver: &Driver, bytes: usize) -> Result<Locked> {
        Ok(Locked {
            memory: driver.alloc_host(bytes)?,
            driver: driver.clone(),
            bytes,
        })
    }

    /// No copy from or to it may be in flight.
    fn slice(&mut self) -> &mut [u8] {
        // SAFETY: the memory is zeroed when it is allocated, and ours.
        unsafe { std::slice::from_raw_parts_mut(self.memory, self.bytes) }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it, and its set has waited for the stream.
        let _ = unsafe { self.driver.free_host(self.memory, self.bytes) };
    }
}
