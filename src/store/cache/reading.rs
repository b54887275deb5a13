//! A read: what is there is taken, what is not is fetched, and what another fetches is waited for.

use std::io::{self, ErrorKind};
use std::ops::Range;

use super::files::Files;
use super::keeping::{Claim, Part};
use super::page::{HEADER, Header, Identity, Look, Page, Stamp, header};
use super::shared::PerProcess;
use crate::error::{BoxError, is_temporary};
use crate::store::next_use::{NextUse, next_use};
use crate::store::{Object, Store, length_of};
use crate::sync::log;
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, AtomicBool, Ordering};

/// A store, and the folder that keeps what is read of it.
pub(super) struct Cache<F: Files> {
    pub(super) files: F,
    pub(super) inner: Arc<dyn Store>,
    pub(super) page_bytes: u64,
    pub(super) max_bytes: u64,
    /// Which time it is that the machine runs; 0: not known.
    pub(super) boot: u64,
    pub(super) per_process: PerProcess,
    pub(super) counters: Counters,
    pub(super) pause: Pause,
    pub(super) has_warned: AtomicBool,
    has_warned_of_versions: AtomicBool,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) hit_bytes: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) fetched_bytes: AtomicU64,
    pub(super) kept: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) damaged: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) unversioned: AtomicU64,
}

impl Counters {
    pub(super) fn add(&self, counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

/// After failures, pages are not tried for a while.
#[derive(Default)]
pub(super) struct Pause {
    /// How many followed each other.
    pub(super) failures: AtomicU64,
    /// How many pages are not tried.
    pub(super) left: AtomicU64,
}

/// What a read is about.
pub(super) struct Target<'a> {
    object: &'a Object,
    identity: Identity,
    range: Range<u64>,
    page_bytes: u64,
    next_use: Option<NextUse>,
}

impl Target<'_> {
    pub(super) fn page(&self, number: u64) -> Page {
        Page {
            object: self.identity.hash,
            number,
        }
    }

    /// The bytes of a page, in the object.
    fn whole(&self, number: u64) -> Range<u64> {
        let start = number * self.page_bytes;
        start..start.saturating_add(self.page_bytes).min(self.object.bytes)
    }

    /// How many bytes a page has.
    pub(super) fn bytes_of(&self, number: u64) -> u64 {
        let whole = self.whole(number);
        whole.end - whole.start
    }

    /// Those of them that are asked for.
    fn wanted(&self, number: u64) -> Range<u64> {
        let whole = self.whole(number);
        whole.start.max(self.range.start)..whole.end.min(self.range.end)
    }

    /// Where these bytes of the object stand in what is returned.
    fn place(&self, bytes: &Range<u64>) -> Range<usize> {
        // (`length_of` has seen that the range fits into memory.)
        (bytes.start - self.range.start) as usize..(bytes.end - self.range.start) as usize
    }

    /// When what is wanted of a page is wanted again.
    pub(super) fn next_use_of(&self, page: u64) -> Option<NextUse> {
        let wanted = self.place(&self.wanted(page));
        let wanted = wanted.start as u64..wanted.end as u64;
        let all = self.range.end - self.range.start;
        Some(self.next_use?.of_part(wanted, all))
    }

    pub(super) fn stamp(&self, page: u64) -> Stamp {
        let stamp = |next_use: NextUse| Stamp {
            run: next_use.run,
            next: next_use.next,
        };
        self.next_use_of(page).map_or(Stamp::NONE, stamp)
    }

    /// The stamp of a page that had another one. It may have samples of a neighbour, which come before these do again.
    fn stamp_after(&self, page: u64, had: Stamp) -> Stamp {
        match self.next_use_of(page) {
            Some(NextUse { run, now, next, .. }) => match had.run == run && had.next > now {
                true => Stamp {
                    run,
                    next: next.min(had.next),
                },
                false => Stamp { run, next },
            },
            None => had,
        }
    }
}

