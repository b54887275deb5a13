//! Uploads: the host tensors of a batch move into one transfer to the device.

use std::ptr::NonNull;

use super::DeviceInner;
use super::assembly::Rows;
use super::block::DeviceBlock;
use super::buffers::{self, Size, Target};
use super::flights::Lane;
use super::staging::Staging;
use super::tensor::DeviceTensor;
use crate::driver::{Gather, RawCopy, RawEvent};
use crate::error::Result;
use crate::meter::{Enqueued, Meter};
use crate::sync::Arc;
use crate::tensor::{ALIGNMENT, Backend, DType, Element, Scattered, Shape, Storage, Tensor};
use crate::trace::span;

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

/// One tensor's bytes, and who owns them.
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
    storage: Arc<dyn Storage>,
}

impl Tensors<'_> {
    /// Adds one tensor.
    pub fn add<T: Element>(&mut self, tensor: &Tensor<T>) {
        let identity = tensor.identity();
        let is_scattered = tensor.is_scattered();
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
            storage: Arc::clone(tensor.storage()),
        });
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

    /// Gathers rows on the host that devices of this backend cannot reach: a batch may be sent to any device.
    pub(super) fn gather_for(&mut self, backend: Backend) {
        if let Some(rows) = self.storage.scattered().filter(|_| self.is_scattered)
            && rows.backend() != Some(backend)
        {
            self.base = rows.gathered();
            (self.is_pinned, self.is_scattered) = (false, false);
        }
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
}

/// Where a region goes on the device.
pub(super) struct Placed {
    identity: NonNull<u8>,
    bytes: usize,
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
            identity: region.identity,
            bytes: region.bytes,
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
    regions: Vec<usize>,
    /// It is a single region, whose rows lie elsewhere.
    is_scattered: bool,
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
        span!("upload", tensors = tensors.regions.len());
        let device = &target.device().inner;
        device.settle();
        let mut regions = tensors.regions;
        let backend = device.driver.backend();
        regions
            .iter_mut()
            .for_each(|region| region.gather_for(backend));
        let meter = regions.iter().find_map(Region::meter);
        if let Some(meter) = &meter {
            meter.measured_by(device);
        }

