//! Uploads: the host tensors of a batch move into one transfer to the device.

use std::ops::Range;
use std::ptr::NonNull;

use super::block::DeviceBlock;
use super::buffer_set::Size;
use super::buffers::{self, Rows, Target};
use super::decoding::{EncodedRows, Held, Undecoded};
use super::flights::{Lane, drop_owner};
use super::inner::{DeviceInner, Measured};
use super::staging::Staging;
use super::table;
use super::tensor::DeviceTensor;
use crate::driver::rows::ChosenColumn;
use crate::driver::{Gather, RawCopy, RawEvent};
use crate::error::Result;
use crate::meter::{Enqueued, Meter};
use crate::sync::Arc;
use crate::tensor::{
    ALIGNMENT, DType, Element, RowList, Scattered, Shape, Storage, TableColumn, Tensor,
};
use crate::trace::span;
use crate::tuning::PICTURE_GAP_BYTES;

/// The host tensors of a batch, as [`Batch::tensors`](crate::Batch::tensors) shows them.
///
/// # Examples
///
/// In [`Batch`](crate::Batch#examples).
#[derive(Default)]
pub struct Tensors<'a> {
    regions: Vec<Region>,
    batch: std::marker::PhantomData<&'a ()>,
}

/// One tensor's bytes, and their owner.
pub(crate) struct Region {
    /// Identifies the tensor.
    identity: NonNull<u8>,
    /// The first byte, if the bytes are contiguous.
    pub(crate) base: NonNull<u8>,
    pub(crate) bytes: usize,
    pub(super) shape: Shape,
    pub(super) dtype: DType,
    is_pinned: bool,
    /// The rows lie elsewhere, and the device gathers them.
    is_scattered: bool,
    /// The run that it travels in.
    run: usize,
    storage: Arc<dyn Storage>,
}

impl Tensors<'_> {
    pub(crate) fn size_bytes(&self) -> usize {
        size_bytes(&self.regions)
    }

    /// Adds one tensor.
    pub fn add<T: Element>(&mut self, tensor: &Tensor<T>) {
        let identity = tensor.identity();
        let (is_scattered, storage) = tensor.copied_from();
        let base = match is_scattered {
            true => identity,
            false => NonNull::new(tensor.as_ptr().cast()).unwrap_or(NonNull::dangling()),
        };
        self.regions.push(Region {
            identity,
            base,
            bytes: tensor.size_bytes(),
            shape: tensor.shape().clone(),
            dtype: T::DTYPE,
            is_pinned: tensor.is_pinned(),
            is_scattered,
            run: 0,
            storage: Arc::clone(storage),
        });
    }

    /// Returns the size of each tensor in bytes, in the order in which they were added: for a crate that hands batches to another library,
    /// which treats large tensors in another way than small ones.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::collate::Tensors;
    /// use pinfeed::{Batch, Tensor};
    ///
    /// let batch = (Tensor::<f32>::zeros(&[8, 3]), Tensor::<i64>::zeros(&[8]));
    /// let mut tensors = Tensors::default();
    /// batch.tensors(&mut tensors);
    /// assert!(tensors.sizes().eq([96, 64]));
    /// ```
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = usize> {
        self.regions.iter().map(|region| region.bytes)
    }

    /// Whether some rows are pictures that are not decoded.
    pub(crate) fn has_pictures(&self) -> bool {
        self.regions.iter().any(Region::has_pictures)
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    pub(super) fn into_regions(self) -> Vec<Region> {
        self.regions
    }

    /// The epoch that the transfer is measured for.
    pub(super) fn meter(&self) -> Option<Arc<Meter>> {
        self.regions.iter().find_map(Region::meter)
    }
}

/// The bytes of all. (Views of one tensor may be more together than there are addresses.)
fn size_bytes(regions: &[Region]) -> usize {
    let each = regions.iter().map(|region| region.bytes);
    each.fold(0, usize::saturating_add)
}

impl Region {
    /// Whether the tensor was built in a batch's final memory, even if it has been read since.
    pub(crate) fn is_in_place(&self) -> bool {
        self.storage.is_pinned()
    }

    pub(super) fn meter(&self) -> Option<Arc<Meter>> {
        self.storage.meter().cloned()
    }

    pub(super) fn into_storage(self) -> Arc<dyn Storage> {
        self.storage
    }

