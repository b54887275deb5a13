//! A file system in memory, and the processes that use it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::panic::resume_unwind;

use super::Draws;
use crate::store::cache::files::Files;
use crate::store::cache::ledger;
use crate::store::cache::page::Page;
use crate::store::cache::shared::Folder;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};

/// What a thread unwinds with whose process was killed.
pub(super) struct Killed;

/// What the disk does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A process dies in this operation of its own, counted from 1.
    Kill { process: usize, operation: u64 },
    /// An operation of a process fails.
    Fail {
        process: usize,
        operation: u64,
        with: ErrorKind,
    },
    /// All of them fail that change something, from one on.
    ReadOnly { process: usize, operation: u64 },
    /// All of them fail from one on: the disk is gone.
    Gone { process: usize, operation: u64 },
}

pub(super) struct World {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    draws: Draws,
    files: BTreeMap<u64, Inode>,
    names: BTreeMap<String, u64>,
    open: BTreeMap<u64, Open>,
    made: u64,
    processes: Vec<Process>,
    faults: Vec<Fault>,
    /// Whose turn it is; `None`: threads run as they like.
    turn: Option<usize>,
    /// All that is left waits for a lock.
    hangs: bool,
    /// How many bytes the disk has room for.
    room: u64,
    /// What pages and parts have together.
    used: u64,
    /// The most that pages and parts had together at any time.
    most_bytes: u64,
    /// How many operations were done since the ledger was locked, each name of a listing being one; and the most of them.
    under_ledger: u64,
    most_under_ledger: u64,
    /// How often the folder was listed.
    lists: u64,
    /// How often the machine has begun.
    boots: u64,
}

#[derive(Default)]
struct Inode {
    bytes: Vec<u8>,
    is_named: bool,
    /// It is a page or a part.
    counts: bool,
    /// The open file that has locked it.
    holder: Option<u64>,
}

struct Open {
    process: usize,
    inode: u64,
}

#[derive(Default, Clone)]
struct Process {
    operations: u64,
    is_dead: bool,
    is_done: bool,
    waits: bool,
}

/// What becomes of an operation.
enum Fate {
    Happens,
    Fails(ErrorKind),
    /// The process dies in it.
    Kills,
}

impl World {
    /// A disk, and so many processes. `takes_turns`: they run as the seed says, or else as the system does.
    pub(super) fn new(
        seed: u64,
        processes: usize,
        takes_turns: bool,
        faults: &[Fault],
    ) -> Arc<World> {
        Arc::new(World {
            state: Mutex::new(State {
                draws: Draws(seed),
                files: BTreeMap::new(),
                names: BTreeMap::new(),
                open: BTreeMap::new(),
                made: 0,
                processes: vec![Process::default(); processes],
                faults: faults.to_vec(),
                turn: takes_turns.then_some(0),
                hangs: false,
                room: u64::MAX,
                used: 0,
                most_bytes: 0,
                under_ledger: 0,
                most_under_ledger: 0,
                lists: 0,
                boots: 1,
            }),
            changed: Condvar::default(),
        })
    }

    /// One more process. It runs alone, when the others have ended.
    pub(super) fn another(&self) -> usize {
        let mut state = self.state.lock();
        state.processes.push(Process::default());
        let process = state.processes.len() - 1;
        if state.turn.is_some() {
            state.turn = Some(process);
        }
        process
    }

    pub(super) fn set_room(&self, bytes: u64) {
        self.state.lock().room = bytes;
    }

    pub(super) fn set_faults(&self, faults: &[Fault]) {
        self.state.lock().faults = faults.to_vec();
    }

    pub(super) fn operations(&self, process: usize) -> u64 {
        self.state.lock().processes[process].operations
    }

    pub(super) fn is_dead(&self, process: usize) -> bool {
        self.state.lock().processes[process].is_dead
    }

    pub(super) fn hangs(&self) -> bool {
        self.state.lock().hangs
    }

