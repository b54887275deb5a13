//! Cores and nodes: which cores a thread may run on, and which of them, and which memory, are near a device.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use crate::sync::log;

/// Cores that threads are to run on.
#[derive(Debug)]
pub(crate) struct Cores {
    /// Not empty, in ascending order, and no more than the process may use.
    pub(crate) list: Vec<usize>,
    /// Why a thread does not.
    pub(crate) problem: OnceLock<String>,
}

impl Cores {
    /// From now on, the calling thread runs on them alone. If the system refuses, the log says so once.
    pub(crate) fn take(&self) {
        if let Err(error) = run_on(&self.list) {
            let text = format!(
                "a thread cannot be moved to cores {}: {error}",
                listed(&self.list)
            );
            let first = self.problem.set(text.clone()).is_ok();
            if first {
                log::warn!("{text}");
            }
        }
    }
}

/// A node of the machine: cores, and the memory that is near them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) number: usize,
    pub(crate) cores: Vec<usize>,
}

/// The node of a PCI device, if the machine has several and says which. `root`: where the system's files are, `/` but for tests.
pub(crate) fn node_of(root: &Path, pci_address: &str) -> Option<Node> {
    let read = |path: String| std::fs::read_to_string(root.join(path)).ok();
    let nodes = list(&read("sys/devices/system/node/online".to_owned())?)?;
    if nodes.len() < 2 {
        return None;
    }
    let device = format!("sys/bus/pci/devices/{}", pci_name(pci_address)?);
    // (-1: the firmware does not say.)
    let number: usize = read(format!("{device}/numa_node"))?.trim().parse().ok()?;
    if !nodes.contains(&number) {
        return None;
    }
    let near = read(format!("{device}/local_cpulist")).and_then(|text| list(&text));
    let cores = near.filter(|cores| !cores.is_empty()).or_else(|| {
        list(&read(format!(
            "sys/devices/system/node/node{number}/cpulist"
        ))?)
    })?;
    Some(Node { number, cores })
}

/// A device's name in `/sys`, from its address as drivers write it: `0000:3B:00.0`, or with a domain of eight digits, or without.
fn pci_name(address: &str) -> Option<String> {
    let lower = address.trim().to_ascii_lowercase();
    let (domain, rest) = match lower.matches(':').count() {
        1 => ("0", lower.as_str()),
        2 => lower.split_once(':')?,
        _ => return None,
    };
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let is_plain = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
    rest.chars()
        .all(is_plain)
        .then(|| format!("{domain:04x}:{rest}"))
}

/// A list as the system writes it: `0-3,8,10-11`.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST_CORES {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// The reverse: writes a list of numbers as such a text.
pub(crate) fn listed(numbers: &[usize]) -> String {
    let mut text = String::new();
    for run in numbers.chunk_by(|one, next| one + 1 == *next) {
        let comma = if text.is_empty() { "" } else { "," };
        match run {
            [one] => text += &format!("{comma}{one}"),
            [first, .., last] => text += &format!("{comma}{first}-{last}"),
            [] => {}
        }
    }
    text
}

/// More than any machine has.
const MOST_CORES: usize = 1 << 13;

#[cfg(all(target_os = "linux", not(miri)))]
type CoreSet = [libc::c_ulong; WORDS];

#[cfg(all(target_os = "linux", not(miri)))]
const WORDS: usize = MOST_CORES / libc::c_ulong::BITS as usize;

/// The cores that the calling thread may run on, in ascending order; `None` if the system does not say.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn allowed_cores() -> Option<Vec<usize>> {
    let mut set: CoreSet = [0; WORDS];
    let bits = libc::c_ulong::BITS as usize;
    // SAFETY: it writes no more than the given number of bytes.
    let result =
        unsafe { libc::sched_getaffinity(0, size_of::<CoreSet>(), set.as_mut_ptr().cast()) };
    let is_set = |core: &usize| set[core / bits] >> (core % bits) & 1 == 1;
    (result == 0).then(|| (0..MOST_CORES).filter(is_set).collect())
}

