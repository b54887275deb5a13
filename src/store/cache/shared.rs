//! What the caches of a process share that have one folder: what is known of its pages, and how many are being fetched.

use super::index::Index;
use crate::sync::{Arc, AtomicUsize, Mutex, OnceLock, Weak};
use crate::system::{FirstUser, Process};

/// Which folder it is: its device and its number there.
pub(super) type Folder = (u64, u64);

#[derive(Default)]
pub(super) struct Shared {
    pub(super) index: Mutex<Index>,
    /// Held by the thread that lists the folder; others need not.
    pub(super) lister: Mutex<()>,
    /// How many parts the process has.
    pub(super) parts: AtomicUsize,
}

/// A process that was forked has none of its parent's threads, one of which may hold a lock. So it has a state of its own, as the `next` of
/// its parent's.
pub(super) struct PerProcess {
    process: Process,
    /// `None`: it is shared with no other.
    folder: Option<Folder>,
    shared: Arc<Shared>,
    next: OnceLock<Box<PerProcess>>,
}

impl PerProcess {
    pub(super) fn new(folder: Option<Folder>) -> PerProcess {
        PerProcess {
            process: Process::this(),
            folder,
            shared: folder.map_or_else(Arc::default, |folder| CACHES.shared(folder)),
            next: OnceLock::new(),
        }
    }

    /// That of the calling process.
    pub(super) fn shared(&self) -> &Shared {
        let mut state = self;
        while !state.process.is_this() {
            let before = state;
            state = state.next.get_or_init(|| {
                let next = Box::new(PerProcess::new(before.folder));
                // Its objects are those of its parent. (If a thread of that is at them, they are known when they are read.)
                if let Some(index) = before.shared.index.try_lock() {
                    next.shared.index.lock().know_all_of(&index);
                }
                next
            });
        }
        &state.shared
    }
}

/// The folders that the process has caches of.
struct Caches {
    process: FirstUser,
    known: Mutex<Vec<(Folder, Weak<Shared>)>>,
    /// Those of a forked child.
    next: OnceLock<Box<Caches>>,
}

static CACHES: Caches = Caches::new();

impl Caches {
    const fn new() -> Caches {
        Caches {
            process: FirstUser::nobody(),
            known: Mutex::new(Vec::new()),
            next: OnceLock::new(),
        }
    }

    fn shared(&self, folder: Folder) -> Arc<Shared> {
        let mut caches = self;
        while !caches.process.is_this() {
            caches = caches.next.get_or_init(|| Box::new(Caches::new()));
        }
        let mut known = caches.known.lock();
        known.retain(|(_, shared)| shared.strong_count() > 0);
        let found = known.iter().find(|(known, _)| *known == folder);
        if let Some(shared) = found.and_then(|(_, shared)| shared.upgrade()) {
            return shared;
        }
        let shared = Arc::<Shared>::default();
        known.push((folder, Arc::downgrade(&shared)));
        shared
    }
}