    pub(super) fn most_bytes(&self) -> u64 {
        self.state.lock().most_bytes
    }

    /// The most operations that were done while the ledger was locked once.
    pub(super) fn most_under_ledger(&self) -> u64 {
        self.state.lock().most_under_ledger
    }

    /// How often the folder was listed.
    pub(super) fn lists(&self) -> u64 {
        self.state.lock().lists
    }

    /// That is counted from here on.
    pub(super) fn forget_most(&self) {
        self.state.lock().most_under_ledger = 0;
    }

    /// Somebody removes so many pages.
    pub(super) fn remove_by_hand(&self, pages: usize) {
        let mut state = self.state.lock();
        let names = state.names.keys();
        let names = names.filter(|name| Page::of_file(name).is_some());
        let names: Vec<String> = names.take(pages).cloned().collect();
        for name in names {
            state.remove(&name);
        }
    }

    /// What pages and parts have together, and how many parts there are.
    pub(super) fn used(&self) -> (u64, usize) {
        let state = self.state.lock();
        let parts = state.names.keys().filter(|name| Page::is_part(name));
        (state.used, parts.count())
    }

    /// How many files are open.
    pub(super) fn open_files(&self) -> usize {
        self.state.lock().open.len()
    }

    /// The machine loses power: what was written lately may be torn, or not there, and names may be old ones.
    pub(super) fn lose_power(&self, seed: u64) {
        let mut draws = Draws(seed);
        let mut state = self.state.lock();
        let State {
            files,
            names,
            open,
            boots,
            ..
        } = &mut *state;
        open.clear();
        *boots += 1;
        names.retain(|_, _| !draws.once_in(12));
        files.retain(|inode, _| names.values().any(|named| named == inode));
        for inode in files.values_mut() {
            inode.holder = None;
            if draws.once_in(2) {
                continue;
            }
            let len = inode.bytes.len() as u64;
            // (What is not written is old, or zeros. Only of pages are other bytes looked at: the ledger's text is no checksum of itself.)
            match draws.below(if inode.counts { 3 } else { 2 }) {
                0 => inode.bytes.truncate(draws.below(len + 1) as usize),
                1 => {
                    let from = draws.below(len + 1) as usize;
                    inode.bytes[from..].fill(0);
                }
                _ => {
                    let at = draws.below(len + 1) as usize;
                    inode.bytes[at..]
                        .iter_mut()
                        .take(8)
                        .for_each(|b| *b ^= 0x55);
                }
            }
        }
        let counted = state.files.values().filter(|file| file.counts);
        state.used = counted.map(|file| file.bytes.len() as u64).sum();
    }

    /// A process has done all that it does.
    pub(super) fn ends(&self, process: usize) {
        let mut state = self.state_in_turn(process);
        state.processes[process].is_done = true;
        state.pass_on(process);
        drop(state);
        self.changed.notify_all();
    }

    /// A request: an operation that touches no file. Returns a number by which it fails or not.
    pub(super) fn request(&self, process: usize) -> u64 {
        let drawn = self.operation(process, false, |state, _| Ok(state.draws.next()));
        drawn.unwrap_or(1)
    }

    /// Waits for the process's turn, and does an operation, of which a part may happen.
    fn operation<T>(
        &self,
        process: usize,
        changes: bool,
        happens: impl FnOnce(&mut State, bool) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.turn_of(process)?;
        match state.fate(process, changes) {
            Fate::Happens => {
                let result = happens(&mut state, false);
                state.note();
                state.note_ledger(process, 1);
                self.go_on(&mut state, process);
                result
            }
            Fate::Fails(kind) => {
                self.go_on(&mut state, process);
                Err(kind.into())
            }
            Fate::Kills => {
                // (Whether its last operation happened cannot be told.)
                if !state.draws.once_in(3) {
                    let _ = happens(&mut state, true);
                    state.note();
                }
                self.kill(state, process)
            }
        }
    }

