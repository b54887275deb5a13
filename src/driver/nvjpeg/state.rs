//! A decode under way.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;

use super::decoder::{Decoder, check};
use super::fault::{DecoderFault, Status};
use super::library::{Handle, Image};
use super::memory::Block;
use super::slots::Needs;
use crate::driver::{Driver, RawStream};
use crate::picture::{PlaneLayout, Sampling};
use crate::sync::log;
use crate::tuning::HARDWARE_CHUNK;
use crate::tuning::nvjpeg::{KERNELS_FILES_TIMES, KERNELS_LEAST, KERNELS_PICTURE_BYTES};

/// `NVJPEG_OUTPUT_YUV`.
const PLANES: c_int = 1;

/// After so many calls with as many pictures as there is memory for, twice as many are tried.
const CALLS_BEFORE_MORE: u32 = 64;

/// The same of kernels: if there is no memory for more, that costs a new state, which takes half a second.
const KERNELS_BEFORE_MORE: u32 = 512;

/// A blank picture that asks for nothing.
const SMALL: Needs = Needs {
    size: [64, 64],
    bytes: 0,
};

/// How many threads of its own the library may use. (The hardware needs none, nor do kernels with [`KERNELS_LEAST`] pictures.)
const THREADS: c_int = 1;

/// A file, and where its planes go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Coded<'a> {
    pub(crate) bytes: &'a [u8],
    /// The picture's width and height.
    pub(crate) size: [u32; 2],
    /// The addresses of the planes; 0 where there is none.
    pub(crate) planes: [u64; 3],
    /// From row to row.
    pub(crate) pitch: [usize; 3],
}

/// What the decoder said of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It was decoded, or so the decoder says.
    Decoded,
    /// It does not take this picture, or failed at it alone.
    Refused(Status),
    /// It has no memory, not even for this picture alone.
    NoMemory,
}

/// The state of one decode under way, of pictures with one kind of chroma, or of any for kernels. One thread at a time uses it.
pub(crate) struct State {
    /// `None` if it is to be made anew.
    state: Option<Handle>,
    sampling: Sampling,
    /// What each of its slots has room for, or could not be given, and how much memory that is.
    room: Needs,
    reserved: usize,
    /// Where the planes of [`SMALL`] ones go.
    scratch: Block,
    /// The number of pictures that it is initialized for.
    prepared: Option<usize>,
    /// Whether pictures were decoded since the stream was last waited for.
    is_under_way: bool,
    /// The most pictures that there was memory for, 0 if there was none at all; and how many calls there were of as many since then.
    most: usize,
    calls_of_most: u32,
    decoder: Decoder,
}

// SAFETY: a state may be used from any thread, one at a time: its methods need `&mut`.
unsafe impl Send for State {}

impl State {
    /// What one decode under way needs, of pictures with this chroma.
    ///
    /// # Errors
    ///
    /// If the device or the library fails.
    pub(super) fn new(decoder: &Decoder, sampling: Sampling) -> Result<State, DecoderFault> {
        let shared = &decoder.0;
        let _entered = shared.driver.enter().map_err(DecoderFault::Device)?;
        let scratch = Block::new(&shared.driver, SMALL.layout(sampling).bytes);
        let scratch = scratch.map_err(DecoderFault::Device)?;
        Ok(State {
            state: Some(shared.create_state()?),
            sampling,
            room: Needs::default(),
            reserved: 0,
            scratch,
            prepared: None,
            is_under_way: false,
            most: usize::MAX,
            calls_of_most: 0,
            decoder: decoder.clone(),
        })
    }

