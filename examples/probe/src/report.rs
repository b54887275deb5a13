//! What a run found, as plain values. `text`, `page` and `--json` render it; nothing here measures or formats.
//!
//! Numbers carry their unit in their name: `gb_s` is 10^9 bytes a second, `bytes` are bytes. The JSON output has the same names.

use serde::Serialize;

/// Everything that a run found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version of the library.
    pub version: &'static str,
    pub quick: bool,
    /// How long the whole run took.
    pub seconds: f64,
    pub host: Host,
    /// Why no GPU was measured, or why one of several was not.
    pub problems: Vec<String>,
    /// The GPUs; without any, the CPU device alone.
    pub devices: Vec<DeviceReport>,
    /// Absent with fewer than two GPUs.
    pub together: Option<Together>,
    pub memcpy: Memcpy,
    pub decode: Decode,
    pub advice: Vec<Advice>,
}

impl Report {
    pub fn has_gpu(&self) -> bool {
        self.devices.iter().any(|device| !device.is_cpu)
    }
}

/// The median of several measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figure {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    pub repeats: usize,
}

/// What the system gives this process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Host {
    /// How many threads of this process can run at once: its allowed cores, or the container's quota if that is less.
    pub usable_cores: usize,
    /// The cores that the process may run on, as the system lists them (`0-15,32-47`).
    pub allowed_cores: Option<String>,
    pub memory_bytes: Option<u64>,
    /// How many threads ran or waited to, over the last minute, when the run began.
    pub load: Option<f64>,
    pub nodes: Vec<Node>,
    pub memlock: Memlock,
    pub container: Container,
}

impl Host {
    /// The machine's memory, or the container's limit if that is less.
    pub fn usable_memory_bytes(&self) -> Option<u64> {
        let both = [self.memory_bytes, self.container.memory_bytes];
        both.into_iter().flatten().min()
    }
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    pub number: usize,
    pub cores: String,
    pub memory_bytes: Option<u64>,
}

/// `RLIMIT_MEMLOCK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "limit", content = "bytes")]
pub enum Memlock {
    Unlimited,
    Bytes(u64),
    /// The system does not say.
    Unknown,
}

/// The limits of the control groups that the process is in: the lowest of its own group and all above it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Container {
    /// How many cores' worth of time it may take.
    pub cpus: Option<f64>,
    pub memory_bytes: Option<u64>,
}

/// One device.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceReport {
    /// `cuda:0`, `cpu`
    pub id: String,
    pub is_cpu: bool,
    pub name: String,
    pub memory_bytes: u64,
    pub compute_capability: Option<(i32, i32)>,
    pub driver_version: Option<i32>,
    pub copy_engines: i32,
    pub bus: Option<Bus>,
    pub copies: Vec<Copies>,
    /// The fastest copies from page-locked memory to the device, as a share of what the link allows.
    pub link_share: Option<f64>,
    pub page_locking: Vec<PageLocking>,
    pub device_memory: Option<DeviceMemory>,
    /// What could not be measured, and why.
    pub problems: Vec<String>,
}

impl DeviceReport {
    /// The fastest median of these copies, among sizes that batches have: small ones may come from the processor's cache.
    pub fn best_gb_s(&self, memory: Memory, way: Way) -> Option<f64> {
        let mut kinds = self.copies.iter();
        let copies = kinds.find(|copies| copies.memory == memory && copies.way == way)?;
        let largest = copies.points.last()?.bytes;
        let large = copies.points.iter();
        let large = large.filter(|point| point.bytes >= LARGE_BYTES.min(largest));
        large.map(|point| point.gb_s.median).max_by(f64::total_cmp)
    }
}

/// A copy of a batch, rather than of a few samples.
const LARGE_BYTES: usize = 16 << 20;

/// How a device is attached.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bus {
    /// `0000:3b:00.0`
    pub address: String,
    /// As negotiated, read while copies ran: an idle link slows down to save power.
    pub current: Option<PcieLink>,
    /// What the device could do.
    pub possible: Option<PcieLink>,
    /// The slowest link between the device and the processor, where it is slower than the device's own.
    pub bottleneck: Option<(String, PcieLink)>,
    /// The NUMA node that the device is on.
    pub node: Option<usize>,
    pub near_cores: Option<String>,
}

impl Bus {
    /// The link that limits copies.
    pub fn limit(&self) -> Option<PcieLink> {
        let bottleneck = self.bottleneck.as_ref().map(|(_, link)| *link);
        bottleneck.or(self.current)
    }
}

/// A PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PcieLink {
    pub gt_s: f64,
    pub lanes: u32,
    pub generation: u32,
    /// What is left each way after the line's encoding.
    pub gb_s: f64,
}

/// The memory on the host's side of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Page-locked once, before the copies.
    Pinned,
    /// Ordinary memory, copied by a plain call of the driver.
    Pageable,
    /// Ordinary memory, copied by this library through its page-locked slabs.
    Staged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    ToDevice,
    Back,
    /// Both at once; rates are the sum.
    Both,
}

/// One kind of copy, by size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Copies {
    pub memory: Memory,
    pub way: Way,
    pub points: Vec<CopyPoint>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CopyPoint {
    pub bytes: usize,
    /// How many copies one measurement enqueued, one behind the other, before it waited.
    pub in_a_row: usize,
    pub gb_s: Figure,
}

/// What it costs to page-lock memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PageLocking {
    /// The call.
    pub by: &'static str,
    pub bytes: usize,
    pub lock_ms_per_gib: Figure,
    pub unlock_ms_per_gib: Option<Figure>,
    /// How many copies to the device must reuse the memory until locking it has cost less than copying from pageable memory;
    /// `None` if page-locked copies are not faster here.
    pub pays_after_copies: Option<u64>,
}

/// The memory on the card.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DeviceMemory {
    /// From its clock and the width of its bus.
    pub nominal_gb_s: Option<f64>,
    /// Bytes read and written by copies within the device.
    pub copied_gb_s: Option<Figure>,
}

/// All GPUs at once, from page-locked memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Together {
    pub bytes: usize,
    pub ways: Vec<TogetherWay>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TogetherWay {
    pub way: Way,
    pub devices: Vec<TogetherDevice>,
    pub sum_gb_s: Figure,
    /// The same devices, each alone, added up.
    pub sum_alone_gb_s: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TogetherDevice {
    pub id: String,
    /// Its fastest copies of 16 MiB and more, measured before.
    pub alone_gb_s: f64,
    pub gb_s: Figure,
}

/// Copies within the host's memory, by threads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memcpy {
    /// What each thread copies, over and over.
    pub bytes_per_thread: usize,
    pub points: Vec<ThreadsPoint>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ThreadsPoint {
    pub threads: usize,
    pub gb_s: Figure,
}

/// Decoding of JPEG files that are in memory, with a random crop that is resized to a square.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decode {
    pub side: usize,
    pub mean_file_bytes: usize,
    pub mean_pixels: usize,
    /// By the processor's cores.
    pub cpu: Vec<DecodePoint>,
    /// By the first GPU's decoder.
    pub gpu: GpuDecode,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DecodePoint {
    pub threads: usize,
    pub images_s: Figure,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuDecode {
    #[cfg_attr(not(feature = "nvjpeg"), allow(dead_code))] // made with the feature alone
    Measured {
        images_s: Figure,
        /// Kernels decoded, because the GPU has no hardware decoder that this process may use.
        by_kernels: bool,
    },
    NotMeasured {
        why: String,
    },
}

/// A recommended setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    pub setting: &'static str,
    pub value: String,
    pub reason: String,
}
