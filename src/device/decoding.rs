//! Decoding: pictures of a batch that is on the device, whose files are on the host.
//!
//! One thread for each device drives its decoder (`decoding/thread.rs`). What sends a batch hands it the rows that are to be decoded, and
//! is told when they are made. Where it is known that there will be pictures, the decoder is opened in advance.

use super::DeviceInner;
use super::block::DeviceBlock;
use crate::driver::RawEvent;
#[cfg(feature = "nvjpeg")]
use crate::error::Result;
use crate::error::{BoxError, Error};
#[cfg(feature = "nvjpeg")]
use crate::sync::log;
use crate::sync::{Arc, Instant, Mutex};
use crate::tensor::{Home, Storage};

#[cfg(feature = "nvjpeg")]
mod engine;
#[cfg(feature = "nvjpeg")]
mod job;
#[cfg(feature = "nvjpeg")]
mod memory;
#[cfg(feature = "nvjpeg")]
mod thread;
#[cfg(feature = "nvjpeg")]
mod waiting;

#[cfg(feature = "nvjpeg")]
pub(super) use thread::Decoder;

/// Rows of a batch, or of a part of one, that were sent and whose pictures are not decoded yet.
#[derive(Default)]
pub(crate) struct Undecoded(Vec<EncodedRows>);

/// Those of one field.
#[cfg_attr(
    not(feature = "nvjpeg"),
    expect(dead_code, reason = "nothing is encoded")
)]
pub(super) struct EncodedRows {
    /// It has the pictures. Behind it is the batch's slab, which stays out until they are decoded.
    pub(super) storage: Arc<dyn Storage>,
    /// Where the first row is.
    pub(super) to: u64,
    /// What keeps the rows' memory.
    pub(super) _block: Arc<DeviceBlock>,
    /// The copy of all rows, which the pictures' are written behind.
    pub(super) copied: Option<RawEvent>,
    /// Last: the slab is home before it counts no more.
    pub(super) held: Held,
}

#[cfg(feature = "nvjpeg")]
impl EncodedRows {
    /// The name of their device.
    fn device(&self) -> String {
        self.held.device.driver.name()
    }
}

/// Rows that are to be decoded hold their slab until then. It counts as one that comes home without any action of the program.
pub(super) struct Held {
    device: Arc<DeviceInner>,
    /// Whose slab it is.
    home: Option<Home>,
}

/// The slabs whose pictures a device decodes, by where they belong: one for each field.
#[derive(Default)]
pub(super) struct HeldSlabs(Mutex<Slabs>);

#[derive(Default)]
struct Slabs {
    slabs: Vec<Home>,
    /// The decoder hangs, so these slabs are not to be waited for.
    is_late: bool,
}

impl HeldSlabs {
    /// Whether a slab of this ring is among them, and will come home: of `quota`, if given.
    pub(super) fn has(&self, ring: usize, quota: Option<usize>) -> bool {
        let held = self.0.lock();
        let mut slabs = held.slabs.iter().filter(|home| home.ring == ring);
        !held.is_late && slabs.any(|home| quota.is_none() || home.quota == quota)
    }

    /// The decoder goes on.
    #[cfg(feature = "nvjpeg")]
    fn comes_home(&self) {
        self.0.lock().is_late = false;
    }
}

#[cfg(feature = "nvjpeg")]
impl Held {
    /// Before the copy is in the list of flights, so that a thread that looks for the slab finds it there or here.
    pub(super) fn new(device: &Arc<DeviceInner>, home: Option<Home>) -> Held {
        device.held.0.lock().slabs.extend(home);
        Held {
            device: Arc::clone(device),
            home,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.device.held.0.lock();
        let own = held.slabs.iter().position(|home| Some(*home) == self.home);
        own.map(|own| held.slabs.swap_remove(own));
        drop(held);
        // The slab itself may not have come home, if the program keeps a view of its batch. A thread that waits for it must look again.
        self.device.ring.news().notify_interested();
    }
}

/// Why the rows of a batch are not made.
#[cfg_attr(
    not(feature = "nvjpeg"),
    expect(dead_code, reason = "nothing is encoded")
)]
pub(crate) enum NotDecoded {
    /// A picture is at fault, of this row of the batch or part: the CPU cannot decode it either.
    Picture {
        row: usize,
        error: BoxError,
    },
    Failed(Error),
}

