//! What the system gives this process: cores, memory, NUMA nodes, and limits. All of it is read from Linux's files; other systems say
//! less.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use crate::report::{Container, Host, Memlock, Node};

/// Reads it. `root` is where the system's files are: `/`, but for tests.
pub fn read(root: &Path) -> Host {
    let text = |path: &str| fs::read_to_string(root.join(path)).ok();
    let limits = text("proc/self/limits");
    Host {
        usable_cores: thread::available_parallelism().map_or(1, usize::from),
        allowed_cores: text("proc/self/status")
            .and_then(|text| Some(field(&text, "Cpus_allowed_list:")?.to_owned())),
        memory_bytes: text("proc/meminfo").and_then(|text| kib(field(&text, "MemTotal:")?)),
        load: text("proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok()),
        nodes: nodes(root),
        memlock: limits.map_or(Memlock::Unknown, |text| memlock(&text)),
        container: container(root),
    }
}

/// The rest of the line that begins so.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    Some(lines.find_map(|line| line.strip_prefix(name))?.trim())
}

/// `1024 kB`
fn kib(text: &str) -> Option<u64> {
    let kib: u64 = text.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn nodes(root: &Path) -> Vec<Node> {
    let folders = fs::read_dir(root.join("sys/devices/system/node"));
    let nodes = folders.into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix("node")?.parse().ok()?;
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).ok();
        let memory = read("meminfo").and_then(|text| {
            // "Node 0 MemTotal:       24609784 kB"
            let line = text.lines().find(|line| line.contains("MemTotal:"))?;
            kib(line.split_once("MemTotal:")?.1.trim())
        });
        Some(Node {
            number,
            cores: read("cpulist")?.trim().to_owned(),
            memory_bytes: memory,
        })
    });
    let mut nodes: Vec<Node> = nodes.collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// The soft limit of `Max locked memory`, from `/proc/self/limits`.
fn memlock(limits: &str) -> Memlock {
    let soft = field(limits, "Max locked memory").and_then(|rest| rest.split_whitespace().next());
    match soft {
        Some("unlimited") => Memlock::Unlimited,
        Some(bytes) => bytes.parse().map_or(Memlock::Unknown, Memlock::Bytes),
        None => Memlock::Unknown,
    }
}

/// The lowest limits of the process's control groups, of version 2 and 1.
fn container(root: &Path) -> Container {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounted = root.join("sys/fs/cgroup");
    let (mut cpus, mut memory): (Vec<f64>, Vec<u64>) = (Vec::new(), Vec::new());
    for line in groups.lines() {
        // "0::/path", or "4:cpu,cpuacct:/path"
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        if controllers.is_empty() {
            for folder in upwards(&mounted, path) {
                let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
                cpus.extend(read("cpu.max").and_then(|text| cpu_max(&text)));
                memory.extend(read("memory.max").and_then(|text| text.trim().parse::<u64>().ok()));
            }
            continue;
        }
        for controller in controllers.split(',') {
            for folder in upwards(&mounted.join(controller), path) {
                let number = |file: &str| -> Option<i64> {
                    let text = fs::read_to_string(folder.join(file)).ok()?;
                    text.trim().parse().ok()
                };
                match controller {
                    "cpu" => cpus.extend(quota(
                        number("cpu.cfs_quota_us"),
                        number("cpu.cfs_period_us"),
                    )),
                    "memory" => memory.extend(
                        number("memory.limit_in_bytes")
                            .filter(|limit| (1..NO_LIMIT).contains(limit))
                            .map(|limit| limit as u64),
                    ),
                    _ => {}
                }
            }
        }
    }
    Container {
        cpus: cpus.into_iter().min_by(f64::total_cmp),
        memory_bytes: memory.into_iter().min(),
    }
}

/// What version 1 writes where there is no limit is the largest number of whole pages; no machine has as much memory.
const NO_LIMIT: i64 = 1 << 60;

/// The group's folder and all above it. In a container, its own may be mounted as the topmost one: then the others are not there.
fn upwards(mounted: &Path, path: &str) -> Vec<PathBuf> {
    let own = mounted.join(path.trim_start_matches('/'));
    let up = own
        .ancestors()
        .take_while(|folder| folder.starts_with(mounted));
    up.map(Path::to_owned).collect()
}

/// `cpu.max` of version 2: `150000 100000`, or `max 100000`.
fn cpu_max(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace().map(|word| word.parse().ok());
    quota(words.next()?, words.next()?)
}

/// How many cores' worth of time that is. A quota of -1 is none.
fn quota(quota_us: Option<i64>, period_us: Option<i64>) -> Option<f64> {
    let (quota, period) = quota_us.zip(period_us)?;
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn groups_of_version_2_are_read_up_to_the_root() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/pod/container\n"),
            ("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/pod/container/memory.max", "8589934592\n"),
            ("sys/fs/cgroup/pod/cpu.max", "350000 100000\n"),
            ("sys/fs/cgroup/pod/memory.max", "max\n"),
        ]);
        let expected = Container {
            cpus: Some(3.5),
            memory_bytes: Some(8 << 30),
        };
        assert_eq!(container(root.path()), expected);
    }

    #[test]
    fn groups_of_version_1_are_read_by_controller() {
        let root = machine(&[
            (
                "proc/self/cgroup",
                "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n",
            ),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            (
                "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            (
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "1073741824\n",
            ),
        ]);
        let expected = Container {
            cpus: Some(2.0),
            memory_bytes: Some(1 << 30),
        };
        assert_eq!(container(root.path()), expected);
    }

    #[test]
    fn a_machine_without_limits_has_none() {
        let root = machine(&[("proc/self/cgroup", "0::/\n")]);
        assert_eq!(container(root.path()), Container::default());
        assert_eq!(container(machine(&[]).path()), Container::default());
        let host = read(machine(&[]).path());
        assert_eq!((host.memlock, host.memory_bytes), (Memlock::Unknown, None));
        assert!(host.usable_cores > 0);
    }

    #[test]
    fn the_limit_of_locked_memory_is_the_soft_one() {
        let line = |soft| {
            format!("Limit  Soft Limit\nMax locked memory         {soft}  67108864  bytes\n")
        };
        assert_eq!(memlock(&line("8388608")), Memlock::Bytes(8 << 20));
        assert_eq!(memlock(&line("unlimited")), Memlock::Unlimited);
        assert_eq!(memlock("nothing"), Memlock::Unknown);
    }

    #[test]
    fn nodes_have_cores_and_memory() {
        let root = machine(&[
            ("sys/devices/system/node/node1/cpulist", "8-15\n"),
            ("sys/devices/system/node/node0/cpulist", "0-7\n"),
            (
                "sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal:  2048 kB\n",
            ),
            ("sys/devices/system/node/online", "0-1\n"),
        ]);
        let nodes = nodes(root.path());
        assert_eq!(nodes.len(), 2);
        assert_eq!(
            (nodes[0].cores.as_str(), nodes[0].memory_bytes),
            ("0-7", Some(2 << 20))
        );
        assert_eq!((nodes[1].number, nodes[1].memory_bytes), (1, None));
    }
}
