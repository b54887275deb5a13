//! From files to rows, a chunk at a time.

use std::cmp::Reverse;
use std::mem::{align_of, size_of};

use super::decoder::Decoder;
use super::fault::{DecoderFault, Status};
use super::memory::{Block, Locked};
use super::slots::Needs;
use super::state::{Coded, State, Verdict, judge, kernels_need};
use crate::driver::kernels::changes::{self, Passes};
use crate::driver::kernels::picture::{self, Drawn, Picture, Places};
use crate::driver::{Driver, RawCopy, RawEvent, RawStream};
use crate::error::Result;
use crate::picture::{Change, Drawing, PlaneLayout, Sampling};
use crate::tuning::HARDWARE_CHUNK;
use crate::tuning::nvjpeg::{
    DECODER_ARENA_BYTES, DECODER_MOST_BYTES, KERNELS_ARENA_BYTES, KERNELS_CHUNK,
    KERNELS_FIRST_BLOCK,
};

/// Sets of memory: while one chunk is drawn, the next is decoded, and the one behind it prepared.
pub(crate) const SETS: usize = 3;

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
    /// First: the library may use a stream until its states are gone.
    states: States,
    /// They take turns, and each chunk is prepared, decoded and ended in its turn.
    sets: [Set; SETS],
    /// Which set is next.
    turn: usize,
    /// How many of the sets before it are prepared and not decoded.
    prepared: usize,
    streams: Streams,
}

/// All sets share them. There are no more than these two, for nvJPEG makes 20 of its own for each state, and streams that share one of the
/// device's few connections wait for each other.
struct Streams {
    driver: Driver,
    /// The decoder's. It waits for what is on it, so nothing else is.
    decoding: RawStream,
    /// What prepares chunks, and draws them.
    drawing: RawStream,
}

/// What decodes: a state for each kind of chroma, once there was one. (Kernels have one state for all of them.)
struct States {
    decoder: Decoder,
    of: [Option<State>; Sampling::ALL.len()],
}

struct Set {
    driver: Driver,
    /// Device memory for planes and weights.
    arena: Block,
    /// The list of pictures, their statuses, and then their changes: on the device, and page-locked.
    head: Block,
    locked: Locked,
    at: At,
}

/// How far a set's chunk is.
enum At {
    /// There is none.
    Nothing,
    Prepared(Prepared),
    /// It is decoded, and drawn behind this event.
    Decoded(RawEvent, Vec<Verdict>),
}

/// A chunk before it is decoded.
struct Prepared {
    pictures: Vec<Picture>,
    passes: Passes,
    /// Where its files' planes go.
    planes: Vec<u64>,
    /// The list is on the device, with the weights, and the planes are marked.
    done: RawEvent,
}

/// Where the lists of so many pictures lie in a set's memory for them: the pictures, one status for each, and their changes.
#[derive(Clone, Copy)]
struct Lists(usize);

impl Lists {
    /// Those of the largest chunk.
    const LARGEST: Lists = Lists(match HARDWARE_CHUNK < KERNELS_CHUNK {
        true => KERNELS_CHUNK,
        false => HARDWARE_CHUNK,
    });

    const fn statuses(self) -> usize {
        self.0 * size_of::<Picture>()
    }

    const fn changes(self) -> usize {
        (self.statuses() + self.0 * size_of::<u32>()).next_multiple_of(16)
    }

    /// How many bytes they take at most.
    const fn most_bytes(self) -> usize {
        self.changes() + self.0 * Passes::MOST_BYTES
    }
}

const _: () = assert!(size_of::<Picture>().is_multiple_of(align_of::<u32>()));

impl Station {
    /// How large the arenas of a loader's decoder are.
    pub(crate) fn arena_bytes(decoder: &Decoder) -> usize {
        match decoder.has_kernels_only() {
            true => KERNELS_ARENA_BYTES,
            false => DECODER_ARENA_BYTES,
        }
    }

    /// Makes one whose arenas have this many bytes each.
    pub(crate) fn new(
        decoder: &Decoder,
        driver: &Driver,
        arena_bytes: usize,
    ) -> Result<Station, DecoderFault> {
        let stream = || driver.create_stream().map_err(DecoderFault::Device);
        let streams = Streams {
            driver: driver.clone(),
            decoding: stream()?,
            drawing: stream()?,
        };
        let mut states = States {
            decoder: decoder.clone(),
            of: Default::default(),
        };
        // Nearly all photographs have this chroma. (Others wait for their state when they come, unless kernels decode.)
        states
            .with(Sampling::Both)?
            .make_room(&streams.decoding, Needs::default())?;
        let set = || Set::new(driver, arena_bytes).map_err(DecoderFault::Device);
        Ok(Station {
            states,
            sets: [set()?, set()?, set()?],
            turn: 0,
            prepared: 0,
            streams,
        })
    }

