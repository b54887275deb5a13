//! Scattered fields: the batch says where its rows lie, and does not have them. The upload gathers them.
//!
//! In an epoch that goes to a device, a row of registered memory is not copied on the host: filling it writes its
//! address into a table in the batch's slab. Of a table in device memory, the slab has the rows' numbers. If such a tensor is
//! read on the host after all (by a user's own `Batch` or `Sample`), its rows are gathered then, once.

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;

use super::pictures::{DecodedIn, EncodedFile, PictureRow, Pictures, rows_of_pixels};
use super::storage::VecStorage;
use super::{Backend, Home, Storage};
use crate::error::NotDrawn;
use crate::meter::{Meter, Reasons};
use crate::sync::{Arc, AtomicBool, Mutex, OnceLock, Ordering};

/// Why the CPU decoded pictures that were left to the device.
const READ_ON_HOST: &str = "read on the host";

/// The owners of the rows in a batch's scattered fields.
#[derive(Default)]
pub(crate) struct Sources {
    /// Usually there is only one owner, and checking it takes no lock.
    first: OnceLock<Arc<dyn Storage>>,
    others: Mutex<Vec<Arc<dyn Storage>>>,
    /// Some rows lie in pageable memory, so the device must not gather the batch.
    pageable: AtomicBool,
    pub(super) pictures: Pictures,
    /// The rows are read on the host, when the batch moves into another slab: pictures are decoded before.
    pub(super) moves: bool,
}

impl Sources {
    pub(crate) fn new(moves: bool) -> Sources {
        Sources {
            moves,
            ..Sources::default()
        }
    }

    /// Keeps the owner of a row in registered memory.
    pub(super) fn keep(&self, storage: &Arc<dyn Storage>) {
        let first = self.first.get_or_init(|| Arc::clone(storage));
        if is_same(first, storage) {
            return;
        }
        let mut others = self.others.lock();
        if !others.last().is_some_and(|last| is_same(last, storage)) {
            others.push(Arc::clone(storage));
        }
    }

    /// Keeps a row that was made for the batch.
    pub(super) fn keep_pageable(&self, storage: Arc<dyn Storage>) {
        // Relaxed: the thread that finishes the batch reads it, and the shared state's lock synchronizes the two.
        self.pageable.store(true, Ordering::Relaxed);
        self.others.lock().push(storage);
    }
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

fn is_same(one: &Arc<dyn Storage>, other: &Arc<dyn Storage>) -> bool {
    Arc::as_ptr(one).cast::<()>() == Arc::as_ptr(other).cast::<()>()
}

/// A table's column in device memory.
pub(crate) trait TableColumn: Send + Sync {
    /// Where it begins.
    fn address(&self) -> u64;

    /// The device, which that layer knows.
    fn device(&self) -> &dyn Any;

