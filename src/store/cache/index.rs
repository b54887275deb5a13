//! Which page goes first: what this process knows of the pages, and of when they will be used. It is memory only; what is true stands in
//! the pages' headers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::page::{Page, Stamp};
use crate::store::next_use::NextUse;

/// How far away a next use is: in parts of an epoch, so that runs can be compared.
pub(super) type Distance = u64;

/// An epoch.
const LAP: Distance = 1 << 20;

/// Of a page whose next use no run knows: later than most, and sooner than what is left over.
const UNKNOWN: Distance = LAP + LAP / 2;

/// It will not be used, as far as can be told.
const NEVER: Distance = Distance::MAX - 1;

/// It is of an object that this process does not have.
const FOREIGN: Distance = Distance::MAX;

/// By how much of an epoch a use may be late: ranks are not at the same position, and blocks are read ahead.
const LATE: u64 = 8;

#[derive(Default)]
pub(super) struct Index {
    /// The folder was listed.
    is_loaded: bool,
    pages: HashMap<Page, Known>,
    /// Pages of this process's objects, by when they are used next.
    order: BTreeSet<(Stamp, Page)>,
    /// Pages of others.
    foreign: BTreeSet<Page>,
    /// Pages whose stamps were not read yet.
    unread: BTreeSet<Page>,
    /// What all of them take.
    bytes: u64,
    /// How many bytes others were found to have that are not listed here: parts, above all. `None`: not looked yet.
    unlisted: Option<u64>,
    /// The hashes of objects that this process has listed or read.
    objects: HashSet<u64>,
    clocks: BTreeMap<u64, Clock>,
}

#[derive(Clone, Copy)]
struct Known {
    bytes: u64,
    stamp: Stamp,
}

/// Where a run is, as this process knows.
#[derive(Clone, Copy)]
struct Clock {
    now: u64,
    /// Where it was when this process began.
    began: u64,
    lap: u64,
}

impl Index {
    /// An object is one of this process's.
    pub(super) fn know(&mut self, object: u64) {
        if !self.objects.insert(object) {
            return;
        }
        let of_object = |number| Page { object, number };
        let own: Vec<Page> = self
            .foreign
            .range(of_object(0)..=of_object(u64::MAX))
            .copied()
            .collect();
        for page in own {
            self.foreign.remove(&page);
            if let Some(known) = self.pages.get(&page)
                && !self.unread.contains(&page)
            {
                self.order.insert((known.stamp, page));
            }
        }
    }

    /// A run has come to a position.
    pub(super) fn tell(&mut self, next_use: NextUse) {
        let NextUse { run, now, lap, .. } = next_use;
        let clock = self.clocks.entry(run).or_insert(Clock {
            now,
            began: now,
            lap,
        });
        (clock.now, clock.lap) = (now, lap.max(1));
        clock.began = clock.began.min(now);
    }

    /// How far away a use is.
    pub(super) fn distance(next_use: Option<NextUse>) -> Distance {
        match next_use {
            Some(NextUse { now, next, lap, .. }) => laps(next.saturating_sub(now), lap),
            None => UNKNOWN,
        }
    }

    /// Whether to list the folder: there is much in it that is not known here.
    pub(super) fn is_behind(&mut self, used: u64) -> bool {
        if !self.is_loaded {
            return true;
        }
        let unlisted = used.saturating_sub(self.bytes);
        let before = *self.unlisted.get_or_insert(unlisted);
        unlisted > before.saturating_add(used / 8)
    }

    /// The folder was listed: what it has, with its bytes.
    pub(super) fn load(&mut self, listed: impl Iterator<Item = (Page, u64)>) {
        let listed: HashMap<Page, u64> = listed.collect();
        let gone = self.pages.keys().filter(|page| !listed.contains_key(page));
        let gone: Vec<Page> = gone.copied().collect();
        gone.into_iter().for_each(|page| self.remove(page));
        for (page, bytes) in listed {
            if !self.pages.contains_key(&page) {
                self.add(page, bytes, None);
            }
        }
        (self.is_loaded, self.unlisted) = (true, None);
    }