    /// What one with such arenas has: of the device, and page-locked.
    pub(crate) const fn own_bytes(arena_bytes: usize) -> [usize; 2] {
        let lists = Lists::LARGEST.most_bytes();
        [SETS * (arena_bytes + lists), SETS * lists]
    }

    /// Whether kernels decode, for there is no hardware.
    pub(crate) fn has_kernels_only(&self) -> bool {
        self.states.decoder.has_kernels_only()
    }

    /// The most pictures of a chunk.
    pub(crate) fn most_pictures(&self) -> usize {
        match self.has_kernels_only() {
            true => KERNELS_CHUNK,
            false => HARDWARE_CHUNK,
        }
    }

    /// How many works, from the first on, make a chunk. (One that needs more than an arena makes none: files are bounded where they are
    /// read. One that kernels have no memory for makes one.)
    pub(crate) fn fits<'a>(&self, works: impl IntoIterator<Item = Work<'a>>) -> usize {
        let arena = self.sets[self.turn].arena.bytes;
        let blocks = match self.has_kernels_only() {
            true => Station::kernels_blocks(arena),
            false => [usize::MAX; 2],
        };
        let (mut in_arena, mut files) = (0, 0);
        let is_in = |(before, work): &(usize, Work<'_>)| {
            in_arena += work.decoder_bytes();
            files += work.bytes.len();
            let needs = kernels_need(before + 1, files);
            let has_blocks = needs[0] <= blocks[0] && needs[1] <= blocks[1];
            in_arena <= arena && (*before == 0 || has_blocks)
        };
        let works = works.into_iter().take(self.most_pictures()).enumerate();
        works.take_while(is_in).count()
    }

    /// How large nvJPEG's blocks for kernels may become, beside such arenas.
    fn kernels_blocks(arena_bytes: usize) -> [usize; 2] {
        let both = DECODER_MOST_BYTES.saturating_sub(Station::own_bytes(arena_bytes)[0]);
        let first = (both as f64 * KERNELS_FIRST_BLOCK) as usize;
        [first, both - first]
    }

    /// Whether another chunk can be prepared.
    pub(crate) fn is_free(&self) -> bool {
        matches!(self.sets[self.turn].at, At::Nothing)
    }

    /// Prepares a chunk: it computes the weights and marks the planes. It does not wait for that. (The hardware decoder does not wait for
    /// its stream, so this must be over when it begins; the device may be busy with a program's kernels.)
    ///
    /// # Errors
    ///
    /// If the device fails.
    ///
    /// # Panics
    ///
    /// If the chunk does not [fit](Station::fits), no set is [free](Station::is_free), or a drawing is not sound.
    pub(crate) fn prepare(&mut self, works: &[Work<'_>]) -> Result<(), DecoderFault> {
        assert_eq!(self.fits(works.iter().copied()), works.len());
        let is_sound = |work: &Work<'_>| {
            work.drawing.is_sound() && Change::are_sound(work.changes, work.drawing.size)
        };
        assert!(works.iter().all(is_sound));
        assert!(self.is_free());
        let set = &mut self.sets[self.turn];
        let prepared = set.prepare(&self.streams.drawing, works);
        let prepared = prepared.inspect_err(|_| self.streams.give_up());
        set.at = At::Prepared(prepared.map_err(DecoderFault::Device)?);
        self.turn = (self.turn + 1) % SETS;
        self.prepared += 1;
        Ok(())
    }

    /// Decodes the chunk that was prepared first, and enqueues what makes its rows, behind these events. It blocks while the decoder
    /// works. [`end`](Station::end) waits until the rows are made.
    ///
    /// # Errors
    ///
    /// If the device or the library fails. Nothing of the chunk is running then, or the device is lost; its rows hold anything.
    ///
    /// # Panics
    ///
    /// If no chunk was prepared, or one of another number of works.
    ///
    /// # Safety
    ///
    /// The works must be those that were prepared. The rows must be device memory of this device, of the size of what is drawn and changed,
    /// and the files must stay, until the chunk has ended. Until then nothing else may use the rows but what `after` waits for.
    pub(crate) unsafe fn decode(
        &mut self,
        works: &[Work<'_>],
        after: &[RawEvent],
    ) -> Result<(), DecoderFault> {
        assert!(self.prepared > 0);
        let set = &mut self.sets[(self.turn + SETS - self.prepared) % SETS];
        self.prepared -= 1;
        // SAFETY: the caller's contract.
        let decoded = unsafe { set.decode(&mut self.states, &self.streams, works, after) };
        decoded.inspect_err(|_| self.streams.give_up())
    }

    /// Whether the chunk that was decoded first is drawn, so that [`end`](Station::end) does not wait. (A device that is lost says so
    /// there.)
    pub(crate) fn is_drawn(&self) -> bool {
        let first = self.first_decoded();
        first.is_some_and(|set| match &self.sets[set].at {
            At::Decoded(event, _) => event.is_complete().unwrap_or(true),
            _ => false,
        })
    }

    fn first_decoded(&self) -> Option<usize> {
        let mut oldest = (0..SETS).map(|later| (self.turn + later) % SETS);
        oldest.find(|set| matches!(self.sets[*set].at, At::Decoded(..)))
    }

    /// Waits for the chunk that was decoded first of those that have not ended, and says what became of each of its works. `None` if there
    /// is no such chunk.
    pub(crate) fn end(&mut self) -> Option<Result<Vec<Outcome>, DecoderFault>> {
        let set = self.first_decoded()?;
        self.sets[set].end()
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.streams.give_up(); // what is on the streams uses the memory
    }
}