    /// Copies the rows of these numbers to the host, and waits for that. `slab` keeps the numbers.
    ///
    /// # Panics
    ///
    /// If the device fails.
    fn read(&self, numbers: &[i64], slab: &Arc<dyn Storage>) -> Gathered;
}

/// Rows in host memory, consecutively, and the owner of that memory.
pub(crate) struct Gathered {
    pub(crate) base: NonNull<u8>,
    pub(crate) owner: Arc<dyn Storage>,
}

/// The storage of a scattered field: a list in the slab that says which rows it has, and the owners of the rows.
pub(crate) struct Scattered {
    slab: Arc<dyn Storage>,
    rows: usize,
    row_bytes: usize,
    source: Source,
    gathered: OnceLock<Gathered>,
}

enum Source {
    /// The rows' addresses, in host memory.
    Host {
        table: NonNull<*const u8>,
        sources: Arc<Sources>,
        /// The backend whose devices can reach the rows, unless some are pageable.
        backend: Option<Backend>,
    },
    /// The rows' numbers, in a table on a device.
    Device {
        numbers: NonNull<i64>,
        column: Arc<dyn TableColumn>,
    },
    /// The rows themselves, but for those of pictures that a device decodes.
    Pictures {
        base: NonNull<u8>,
        pictures: Vec<PictureRow>,
        /// Why the CPU decoded others of the batch, until all are counted.
        uncounted: Box<Mutex<Option<Reasons>>>,
    },
}

/// The rows that a device gathers, or decodes.
pub(crate) enum RowList<'a> {
    /// Where each lies, in host memory.
    Addresses(&'a [*const u8]),
    /// Which rows of a table on the device.
    Numbers(&'a [i64], &'a Arc<dyn TableColumn>),
    /// The rows themselves, but for what the device decodes into some of them.
    Pictures(&'a [PictureRow]),
}

// SAFETY: the list is no longer written, and `slab` keeps it; the rows are only read, and their owners are kept.
unsafe impl Send for Scattered {}
// SAFETY: as above.
unsafe impl Sync for Scattered {}

impl Scattered {
    /// # Safety
    ///
    /// `table` must be the start of `rows` addresses, in memory that `slab` keeps alive and that is no longer written.
    /// At each address, `sources` must keep `row_bytes` initialized bytes alive, and nothing may write them.
    pub(super) unsafe fn new(
        slab: Arc<dyn Storage>,
        table: NonNull<*const u8>,
        rows: usize,
        row_bytes: usize,
        sources: Arc<Sources>,
        backend: Option<Backend>,
    ) -> Scattered {
        Scattered {
            slab,
            rows,
            row_bytes,
            source: Source::Host {
                table,
                sources,
                backend,
            },
            gathered: OnceLock::new(),
        }
    }

    /// # Safety
    ///
    /// `numbers` must be the start of `rows` numbers, in memory that `slab` keeps alive and that is no longer written. The
    /// column must have rows of all these numbers, of `row_bytes` bytes each.
    pub(super) unsafe fn of_table(
        slab: Arc<dyn Storage>,
        numbers: NonNull<i64>,
        rows: usize,
        row_bytes: usize,
        column: Arc<dyn TableColumn>,
    ) -> Scattered {
        Scattered {
            slab,
            rows,
            row_bytes,
            source: Source::Device { numbers, column },
            gathered: OnceLock::new(),
        }
    }

    /// # Safety
    ///
    /// `base` must be the start of `rows` rows of initialized bytes, in memory that `slab` keeps alive and that is no longer written. The
    /// pictures must be of these rows, and their files as `Row` left them. (The reasons are why the CPU decoded others of the batch.)
    pub(super) unsafe fn of_pictures(
        slab: Arc<dyn Storage>,
        base: NonNull<u8>,
        rows: usize,
        row_bytes: usize,
        (pictures, reasons): (Vec<PictureRow>, Reasons),
    ) -> Scattered {
        Scattered {
            slab,
            rows,
            row_bytes,
            source: Source::Pictures {
                base,
                pictures,
                uncounted: Box::new(Mutex::new(Some(reasons))),
            },
            gathered: OnceLock::new(),
        }
    }

    /// Which rows they are.
    pub(crate) fn list(&self) -> RowList<'_> {
        match &self.source {
            Source::Host { table, .. } => {
                // SAFETY: `new`'s contract.
                RowList::Addresses(unsafe { std::slice::from_raw_parts(table.as_ptr(), self.rows) })
            }
            Source::Device { numbers, column } => {
                // SAFETY: `of_table`'s contract.
                let numbers = unsafe { std::slice::from_raw_parts(numbers.as_ptr(), self.rows) };
                RowList::Numbers(numbers, column)
            }
            Source::Pictures { pictures, .. } => RowList::Pictures(pictures),
        }
    }

    /// Whether the slab has a list instead of rows.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.source, Source::Host { .. } | Source::Device { .. })
    }

    /// What a kernel that gathers rows of a table needs of the host: the list.
    pub(crate) fn list_of_table(&self) -> Option<&Arc<dyn Storage>> {
        match &self.source {
            Source::Device { .. } => Some(&self.slab),
            _ => None,
        }
    }