    /// A page is there, or has a new stamp. (Before the folder was listed, nothing is noted.)
    pub(super) fn put(&mut self, page: Page, bytes: u64, stamp: Stamp) {
        if self.is_loaded {
            self.remove(page);
            self.add(page, bytes, Some(stamp));
        }
    }

    fn add(&mut self, page: Page, bytes: u64, stamp: Option<Stamp>) {
        let known = Known {
            bytes,
            stamp: stamp.unwrap_or_default(),
        };
        if !self.objects.contains(&page.object) {
            self.foreign.insert(page);
        } else if stamp.is_some() {
            self.order.insert((known.stamp, page));
        }
        if stamp.is_none() {
            self.unread.insert(page);
        }
        self.bytes += bytes;
        self.pages.insert(page, known);
    }

    pub(super) fn remove(&mut self, page: Page) {
        if let Some(known) = self.pages.remove(&page) {
            self.bytes -= known.bytes;
            self.order.remove(&(known.stamp, page));
            self.foreign.remove(&page);
            self.unread.remove(&page);
        }
    }

    /// Some pages of this process's objects whose stamps were not read yet.
    pub(super) fn unread(&self, most: usize) -> Vec<Page> {
        let own = self
            .unread
            .iter()
            .filter(|page| !self.foreign.contains(page));
        own.take(most).copied().collect()
    }

    /// The page that goes first, as far as is known: how far away its next use is, and the stamp that says so.
    pub(super) fn first_to_go(&self) -> Option<(Page, Distance, Stamp)> {
        if let Some(page) = self.foreign.first() {
            let stamp = self.pages.get(page).map(|known| known.stamp);
            return Some((*page, FOREIGN, stamp.unwrap_or_default()));
        }
        let unclaimed = self.unclaimed();
        let mut first: Option<(Page, Distance, Stamp)> = None;
        let mut consider = |found: Option<&(Stamp, Page)>, distance: Distance| {
            if let Some((stamp, page)) = found
                && first.is_none_or(|(_, furthest, _)| distance > furthest)
            {
                first = Some((*page, distance, *stamp));
            }
        };
        let from = |run, next| (Stamp { run, next }, FIRST_PAGE);
        let mut begins = from(0, 0);
        for (run, clock) in &self.clocks {
            // Of other runs, in between.
            consider(
                self.order.range(begins..from(*run, 0)).next_back(),
                unclaimed,
            );
            begins = from(run.saturating_add(1), 0);
            let late = clock.now.saturating_sub(clock.lap / LATE);
            consider(
                self.order.range(from(*run, 0)..from(*run, late)).next(),
                NEVER,
            );
            // (A run says nothing of what is behind its next epoch: that is of one before it, of the same order.)
            let epoch = clock.now.saturating_add(clock.lap / LATE) / clock.lap;
            let end = epoch.saturating_add(2).saturating_mul(clock.lap);
            let mut known = self.order.range(from(*run, late)..from(*run, end));
            let last = known.next_back();
            let next = last.map_or(0, |(stamp, _)| stamp.next.saturating_sub(clock.now));
            consider(last, laps(next, clock.lap));
            consider(
                self.order.range(from(*run, end)..begins).next_back(),
                unclaimed,
            );
        }
        consider(self.order.range(begins..).next_back(), unclaimed);
        first
    }

    /// How far away the next use is of pages that none of this process's runs has used yet: each is used once in an epoch, so they are by
    /// now used in what is left of the first, or not at all.
    fn unclaimed(&self) -> Distance {
        let left = self.clocks.values().map(|clock| {
            let end = clock.began.saturating_add(clock.lap);
            laps(end.saturating_sub(clock.now), clock.lap)
        });
        match left.max() {
            None => UNKNOWN,
            Some(0) => NEVER,
            Some(left) => left / 2,
        }
    }
}

const FIRST_PAGE: Page = Page {
    object: 0,
    number: 0,
};