    /// Decodes pictures, and says of each what became of it. It blocks while the decoder works. Kernels that the stream has
    /// behind this call find the planes written.
    ///
    /// # Errors
    ///
    /// If the device or the library fails, for all pictures. A picture that is refused is a [`Verdict`].
    ///
    /// # Safety
    ///
    /// The pictures must have the state's chroma, unless kernels decode, and the planes be memory of the decoder's device, large enough for
    /// each picture. From this call on, and until the stream has reached its end, nothing may use them but what the stream has behind it.
    /// (What the stream has *before* it is not waited for, but for what this state did there.) The files must stay until then, too. The
    /// same stream must be used in all calls, or have been waited for.
    pub(crate) unsafe fn decode(
        &mut self,
        stream: &RawStream,
        pictures: &[Coded<'_>],
    ) -> Result<Vec<Verdict>, DecoderFault> {
        let driver = self.decoder.0.driver.clone();
        let _entered = driver.enter().map_err(DecoderFault::Device)?;
        let most = pictures.iter().map(Coded::needs).reduce(Needs::max);
        if let Some(most) = most.filter(|most| !self.room.covers(*most)) {
            self.make_room(stream, most)?;
        }
        let mut verdicts = vec![Verdict::Decoded; pictures.len()];
        if self.most == 0 {
            self.has_memory_for(0);
            verdicts.fill(Verdict::NoMemory);
            return Ok(verdicts);
        }
        let mut open = Vec::new();
        let whole = 0..pictures.len();
        open.push(whole);
        while let Some(range) = open.pop() {
            if range.is_empty() {
                continue;
            }
            if range.len() > self.most {
                let at = range.start + self.most;
                open.extend([at..range.end, range.start..at]);
                continue;
            }
            // SAFETY: the caller's contract.
            let status = match unsafe { self.call(stream, &pictures[range.clone()]) }? {
                None => {
                    self.has_memory_for(range.len());
                    continue;
                }
                Some(status) => status,
            };
            let is_memory = status == Status::ALLOCATOR_FAILURE;
            self.settle(stream, is_memory)?;
            if is_memory
                && self.decoder.has_kernels_only()
                && is_mostly_fixed(&pictures[range.clone()])
            {
                log::warn!(
                    "nvJPEG's kernels have no memory on {}: pictures are decoded by the CPU",
                    driver.name()
                );
                (self.most, self.calls_of_most) = (0, 0);
                verdicts[range.start..].fill(Verdict::NoMemory);
                break;
            }
            match halves(&range) {
                Some([first, second]) => {
                    if is_memory {
                        let half = first.len().max(second.len());
                        (self.most, self.calls_of_most) = (half.max(self.least()), 0);
                    }
                    open.extend([second, first]);
                }
                None if is_memory => verdicts[range.start] = Verdict::NoMemory,
                None => verdicts[range.start] = Verdict::Refused(status),
            }
        }
        Ok(verdicts)
    }

    /// Gives all slots room for pictures that need this, and for somewhat larger ones: see [`slots`](super::slots). If there is no memory
    /// for that, a picture will take it for its slot alone.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub(super) fn make_room(
        &mut self,
        stream: &RawStream,
        needs: Needs,
    ) -> Result<(), DecoderFault> {
        let shared = self.decoder.0.clone();
        if self.decoder.has_kernels_only() {
            return Ok(()); // which have no slots
        }
        let room = self.room.grown_for(needs);
        let bytes = room.all_bytes(self.sampling, shared.engines);
        let (memory, more) = (shared.allocators.device(), bytes - self.reserved);
        self.room = self.room.max(needs); // or it would be tried again and again
        if !memory.reserve(more) {
            return Ok(());
        }
        let Ok(planes) = Block::new(&shared.driver, room.layout(self.sampling).bytes) else {
            memory.release(more);
            return Ok(());
        };
        match self.decode_blanks(stream, room, planes.address) {
            Ok(None) => {
                (self.room, self.reserved) = (room, bytes);
                Ok(())
            }
            Ok(Some(status)) => {
                log::debug!("nvJPEG has no room for {room:?} in all slots: {status}");
                memory.release(more);
                Ok(())
            }
            Err(fault) => {
                memory.release(more);
                Err(fault)
            }
        }
    }

    /// What a call that was refused began is over before anything else is asked.
    fn settle(&mut self, stream: &RawStream, is_memory: bool) -> Result<(), DecoderFault> {
        self.prepared = None;
        self.wait(stream)?; // a device that is lost shows here
        if self.decoder.has_kernels_only() {
            if is_memory {
                self.give_up_state();
            }
            return Ok(());
        }
        // The stream does not wait for all of it: only a call that goes well is behind all slots. So blank pictures follow it in each.
        let at = self.scratch.address;
        if let Some(status) = self.decode_blanks(stream, SMALL, at)? {
            log::debug!("nvJPEG does not decode a blank picture: {status}");
        }
        Ok(())
    }

    /// Gives the library's state back, and all its memory. The next call makes a new one. (nvJPEG's kernels free memory before they ask for
    /// more. If there is none, they go on to use what they freed.) Nothing is under way.
    fn give_up_state(&mut self) {
        let shared = &self.decoder.0;
        let _entered = shared.driver.enter();
        if let Some(state) = self.state.take() {
            // SAFETY: nothing uses it after this. The caller of `decode` has waited for the stream, or the library does.
            let _ = unsafe { (shared.library.functions.destroy_state)(state) };
        }
    }