    /// Behind an operation, another process may have its turn.
    fn go_on(&self, state: &mut State, process: usize) {
        if state.processes[process].waits || state.draws.once_in(3) {
            state.pass_on(process);
            self.changed.notify_all();
        }
    }

    /// A process is killed: its files are closed, and so unlocked.
    fn kill<T>(&self, mut state: MutexGuard<'_, State>, process: usize) -> io::Result<T> {
        state.processes[process].is_dead = true;
        state.processes[process].is_done = true;
        let own: Vec<u64> = state.open.keys().copied().collect();
        for handle in own {
            if state.open[&handle].process == process {
                state.close(handle);
            }
        }
        let takes_turns = state.turn.is_some();
        state.pass_on(process);
        drop(state);
        self.changed.notify_all();
        match takes_turns {
            true => resume_unwind(Box::new(Killed)),
            false => Err(dead()),
        }
    }

    /// The state, when it is the process's turn.
    fn turn_of(&self, process: usize) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state_in_turn(process);
        if state.processes[process].is_dead || state.hangs {
            return Err(dead());
        }
        state.processes[process].operations += 1;
        Ok(state)
    }

    /// The same; of a process that is dead, or of all that hang, at once.
    fn state_in_turn(&self, process: usize) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.turn.is_some_and(|turn| turn != process)
            && !state.processes[process].is_dead
            && !state.hangs
        {
            self.changed.wait(&mut state);
        }
        state
    }
}

fn dead() -> io::Error {
    io::Error::other("the process is dead")
}

impl State {
    fn fate(&self, process: usize, changes: bool) -> Fate {
        let operation = self.processes[process].operations;
        for fault in &self.faults {
            let is_now = |of: usize, at: u64| of == process && at == operation;
            let is_since = |of: usize, at: u64| of == process && at <= operation;
            match *fault {
                Fault::Kill { process, operation } if is_now(process, operation) => {
                    return Fate::Kills;
                }
                Fault::Fail {
                    process,
                    operation,
                    with,
                } if is_now(process, operation) => return Fate::Fails(with),
                Fault::ReadOnly { process, operation }
                    if changes && is_since(process, operation) =>
                {
                    return Fate::Fails(ErrorKind::ReadOnlyFilesystem);
                }
                Fault::Gone { process, operation } if is_since(process, operation) => {
                    return Fate::Fails(ErrorKind::Other);
                }
                _ => {}
            }
        }
        Fate::Happens
    }

    /// Chooses who goes on: one that can, the process itself among them.
    fn pass_on(&mut self, process: usize) {
        if self.turn != Some(process) {
            return;
        }
        let can = |process: &Process| !process.is_done && !process.waits;
        let able: Vec<usize> = (0..self.processes.len())
            .filter(|at| can(&self.processes[*at]))
            .collect();
        if able.is_empty() {
            self.hangs = self.processes.iter().any(|process| process.waits);
            return;
        }
        let chosen = self.draws.below(able.len() as u64) as usize;
        self.turn = Some(able[chosen]);
    }

    /// A process has done something: if it has the ledger, others may wait meanwhile.
    fn note_ledger(&mut self, process: usize, operations: u64) {
        let inode = self.names.get(ledger::NAME);
        let holder = inode.and_then(|inode| self.files.get(inode)?.holder);
        match holder.and_then(|handle| self.open.get(&handle)) {
            None => self.under_ledger = 0,
            Some(open) if open.process == process => self.under_ledger += operations,
            Some(_) => {}
        }
        self.most_under_ledger = self.most_under_ledger.max(self.under_ledger);
    }

    fn note(&mut self) {
        self.most_bytes = self.most_bytes.max(self.used);
    }

    fn inode(&mut self, handle: u64) -> &mut Inode {
        let inode = self.open[&handle].inode;
        self.files.get_mut(&inode).unwrap()
    }

