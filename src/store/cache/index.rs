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
    /// The folder was listed, or is being listed: changes are noted.
    is_noting: bool,
    /// It was listed.
    is_loaded: bool,
    pages: HashMap<Page, Known>,
    /// Pages of this process's objects, by when they are used next.
    order: BTreeSet<(Stamp, Page)>,
    /// Pages of others.
    foreign: BTreeSet<Page>,
    /// Pages of this process's objects whose stamps were not read yet.
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
    /// `None`: it was not read yet.
    stamp: Option<Stamp>,
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
            match self.pages.get(&page).map(|known| known.stamp) {
                Some(Some(stamp)) => _ = self.order.insert((stamp, page)),
                Some(None) => _ = self.unread.insert(page),
                None => {}
            }
        }
    }

    /// The objects that another index has are this process's, too.
    pub(super) fn know_all_of(&mut self, other: &Index) {
        other.objects.iter().for_each(|object| self.know(*object));
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

    /// The folder is about to be listed. Returns the pages that are known: of these, what is not listed is gone.
    pub(super) fn begin_list(&mut self) -> Vec<Page> {
        self.is_noting = true;
        self.pages.keys().copied().collect()
    }

    /// Some pages were listed, with their bytes.
    pub(super) fn listed(&mut self, pages: &[(Page, u64)]) {
        for (page, bytes) in pages {
            if !self.pages.contains_key(page) {
                self.add(*page, *bytes, None);
            }
        }
    }

    /// All that was listed is noted.
    pub(super) fn end_list(&mut self) {
        (self.is_loaded, self.unlisted) = (true, None);
    }

    /// A page is there, or has a new stamp. (Before the folder was listed, nothing is noted.)
    pub(super) fn put(&mut self, page: Page, bytes: u64, stamp: Stamp) {
        if self.is_noting {
            self.remove(page);
            self.add(page, bytes, Some(stamp));
        }
    }

    fn add(&mut self, page: Page, bytes: u64, stamp: Option<Stamp>) {
        if !self.objects.contains(&page.object) {
            self.foreign.insert(page);
        } else if let Some(stamp) = stamp {
            self.order.insert((stamp, page));
        } else {
            self.unread.insert(page);
        }
        self.bytes += bytes;
        self.pages.insert(page, Known { bytes, stamp });
    }

    pub(super) fn remove(&mut self, page: Page) {
        if let Some(known) = self.pages.remove(&page) {
            self.bytes -= known.bytes;
            if let Some(stamp) = known.stamp {
                self.order.remove(&(stamp, page));
            }
            self.foreign.remove(&page);
            self.unread.remove(&page);
        }
    }

    /// Takes some pages of this process's objects whose stamps were not read yet, for the caller to read.
    pub(super) fn take_unread(&mut self, most: usize) -> Vec<Page> {
        let pages: Vec<Page> = self.unread.iter().take(most).copied().collect();
        pages.iter().for_each(|page| _ = self.unread.remove(page));
        pages
    }

    /// Some of these could not be read.
    pub(super) fn leave_unread(&mut self, pages: impl Iterator<Item = Page>) {
        let is_unread = |page: &Page| {
            let known = self.pages.get(page);
            known.is_some_and(|known| known.stamp.is_none()) && !self.foreign.contains(page)
        };
        let pages: Vec<Page> = pages.filter(is_unread).collect();
        self.unread.extend(pages);
    }

    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// The page that goes first, as far as is known: how far away its next use is, and the stamp that says so, if one does.
    pub(super) fn first_to_go(&self) -> Option<(Page, Distance, Option<Stamp>)> {
        if let Some(page) = self.foreign.first() {
            return Some((*page, FOREIGN, None));
        }
        let unclaimed = self.unclaimed();
        let mut first: Option<(Page, Distance, Option<Stamp>)> = None;
        let mut consider = |found: Option<&(Stamp, Page)>, distance: Distance| {
            if let Some((stamp, page)) = found
                && first.is_none_or(|(_, furthest, _)| distance > furthest)
            {
                first = Some((*page, distance, Some(*stamp)));
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

    /// The folder is listed, and has these.
    fn list(index: &mut Index, pages: &[(Page, u64)]) {
        let known = index.begin_list();
        let is_there = |page: &Page| pages.iter().any(|(listed, _)| listed == page);
        let gone = known.into_iter().filter(|page| !is_there(page));
        gone.for_each(|page| index.remove(page));
        index.listed(pages);
        index.end_list();
    }

    /// An index of pages of object 1, with these stamps.
    fn index(stamps: &[(u64, u64)]) -> Index {
        let mut index = Index::default();
        index.know(1);
        list(&mut index, &[]);
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
        list(&mut index, &[(page(1, 0), 10), (page(2, 0), 10)]);
        assert!(!index.is_behind(20));
        assert!(!index.is_behind(22));
        assert!(index.is_behind(40));
        assert_eq!(index.take_unread(9), [page(1, 0)]);
        assert_eq!(index.take_unread(9), []);
        index.leave_unread([page(1, 0), page(2, 0)].into_iter());
        assert_eq!(index.take_unread(9), [page(1, 0)]);
        index.put(page(1, 0), 10, Stamp { run: 1, next: 1 });
        index.leave_unread([page(1, 0)].into_iter());
        assert!(!index.has_unread());
        list(&mut index, &[(page(1, 0), 10)]);
        assert_eq!(index.first_to_go().unwrap().0, page(1, 0));
        list(&mut index, &[]);
        assert!(index.first_to_go().is_none());
    }

    /// A folder may have a million pages of others: what is looked through for each page that goes is not all of them.
    #[test]
    fn pages_of_others_are_not_among_those_whose_stamps_are_to_be_read() {
        let mut index = Index::default();
        index.know(1);
        let of_others = (0..1_000).map(|number| (page(2, number), 10));
        let pages: Vec<_> = of_others.chain([(page(1, 0), 10)]).collect();
        list(&mut index, &pages);
        assert_eq!(index.unread.len(), 1);
        index.know(2);
        assert_eq!(index.unread.len(), 1_001, "they are own ones now");
        assert_eq!(index.foreign.len(), 0);
    }

    /// What is published while another thread lists the folder may not be in its list.
    #[test]
    fn what_comes_while_the_folder_is_listed_stays_known() {
        let mut index = Index::default();
        index.know(1);
        assert_eq!(index.begin_list(), []);
        index.put(page(1, 5), 10, Stamp { run: 1, next: 1 });
        index.listed(&[(page(1, 0), 10)]);
        index.end_list();
        assert_eq!(index.first_to_go().unwrap().0, page(1, 5));
        assert_eq!(index.bytes, 20);
    }
}