/// A request that failed, and for which range.
struct Refused {
    error: BoxError,
    range: Range<u64>,
}

/// A run of pages that are fetched by one request.
struct Run<'a, F: Files> {
    range: Range<u64>,
    /// Each with its number.
    parts: Vec<(u64, Part<'a, F>)>,
    pages: Vec<u64>,
}

impl<F: Files> Cache<F> {
    /// Makes a cache of a folder that there is. What is left of processes that died is removed when the folder is locked for the first
    /// time, if need be.
    pub(super) fn new(files: F, inner: Arc<dyn Store>, page_bytes: u64, max_bytes: u64) -> Self {
        Cache {
            boot: files.boot(),
            per_process: PerProcess::new(files.folder()),
            files,
            inner,
            page_bytes,
            max_bytes,
            counters: Counters::default(),
            pause: Pause::default(),
            has_warned: AtomicBool::new(false),
            has_warned_of_versions: AtomicBool::new(false),
        }
    }

    /// Notes that an object is one of those that this process reads.
    pub(super) fn know(&self, objects: &[Object]) {
        let origin = self.inner.origin();
        let identity =
            |object: &Object| Identity::new(&origin, &self.inner.locate(&object.key), object);
        let hashes = objects.iter().filter_map(identity);
        let hashes: Vec<u64> = hashes.map(|identity| identity.hash).collect();
        let mut index = self.index();
        hashes.into_iter().for_each(|object| index.know(object));
    }