    /// The rows of a table that were gathered on the host.
    pub(super) fn gathered_of_table(&self) -> Option<&Arc<dyn Storage>> {
        self.list_of_table()?;
        Some(&self.gathered.get()?.owner)
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Whether the list is in page-locked memory.
    pub(crate) fn is_list_locked(&self) -> bool {
        self.slab.is_pinned()
    }

    /// The backend whose devices can gather the rows from host memory, if any.
    pub(crate) fn backend(&self) -> Option<Backend> {
        match &self.source {
            Source::Host { backend, .. } => *backend,
            _ => None,
        }
    }

    /// Whether a device can gather the rows. Not if they were already gathered on the host (and maybe written since),
    /// nor if some are pageable.
    pub(super) fn is_gatherable(&self) -> bool {
        let is_reachable = match &self.source {
            Source::Host { sources, .. } => sources.is_pinned(),
            _ => true,
        };
        is_reachable && !self.is_gathered()
    }

    /// Whether the rows were gathered on the host.
    pub(super) fn is_gathered(&self) -> bool {
        self.gathered.get().is_some()
    }

    /// All rows, consecutively. The first call gathers them.
    ///
    /// # Panics
    ///
    /// If there is no memory for them, the device fails, or a picture among them cannot be decoded.
    pub(crate) fn gathered(&self) -> NonNull<u8> {
        let gathered = self.gathered.get_or_init(|| match self.list() {
            RowList::Addresses(table) => self.gather(table),
            RowList::Numbers(numbers, column) => column.read(numbers, &self.slab),
            RowList::Pictures(pictures) => self.draw(pictures),
        });
        gathered.base
    }

    /// Memory for all rows.
    fn room(&self) -> (VecStorage<i64>, NonNull<i64>) {
        let bytes = self.rows * self.row_bytes;
        let zeroed = VecStorage::<i64>::zeroed(bytes.div_ceil(size_of::<i64>()));
        zeroed.unwrap_or_else(|| {
            panic!(
                "a batch of {bytes} bytes is read on the host, which has not enough memory to gather it"
            )
        })
    }

    /// Decodes the pictures here, where the batch was made for a device that does.
    fn draw(&self, pictures: &[PictureRow]) -> Gathered {
        let Source::Pictures { base, .. } = &self.source else {
            unreachable!("it has pictures");
        };
        let (storage, to) = self.room();
        let bytes = self.rows * self.row_bytes;
        // SAFETY: `of_pictures`'s contract for the source; only this call uses the vector, which is as large.
        unsafe { std::ptr::copy_nonoverlapping(base.as_ptr(), to.as_ptr().cast::<u8>(), bytes) };
        // SAFETY: as above.
        let all = unsafe { std::slice::from_raw_parts_mut(to.as_ptr().cast::<u8>(), bytes) };
        for picture in pictures {
            let row = picture.row;
            let to = &mut all[row * self.row_bytes..][..self.row_bytes];
            if let Err(error) = picture.picture.draw(self.file_of(picture), to) {
                // The code that makes batches knows which sample that is.
                std::panic::panic_any(NotDrawn { row, error });
            }
        }
        let reasons = Reasons::from([(READ_ON_HOST, pictures.len() as u64)]);
        self.count_pictures(&reasons, DecodedIn::default());
        Gathered {
            base: to.cast(),
            owner: Arc::new(storage),
        }
    }

    /// The bytes of rows that have pixels, in ranges. What lies between two is left to the device, unless it is fewer bytes than this.
    pub(crate) fn parts_of_pixels(&self, least_gap_bytes: usize) -> Vec<Range<usize>> {
        let pictures = match &self.source {
            Source::Pictures { pictures, .. } => &pictures[..],
            _ => &[],
        };
        let least_gap = least_gap_bytes.div_ceil(self.row_bytes.max(1));
        let pictures = pictures.iter().map(|picture| picture.row);
        let ranges = rows_of_pixels(self.rows, pictures, least_gap).into_iter();
        let bytes_of = |rows: Range<usize>| rows.start * self.row_bytes..rows.end * self.row_bytes;
        ranges.map(bytes_of).collect()
    }

    /// The file of one of its pictures.
    ///
    /// # Panics
    ///
    /// If the picture is of other rows, as far as that shows.
    pub(crate) fn file_of<'a>(&'a self, picture: &'a PictureRow) -> &'a [u8] {
        let bytes = match &picture.file {
            EncodedFile::InRow(bytes) => *bytes,
            EncodedFile::Elsewhere(file) => return (**file).as_ref(),
        };
        let Source::Pictures { base, .. } = &self.source else {
            unreachable!("it has pictures");
        };
        assert!(picture.row < self.rows && bytes <= self.row_bytes);
        // SAFETY: the row lies within the rows.
        let row = unsafe { base.add(picture.row * self.row_bytes) };
        // SAFETY: `of_pictures`'s contract: these bytes are initialized, the slab keeps them, and they are not written.
        unsafe { std::slice::from_raw_parts(row.as_ptr(), bytes) }
    }

    /// Counts the batch's pictures, whose rows are made: by the device, but for those that the CPU decoded for these reasons. They are
    /// counted where they are made first: a batch that was decoded may still be read on the host.
    pub(crate) fn count_pictures(&self, by_cpu: &Reasons, decoded: DecodedIn) {
        let Source::Pictures {
            pictures,
            uncounted,
            ..
        } = &self.source
        else {
            return;
        };
        let uncounted = uncounted.lock().take();
        if let (Some(others), Some(meter)) = (uncounted, self.slab.meter()) {
            let by_device = pictures.len() as u64 - by_cpu.values().sum::<u64>();
            meter.device_decoded.add(by_device);
            meter.device_decoding_ns.add(decoded.ns);
            if decoded.by_kernels {
                meter.decoded_by_kernels.add(by_device);
            }
            meter.leave_to_cpu(&others);
            meter.leave_to_cpu(by_cpu);
        }
    }

    fn gather(&self, table: &[*const u8]) -> Gathered {
        let (storage, base) = self.room();
        let target = base.as_ptr().cast::<u8>();
        for (row, &source) in table.iter().enumerate() {
            // SAFETY: the row lies within the vector that was just made.
            let to = unsafe { target.add(row * self.row_bytes) };
            // SAFETY: `new`'s contract for the source; only this call uses the vector.
            unsafe { std::ptr::copy_nonoverlapping(source, to, self.row_bytes) };
        }
        Gathered {
            base: base.cast(),
            owner: Arc::new(storage),
        }
    }
}

impl Storage for Scattered {
    fn is_pinned(&self) -> bool {
        match &self.source {
            Source::Host { sources, .. } => sources.is_pinned(),
            // The device has them; of a list that it cannot read, the kernel takes the numbers as arguments.
            Source::Device { .. } => true,
            Source::Pictures { .. } => self.slab.is_pinned(),
        }
    }

