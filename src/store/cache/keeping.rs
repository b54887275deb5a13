//! What changes the folder: pages are claimed, published and evicted. All names change under the ledger's lock.

use std::collections::HashMap;
use std::io;

use super::files::Files;
use super::index::{Distance, Index};
use super::ledger::{self, Ledger};
use super::page::{HEADER, Page, Stamp};
use super::reading::{Cache, Target};
use super::shared::Shared;
use crate::sync::log;
use crate::sync::{MutexGuard, Ordering};

/// How many pages a process fetches at a time, at most: each has an open file, of which a process has 1,024 as a rule.
const MOST_PARTS: usize = 256;

/// How many stamps are read before a page is evicted, of those that were not read yet.
const STAMPS_AT_ONCE: usize = 16;

/// How many stamps may turn out to be another process's newer ones, before nothing is evicted; and before the ledger is given back, while
/// others are read.
const MOST_STALE: usize = 256;
const MOST_STALE_AT_ONCE: usize = 4;

/// How many pages are evicted before others may have the ledger.
const EVICTED_AT_ONCE: usize = 32;

/// How many pages of a listing are noted before others may have the index.
const NOTED_AT_ONCE: usize = 1_024;

/// After failures, how many pages are not tried, at most.
const MOST_PAUSE: u64 = 1_024;

/// What became of the wish to keep a page.
pub(super) enum Claim<'a, F: Files> {
    /// It is there.
    There,
    Ours(Part<'a, F>),
    /// Another is fetching it.
    Busy,
    /// It is not kept: there is no room for it, or no way to.
    Not,
}

/// A page that this thread is to fetch. If it is dropped before it was published, it is gone.
pub(super) struct Part<'a, F: Files> {
    cache: &'a Cache<F>,
    /// Where it is counted. (A child that is forked meanwhile has another.)
    counted: &'a Shared,
    page: Page,
    bytes: u64,
    pub(super) stamp: Stamp,
    file: Option<F::File>,
}

impl<F: Files> Part<'_, F> {
    /// Writes the page's file.
    pub(super) fn write(&self, header: &[u8], bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(()); // cannot be
        };
        let files = &self.cache.files;
        files.write_at(file, header, 0)?;
        files.write_at(file, bytes, HEADER as u64)
    }
}

impl<F: Files> Drop for Part<'_, F> {
    fn drop(&mut self) {
        let cache = self.cache;
        self.counted.parts.fetch_sub(1, Ordering::Relaxed);
        let Some(file) = self.file.take() else {
            return;
        };
        let name = self.page.part();
        // (What cannot be removed is removed by the next one that counts, for nobody has it.)
        if let Ok(mut ledger) = cache.ledger()
            && let Ok(true) = cache.files.has_name(&file, &name)
        {
            let _ = ledger.remove(&name, self.bytes);
        }
        cache.files.release(file);
    }
}

enum Evicted {
    One,
    /// All that is there is used before what would take its place.
    Nothing,
    /// First, the ledger is to be given back, and the folder listed.
    List,
    /// Or stamps are to be read again.
    Look,
}

/// What an eviction has tried.
#[derive(Default)]
struct Tried {
    /// The folder was listed.
    list: bool,
    /// So many stamps were another process's newer ones, one after the other.
    stale: usize,
}