impl NotDecoded {
    pub(crate) fn is_of_picture(&self) -> bool {
        matches!(self, NotDecoded::Picture { .. })
    }
}

impl DeviceInner {
    /// Whether pictures that come now need not wait until the decoder is open: it is, or could not be opened.
    #[cfg(feature = "nvjpeg")]
    pub(crate) fn is_decoder_ready(&self) -> bool {
        self.decoder.get().is_some_and(Decoder::was_tried)
    }

    /// Begins to open the decoder: pictures will come. It does not wait. If opening fails, it is tried again when they are there, and they
    /// are told why.
    #[cfg(feature = "nvjpeg")]
    pub(crate) fn open_decoder(&self) {
        match self.decoder() {
            Ok(decoder) => decoder.open(),
            Err(error) => log::debug!("no decoder is opened ahead: {error}"),
        }
    }

    /// Has pictures decoded that were sent as they are.
    pub(crate) fn decode(&self, undecoded: Undecoded, when_decoded: WhenDecoded) {
        #[cfg(feature = "nvjpeg")]
        match self.decoder() {
            Ok(decoder) => decoder.decode(undecoded, when_decoded),
            Err(error) => {
                drop(undecoded); // its slab is at home then
                when_decoded(Err(NotDecoded::Failed(error)));
            }
        }
        #[cfg(not(feature = "nvjpeg"))]
        drop((undecoded, when_decoded)); // there are none
    }

    /// When the decoder was done with anything last, if it was.
    pub(crate) fn decoder_moved(&self) -> Option<Instant> {
        #[cfg(feature = "nvjpeg")]
        return self.decoder.get()?.moved();
        #[cfg(not(feature = "nvjpeg"))]
        None
    }

    /// How many bytes the decoder has: of the device, and page-locked.
    pub(super) fn decoder_bytes(&self) -> [usize; 2] {
        #[cfg(feature = "nvjpeg")]
        return self.decoder.get().map_or([0; 2], Decoder::bytes);
        #[cfg(not(feature = "nvjpeg"))]
        [0; 2]
    }

    /// The decoder is not waited for any more. Until it goes on, the slabs that it has are not waited for, either.
    pub(crate) fn decoder_is_late(&self) {
        self.held.0.lock().is_late = true;
        self.ring.news().notify();
    }

    /// The decoder's thread, which is started when it is needed first.
    #[cfg(feature = "nvjpeg")]
    fn decoder(&self) -> Result<&Decoder> {
        if let Some(decoder) = self.decoder.get() {
            return Ok(decoder);
        }
        let decoder = Decoder::start(&self.driver)?;
        // (Of two that were started at once, one ends here.)
        Ok(self.decoder.get_or_init(|| decoder))
    }
}

/// What is told when the rows are made, or will not be. It runs on the decoder's thread.
pub(crate) type WhenDecoded = Box<dyn FnOnce(Result<(), NotDecoded>) + Send>;

impl Undecoded {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(feature = "nvjpeg")]
    pub(super) fn add(&mut self, rows: EncodedRows) {
        self.0.push(rows);
    }

    #[cfg(feature = "nvjpeg")]
    pub(super) fn into_rows(self) -> Vec<EncodedRows> {
        self.0
    }

    /// They are copied behind this event.
    pub(super) fn copied_behind(&mut self, done: Option<&RawEvent>) {
        for rows in &mut self.0 {
            rows.copied = done.cloned();
        }
    }
}