    /// Gathers rows on the host that this device cannot reach: a batch may be sent to any device. But rows of a table on another device
    /// are an error: they would cross the host at a crawl, in silence. `is_ahead`: of an epoch that was made for the device, so pictures
    /// stay encoded.
    pub(super) fn gather_for(&mut self, device: &Arc<DeviceInner>, is_ahead: bool) -> Result<()> {
        let Some(rows) = self.storage.scattered().filter(|_| self.is_scattered) else {
            return Ok(());
        };
        match rows.list() {
            RowList::Numbers(_, column) => table::check(&**column, device),
            RowList::Addresses(_) if rows.backend() == Some(device.driver.backend()) => Ok(()),
            RowList::Pictures(_) if is_ahead => Ok(()),
            _ => {
                self.base = rows.gathered();
                (self.is_pinned, self.is_scattered) = (false, false);
                Ok(())
            }
        }
    }

    /// Pictures of these rows are decoded where they go.
    pub(super) fn note_pictures(
        &self,
        device: &Arc<DeviceInner>,
        (block, to): (&Arc<DeviceBlock>, u64),
        undecoded: &mut Undecoded,
    ) {
        if self.has_pictures() {
            undecoded.add(EncodedRows {
                storage: Arc::clone(&self.storage),
                to,
                _block: Box::new((Arc::clone(block), block.passing())),
                copied: None,
                held: Held::new(&device.held, self.storage.home()),
            });
        }
    }

    fn has_pictures(&self) -> bool {
        let has = |rows: &Scattered| !rows.is_list();
        self.is_scattered && self.storage.scattered().is_some_and(has)
    }

    /// Whether the rows are those of a table on the device.
    fn is_of_table(&self) -> bool {
        let rows = self.storage.scattered().filter(|_| self.is_scattered);
        rows.is_some_and(|rows| rows.list_of_table().is_some())
    }
}

impl std::fmt::Debug for Tensors<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tensors")
            .field("len", &self.regions.len())
            .finish()
    }
}

/// A transfer in progress: [`Batch::upload`](crate::Batch::upload) trades each host tensor for its device tensor.
///
/// # Examples
///
/// In [`Batch`](crate::Batch#examples).
pub struct Upload {
    device: Arc<DeviceInner>,
    placed: std::vec::IntoIter<Placed>,
    done: Option<RawEvent>,
    undecoded: Undecoded,
}

/// Where a region goes on the device.
pub(super) struct Placed {
    /// An address to compare, not to follow.
    identity: usize,
    bytes: usize,
    dtype: DType,
    block: Arc<DeviceBlock>,
    address: u64,
    /// The tensor's shape on the device, if the region is only a part of it.
    shape: Option<Shape>,
}

impl Placed {
    pub(super) fn new(
        region: &Region,
        block: &Arc<DeviceBlock>,
        address: u64,
        shape: Option<Shape>,
    ) -> Placed {
        Placed {
            identity: region.identity.as_ptr() as usize,
            bytes: region.bytes,
            dtype: region.dtype,
            block: Arc::clone(block),
            address,
            shape,
        }
    }
}

/// Regions that are copied together: neighbours in one slab, with nothing but padding between them.
pub(super) struct CopyRun {
    base: NonNull<u8>,
    bytes: usize,
    /// Where it goes on the device.
    to: u64,
    is_pinned: bool,
    /// The first of its regions.
    first: usize,
    /// It is a single region, whose rows lie elsewhere.
    is_scattered: bool,
}

/// What is sent at once.
struct Load {
    regions: Vec<Region>,
    /// Of which epoch's batch they are.
    rows: Option<Rows>,
    /// They are one batch, and not several.
    is_one_batch: bool,
}

/// The meter that counts an upload.
pub(super) struct Counted {
    meter: Arc<Meter>,
    /// If its time is measured, for how many like it that stands.
    stands_for: Option<u64>,
}

impl Counted {
    /// Decides whether an upload is measured; `None` if no meter counts it.
    pub(super) fn of(device: &Arc<DeviceInner>, regions: &[Region]) -> Option<Counted> {
        let meter = regions.iter().find_map(Region::meter)?;
        let stands_for = meter.stands_for(size_bytes(regions));
        if stands_for.is_some() {
            meter.measured_by(device);
        }
        Some(Counted { meter, stands_for })
    }

    /// The meter that counts how long a batch is processed that has memory for itself.
    fn timed(&self) -> Option<Arc<Meter>> {
        self.stands_for.map(|_| Arc::clone(&self.meter))
    }