    /// Rows of a table are copies, of which the device has the original. (So a copy to a device need not hold this: it would hold the
    /// table, and that the device, whose list of copies holds it.)
    fn is_read_only(&self) -> bool {
        matches!(self.source, Source::Device { .. })
    }

    fn home(&self) -> Option<Home> {
        self.slab.home()
    }

    fn meter(&self) -> Option<&Arc<Meter>> {
        self.slab.meter()
    }

    fn scattered(&self) -> Option<&Scattered> {
        Some(self)
    }

    fn let_go(self: Arc<Self>, last: &mut Vec<Arc<dyn Storage>>) {
        // The slab goes home at once; the rows' owners may follow.
        let sources = match &self.source {
            Source::Host { sources, .. } => Some(Arc::clone(sources)),
            _ => None, // tables and pictures have no code of the program's
        };
        drop(self);
        if let Some(sources) = sources {
            sources.let_go(last);
        }
    }
}

impl Storage for Sources {
    fn is_pinned(&self) -> bool {
        // Relaxed: see `keep_pageable`.
        !self.pageable.load(Ordering::Relaxed)
    }

    fn let_go(self: Arc<Self>, last: &mut Vec<Arc<dyn Storage>>) {
        if let Some(sources) = Arc::into_inner(self) {
            let first = sources.first.into_inner();
            let all = first.into_iter().chain(sources.others.into_inner());
            all.for_each(|storage| storage.let_go(last));
        }
    }
}