    fn opened(&mut self, process: usize, inode: u64) -> u64 {
        self.made += 1;
        self.open.insert(self.made, Open { process, inode });
        self.made
    }

    fn close(&mut self, handle: u64) {
        let Some(open) = self.open.remove(&handle) else {
            return;
        };
        let Some(inode) = self.files.get_mut(&open.inode) else {
            return; // the machine has lost power
        };
        if inode.holder == Some(handle) {
            inode.holder = None;
            if self.names.get(ledger::NAME) == Some(&open.inode) {
                self.under_ledger = 0;
            }
            // They look again.
            self.processes
                .iter_mut()
                .for_each(|process| process.waits = false);
        }
        if !inode.is_named && !self.is_open(open.inode) {
            self.files.remove(&open.inode);
        }
    }

    fn remove(&mut self, name: &str) {
        let Some(number) = self.names.remove(name) else {
            return;
        };
        let is_open = self.is_open(number);
        if let Some(inode) = self.files.get_mut(&number) {
            if std::mem::take(&mut inode.counts) {
                self.used -= inode.bytes.len() as u64;
            }
            inode.is_named = false;
            if !is_open {
                self.files.remove(&number);
            }
        }
    }

    fn is_open(&self, inode: u64) -> bool {
        self.open.values().any(|open| open.inode == inode)
    }

    /// Makes a file as long as this, if there is room on the disk.
    fn resize(&mut self, handle: u64, len: usize) -> io::Result<()> {
        let own = self.inode(handle).bytes.len();
        if self.room < u64::MAX && len > own {
            let all = self.files.values().map(|file| file.bytes.len() as u64);
            if all.sum::<u64>() + (len - own) as u64 > self.room {
                return Err(ErrorKind::StorageFull.into());
            }
        }
        let inode = self.inode(handle);
        inode.bytes.resize(len, 0);
        if inode.counts {
            self.used = self.used + len as u64 - own as u64;
        }
        Ok(())
    }
}

/// The disk as a process has it.
pub(super) struct SimulatedFiles {
    world: Arc<World>,
    process: usize,
}

impl SimulatedFiles {
    pub(super) fn new(world: &Arc<World>, process: usize) -> SimulatedFiles {
        let world = Arc::clone(world);
        SimulatedFiles { world, process }
    }

    fn file(&self, handle: u64) -> SimulatedFile {
        SimulatedFile {
            world: Arc::clone(&self.world),
            process: self.process,
            handle,
        }
    }
}

/// An open file.
pub(super) struct SimulatedFile {
    world: Arc<World>,
    process: usize,
    handle: u64,
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        self.world.state_in_turn(self.process).close(self.handle);
        self.world.changed.notify_all();
    }
}

impl Files for SimulatedFiles {
    type File = SimulatedFile;

    fn open(&self, name: &str) -> io::Result<Option<SimulatedFile>> {
        let process = self.process;
        let handle = self.world.operation(process, false, |state, _| {
            let inode = state.names.get(name).copied();
            Ok(inode.map(|inode| state.opened(process, inode)))
        });
        Ok(handle?.map(|handle| self.file(handle)))
    }

    fn create(&self, name: &str) -> io::Result<SimulatedFile> {
        let process = self.process;
        let handle = self.world.operation(process, true, |state, _| {
            let inode = match state.names.get(name) {
                Some(inode) => *inode,
                None => {
                    state.made += 1;
                    let inode = state.made;
                    let made = Inode {
                        is_named: true,
                        counts: Page::of_file(name).is_some() || Page::is_part(name),
                        ..Inode::default()
                    };
                    state.files.insert(inode, made);
                    state.names.insert(name.to_owned(), inode);
                    inode
                }
            };
            Ok(state.opened(process, inode))
        });
        handle.map(|handle| self.file(handle))
    }

