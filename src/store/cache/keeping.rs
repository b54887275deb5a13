//! What changes the folder: pages are claimed, published and evicted. All names change under the ledger's lock.

use std::io;

use super::files::Files;
use super::index::{Distance, Index};
use super::ledger::{self, Ledger};
use super::page::{HEADER, Page, Stamp};
use super::reading::{Cache, Target};
use crate::sync::log;
use crate::sync::{MutexGuard, Ordering};

/// How many pages a process fetches at a time, at most: each has an open file, of which a process has 1,024 as a rule.
const MOST_PARTS: usize = 256;

/// How many stamps are read before a page is evicted, of those that were not read yet.
const STAMPS_AT_ONCE: usize = 16;

/// How many stamps may turn out to be another process's newer ones, before nothing is evicted.
const MOST_STALE: usize = 256;

/// After failures, how many pages are not tried, at most.
const MOST_PAUSE: u64 = 1_024;

/// What became of the wish to keep a page.
pub(super) enum Claim<'a, F: Files> {
    /// It is there.
    There,
    Ours(Part<'a, F>),
    /// Another is fetching it: its lock is free when that is done, or has died.
    Busy(F::File),
    /// It is not kept: there is no room for it, or no way to.
    Not,
}

/// A page that this thread is to fetch. If it is dropped before it was published, it is gone.
pub(super) struct Part<'a, F: Files> {
    cache: &'a Cache<F>,
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
        cache.parts.fetch_sub(1, Ordering::Relaxed);
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
    /// First, the folder is to be listed.
    List,
}

impl<F: Files> Cache<F> {
    pub(super) fn ledger(&self) -> io::Result<Ledger<'_, F>> {
        Ledger::lock(&self.files, self.page_bytes)
    }

    /// `None`: in a process that was forked from the one that made it, where a thread that is not there may hold the lock.
    pub(super) fn index(&self) -> Option<MutexGuard<'_, Index>> {
        match self.process.is_this() {
            true => Some(self.index.lock()),
            false => self.index.try_lock(),
        }
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
        let mut was_listed = false;
        loop {
            let mut ledger = self.ledger()?;
            loop {
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
                let mut room = self.parts.load(Ordering::Relaxed) < MOST_PARTS;
                while room && ledger.used + bytes > self.max_bytes {
                    match self.evict(&mut ledger, distance, was_listed)? {
                        Evicted::One => {}
                        Evicted::Nothing => room = false,
                        Evicted::List => break,
                    }
                }
                if !room {
                    claims.push(Claim::Not);
                } else if ledger.used + bytes > self.max_bytes {
                    break; // without the lock
                } else {
                    let file = Some(ledger.create(&page.part(), bytes)?);
                    self.parts.fetch_add(1, Ordering::Relaxed);
                    let cache = self;
                    claims.push(Claim::Ours(Part {
                        cache,
                        page,
                        bytes,
                        stamp: target.stamp(*number),
                        file,
                    }));
                }
            }
            drop(ledger);
            self.list()?;
            was_listed = true;
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
        let Some(file) = self.files.open(&page.part())? else {
            return Ok(None);
        };
        if !self.files.try_lock(&file)? {
            return Ok(Some(Claim::Busy(file)));
        }
        // Its process has died.
        let bytes = self.files.len(&file)?;
        ledger.remove(&page.part(), bytes)?;
        self.files.release(file);
        Ok(None)
    }

    /// Evicts the page that is used last, if that is later than what comes in its place.
    fn evict(
        &self,
        ledger: &mut Ledger<'_, F>,
        distance: Distance,
        was_listed: bool,
    ) -> io::Result<Evicted> {
        let Some(mut index) = self.index() else {
            return Ok(Evicted::Nothing);
        };
        if index.is_behind(ledger.used) && !was_listed {
            return Ok(Evicted::List);
        }
        let unread = index.unread(STAMPS_AT_ONCE);
        drop(index);
        for page in unread {
            self.look_again(page)?;
        }
        for _ in 0..MOST_STALE {
            let first = self.index().and_then(|index| index.first_to_go());
            let Some((page, its_distance, stamp)) = first else {
                break;
            };
            if its_distance <= distance {
                break;
            }
            // (Another process may have used it, or removed it.)
            let Some((bytes, now)) = self.look_again(page)? else {
                continue;
            };
            if now != stamp {
                continue;
            }
            ledger.remove(&page.file(), bytes)?;
            if let Some(mut index) = self.index() {
                index.remove(page);
            }
            self.counters.add(&self.counters.evicted, 1);
            return Ok(Evicted::One);
        }
        Ok(Evicted::Nothing)
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
        if let Some(mut index) = self.index() {
            match found {
                Some((bytes, stamp)) => index.put(page, bytes, stamp),
                None => index.remove(page),
            }
        }
        Ok(found)
    }

    /// Learns which pages there are.
    fn list(&self) -> io::Result<()> {
        let listed = self.files.list()?.into_iter();
        let pages = listed.filter_map(|(name, bytes)| Some((Page::of_file(&name)?, bytes)));
        if let Some(mut index) = self.index() {
            index.load(pages);
        }
        Ok(())
    }

    /// Makes pages of parts that were written.
    pub(super) fn publish(&self, parts: Vec<Part<'_, F>>) {
        if parts.is_empty() {
            return;
        }
        // (Before the parts are dropped that were not published: each locks the ledger.)
        let mut left = Vec::with_capacity(parts.len());
        let published = self.try_publish(parts, &mut left);
        match published {
            Ok(()) => self.pause.failures.store(0, Ordering::Relaxed),
            Err(error) => self.failed(&error),
        }
    }

    fn try_publish<'a>(
        &'a self,
        parts: Vec<Part<'a, F>>,
        left: &mut Vec<Part<'a, F>>,
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
            if let Some(mut index) = self.index() {
                index.put(part.page, part.bytes, part.stamp);
            }
        }
        Ok(())
    }

    /// Removes a page that is damaged, if it is still this one.
    pub(super) fn remove_damaged(&self, page: Page, file: &F::File) -> io::Result<()> {
        let mut ledger = self.ledger()?;
        if self.files.has_name(file, &page.file())? {
            let bytes = self.files.len(file)?;
            ledger.remove(&page.file(), bytes)?;
        }
        drop(ledger);
        if let Some(mut index) = self.index() {
            index.remove(page);
        }
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
        let listed = self.files.list()?;
        let mut names = listed.iter().map(|(name, _)| name);
        let is_ours = |name: &&String| Page::of_file(name).is_some() || Page::is_part(name);
        let other = names.clone().find(|name| !is_ours(name));
        if let Some(other) = other
            && !names.any(|name| name == ledger::NAME)
        {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, other.clone()));
        }
        let mut ledger = self.ledger()?;
        // (Whatever it says: the machine may have lost power.)
        ledger.count()?;
        let is_within = ledger.used <= self.max_bytes;
        drop(ledger);
        match is_within {
            true => Ok(()),
            false => self.shrink(),
        }
    }

    fn shrink(&self) -> io::Result<()> {
        self.list()?;
        let mut ledger = self.ledger()?;
        while ledger.used > self.max_bytes {
            if !matches!(self.evict(&mut ledger, 0, true)?, Evicted::One) {
                break; // the rest is being fetched, by others
            }
        }
        Ok(())
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