/// From now on, the calling thread runs on these cores alone.
#[cfg(all(target_os = "linux", not(miri)))]
fn run_on(cores: &[usize]) -> io::Result<()> {
    let mut set: CoreSet = [0; WORDS];
    let bits = libc::c_ulong::BITS as usize;
    for core in cores {
        set[core / bits] |= 1 << (core % bits);
    }
    // SAFETY: it reads no more than the given number of bytes.
    match unsafe { libc::sched_setaffinity(0, size_of::<CoreSet>(), set.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks for memory of this node under the pages, as far as it has any left. What they hold stays.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn prefer_node(pointer: *mut u8, bytes: usize, node: usize) -> io::Result<()> {
    const MOVE: libc::c_uint = 1 << 1; // MPOL_MF_MOVE: pages that are there already, too
    let mut nodes: CoreSet = [0; WORDS];
    let bits = libc::c_ulong::BITS as usize;
    let word = nodes.get_mut(node / bits);
    *word.ok_or(io::ErrorKind::InvalidInput)? |= 1 << (node % bits);
    // (The kernel takes one from the number of bits.)
    let most = 1024.max(node + 1) + 1;
    // SAFETY: it reads the given number of bits; pages keep their content, and for what is not mapped it returns an error.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            pointer,
            bytes,
            libc::MPOL_PREFERRED,
            nodes.as_ptr(),
            most,
            MOVE,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn allowed_cores() -> Option<Vec<usize>> {
    None
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn run_on(_: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn prefer_node(_: *mut u8, _: usize, _: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for (text, numbers) in [
            ("", &[][..]),
            ("0", &[0]),
            ("0-3,8,10-11", &[0, 1, 2, 3, 8, 10, 11]),
        ] {
            assert_eq!(list(&format!("{text}\n")).unwrap(), numbers);
            assert_eq!(listed(numbers), text);
        }
        for text in ["x", "1-", "0-99999999999", "3--4"] {
            assert_eq!(list(text), None, "{text}");
        }
    }

    #[test]
    fn addresses_are_named_as_in_sys() {
        for address in ["0000:3B:00.0", "00000000:3b:00.0", "3B:00.0", "0:3b:00.0\n"] {
            assert_eq!(pci_name(address).unwrap(), "0000:3b:00.0");
        }
        assert_eq!(pci_name("10000:01:00.0").unwrap(), "10000:01:00.0");
        for address in ["", "cuda:0", "../..:a:b", "0000:../x:0"] {
            assert_eq!(pci_name(address), None, "{address}");
        }
    }

    /// A machine's files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join("sys").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    #[cfg_attr(miri, ignore = "it makes files")]
    fn the_node_of_a_device_is_found_where_there_are_several() {
        let online = "devices/system/node/online";
        let node = "bus/pci/devices/0000:3b:00.0/numa_node";
        let near = "bus/pci/devices/0000:3b:00.0/local_cpulist";
        let cores = "devices/system/node/node1/cpulist";
        let found = |files: &[(&str, &str)]| {
            let root = machine(files);
            let node = node_of(root.path(), "0000:3B:00.0");
            node.map(|node| (node.number, listed(&node.cores)))
        };
        let both = [
            (online, "0-1\n"),
            (node, "1\n"),
            (near, "8-15,24-31\n"),
            (cores, "8-15\n"),
        ];
        assert_eq!(found(&both), Some((1, "8-15,24-31".to_owned())));
        // A device without a list has its node's.
        assert_eq!(
            found(&[both[0], both[1], (near, "\n"), both[3]]).unwrap().1,
            "8-15"
        );
        assert_eq!(found(&[both[0], both[1], both[3]]).unwrap().1, "8-15");
        // One node; unknown; offline; nothing there.
        assert_eq!(found(&[(online, "0\n"), (node, "0\n"), both[2]]), None);
        assert_eq!(found(&[both[0], (node, "-1\n"), both[2], both[3]]), None);
        assert_eq!(found(&[both[0], (node, "5\n"), both[2], both[3]]), None);
        assert_eq!(found(&[both[0], both[1]]), None);
        assert_eq!(found(&[]), None);
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_thread_runs_on_the_cores_that_it_takes() {
        let allowed = allowed_cores().unwrap();
        let last = *allowed.last().unwrap();
        let on_a_thread = move || {
            let cores = Cores {
                list: vec![last],
                problem: OnceLock::new(),
            };
            cores.take();
            assert_eq!(cores.problem.get(), None);
            assert_eq!(allowed_cores().unwrap(), [last]);
            // A core that is not there: nothing changes, and the reason is kept.
            let none = Cores {
                list: vec![MOST_CORES - 1],
                problem: OnceLock::new(),
            };
            none.take();
            none.take();
            assert!(none.problem.get().unwrap().contains("8191"));
            assert_eq!(allowed_cores().unwrap(), [last]);
        };
        std::thread::scope(|scope| _ = scope.spawn(on_a_thread));
        assert_eq!(allowed_cores().unwrap(), allowed);
    }

    /// Also where there is only one node.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn memory_is_asked_of_a_node() {
        let mut memory = vec![7u8; 1 << 20];
        let pages = |memory: &mut [u8]| {
            let start = memory.as_mut_ptr().align_offset(4096);
            memory[start..].as_mut_ptr()
        };
        match prefer_node(pages(&mut memory), 1 << 19, 0) {
            // (A container may forbid it.)
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"),
            Ok(()) => assert!(memory.iter().all(|&byte| byte == 7)),
        }
        assert!(prefer_node(pages(&mut memory), 4096, 1000).is_err()); // no such node
    }
}