    fn read_at(&self, file: &SimulatedFile, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.world.operation(self.process, false, |state, _| {
            let of_file = state.inode(file.handle).bytes.get(at as usize..);
            let read = of_file.and_then(|of_file| of_file.get(..bytes.len()));
            bytes.copy_from_slice(read.ok_or(ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    /// (As much of it as the disk has room for is written, and of one that a process dies in, any part.)
    fn write_at(&self, file: &SimulatedFile, bytes: &[u8], at: u64) -> io::Result<()> {
        self.world
            .operation(self.process, true, |state, is_partial| {
                let count = match is_partial {
                    true => state.draws.below(bytes.len() as u64 + 1) as usize,
                    false => bytes.len(),
                };
                let at = at as usize;
                if state.inode(file.handle).bytes.len() < at + count {
                    state.resize(file.handle, at + count)?;
                }
                let of_file = &mut state.inode(file.handle).bytes;
                of_file[at..at + count].copy_from_slice(&bytes[..count]);
                Ok(())
            })
    }

    fn len(&self, file: &SimulatedFile) -> io::Result<u64> {
        self.world.operation(self.process, false, |state, _| {
            Ok(state.inode(file.handle).bytes.len() as u64)
        })
    }

    fn set_len(&self, file: &SimulatedFile, bytes: u64) -> io::Result<()> {
        self.world.operation(self.process, true, |state, _| {
            state.resize(file.handle, bytes as usize)
        })
    }

    fn try_lock(&self, file: &SimulatedFile) -> io::Result<bool> {
        self.world.operation(self.process, false, |state, _| {
            let handle = file.handle;
            let holder = &mut state.inode(handle).holder;
            Ok(*holder.get_or_insert(handle) == handle)
        })
    }

    fn lock(&self, file: &SimulatedFile) -> io::Result<()> {
        let process = self.process;
        loop {
            let is_locked = self.world.operation(process, false, |state, is_partial| {
                let handle = file.handle;
                let holder = &mut state.inode(handle).holder;
                let is_own = *holder.get_or_insert(handle) == handle;
                state.processes[process].waits = !is_own && !is_partial;
                Ok(is_own)
            });
            if is_locked? {
                return Ok(());
            }
            let mut state = self.world.state.lock();
            loop {
                if state.processes[process].is_dead || state.hangs {
                    return Err(dead());
                }
                // (Without turns, a process may have several threads that wait.)
                let goes_on = match state.turn {
                    Some(_) => !state.processes[process].waits,
                    None => state.inode(file.handle).holder.is_none(),
                };
                if goes_on {
                    break;
                }
                self.world.changed.wait(&mut state);
            }
        }
    }

    fn release(&self, file: SimulatedFile) {
        drop(file);
    }

    fn has_name(&self, file: &SimulatedFile, name: &str) -> io::Result<bool> {
        self.world.operation(self.process, false, |state, _| {
            let inode = state.open[&file.handle].inode;
            Ok(state.names.get(name) == Some(&inode))
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.world.operation(self.process, true, |state, _| {
            let inode = state.names.remove(from).ok_or(ErrorKind::NotFound)?;
            let before = state.names.insert(to.to_owned(), inode);
            assert!(before.is_none(), "{to} was there");
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.world.operation(self.process, true, |state, _| {
            state.remove(name);
            Ok(())
        })
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let process = self.process;
        self.world.operation(process, false, |state, _| {
            state.lists += 1;
            state.note_ledger(process, state.names.len() as u64);
            let names = state.names.iter();
            let len = |inode: &u64| state.files[inode].bytes.len() as u64;
            Ok(names
                .map(|(name, inode)| (name.clone(), len(inode)))
                .collect())
        })
    }

    /// (Each process has its own memory.)
    fn folder(&self) -> Option<Folder> {
        None
    }

    fn boot(&self) -> u64 {
        self.world.state.lock().boots
    }

    fn place(&self) -> String {
        "a simulated disk".to_owned()
    }
}