impl<F: Files> Cache<F> {
    pub(super) fn ledger(&self) -> io::Result<Ledger<'_, F>> {
        Ledger::lock(&self.files, self.page_bytes, self.boot)
    }

    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        self.per_process.shared().index.lock()
    }

    /// Claims pages of an object that were not there: each is there meanwhile, or is fetched by this thread, or by another, or is not
    /// to be kept.
    pub(super) fn claim(&self, target: &Target<'_>, pages: &[u64]) -> Vec<Claim<'_, F>> {
        let mut claims = Vec::with_capacity(pages.len());
        if !self.is_paused(pages.len()) {
            match self.try_claim(target, pages, &mut claims) {
                Ok(()) => {}
                Err(error) => self.failed(&error),
            }
        }
        claims.resize_with(pages.len(), || Claim::Not);
        claims
    }

    fn try_claim<'a>(
        &'a self,
        target: &Target<'_>,
        pages: &[u64],
        claims: &mut Vec<Claim<'a, F>>,
    ) -> io::Result<()> {
        let shared = self.per_process.shared();
        let mut tried = Tried::default();
        loop {
            self.read_stamps(STAMPS_AT_ONCE * (pages.len() - claims.len()))?;
            let mut ledger = self.ledger()?;
            let first = loop {
                let Some(number) = pages.get(claims.len()) else {
                    return Ok(());
                };
                let page = target.page(*number);
                let bytes = HEADER as u64 + target.bytes_of(*number);
                if let Some(claim) = self.found(&mut ledger, page)? {
                    claims.push(claim);
                    continue;
                }
                let distance = Index::distance(target.next_use_of(*number));
                let has_part = shared.parts.load(Ordering::Relaxed) < MOST_PARTS;
                let evicted = loop {
                    if !has_part || ledger.used + bytes <= self.max_bytes {
                        break None;
                    }
                    match self.evict(&mut ledger, distance, &mut tried)? {
                        Evicted::One => {}
                        other => break Some(other),
                    }
                };
                match evicted {
                    None if has_part => {
                        let file = Some(ledger.create(&page.part(), bytes)?);
                        shared.parts.fetch_add(1, Ordering::Relaxed);
                        claims.push(Claim::Ours(Part {
                            cache: self,
                            counted: shared,
                            page,
                            bytes,
                            stamp: target.stamp(*number),
                            file,
                        }));
                    }
                    None | Some(Evicted::Nothing) => claims.push(Claim::Not),
                    Some(first) => break (first, distance, ledger.used),
                }
            };
            drop(ledger);
            match first {
                (Evicted::List, _, used) => {
                    self.list(Some(used))?;
                    tried.list = true;
                }
                (_, distance, _) => self.look(distance, &mut tried)?,
            }
        }
    }

    /// A page that is there, or is being fetched.
    fn found<'a>(
        &'a self,
        ledger: &mut Ledger<'_, F>,
        page: Page,
    ) -> io::Result<Option<Claim<'a, F>>> {
        if let Some(file) = self.files.open(&page.file())? {
            self.files.release(file);
            return Ok(Some(Claim::There));
        }
        // (It is gone if its process has died.)
        let is_busy = !ledger.remove_if_dead(&page.part())?;
        Ok(is_busy.then_some(Claim::Busy))
    }

    /// Evicts the page that is used last, if that is later than what comes in its place. Others wait for the ledger, so little is read here.
    fn evict(
        &self,
        ledger: &mut Ledger<'_, F>,
        distance: Distance,
        tried: &mut Tried,
    ) -> io::Result<Evicted> {
        if self.index().is_behind(ledger.used) && !tried.list {
            return Ok(Evicted::List);
        }
        for _ in 0..MOST_STALE_AT_ONCE {
            let index = self.index();
            let Some((page, its_distance, stamp)) = index.first_to_go() else {
                return Ok(match index.has_unread() {
                    true => Evicted::Look,
                    false => Evicted::Nothing,
                });
            };
            drop(index);
            if its_distance <= distance {
                return Ok(Evicted::Nothing);
            }
            // (Another process may have used it, or removed it.)
            match self.look_again(page)? {
                Some((bytes, now)) if stamp.is_none_or(|stamp| stamp == now) => {
                    ledger.remove(&page.file(), bytes)?;
                    self.index().remove(page);
                    self.counters.add(&self.counters.evicted, 1);
                    tried.stale = 0;
                    return Ok(Evicted::One);
                }
                _ => tried.stale += 1,
            }
            if tried.stale >= MOST_STALE {
                return Ok(Evicted::Nothing);
            }
        }
        Ok(Evicted::Look)
    }

    /// Looks for a page whose stamp is as it is known, without the ledger.
    fn look(&self, distance: Distance, tried: &mut Tried) -> io::Result<()> {
        while tried.stale < MOST_STALE {
            let first = self.index().first_to_go();
            let Some((page, its_distance, Some(stamp))) = first else {
                break;
            };
            let is_same = |(_, now)| now == stamp;
            if its_distance <= distance || self.look_again(page)?.is_some_and(is_same) {
                break;
            }
            tried.stale += 1;
        }
        Ok(())
    }

    /// Reads some stamps that were not read yet.
    fn read_stamps(&self, most: usize) -> io::Result<()> {
        let mut unread = self.index().take_unread(most).into_iter();
        while let Some(page) = unread.next() {
            if let Err(error) = self.look_again(page) {
                self.index().leave_unread(unread.chain([page]));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads the stamp of a page, and notes it. `None`: it is not there any more.
    fn look_again(&self, page: Page) -> io::Result<Option<(u64, Stamp)>> {
        let file = self.files.open(&page.file())?;
        let found = match &file {
            Some(file) => {
                let bytes = self.files.len(file)?;
                let mut stamp = [0; 24];
                let is_read = self.files.read_at(file, &mut stamp, Stamp::AT);
                // (A file that is too short for one is damaged, and says nothing.)
                Some((bytes, is_read.map_or(Stamp::NONE, |()| Stamp::of(stamp))))
            }
            None => None,
        };
        if let Some(file) = file {
            self.files.release(file);
        }
        let mut index = self.index();
        match found {
            Some((bytes, stamp)) => index.put(page, bytes, stamp),
            None => index.remove(page),
        }
        Ok(found)
    }

    /// Learns which pages there are: all of them, or nothing, if another thread has done so since the folder had these bytes.
    fn list(&self, used: Option<u64>) -> io::Result<()> {
        let _lister = self.per_process.shared().lister.lock();
        if used.is_some_and(|used| !self.index().is_behind(used)) {
            return Ok(());
        }
        let known = self.index().begin_list();
        let listed = self.files.list()?.into_iter();
        let listed = listed.filter_map(|(name, bytes)| Some((Page::of_file(&name)?, bytes)));
        let listed: HashMap<Page, u64> = listed.collect();
        let gone = known.iter().filter(|page| !listed.contains_key(page));
        let gone: Vec<Page> = gone.copied().collect();
        for some in gone.chunks(NOTED_AT_ONCE) {
            let mut index = self.index();
            some.iter().for_each(|page| index.remove(*page));
        }
        let listed: Vec<(Page, u64)> = listed.into_iter().collect();
        for some in listed.chunks(NOTED_AT_ONCE) {
            self.index().listed(some);
        }
        self.index().end_list();
        Ok(())
    }

    /// Makes pages of parts that were written. Returns of how many.
    pub(super) fn publish(&self, parts: Vec<Part<'_, F>>) -> u64 {
        if parts.is_empty() {
            return 0;
        }
        // (Before the parts are dropped that were not published: each locks the ledger.)
        let mut left = Vec::with_capacity(parts.len());
        let mut published = 0;
        match self.try_publish(parts, &mut left, &mut published) {
            Ok(()) => self.pause.failures.store(0, Ordering::Relaxed),
            Err(error) => self.failed(&error),
        }
        published
    }

    fn try_publish<'a>(
        &'a self,
        parts: Vec<Part<'a, F>>,
        left: &mut Vec<Part<'a, F>>,
        published: &mut u64,
    ) -> io::Result<()> {
        left.extend(parts);
        let mut ledger = self.ledger()?;
        for part in left.iter_mut() {
            let name = part.page.part();
            let is_there = match &part.file {
                Some(file) => self.files.has_name(file, &name)?,
                None => false,
            };
            if !is_there {
                continue; // somebody has removed it by hand
            }
            ledger.rename(&name, &part.page.file())?;
            if let Some(file) = part.file.take() {
                self.files.release(file);
            }
            self.index().put(part.page, part.bytes, part.stamp);
            *published += 1;
        }
        Ok(())
    }

    /// Waits until another is done with a page, if it still is at it. Nothing is held meanwhile.
    pub(super) fn wait(&self, page: Page) {
        // (With the ledger: so nobody has made it and not locked it yet.)
        let part = || {
            let _ledger = self.ledger()?;
            self.files.open(&page.part())
        };
        let waited = part().and_then(|part| {
            let Some(file) = part else {
                return Ok(());
            };
            self.counters.add(&self.counters.waits, 1);
            let locked = self.files.lock(&file);
            self.files.release(file);
            locked
        });
        if let Err(error) = waited {
            self.failed(&error);
        }
    }

    /// Removes a page that is damaged, if it is still this one.
    pub(super) fn remove_damaged(&self, page: Page, file: &F::File) -> io::Result<()> {
        let mut ledger = self.ledger()?;
        if self.files.has_name(file, &page.file())? {
            let bytes = self.files.len(file)?;
            ledger.remove(&page.file(), bytes)?;
        }
        drop(ledger);
        self.index().remove(page);
        Ok(())
    }

    /// Begins to use the folder: removes what dead processes have left, and then pages until it is within its bytes (it may have had more
    /// before).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`](io::ErrorKind::AlreadyExists) if it has files and is no cache, `InvalidData` if it is one of
    /// another version; and what the system says.
    pub(super) fn enter(&self) -> io::Result<()> {
        let before = Ledger::peek(&self.files, self.page_bytes)?;
        let listed = self.files.list()?;
        let mut names = listed.iter().map(|(name, _)| name);
        let is_ours = |name: &&String| Page::of_file(name).is_some() || Page::is_part(name);
        let other = names.clone().find(|name| !is_ours(name));
        if let Some(other) = other
            && !names.any(|name| name == ledger::NAME)
        {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, other.clone()));
        }
        let ours = listed
            .iter()
            .filter(|(name, _)| *name != ledger::NAME && is_ours(&name));
        let bytes: u64 = ours.map(|(_, bytes)| bytes).sum();
        let parts = listed.iter().map(|(name, _)| name);
        let parts = parts.filter(|name| Page::is_part(name));
        let mut ledger = self.ledger()?;
        // (Others wait for a count. If the ledger was the same all the while, and is wrong, somebody has removed files by hand.)
        let is_wrong = before == Some(ledger.used) && ledger.used != bytes;
        if is_wrong || !ledger.is_of_this_boot {
            ledger.count()?;
        } else {
            for part in parts {
                ledger.remove_if_dead(part)?;
            }
        }
        let is_within = ledger.used <= self.max_bytes;
        drop(ledger);
        match is_within {
            true => Ok(()),
            false => self.shrink(),
        }
    }

    fn shrink(&self) -> io::Result<()> {
        self.list(None)?;
        let mut tried = Tried {
            list: true,
            stale: 0,
        };
        loop {
            self.read_stamps(STAMPS_AT_ONCE * EVICTED_AT_ONCE)?;
            let mut ledger = self.ledger()?;
            for _ in 0..EVICTED_AT_ONCE {
                if ledger.used <= self.max_bytes {
                    return Ok(());
                }
                match self.evict(&mut ledger, 0, &mut tried)? {
                    Evicted::One => {}
                    Evicted::Look => break,
                    Evicted::Nothing | Evicted::List => return Ok(()), // the rest is being fetched, by others
                }
            }
            drop(ledger);
            self.look(0, &mut tried)?;
        }
    }

    /// The folder cannot be written or read, as it seems. The read goes on without.
    #[cold]
    pub(super) fn failed(&self, error: &io::Error) {
        self.counters.add(&self.counters.failures, 1);
        let failures = self.pause.failures.fetch_add(1, Ordering::Relaxed);
        let pause = 1u64.checked_shl(u32::try_from(failures).unwrap_or(u32::MAX));
        let pause = pause.map_or(MOST_PAUSE, |pause| pause.min(MOST_PAUSE));
        self.pause.left.store(pause, Ordering::Relaxed);
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            log::warn!(
                "the cache in {} fails: {error}. What it cannot keep is read from {} each time; `DiskCache::stats` counts failures, of which \
                 only this one is logged",
                self.files.place(),
                self.inner.locate("")
            );
        }
    }

    /// Whether pages are not tried, because some have failed lately.
    fn is_paused(&self, pages: usize) -> bool {
        let left = self.pause.left.load(Ordering::Relaxed);
        if left > 0 {
            let left = left.saturating_sub(pages as u64);
            self.pause.left.store(left, Ordering::Relaxed); // (another thread's may be lost: it is about this many)
        }
        left > 0
    }
}
