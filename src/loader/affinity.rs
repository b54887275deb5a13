//! Where a loader's threads run, and where its slabs lie.

use std::fmt;
use std::path::Path;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::sync::Arc;
use crate::sync::log;
use crate::system::numa::{self, Cores};

/// On which cores a loader's threads run: workers, and the pin thread ([`Builder::affinity`](crate::loader::Builder::affinity)).
///
/// Threads that a data set starts on a worker run where the worker does.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::{Affinity, Workers};
/// use pinfeed::{DataLoader, Device, from_fn};
///
/// let device = Device::cpu(); // or Device::cuda(local_rank)?
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as f32)))
///     .batch_size(10)
///     .num_workers(Workers::Auto) // as many as the node has cores
///     .pin_memory(&device)
///     .affinity(Affinity::Device)
///     .build()?;
/// println!("{}", loader.placement()); // "anywhere", or "cores 0-31, memory of node 0"
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Affinity {
    /// Wherever the process may run, as the system likes.
    ///
    /// This is the default: a process that is alone on its machine may need the cores of all nodes to decode, and launchers often bind
    /// ranks to a node themselves.
    #[default]
    Anywhere,
    /// On the node (the socket, usually) that the device is attached to, and page-locked memory that is made from then on lies there:
    /// for machines with several nodes, and a process for each device. Copies and stores then stay on one socket. Needs
    /// [`pin_memory`](crate::loader::Builder::pin_memory).
    ///
    /// A loader for several devices runs on the nodes of all of them, and each device's memory lies on its own.
    ///
    /// Where there is one node, or the system does not say which is the device's (in many virtual machines), nothing changes.
    Device,
    /// On these cores, by the system's numbers.
    Cores(Vec<usize>),
}

/// Where a loader's threads run, and where its slabs lie ([`DataLoader::placement`](crate::DataLoader::placement)).
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(10, |index, _| Ok(index as f32))).num_workers(2).build()?;
/// let placement = loader.placement();
/// assert_eq!((placement.cores, placement.node), (None, None)); // wherever the process may run
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Placement {
    /// The cores that workers and pin thread run on; `None`: wherever the process may run.
    pub cores: Option<Vec<usize>>,
    /// The node that page-locked memory is taken from, as far as it has any left: that of the first device, if there are several.
    pub node: Option<usize>,
    /// Why threads or memory are not where they were to be. The log says so, too.
    pub problem: Option<String>,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cores {
            Some(cores) => write!(f, "cores {}", numa::listed(cores))?,
            None => f.write_str("anywhere")?,
        }
        if let Some(node) = self.node {
            write!(f, ", memory of node {node}")?;
        }
        match &self.problem {
            Some(problem) => write!(f, " ({problem})"),
            None => Ok(()),
        }
    }
}

/// The machine, as a test makes it up.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) root: std::path::PathBuf,
    pub(super) pci_address: String,
}

/// What became of an [`Affinity`].
#[derive(Debug, Default)]
pub(super) struct Placed {
    cores: Option<Arc<Cores>>,
    devices: Vec<Device>,
    problem: Option<String>,
}

impl Placed {
    /// Finds the cores. `devices`: those that the loader pins for.
    pub(super) fn new(
        affinity: &Affinity,
        devices: &[Device],
        machine: Option<&Machine>,
    ) -> Result<Placed> {
        let (wanted, near): (Vec<usize>, Vec<_>) = match affinity {
            Affinity::Anywhere => return Ok(Placed::default()),
            Affinity::Cores(cores) if cores.is_empty() => {
                return Err(Error::option(
                    "affinity",
                    "names no core: leave it out to let threads run anywhere",
                ));
            }
            Affinity::Cores(cores) => (cores.clone(), Vec::new()),
            Affinity::Device => {
                if devices.is_empty() {
                    let why = "needs pin_memory(&device) to follow a device";
                    return Err(Error::option("affinity", why));
                }
                let mut near = Vec::new();
                for device in devices {
                    let node = match machine {
                        Some(machine) => numa::node_of(&machine.root, &machine.pci_address),
                        None => {
                            let address = device.info()?.pci_address;
                            address.and_then(|address| numa::node_of(Path::new("/"), &address))
                        }
                    };
                    near.extend(node.map(|node| (device, node)));
                }
                // (Workers load for all devices, so they run on the nodes of all.)
                if near.len() < devices.len() {
                    return Ok(Placed::default());
                }
                let cores = near.iter().flat_map(|(_, node)| &node.cores);
                (cores.copied().collect(), near)
            }
        };
        let Some(allowed) = numa::allowed_cores() else {
            return Ok(Placed::failed(
                "the system does not say which cores the process may use".to_owned(),
            ));
        };
        let list: Vec<usize> = allowed
            .iter()
            .copied()
            .filter(|core| wanted.contains(core))
            .collect();
        if list.is_empty() {
            let [wanted, allowed] = [&wanted, &allowed].map(|cores| numa::listed(cores));
            return Ok(Placed::failed(format!(
                "threads were to run on cores {wanted}, and the process may use {allowed} only: they run there"
            )));
        }
        for (device, node) in &near {
            device.inner.ring.prefer_node(node.number);
        }
        Ok(Placed {
            // (All that there are need not be asked for.)
            cores: (list != allowed).then(|| {
                Arc::new(Cores {
                    list,
                    problem: Default::default(),
                })
            }),
            devices: near.iter().map(|(device, _)| (*device).clone()).collect(),
            problem: None,
        })
    }

    fn failed(problem: String) -> Placed {
        log::warn!("{problem}");
        Placed {
            problem: Some(problem),
            ..Placed::default()
        }
    }

    pub(super) fn cores(&self) -> Option<&Arc<Cores>> {
        self.cores.as_ref()
    }

    pub(super) fn report(&self) -> Placement {
        let cores = self.cores.as_ref();
        let rings = self.devices.iter().map(|device| &device.inner.ring);
        let memory: Vec<_> = rings.map(|ring| &ring.placing).collect();
        let problems = [
            self.problem.clone(),
            cores.and_then(|cores| cores.problem.get().cloned()),
            memory
                .iter()
                .find_map(|memory| memory.problem.get().cloned()),
        ];
        Placement {
            cores: cores.map(|cores| cores.list.clone()),
            node: memory.first().and_then(|memory| memory.node()),
            problem: problems.into_iter().flatten().next(),
        }
    }
}
