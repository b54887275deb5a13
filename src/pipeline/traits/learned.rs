//! What is known of a loader's samples.

use super::share::DecoderShare;
use crate::batch::Needs;
use crate::device::DeviceInner;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, Weak};

/// What is known of a loader's samples: by the data set, or from batches that were laid out. All accesses are relaxed, because these
/// are hints for later epochs.
pub(crate) struct Learned {
    is_gatherable: AtomicBool,
    has_pictures: AtomicBool,
    sample_bytes: AtomicUsize,
    pub(crate) share: DecoderShare,
    /// Devices that will decode pictures, as long as it is not known that there are any.
    decoders: Mutex<Vec<Weak<DeviceInner>>>,
}

impl Learned {
    /// What the data set knows.
    pub(crate) fn new(is_gatherable: bool, sample_bytes: Option<usize>) -> Learned {
        Learned {
            is_gatherable: AtomicBool::new(is_gatherable),
            has_pictures: AtomicBool::new(false),
            sample_bytes: AtomicUsize::new(sample_bytes.unwrap_or(0)),
            share: DecoderShare::new(None),
            decoders: Mutex::default(),
        }
    }

    /// With the share of the pictures that a device decodes, of 64; `None`: it is to be measured.
    pub(crate) fn device_share(self, share: Option<u8>) -> Learned {
        Learned {
            share: DecoderShare::new(share),
            ..self
        }
    }

    /// If there are pictures for devices to decode, nothing has to be learned of that.
    pub(crate) fn pictures(self, has_pictures: bool) -> Learned {
        Learned {
            has_pictures: AtomicBool::new(has_pictures),
            ..self
        }
    }

    /// An epoch goes to this device, which decodes: it opens its decoder as soon as it is known that there are pictures, so that the
    /// decoder is open when they come. (That takes it a second.)
    pub(crate) fn is_decoded_by(&self, device: &Arc<DeviceInner>) {
        {
            // Under the lock: either the thread that learns of pictures first finds the device here, or this one finds that there are
            // pictures.
            let mut decoders = self.decoders.lock();
            if !self.has_pictures() {
                decoders.retain(|other| other.strong_count() > 0);
                let is_device = |other: &Weak<DeviceInner>| other.as_ptr() == Arc::as_ptr(device);
                if !decoders.iter().any(is_device) {
                    decoders.push(Arc::downgrade(device));
                }
                return;
            }
        }
        device.open_decoder();
    }

    /// There are pictures: the devices that decode them open their decoders.
    #[cold]
    fn learns_of_pictures(&self) {
        self.has_pictures.store(true, Ordering::Relaxed);
        let decoders = std::mem::take(&mut *self.decoders.lock());
        let decoders = decoders.into_iter().filter_map(|device| device.upgrade());
        decoders.for_each(|device| device.open_decoder());
    }

    pub(crate) fn is_gatherable(&self) -> bool {
        self.is_gatherable.load(Ordering::Relaxed)
    }

    pub(crate) fn has_pictures(&self) -> bool {
        self.has_pictures.load(Ordering::Relaxed)
    }

    /// How many bytes a sample takes; 0: that is not known.
    pub(crate) fn sample_bytes(&self) -> usize {
        self.sample_bytes.load(Ordering::Relaxed)
    }

    /// Learns from a batch. (All workers read this. Most batches are alike, and those do not write.)
    pub(crate) fn note(&self, needs: Needs) {
        if needs.is_gatherable && !self.is_gatherable.load(Ordering::Relaxed) {
            self.is_gatherable.store(true, Ordering::Relaxed);
        }
        if needs.has_pictures && !self.has_pictures.load(Ordering::Relaxed) {
            self.learns_of_pictures();
        }
        if self.sample_bytes.load(Ordering::Relaxed) != needs.sample_bytes {
            self.sample_bytes
                .store(needs.sample_bytes, Ordering::Relaxed);
        }
    }
}