impl Streams {
    /// Something failed: what was enqueued must not run on behind the error. If waiting fails, too, the device is lost, and nothing runs.
    fn give_up(&self) {
        for stream in [&self.decoding, &self.drawing] {
            let _ = self.driver.synchronize(stream);
        }
    }
}

impl States {
    /// Makes it, if there is none.
    fn with(&mut self, sampling: Sampling) -> Result<&mut State, DecoderFault> {
        let state = &mut self.of[sampling as usize];
        match state {
            Some(state) => Ok(state),
            none => Ok(none.insert(State::new(&self.decoder, sampling)?)),
        }
    }

    /// Decodes pictures of any chroma, whose planes go to these addresses.
    ///
    /// # Safety
    ///
    /// As `State::decode`.
    unsafe fn decode(
        &mut self,
        stream: &RawStream,
        works: &[Work<'_>],
        planes: &[u64],
    ) -> Result<Vec<Verdict>, DecoderFault> {
        let mut verdicts = vec![Verdict::Decoded; works.len()];
        let drawing = |at: &usize| &works[*at].drawing;
        let has_kernels = self.decoder.has_kernels_only();
        let state_of = |at: &usize| match has_kernels {
            true => Sampling::Both,
            false => drawing(at).sampling,
        };
        for sampling in Sampling::ALL {
            let all = 0..works.len();
            let mut places: Vec<usize> = all.filter(|at| state_of(at) == sampling).collect();
            if places.is_empty() {
                continue;
            }
            let planes_of = |at: &usize| PlaneLayout::new(drawing(at).sampling, drawing(at).source);
            // The same slots have the large ones each time.
            places.sort_by_key(|at| Reverse(planes_of(at).bytes));
            let coded = places.iter().map(|&at| {
                let Drawing {
                    source, sampling, ..
                } = works[at].drawing;
                Coded::new(works[at].bytes, source, sampling, planes[at])
            });
            let coded: Vec<Coded<'_>> = coded.collect();
            // SAFETY: the caller's contract.
            let decoded = unsafe { self.with(sampling)?.decode(stream, &coded) }?;
            for (at, verdict) in places.into_iter().zip(decoded) {
                verdicts[at] = verdict;
            }
        }
        Ok(verdicts)
    }
}

impl Set {
    fn new(driver: &Driver, arena_bytes: usize) -> Result<Set> {
        Ok(Set {
            driver: driver.clone(),
            arena: Block::new(driver, arena_bytes)?,
            head: Block::new(driver, Lists::LARGEST.most_bytes())?,
            locked: Locked::new(driver, Lists::LARGEST.most_bytes())?,
            at: At::Nothing,
        })
    }