    /// Decodes blank pictures in all slots, and waits for them. Their planes go to this address.
    fn decode_blanks(
        &mut self,
        stream: &RawStream,
        needs: Needs,
        planes: u64,
    ) -> Result<Option<Status>, DecoderFault> {
        let driver = self.decoder.0.driver.clone();
        let _entered = driver.enter().map_err(DecoderFault::Device)?;
        let file = needs.blank(self.sampling);
        // They are all written to the same place, for they are not read.
        let blank = Coded::new(&file, needs.size, self.sampling, planes);
        // SAFETY: the caller's planes are memory of the device, and large enough; nothing else uses them, and they stay until the stream is
        // done.
        let status = unsafe { self.call(stream, &[blank; HARDWARE_CHUNK]) };
        let waited = self.wait(stream);
        let status = status?;
        waited?;
        if status.is_some() {
            self.prepared = None;
        }
        Ok(status)
    }

    /// Memory that was short may not be any more: now and then, more pictures are tried.
    fn has_memory_for(&mut self, pictures: usize) {
        if pictures < self.most {
            return; // as long as memory was never short
        }
        self.calls_of_most += 1;
        let calls = match self.decoder.has_kernels_only() && self.most > 0 {
            true => KERNELS_BEFORE_MORE,
            false => CALLS_BEFORE_MORE,
        };
        if self.calls_of_most >= calls {
            let more = self.most.saturating_mul(2).max(self.least());
            (self.most, self.calls_of_most) = (more, 0);
        }
    }

    /// The fewest pictures that are worth a call.
    fn least(&self) -> usize {
        match self.decoder.has_kernels_only() {
            true => KERNELS_LEAST,
            false => 1,
        }
    }