    /// Records the start of the copies, if their time is measured.
    fn start(
        &self,
        device: &DeviceInner,
        runs: &[CopyRun],
        host: &[Arc<dyn Storage>],
    ) -> Result<Option<Measured>> {
        let Some(stands_for) = self.stands_for else {
            return Ok(None);
        };
        let recorded = self.meter.subject(|| None);
        Ok(Some(Measured {
            start: device.driver.record(&device.h2d, true)?,
            meter: Arc::clone(&self.meter),
            stands_for,
            enqueued: recorded.map(|_| {
                let parts = runs.iter().flat_map(|run| run.parts(host));
                let bytes = parts.map(|part| part.len() as u64).sum();
                Enqueued::now(device.driver.name(), bytes)
            }),
        }))
    }
}

impl Upload {
    /// Starts the copies of all regions: one for each run, and one event after them. `waits`: for memory that the program gave back,
    /// and whose kernels have not run. `rows`: of which an epoch's batch these are the tensors.
    pub(crate) fn start(
        target: &Target,
        tensors: Tensors<'_>,
        rows: Option<Rows>,
        waits: bool,
    ) -> Result<Upload> {
        let load = Load {
            regions: tensors.regions,
            rows,
            is_one_batch: true,
        };
        Upload::start_load(target, load, waits)
    }

    /// The same for several small batches at once, which share what it costs, and device memory. It does not wait, and `target` is none of
    /// the program's buffers. Returns an upload for each.
    pub(crate) fn start_all(target: &Target, batches: Vec<Tensors<'_>>) -> Result<Vec<Upload>> {
        let lens: Vec<usize> = batches.iter().map(|batch| batch.regions.len()).collect();
        let load = Load {
            regions: batches
                .into_iter()
                .flat_map(|batch| batch.regions)
                .collect(),
            rows: None,
            is_one_batch: false,
        };
        let all = Upload::start_load(target, load, false)?;
        let mut placed = all.placed;
        let of_batch = |len| {
            let placed: Vec<Placed> = placed.by_ref().take(len).collect();
            Upload::new(&all.device, placed, all.done.clone())
        };
        Ok(lens.into_iter().map(of_batch).collect())
    }

    fn start_load(target: &Target, load: Load, waits: bool) -> Result<Upload> {
        span!("upload", tensors = load.regions.len());
        let device = &target.device().inner;
        let owners; // dropped outside of the guard, whatever happens
        let started = {
            let _entered = device.driver.enter()?;
            owners = device.land();
            Upload::enqueue(target, load, waits)
        };
        owners.into_iter().for_each(drop_owner);
        started
    }

    /// Takes device memory, and enqueues the copies.
    fn enqueue(target: &Target, load: Load, waits: bool) -> Result<Upload> {
        let device = &target.device().inner;
        let mut regions = load.regions;
        for region in &mut regions {
            region.gather_for(device, load.rows.is_some())?;
        }
        let counted = Counted::of(device, &regions);
        let timed = counted.as_ref().filter(|_| load.is_one_batch);
        let timed = timed.and_then(Counted::timed);

        // All memory first, so that everything that can be refused is refused before a byte moves.
        // (One block is enough for the rows of a table: one kernel writes them.)
        if target.buffers().is_some() || regions.iter().any(Region::is_of_table) {
            return Upload::start_in(target, regions, load.rows, (counted, timed), waits);
        }
        let take = |run: &mut CopyRun| {
            let block = DeviceBlock::take(device, run.bytes, timed.clone(), waits)?;
            run.to = block.address();
            Ok(Arc::new(block))
        };
        // Nearly always there is one run, and one block: these need no lists.
        let (one, several);
        let (runs, blocks): (&[CopyRun], &[Arc<DeviceBlock>]) = match runs(&mut regions) {
            Runs::One(mut run) => {
                let block = take(&mut run)?;
                one = ([run], [block]);
                (&one.0, &one.1)
            }
            Runs::Several(mut runs) => {
                let blocks: Vec<_> = runs.iter_mut().map(take).collect::<Result<_>>()?;
                several = (runs, blocks);
                (&several.0, &several.1)
            }
        };
        let mut undecoded = Undecoded::default();
        let placed = regions.iter().map(|region| {
            let (run, block) = (&runs[region.run], &blocks[region.run]);
            let offset = region.base.as_ptr() as usize - run.base.as_ptr() as usize;
            let to = run.to + offset as u64;
            region.note_pictures(device, (block, to), &mut undecoded);
            Placed::new(region, block, to, None)
        });
        let placed = placed.collect();
        let host = regions.into_iter().map(Region::into_storage).collect();
        let done = submit(device, runs, blocks, host, counted)?;
        Ok(Upload::new(device, placed, done).and_decodes(undecoded))
    }