        // All memory first, so that everything that can be refused is refused before a byte moves.
        if target.buffers().is_some() {
            return Upload::start_in(target, regions, rows, meter, waits);
        }
        let mut runs = runs(&regions);
        let mut blocks = Vec::with_capacity(runs.len());
        for run in &mut runs {
            let block = DeviceBlock::take(device, run.bytes, meter.clone(), waits)?;
            run.to = block.address();
            blocks.push(Arc::new(block));
        }
        let mut placed: Vec<Option<Placed>> = regions.iter().map(|_| None).collect();
        for (run, block) in runs.iter().zip(&blocks) {
            for &index in &run.regions {
                let region = &regions[index];
                let offset = region.base.as_ptr() as usize - run.base.as_ptr() as usize;
                placed[index] = Some(Placed::new(region, block, run.to + offset as u64, None));
            }
        }
        let host = regions.into_iter().map(Region::into_storage).collect();
        let done = submit(device, &runs, &blocks, host, meter)?;
        let placed = placed.into_iter().flatten().collect();
        Ok(Upload::new(device, placed, done))
    }

    /// The same, into one of the program's buffers, where each tensor has its place.
    fn start_in(
        target: &Target,
        regions: Vec<Region>,
        rows: Option<Rows>,
        meter: Option<Arc<Meter>>,
        waits: bool,
    ) -> Result<Upload> {
        let device = &target.device().inner;
        let size = |region: &Region| {
            let bytes = region.bytes;
            let most = rows.map_or(bytes, |rows| rows.most_bytes(&region.shape, bytes));
            Size { bytes, most }
        };
        let sizes: Vec<Size> = regions.iter().map(size).collect();
        let (block, addresses) = buffers::take(target, &sizes, meter.clone(), waits)?;
        let block = Arc::new(block);
        let places = || regions.iter().zip(&addresses);
        let runs = places().enumerate();
        let runs = runs.map(|(index, (region, address))| CopyRun::alone(index, region, *address));
        let runs: Vec<CopyRun> = runs.collect();
        let placed = places();
        let placed = placed.map(|(region, address)| Placed::new(region, &block, *address, None));
        let placed = placed.collect();
        let host = regions.into_iter().map(Region::into_storage).collect();
        let done = submit(device, &runs, &[block], host, meter)?;
        Ok(Upload::new(device, placed, done))
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
        }
    }

    /// Trades a host tensor for the device tensor that it is copied to.
    ///
    /// # Panics
    ///
    /// If it is not the next of the tensors that `Batch::tensors` added: a mistake in an implementation of `Batch`.
    pub fn tensor<T: Element>(&mut self, tensor: Tensor<T>) -> DeviceTensor<T> {
        let Some(placed) = self.placed.next() else {
            panic!("Upload::tensor: Batch::tensors showed fewer tensors");
        };
        assert!(
            placed.identity == tensor.identity() && placed.bytes == tensor.size_bytes(),
            "Upload::tensor: Batch::tensors showed the tensors in another order"
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
    meter: Option<Arc<Meter>>,
) -> Result<Option<RawEvent>> {
    if runs.iter().all(|run| run.bytes == 0) {
        return Ok(None);
    }
    let (driver, stream) = (&device.driver, &device.h2d);
    let start = meter
        .as_ref()
        .map(|_| driver.record(stream, true))
        .transpose()?;
    let recorded = meter.as_ref().and_then(|meter| meter.subject(|| None));
    let enqueued = recorded.map(|_| {
        let bytes = runs.iter().map(|run| run.bytes as u64).sum();
        Enqueued::now(device.driver.name(), bytes)
    });
    let mut staging = Staging::new(device, stream);
    let mut copied = Ok(());
    for run in runs.iter().filter(|run| run.bytes > 0) {
        copied = match run.rows(&host) {
            // SAFETY: the region's storage in `host` keeps the rows and their table alive until the event fires, and
            // nobody writes them meanwhile (*no access while in flight*). The rest is as below.
            Some(scattered) => unsafe {
                let rows = scattered.table();
                let gather = Gather {
                    rows,
                    row_bytes: run.bytes / rows.len(),
                    to: run.to,
                    is_table_locked: scattered.is_table_locked(),
                };
                driver.gather(stream, gather)
            },
            None => {
                let copy = RawCopy::ToDevice {
                    from: run.base.as_ptr(),
                    to: run.to,
                    bytes: run.bytes,
                };
                // SAFETY: the run lies in one allocation, which `host` keeps alive until the event fires and which nobody
                // writes while an `Arc` of its storage is held (*no access while in flight*). The last users of the
                // pool's memory are done, and the caller's tensors reach it only after the event.
                unsafe { staging.copy(copy, run.is_pinned) }.map(drop)
            }
        };
        if copied.is_err() {
            break;
        }
        if let Some(meter) = &meter {
            meter.transfers.add(1);
            meter.transfer_bytes.add(run.bytes as u64);
        }
    }
    host.extend(staging.hold());
    let measured = start.zip(meter);
    let measured = measured.map(|(start, meter)| (start, meter, enqueued));
    match device.add_flight(Lane::Upload, host, measured) {
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

impl CopyRun {
    /// A run of one region, for this address.
    pub(super) fn alone(index: usize, region: &Region, to: u64) -> CopyRun {
        CopyRun {
            base: region.base,
            bytes: region.bytes,
            to,
            is_pinned: region.is_pinned,
            regions: vec![index],
            is_scattered: region.is_scattered,
        }
    }

    /// The rows, if they lie elsewhere. (Somebody may have gathered them meanwhile; their table is still valid.)
    fn rows<'a>(&self, host: &'a [Arc<dyn Storage>]) -> Option<&'a Scattered> {
        let storage = host.get(*self.regions.first()?)?;
        storage.scattered().filter(|_| self.is_scattered)
    }
}

/// Groups regions into runs: within one slab, from field to field as long as only padding lies between them.
fn runs(regions: &[Region]) -> Vec<CopyRun> {
    let mut order: Vec<usize> = (0..regions.len()).collect();
    order.sort_by_key(|&index| (regions[index].storage.slab(), regions[index].base));
    let mut runs: Vec<CopyRun> = Vec::with_capacity(1);
    let mut slab = None;
    for index in order {
        let region = &regions[index];
        let start = region.base.as_ptr() as usize;
        // (A region whose rows lie elsewhere names no slab.)
        if let Some(run) = runs.last_mut()
            && region.storage.slab().is_some()
            && region.storage.slab() == slab
            // Overlapping views become separate tensors: writing through one must not change the other.
            && start >= run.base.as_ptr() as usize + run.bytes
            && start < run.base.as_ptr() as usize + run.bytes + ALIGNMENT
            && (start - run.base.as_ptr() as usize).is_multiple_of(ALIGNMENT)
        {
            run.bytes = start - run.base.as_ptr() as usize + region.bytes;
            run.regions.push(index);
            continue;
        }
        slab = region.storage.slab();
        runs.push(CopyRun::alone(index, region, 0));
    }
    runs
}