    /// Asks the decoder once; the context is current. `Some` is what it refused the pictures with: for want of memory, whatever it says, if
    /// that is why.
    ///
    /// # Safety
    ///
    /// As `decode`.
    unsafe fn call(
        &mut self,
        stream: &RawStream,
        pictures: &[Coded<'_>],
    ) -> Result<Option<Status>, DecoderFault> {
        let shared = self.decoder.0.clone();
        let functions = &shared.library.functions;
        let (file, mut filled) =
            match self.decoder.has_kernels_only() && pictures.len() < KERNELS_LEAST {
                true => (SMALL.blank(self.sampling), pictures.to_vec()),
                false => (Vec::new(), Vec::new()),
            };
        let pictures = match file.is_empty() {
            true => pictures,
            false => {
                // (All blanks are written to the same place, for they are not read.)
                let blank = Coded::new(&file, SMALL.size, self.sampling, self.scratch.address);
                filled.resize(KERNELS_LEAST, blank);
                &filled
            }
        };
        let count = pictures.len();
        // The library waits for a slot that was used before in the same call, but not for what another call left there.
        if self.is_under_way {
            self.wait(stream)?;
        }
        let allocators = &shared.allocators;
        let state = match self.state {
            Some(state) => state,
            None => match shared.create_state() {
                Ok(state) => *self.state.insert(state),
                Err(_) if allocators.have_refused() => return Ok(Some(Status::ALLOCATOR_FAILURE)),
                Err(fault) => return Err(fault),
            },
        };
        if self.prepared != Some(count) {
            self.prepared = None;
            let number = c_int::try_from(count).unwrap_or(c_int::MAX);
            // SAFETY: both handles are alive, and no decode of this state is under way.
            let code =
                unsafe { (functions.initialize)(shared.handle, state, number, THREADS, PLANES) };
            if allocators.have_refused() || Status(code) == Status::ALLOCATOR_FAILURE {
                return Ok(Some(Status::ALLOCATOR_FAILURE));
            }
            check("nvjpegDecodeBatchedInitialize", &shared.driver, code)?;
            self.prepared = Some(count);
        }
        let bytes: Vec<*const u8> = pictures.iter().map(|one| one.bytes.as_ptr()).collect();
        let sizes: Vec<usize> = pictures.iter().map(|one| one.bytes.len()).collect();
        let mut images: Vec<Image> = pictures.iter().map(Coded::image).collect();
        self.is_under_way = true;
        // SAFETY: both handles are alive, the state is initialized for as many pictures, and the lists have as many entries; the caller's
        // contract covers what they point to.
        let code = unsafe {
            (functions.decode)(
                shared.handle,
                state,
                bytes.as_ptr(),
                sizes.as_ptr(),
                images.as_mut_ptr(),
                handle_of(stream),
            )
        };
        // Kernels run on behind the call, which has the lists until then. (And the time that they take is the decoder's.)
        if self.decoder.has_kernels_only() {
            let done = shared.driver.record(stream, false);
            if let Err(error) = done.and_then(|done| done.sleep()) {
                let _ = self.wait(stream);
                return Err(DecoderFault::Device(error));
            }
            self.is_under_way = false;
        }
        let status = match allocators.have_refused() && code != 0 {
            true => Status::ALLOCATOR_FAILURE,
            false => Status(code),
        };
        Ok((code != 0).then_some(status))
    }

    fn wait(&mut self, stream: &RawStream) -> Result<(), DecoderFault> {
        let waited = self.decoder.0.driver.synchronize(stream);
        waited.map_err(DecoderFault::Device)?;
        self.is_under_way = false;
        Ok(())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.give_up_state();
        let memory = self.decoder.0.allocators.device();
        memory.release(self.reserved);
    }
}

impl<'a> Coded<'a> {
    /// A picture whose planes go to this address, one behind the other.
    pub(crate) fn new(bytes: &'a [u8], size: [u32; 2], sampling: Sampling, at: u64) -> Coded<'a> {
        let layout = PlaneLayout::new(sampling, size);
        let planes = [0, 1, 2].map(|plane| match plane < sampling.planes() {
            true => at + layout.starts[plane] as u64,
            false => 0,
        });
        Coded {
            bytes,
            size,
            planes,
            pitch: layout.pitch,
        }
    }

    fn needs(&self) -> Needs {
        Needs {
            size: self.size,
            bytes: self.bytes.len(),
        }
    }

    fn image(&self) -> Image {
        let mut image = Image {
            channel: [ptr::null_mut(); 4],
            pitch: [0; 4],
        };
        for (plane, (address, pitch)) in self.planes.into_iter().zip(self.pitch).enumerate() {
            image.channel[plane] = address as *mut u8;
            image.pitch[plane] = pitch;
        }
        image
    }
}

/// Says whose fault it is that pictures of a chunk were refused. One that the decoder failed at is at fault itself if another was decoded;
/// if none was, the decoder is.
///
/// # Errors
///
/// If the decoder is at fault.
pub(super) fn judge(driver: &Driver, verdicts: &[Verdict]) -> Result<(), DecoderFault> {
    let failed = verdicts.iter().find_map(|verdict| match verdict {
        Verdict::Refused(status) if !status.is_of_picture() => Some(*status),
        _ => None,
    });
    match failed.filter(|_| !verdicts.contains(&Verdict::Decoded)) {
        Some(Status(code)) => check("nvjpegDecodeBatched", driver, code),
        None => Ok(()),
    }
}

/// How large nvJPEG's two blocks are when kernels decode so many pictures, whose files have so many bytes.
pub(super) fn kernels_need(pictures: usize, files_bytes: usize) -> [usize; 2] {
    let first = pictures.max(KERNELS_LEAST) * KERNELS_PICTURE_BYTES + files_bytes;
    [first, files_bytes * KERNELS_FILES_TIMES]
}

/// Whether half of these pictures would need more than three quarters of their memory.
fn is_mostly_fixed(pictures: &[Coded<'_>]) -> bool {
    let files: usize = pictures.iter().map(|picture| picture.bytes.len()).sum();
    let needs = |parts: usize| -> usize {
        let both = kernels_need(pictures.len().div_ceil(parts), files / parts);
        both.iter().sum()
    };
    4 * needs(2) > 3 * needs(1)
}

/// Two parts of a range; `None` of a single picture.
fn halves(range: &Range<usize>) -> Option<[Range<usize>; 2]> {
    let middle = range.start + range.len() / 2;
    (range.len() > 1).then_some([range.start..middle, middle..range.end])
}

/// The stream, as the library takes it. (On the CPU device, there is none, and what stands in for the library writes at once.)
fn handle_of(stream: &RawStream) -> *mut c_void {
    match stream {
        RawStream::Cpu(_) => ptr::null_mut(),
        RawStream::Cuda(stream) => stream.handle().cast(),
    }
}