    fn prepare(&mut self, stream: &RawStream, works: &[Work<'_>]) -> Result<Prepared> {
        let mut at = self.arena.address;
        let mut pictures = Vec::with_capacity(works.len());
        let mut planes = Vec::with_capacity(works.len());
        let mut passes = Passes::default();
        let lists = Lists(works.len());
        let statuses = self.head.address + lists.statuses() as u64;
        for (work, status) in works.iter().zip((statuses..).step_by(size_of::<u32>())) {
            let layout = PlaneLayout::new(work.drawing.sampling, work.drawing.source);
            let weights = at + layout.bytes as u64;
            let (changes, size) = (work.changes, work.drawing.size);
            let change_places = changes::Places {
                memory: weights + work.drawing.table_bytes() as u64,
                row: work.row,
            };
            pictures.push(Picture::new(
                &work.drawing,
                Places {
                    planes: at,
                    weights,
                    drawn: change_places.drawn(changes, size),
                    status,
                },
            ));
            passes.add(changes, size, change_places);
            planes.push(at);
            at += work.decoder_bytes() as u64;
        }
        let (head, changes) = self.locked.slice().split_at_mut(lists.changes());
        head.fill(0);
        for (to, picture) in head.chunks_exact_mut(size_of::<Picture>()).zip(&pictures) {
            to.copy_from_slice(picture.as_bytes());
        }
        let bytes = lists.changes() + passes.write(changes);
        let copy = RawCopy::ToDevice {
            from: self.locked.memory,
            to: self.head.address,
            bytes,
        };
        // SAFETY: both are the set's, whose last chunk has ended, and stay until the event below.
        unsafe { self.driver.copy(stream, copy) }?;
        let step = Drawn::prepare(self.head.address, &pictures);
        // SAFETY: the list is on the device; the pictures lie in the set's arena, one behind the other, which nothing else uses.
        unsafe { self.driver.launch(stream, step) }?;
        Ok(Prepared {
            done: self.driver.record(stream, false)?,
            pictures,
            passes,
            planes,
        })
    }

    /// # Safety
    ///
    /// As `Station::decode`.
    unsafe fn decode(
        &mut self,
        states: &mut States,
        streams: &Streams,
        works: &[Work<'_>],
        after: &[RawEvent],
    ) -> Result<(), DecoderFault> {
        let At::Prepared(prepared) = std::mem::replace(&mut self.at, At::Nothing) else {
            unreachable!("sets are decoded in the order in which they were prepared");
        };
        assert_eq!(works.len(), prepared.pictures.len());
        // The decoder does not wait for the stream. So what uses the set's planes is over before the decoder writes: the last chunk's
        // drawing, which `end` waited for, and the preparation of this one.
        prepared.done.sleep().map_err(DecoderFault::Device)?;
        let Streams {
            driver,
            decoding,
            drawing,
        } = streams;
        // SAFETY: the planes lie in the arena, one behind the other; the caller's contract for the files.
        let verdicts = unsafe { states.decode(decoding, works, &prepared.planes) }?;
        judge(driver, &verdicts)?;
        let draw = || -> Result<RawEvent> {
            driver.stream_wait(drawing, &driver.record(decoding, false)?)?;
            // SAFETY: the caller's contract for the rows; the planes and weights are the set's.
            unsafe { self.draw(drawing, &prepared.pictures, &prepared.passes, after) }
        };
        self.at = At::Decoded(draw().map_err(DecoderFault::Device)?, verdicts);
        Ok(())
    }

    /// # Safety
    ///
    /// As `Station::decode`; the pictures must have been prepared.
    unsafe fn draw(
        &self,
        stream: &RawStream,
        pictures: &[Picture],
        passes: &Passes,
        after: &[RawEvent],
    ) -> Result<RawEvent> {
        for after in after {
            self.driver.stream_wait(stream, after)?;
        }
        let step = Drawn::draw(self.head.address, pictures);
        // SAFETY: the caller's contract.
        unsafe { self.driver.launch(stream, step) }?;
        let lists = Lists(pictures.len());
        for step in passes.steps(self.head.address + lists.changes() as u64) {
            // SAFETY: likewise; what is between lies in the arena, behind the picture's weights.
            unsafe { self.driver.launch(stream, step) }?;
        }
        let copy = RawCopy::ToHost {
            from: self.head.address + lists.statuses() as u64,
            to: self.locked.memory.wrapping_add(lists.statuses()),
            bytes: lists.changes() - lists.statuses(),
        };
        // SAFETY: both are the set's, and stay until the event.
        unsafe { self.driver.copy(stream, copy) }?;
        self.driver.record(stream, false)
    }

    fn end(&mut self) -> Option<Result<Vec<Outcome>, DecoderFault>> {
        let At::Decoded(event, verdicts) = std::mem::replace(&mut self.at, At::Nothing) else {
            return None;
        };
        if let Err(error) = event.sleep() {
            return Some(Err(DecoderFault::Device(error)));
        }
        let lists = Lists(verdicts.len());
        let (statuses, _) = self.locked.slice()[lists.statuses()..].as_chunks::<4>();
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