fn laps(positions: u64, lap: u64) -> Distance {
    let laps = u128::from(positions) * u128::from(LAP) / u128::from(lap.max(1));
    u64::try_from(laps).map_or(NEVER, |laps| laps.min(NEVER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(object: u64, number: u64) -> Page {
        Page { object, number }
    }

    /// An index of pages of object 1, with these stamps.
    fn index(stamps: &[(u64, u64)]) -> Index {
        let mut index = Index::default();
        index.know(1);
        index.load([].into_iter());
        for (number, (run, next)) in (0..).zip(stamps) {
            let (run, next) = (*run, *next);
            index.put(page(1, number), 10, Stamp { run, next });
        }
        index
    }

    fn at(run: u64, now: u64) -> NextUse {
        NextUse {
            run,
            now,
            next: now,
            rest: None,
            lap: 1_000,
        }
    }

    fn first(index: &Index) -> (u64, Distance) {
        let (page, distance, _) = index.first_to_go().unwrap();
        (page.number, distance)
    }

    #[test]
    fn what_is_used_last_goes_first() {
        let mut index = index(&[(7, 1_500), (7, 1_900), (7, 1_100)]);
        index.tell(at(7, 1_000));
        assert_eq!(first(&index), (1, LAP * 9 / 10));
        index.remove(page(1, 1));
        assert_eq!(first(&index), (0, LAP / 2));
    }

    #[test]
    fn what_is_late_goes_before_that_and_what_is_a_little_late_does_not() {
        let mut index = index(&[(7, 1_500), (7, 950)]);
        index.tell(at(7, 1_000));
        assert_eq!(first(&index), (0, LAP / 2));
        index.tell(at(7, 1_100));
        assert_eq!(first(&index), (1, NEVER));
    }

    #[test]
    fn runs_are_compared_by_parts_of_their_epochs() {
        let mut index = index(&[(7, 1_500), (9, 60)]);
        index.tell(at(7, 1_000));
        index.tell(NextUse {
            run: 9,
            now: 0,
            next: 0,
            rest: None,
            lap: 100,
        });
        assert_eq!(first(&index), (1, LAP * 6 / 10));
    }

    #[test]
    fn pages_of_another_run_have_an_epoch_to_be_used() {
        let mut index = index(&[(3, 1_500), (7, 5_200), (7, 5_900)]);
        index.tell(at(7, 5_000));
        assert_eq!(first(&index), (2, LAP * 9 / 10), "the other has half left");
        index.tell(at(7, 5_700));
        index.remove(page(1, 1)); // used
        assert_eq!(first(&index), (2, LAP / 5));
        index.tell(at(7, 6_000));
        assert_eq!(first(&index), (0, NEVER));
    }

    #[test]
    fn pages_of_other_objects_go_first_until_they_are_known() {
        let mut index = index(&[(7, 1_900)]);
        index.tell(at(7, 1_000));
        index.put(
            page(2, 0),
            10,
            Stamp {
                run: 7,
                next: 1_001,
            },
        );
        assert_eq!(index.first_to_go().unwrap().0, page(2, 0));
        index.know(2);
        assert_eq!(index.first_to_go().unwrap().0, page(1, 0));
    }

    #[test]
    fn without_an_order_what_is_there_stays() {
        let index = index(&[(0, 0), (5, 10)]);
        let (_, distance) = first(&index);
        assert!(distance <= Index::distance(None));
    }

    #[test]
    fn what_is_listed_is_read_before_it_is_judged() {
        let mut index = Index::default();
        index.know(1);
        assert!(index.is_behind(0));
        index.load([(page(1, 0), 10), (page(2, 0), 10)].into_iter());
        assert!(!index.is_behind(20));
        assert!(!index.is_behind(22));
        assert!(index.is_behind(40));
        assert_eq!(index.unread(9), [page(1, 0)]);
        index.put(page(1, 0), 10, Stamp { run: 1, next: 1 });
        assert_eq!(index.unread(9), []);
        index.load([(page(1, 0), 10)].into_iter());
        assert_eq!(index.first_to_go().unwrap().0, page(1, 0));
        index.load([].into_iter());
        assert!(index.first_to_go().is_none());
    }
}
