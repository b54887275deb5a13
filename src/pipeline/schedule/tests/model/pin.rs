//! What the pin thread does: `pin.rs`.

use super::*;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Pin {
    Look,
    Want {
        ticket: u64,
    },
    Serve {
        want: Want,
        ticket: u64,
    },
    Fly {
        want: Want,
        ticket: u64,
    },
    Take {
        want: Want,
        ticket: u64,
        news: u64,
        copy: Option<u64>,
    },
    Decide {
        want: Want,
        ticket: u64,
        news: u64,
        copy: Option<u64>,
    },
    Give {
        want: Want,
        slab: bool,
    },
    Fill {
        want: Want,
        slab: bool,
    },
    Granted {
        want: Want,
    },
    GiveUp {
        batch: u64,
    },
    Sleep {
        ticket: u64,
    },
    WaitForCopy {
        copy: u64,
    },
}

impl World {
    pub(super) fn pin_step(&mut self, pin: Pin) -> Pin {
        match pin {
            Pin::Sleep { .. } | Pin::WaitForCopy { .. } => Pin::Look,
            Pin::Look => {
                self.ring.interested = false;
                let ticket = self.ring.news;
                Pin::Want { ticket }
            }
            Pin::Want { ticket } => match self.schedule.next_want() {
                Some(want) => {
                    self.check_want(want);
                    Pin::Serve { want, ticket }
                }
                None => Pin::Sleep { ticket },
            },
            Pin::Serve { want, ticket } => {
                self.ring.interested = true;
                let current =
                    self.is_open(want.batch) && self.schedule.want_of(want.batch) == Some(want);
                if !current {
                    return Pin::Look;
                }
                self.schedule.granting(want.batch);
                Pin::Fly { want, ticket }
            }
            Pin::Fly { want, ticket } => {
                let news = self.ring.news;
                self.settle();
                let copy = self.copies.first().map(|copy| copy.id);
                Pin::Take {
                    want,
                    ticket,
                    news,
                    copy,
                }
            }
            Pin::Take {
                want,
                ticket,
                news,
                copy,
            } => match self.take(want, copy.is_none()) {
                true => Pin::Give { want, slab: true },
                false => Pin::Decide {
                    want,
                    ticket,
                    news,
                    copy,
                },
            },
            Pin::Decide {
                want,
                ticket,
                news,
                copy,
            } => self.decide(want, ticket, news, copy),
            Pin::Give { want, slab } => self.give(want, slab),
            Pin::Fill { want, slab } => {
                let work = self.work_of(want.batch);
                work.slabs += usize::from(slab);
                work.holders -= 1;
                self.forget(want.batch);
                Pin::Granted { want }
            }
            Pin::Granted { want } => {
                self.granted(want.batch);
                Pin::Look
            }
            Pin::GiveUp { batch } => {
                self.publish(batch, false);
                Pin::Look
            }
        }
    }

    pub(super) fn decide(&mut self, want: Want, ticket: u64, news: u64, copy: Option<u64>) -> Pin {
        match (missing(copy.is_some(), want.blocked), copy) {
            (Missing::WaitForCopy, Some(copy)) => {
                self.seen.waited += 1;
                self.not_granted(want.batch);
                Pin::WaitForCopy { copy }
            }
            (Missing::Unpinned, _) if news != self.ring.news => {
                self.seen.looked_again += 1;
                self.not_granted(want.batch);
                Pin::Look
            }
            (Missing::Unpinned, _) => {
                if !self.is_open(want.batch) || self.work_of(want.batch).failed {
                    return Pin::Look; // it failed meanwhile, and was delivered perhaps
                }
                // For good, so for sure: the consumer waits for this very batch, and nothing comes home without him.
                assert_eq!(want.batch, self.delivered);
                assert!(matches!(
                    self.consumer,
                    Consumer::Blocked { notified: false }
                ));
                assert!(self.copies.is_empty(), "{:?}", self.copies);
                let full = self.ring.free == 0 && self.ring.blocks == self.options.budget;
                assert!(full || self.ring.out >= self.limit, "{:?}", self.ring);
                match self.options.strict {
                    true => self.refuse(want),
                    false => {
                        self.seen.unpinned += 1;
                        Pin::Give { want, slab: false }
                    }
                }
            }
            _ => {
                self.not_granted(want.batch);
                Pin::Sleep { ticket }
            }
        }
    }

    pub(super) fn refuse(&mut self, want: Want) -> Pin {
        self.seen.refused += 1;
        let batch = want.batch;
        let work = self.work_of(batch);
        work.failed = true;
        if want.relocation {
            self.publish(batch, false);
            return Pin::Look;
        }
        match self.schedule.failed(batch) {
            true => Pin::GiveUp { batch },
            false => Pin::Look,
        }
    }

    pub(super) fn give(&mut self, want: Want, slab: bool) -> Pin {
        let open = self.is_open(want.batch);
        if want.relocation {
            self.seen.relocated += u64::from(slab);
            self.work_of(want.batch).slabs += usize::from(slab);
            self.publish(want.batch, true);
            return Pin::Look;
        }
        match self.works.get_mut(&want.batch) {
            Some(work) if open && work.on_board => {
                work.holders += 1;
                Pin::Fill { want, slab }
            }
            _ => {
                self.come_home(usize::from(slab));
                Pin::Look
            }
        }
    }
}