    /// The same, into one block, such as one of the program's buffers, where each tensor has its place.
    fn start_in(
        target: &Target,
        regions: Vec<Region>,
        rows: Option<Rows>,
        (counted, timed): (Option<Counted>, Option<Arc<Meter>>),
        waits: bool,
    ) -> Result<Upload> {
        let device = &target.device().inner;
        let size = |region: &Region| {
            let bytes = region.bytes;
            let each = region.dtype.size_bytes();
            let most = rows.map_or(bytes, |rows| rows.most_bytes(&region.shape, each, bytes));
            Size { bytes, most }
        };
        let sizes: Vec<Size> = regions.iter().map(size).collect();
        let (block, addresses) = buffers::take(target, &sizes, timed, waits)?;
        let block = Arc::new(block);
        let places = || regions.iter().zip(&addresses);
        let runs = places().enumerate();
        let runs = runs.map(|(index, (region, address))| CopyRun::alone(index, region, *address));
        let runs: Vec<CopyRun> = runs.collect();
        let mut undecoded = Undecoded::default();
        let placed = places().map(|(region, address)| {
            region.note_pictures(device, (&block, *address), &mut undecoded);
            Placed::new(region, &block, *address, None)
        });
        let placed = placed.collect();
        let host = regions.into_iter().map(Region::into_storage).collect();
        let done = submit(device, &runs, &[block], host, counted)?;
        Ok(Upload::new(device, placed, done).and_decodes(undecoded))
    }

    /// Pictures of these rows are to be decoded, behind the copies.
    pub(super) fn and_decodes(mut self, mut undecoded: Undecoded) -> Upload {
        undecoded.copied_behind(self.done.as_ref());
        self.undecoded = undecoded;
        self
    }

    /// Takes out what is to be decoded.
    pub(crate) fn take_undecoded(&mut self) -> Undecoded {
        std::mem::take(&mut self.undecoded)
    }

    pub(super) fn new(
        device: &Arc<DeviceInner>,
        placed: Vec<Placed>,
        done: Option<RawEvent>,
    ) -> Upload {
        Upload {
            device: Arc::clone(device),
            placed: placed.into_iter(),
            done,
            undecoded: Undecoded::default(),
        }
    }

    /// Trades a host tensor for the device tensor that it is copied to.
    ///
    /// # Panics
    ///
    /// If it is not the next of the tensors that `Batch::tensors` added, element type included: a mistake in an implementation of `Batch`.
    pub fn tensor<T: Element>(&mut self, tensor: Tensor<T>) -> DeviceTensor<T> {
        let Some(placed) = self.placed.next() else {
            panic!("Upload::tensor: Batch::tensors showed fewer tensors");
        };
        assert!(
            placed.identity == tensor.identity().as_ptr() as usize
                && placed.bytes == tensor.size_bytes(),
            "Upload::tensor: Batch::tensors showed the tensors in another order"
        );
        // Its memory on the device was laid out by the type that was shown.
        assert!(
            placed.dtype == T::DTYPE,
            "Upload::tensor: the tensor has elements of {}, and Batch::tensors showed it with {}",
            T::DTYPE,
            placed.dtype
        );
        let shape = placed.shape.unwrap_or_else(|| tensor.shape().clone());
        DeviceTensor::new(placed.block, placed.address, shape, self.done.clone())
    }

    /// Blocks until the copies are done.
    pub(crate) fn wait(self) -> Result<()> {
        let Upload { device, done, .. } = self;
        if let Some(done) = done {
            done.synchronize()?;
        }
        device.flights.reap();
        Ok(())
    }
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload")
            .field("device", &self.device.driver.name())
            .finish_non_exhaustive()
    }
}