    pub(super) fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        let length = length_of(object, &range, || self.inner.locate(&object.key))?;
        if length == 0 {
            return Ok(Vec::new());
        }
        let place = self.inner.locate(&object.key);
        let Some(identity) = Identity::new(&self.inner.origin(), &place, object) else {
            return self.read_unversioned(object, range);
        };
        let target = Target {
            object,
            identity,
            page_bytes: self.page_bytes,
            next_use: next_use(),
            range: range.clone(),
        };
        let mut index = self.index();
        index.know(target.identity.hash);
        target
            .next_use
            .into_iter()
            .for_each(|next| index.tell(next));
        drop(index);
        match self.read_pages(&target, length) {
            Ok(bytes) => Ok(bytes),
            // (A server that knows no ranges gives all of an object, and no part of it.)
            Err(refused) if refused.range != range && !is_temporary(&refused.error) => {
                self.request(object, range)
            }
            Err(refused) => Err(refused.error),
        }
    }

    fn read_pages(&self, target: &Target<'_>, length: usize) -> Result<Vec<u8>, Refused> {
        let range = &target.range;
        let pages = range.start / self.page_bytes..(range.end - 1) / self.page_bytes + 1;
        let mut bytes = Vec::new();
        let missing = pages.filter(|page| !self.take(target, *page, &mut bytes, length));
        let missing: Vec<u64> = missing.collect();
        let busy = self.fetch(target, &missing, &mut bytes, length)?;
        let mut left = Vec::new();
        for page in busy {
            self.wait(target.page(page));
            if !self.take(target, page, &mut bytes, length) {
                left.push(page);
            }
        }
        // (Whoever had them has died, or failed. Nobody is waited for twice.)
        let busy = self.fetch(target, &left, &mut bytes, length)?;
        for run in self.runs(target, busy.into_iter().map(|page| (page, None))) {
            self.fetch_run(target, run, &mut bytes, length)?;
        }
        Ok(bytes)
    }

    /// Requests bytes of the store.
    fn request(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        let counters = &self.counters;
        counters.add(&counters.requests, 1);
        let bytes = self.inner.read(object, range.clone())?;
        if bytes.len() as u64 != range.end - range.start {
            let (place, count) = (self.inner.locate(&object.key), bytes.len());
            return Err(format!("{place}: its store gave {count} bytes for {range:?}").into());
        }
        counters.add(&counters.fetched_bytes, bytes.len() as u64);
        Ok(bytes)
    }

    /// What has no version that is certain may change at any time: it is never kept.
    fn read_unversioned(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        self.counters.add(&self.counters.unversioned, 1);
        if !self.has_warned_of_versions.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{} has no version (ETag), one that is not certain (W/..), or a very long one, so it is not kept in {} but read each time; others like it are not logged",
                self.inner.locate(&object.key),
                self.files.place()
            );
        }
        self.inner.read(object, range)
    }

    /// Takes what is wanted of a page, if it is there.
    fn take(&self, target: &Target<'_>, page: u64, bytes: &mut Vec<u8>, length: usize) -> bool {
        let file = match self.files.open(&target.page(page).file()) {
            Ok(Some(file)) => file,
            Ok(None) => return false,
            Err(error) => {
                self.failed(&error);
                return false;
            }
        };
        if bytes.is_empty() {
            *bytes = vec![0; length]; // (zeros that the system has)
        }
        let wanted = target.wanted(page);
        let looked = self.take_open(target, page, &file, &mut bytes[target.place(&wanted)]);
        let is_taken = matches!(looked, Ok(Look::Right(_)));
        match looked {
            Ok(Look::Right(had)) => {
                self.counters.add(&self.counters.hits, 1);
                let taken = wanted.end - wanted.start;
                self.counters.add(&self.counters.hit_bytes, taken);
                self.renew(target, page, &file, had);
            }
            Ok(Look::Another) => {}
            Ok(Look::Damaged) => {
                self.counters.add(&self.counters.damaged, 1);
                if let Err(error) = self.remove_damaged(target.page(page), &file) {
                    self.failed(&error);
                }
            }
            Err(error) => self.failed(&error),
        }
        self.files.release(file);
        is_taken
    }

    /// Takes what is wanted of an open page, which has this stamp.
    ///
    /// # Errors
    ///
    /// If the disk does not give what it has. (A file that is too short is damaged.)
    fn take_open(
        &self,
        target: &Target<'_>,
        page: u64,
        file: &F::File,
        bytes: &mut [u8],
    ) -> io::Result<Look<Stamp>> {
        match self.verify_open(target, page, file, bytes) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Look::Damaged),
            looked => looked,
        }
    }

    fn verify_open(
        &self,
        target: &Target<'_>,
        page: u64,
        file: &F::File,
        bytes: &mut [u8],
    ) -> io::Result<Look<Stamp>> {
        let mut head = vec![0; HEADER];
        self.files.read_at(file, &mut head, 0)?;
        let of_page = target.bytes_of(page) as usize; // a page fits into memory
        let head = match Header::of(&head, &target.identity, page, of_page) {
            Look::Right(head) => head,
            Look::Another => return Ok(Look::Another),
            Look::Damaged => return Ok(Look::Damaged),
        };
        let (whole, wanted) = (target.whole(page), target.wanted(page));
        let within = |at: u64| (at - whole.start) as usize;
        let wanted = within(wanted.start)..within(wanted.end);
        let chunks = Header::whole_chunks(&wanted, of_page);
        let at = (HEADER + chunks.start) as u64;
        let is_right = if chunks == wanted {
            self.files.read_at(file, bytes, at)?;
            head.verifies(chunks.start, bytes)
        } else {
            let mut read = vec![0; chunks.end - chunks.start];
            self.files.read_at(file, &mut read, at)?;
            let taken = wanted.start - chunks.start..wanted.end - chunks.start;
            bytes.copy_from_slice(&read[taken]);
            head.verifies(chunks.start, &read)
        };
        Ok(match is_right {
            true => Look::Right(head.stamp),
            false => Look::Damaged,
        })
    }

    /// Writes down when a page is used next, which was used now.
    fn renew(&self, target: &Target<'_>, page: u64, file: &F::File, had: Stamp) {
        let stamp = target.stamp_after(page, had);
        if stamp != had {
            // (A folder that must not be written, or a full disk, costs hits.)
            let written = self.files.write_at(file, &stamp.bytes(), Stamp::AT);
            if let Err(error) = written {
                return self.failed(&error);
            }
        }
        let bytes = HEADER as u64 + target.bytes_of(page);
        self.index().put(target.page(page), bytes, stamp);
    }

    /// Fetches pages that are not there. Returns those that others fetch.
    fn fetch(
        &self,
        target: &Target<'_>,
        pages: &[u64],
        bytes: &mut Vec<u8>,
        length: usize,
    ) -> Result<Vec<u64>, Refused> {
        if pages.is_empty() {
            return Ok(Vec::new());
        }
        let (mut busy, mut own) = (Vec::new(), Vec::new());
        for (page, claim) in pages.iter().zip(self.claim(target, pages)) {
            match claim {
                Claim::There if self.take(target, *page, bytes, length) => {}
                Claim::There | Claim::Not => own.push((*page, None)),
                Claim::Ours(part) => own.push((*page, Some(part))),
                Claim::Busy => busy.push(*page),
            }
        }
        for run in self.runs(target, own.into_iter()) {
            self.fetch_run(target, run, bytes, length)?;
        }
        Ok(busy)
    }

    /// Sorts pages into requests. Of those that are kept, all bytes are fetched; of others, those that are wanted.
    fn runs<'a>(
        &self,
        target: &Target<'_>,
        pages: impl Iterator<Item = (u64, Option<Part<'a, F>>)>,
    ) -> Vec<Run<'a, F>> {
        let mut runs: Vec<Run<'a, F>> = Vec::new();
        for (page, part) in pages {
            let range = match &part {
                Some(_) => target.whole(page),
                None => target.wanted(page),
            };
            let follows = runs.last().is_some_and(|run| run.range.end == range.start);
            if !follows {
                runs.push(Run {
                    range: range.start..range.start,
                    parts: Vec::new(),
                    pages: Vec::new(),
                });
            }
            if let Some(run) = runs.last_mut() {
                run.range.end = range.end;
                run.pages.push(page);
                run.parts.extend(part.map(|part| (page, part)));
            }
        }
        runs
    }

    fn fetch_run(
        &self,
        target: &Target<'_>,
        run: Run<'_, F>,
        bytes: &mut Vec<u8>,
        length: usize,
    ) -> Result<(), Refused> {
        let Run {
            range,
            parts,
            pages,
        } = run;
        let counters = &self.counters;
        counters.add(&counters.misses, pages.len() as u64);
        let fetched = self.request(target.object, range.clone());
        let mut fetched = fetched.map_err(|error| Refused {
            error,
            range: range.clone(),
        })?;
        let mut written = Vec::with_capacity(parts.len());
        for (page, part) in parts {
            let whole = target.whole(page);
            let of_page = (whole.start - range.start) as usize..(whole.end - range.start) as usize;
            let of_page = &fetched[of_page];
            let header = header(&target.identity, page, of_page, part.stamp);
            match part.write(&header, of_page) {
                Ok(()) => written.push(part),
                Err(error) => self.failed(&error),
            }
        }
        counters.add(&counters.kept, self.publish(written));
        let wanted = range.start.max(target.range.start)..range.end.min(target.range.end);
        let of_run = (wanted.start - range.start) as usize..(wanted.end - range.start) as usize;
        if bytes.is_empty() && of_run.len() == length {
            // (What is returned may be kept for long: it holds no pages that were not asked for.)
            let is_most = fetched.capacity() - fetched.capacity() / 8 <= length;
            *bytes = if is_most {
                fetched.truncate(of_run.end);
                fetched.drain(..of_run.start);
                fetched
            } else {
                fetched[of_run].to_vec()
            };
        } else {
            bytes.resize(length, 0);
            bytes[target.place(&wanted)].copy_from_slice(&fetched[of_run]);
        }
        Ok(())
    }
}