/// Enqueues the copies and an event after them, and adds them to the device's list. `None`: there is nothing to copy.
pub(super) fn submit(
    device: &Arc<DeviceInner>,
    runs: &[CopyRun],
    blocks: &[Arc<DeviceBlock>],
    mut host: Vec<Arc<dyn Storage>>,
    counted: Option<Counted>,
) -> Result<Option<RawEvent>> {
    if runs.iter().all(|run| run.bytes == 0) {
        return Ok(None);
    }
    let counted = counted.as_ref();
    let measured = match counted {
        Some(counted) => counted.start(device, runs, &host)?,
        None => None,
    };
    let mut staging = Staging::new(device, &device.h2d);
    // SAFETY: the flight below keeps `host` until its event fires, or it is leaked (*no access while in flight*); tables are let go of
    // behind it. The last users of the targets are done, and the caller's tensors reach them only after the event.
    let copied = unsafe { enqueue(device, runs, &host, &mut staging, counted) };
    let tables: Vec<Arc<dyn Storage>> = tables_out_of(&mut host);
    host.extend(staging.hold());
    let flight = device.add_flight(Lane::Upload, host, measured);
    table::let_go(device, tables, flight.as_ref().ok());
    match flight {
        Ok(done) => {
            blocks
                .iter()
                .for_each(|block| block.free_behind([done.clone()]));
            copied.map(|()| Some(done))
        }
        Err((error, host)) => {
            // Copies may be in flight, and nothing will tell when they end.
            device.flights.leak(host);
            blocks.iter().for_each(|block| block.leak());
            Err(copied.err().unwrap_or(error))
        }
    }
}

/// Enqueues the copies, and kernels where the device takes the rows itself. If it fails, some of them may be under way.
///
/// # Safety
///
/// The storages in `host` must be kept until an event has fired that is recorded on the stream behind this. (Of rows of a table, that is
/// their list. The table goes to [`table::let_go`], with that event.) The targets reach no other user before.
unsafe fn enqueue(
    device: &DeviceInner,
    runs: &[CopyRun],
    host: &[Arc<dyn Storage>],
    staging: &mut Staging<'_>,
    counted: Option<&Counted>,
) -> Result<()> {
    let (driver, stream) = (&device.driver, &device.h2d);
    let meter = counted.map(|counted| &*counted.meter);
    let count = |bytes: usize| {
        if let Some(meter) = meter {
            meter.transfers.add(1);
            meter.transfer_bytes.add(bytes as u64);
        }
    };
    let mut chosen = Chosen::default();
    for run in runs.iter().filter(|run| run.bytes > 0) {
        let rows = run.rows(host);
        match rows.map(|rows| (rows, rows.list())) {
            Some((rows, RowList::Addresses(table))) => {
                let gather = Gather {
                    rows: table,
                    row_bytes: rows.row_bytes(),
                    to: run.to,
                    is_table_locked: rows.is_list_locked(),
                };
                // SAFETY: the region's storage in `host` keeps the rows and their table alive until the event fires, and
                // they are not written meanwhile (*no access while in flight*). The rest is as below.
                unsafe { driver.gather(stream, gather) }?;
                count(run.bytes);
            }
            Some((rows, RowList::Numbers(numbers, column))) => {
                chosen.add(rows, numbers, &**column, run.to);
            }
            _ => {
                for part in run.parts(host) {
                    let copy = RawCopy::ToDevice {
                        from: run.base.as_ptr().wrapping_add(part.start),
                        to: run.to + part.start as u64,
                        bytes: part.len(),
                    };
                    // SAFETY: the run lies in one allocation, which `host` keeps alive until the event fires and which is
                    // not written while an `Arc` of its storage is held (*no access while in flight*). The last users of the
                    // pool's memory are done, and the caller's tensors reach it only after the event.
                    unsafe { staging.copy(copy, run.is_pinned) }?;
                    count(part.len());
                }
            }
        }
    }
    // SAFETY: `host` keeps the numbers until the event fires. The tables' memory is not reused before: it is free behind an event that
    // is recorded when the last holder of a column drops it, on this stream or on one that waits for this one (`table::let_go`). That
    // is later, for the caller holds the columns until then. The rest is as above.
    unsafe { chosen.enqueue(device, meter) }
}

/// The tensors of tables, whose places the lists take that say which rows they have.
///
/// What a copy holds must not hold the device, which holds its copies.
fn tables_out_of(host: &mut [Arc<dyn Storage>]) -> Vec<Arc<dyn Storage>> {
    let tables = host.iter_mut().filter_map(|storage| {
        let list = storage.scattered()?.list_of_table()?;
        let list = Arc::clone(list);
        Some(std::mem::replace(storage, list))
    });
    tables.collect()
}

/// What a transfer takes out of tables: columns whose lists the device reads, and others.
#[derive(Default)]
struct Chosen<'a>([Vec<ChosenColumn<'a>>; 2]);

impl<'a> Chosen<'a> {
    fn add(&mut self, rows: &Scattered, numbers: &'a [i64], column: &dyn TableColumn, to: u64) {
        let of_kind = &mut self.0[usize::from(rows.is_list_locked())];
        of_kind.push(ChosenColumn {
            numbers,
            from: column.address(),
            to,
            row_bytes: rows.row_bytes(),
        });
    }

    /// # Safety
    ///
    /// As [`table::choose`].
    unsafe fn enqueue(&self, device: &DeviceInner, meter: Option<&Meter>) -> Result<()> {
        let (driver, stream) = (&device.driver, &device.h2d);
        for (columns, are_locked) in self.0.iter().zip([false, true]) {
            // SAFETY: the caller's contract.
            unsafe { table::choose(driver, stream, columns, are_locked) }?;
            let Some(meter) = meter else {
                continue;
            };
            // What crosses the link.
            let lists = columns.chunk_by(|one, other| std::ptr::eq(one.numbers, other.numbers));
            for list in lists {
                meter.transfers.add(1);
                meter
                    .transfer_bytes
                    .add(size_of_val(list[0].numbers) as u64);
            }
        }
        Ok(())
    }
}

impl CopyRun {
    /// A run of one region, for this address.
    pub(super) fn alone(index: usize, region: &Region, to: u64) -> CopyRun {
        CopyRun {
            base: region.base,
            bytes: region.bytes,
            to,
            is_pinned: region.is_pinned,
            first: index,
            is_scattered: region.is_scattered,
        }
    }

    /// Its bytes that are copied as they are: all, but for the rows of pictures that the device decodes.
    fn parts(&self, host: &[Arc<dyn Storage>]) -> impl Iterator<Item = Range<usize>> + use<> {
        let (all, parts) = match self.rows(host) {
            Some(rows) if !rows.is_list() => (None, rows.parts_of_pixels(PICTURE_GAP_BYTES)),
            _ => (Some(0..self.bytes), Vec::new()),
        };
        all.into_iter().chain(parts)
    }

    /// The rows, if they lie elsewhere. (They may have been gathered meanwhile; their table is still valid.)
    fn rows<'a>(&self, host: &'a [Arc<dyn Storage>]) -> Option<&'a Scattered> {
        match self.is_scattered {
            true => host.get(self.first)?.scattered(),
            false => None,
        }
    }
}

/// The runs of a batch.
enum Runs {
    One(CopyRun),
    /// Or none.
    Several(Vec<CopyRun>),
}

/// Groups regions into runs: within one slab, from field to field as long as only padding lies between them.
fn runs(regions: &mut [Region]) -> Runs {
    let key = |region: &Region| (region.storage.slab(), region.base);
    // Empty: as they are, which is how a batch's fields lie in its slab.
    let mut order: Vec<usize> = Vec::new();
    if !regions.is_sorted_by_key(key) {
        order.extend(0..regions.len());
        order.sort_by_key(|&index| key(&regions[index]));
    }
    let (mut last, mut earlier) = (None::<CopyRun>, Vec::new());
    let mut slab = None;
    for position in 0..regions.len() {
        let index = order.get(position).copied().unwrap_or(position);
        let region = &mut regions[index];
        let start = region.base.as_ptr() as usize;
        // (A region whose rows lie elsewhere names no slab.)
        if let Some(run) = &mut last
            && region.storage.slab().is_some()
            && region.storage.slab() == slab
            // Overlapping views become separate tensors: writing through one must not change the other.
            && start >= run.base.as_ptr() as usize + run.bytes
            && start < run.base.as_ptr() as usize + run.bytes + ALIGNMENT
            && (start - run.base.as_ptr() as usize).is_multiple_of(ALIGNMENT)
        {
            run.bytes = start - run.base.as_ptr() as usize + region.bytes;
            region.run = earlier.len();
            continue;
        }
        slab = region.storage.slab();
        earlier.extend(last.replace(CopyRun::alone(index, region, 0)));
        region.run = earlier.len();
    }
    match last {
        Some(run) if earlier.is_empty() => Runs::One(run),
        last => {
            earlier.extend(last);
            Runs::Several(earlier)
        }
    }
}
