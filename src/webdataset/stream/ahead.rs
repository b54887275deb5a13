//! What a thread makes ahead of another one, up to a weight: [`ahead`].

use std::collections::VecDeque;

use crate::sync::{Arc, Condvar, Mutex, planted};
use crate::system::Process;

/// A queue between a thread that gives and one that takes. The giver waits while what lies there weighs `most` or more.
pub(super) fn ahead<T>(most: usize) -> (Giver<T>, Taker<T>) {
    let queue = Arc::new(Queue {
        most,
        state: Mutex::new(State {
            things: VecDeque::new(),
            weight: 0,
            is_over: false,
            is_left: false,
        }),
        changed: Condvar::new(),
    });
    let taker = Taker {
        queue: Arc::clone(&queue),
        process: Process::this(),
    };
    (Giver(queue), taker)
}

struct Queue<T> {
    most: usize,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    things: VecDeque<(T, usize)>,
    weight: usize,
    /// The giver has gone.
    is_over: bool,
    /// The taker has gone.
    is_left: bool,
}

pub(super) struct Giver<T>(Arc<Queue<T>>);

impl<T> Giver<T> {
    /// Waits until there is room. `false`: the taker has gone.
    pub(super) fn has_room(&self) -> bool {
        let mut state = self.0.state.lock();
        while !state.is_left && state.weight >= self.0.most {
            self.0.changed.wait(&mut state);
        }
        !state.is_left
    }

    /// Adds a thing, whatever it weighs. (So there is one more than `most` at most, if there was [room](Giver::has_room).)
    pub(super) fn give(&self, thing: T, weight: usize) {
        let mut state = self.0.state.lock();
        if state.is_left {
            drop(state); // before `thing`
            return;
        }
        state.things.push_back((thing, weight));
        state.weight += weight;
        drop(state);
        self.0.changed.notify_all();
    }
}

impl<T> Drop for Giver<T> {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        if !planted("a reader of shards ends in silence") {
            self.0.changed.notify_all();
        }
    }
}

pub(super) struct Taker<T> {
    queue: Arc<Queue<T>>,
    /// In a process that was forked from it, there is no thread that gives, and one that is gone may have the lock.
    process: Process,
}

impl<T> Taker<T> {
    /// Whether the thread that gives is in the calling process. Otherwise, nothing is to be taken.
    pub(super) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    /// Waits for the next thing. `None`: the giver has gone, and there is none left.
    pub(super) fn take(&self) -> Option<T> {
        let mut state = self.queue.state.lock();
        let taken = loop {
            if let Some((thing, weight)) = state.things.pop_front() {
                state.weight -= weight;
                break Some(thing);
            }
            if state.is_over {
                break None;
            }
            self.queue.changed.wait(&mut state);
        };
        drop(state);
        self.queue.changed.notify_all();
        taken
    }
}

impl<T> Drop for Taker<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        let things = {
            let mut state = self.queue.state.lock();
            state.is_left = true;
            std::mem::take(&mut state.things)
        };
        self.queue.changed.notify_all();
        drop(things); // without the lock
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::sync::thread;

    fn start(gives: impl FnOnce() -> u64 + Send + 'static) -> thread::JoinHandle<u64> {
        let named = thread::Builder::new().name("gives".to_owned());
        named.spawn(gives).unwrap()
    }

    #[test]
    fn what_is_given_is_taken_in_order_and_both_ends_may_go_first() {
        let (giver, taker) = ahead(10);
        let gives = move || {
            let mut given = 0;
            while given < 1_000 && giver.has_room() {
                giver.give(given, 3);
                given += 1;
            }
            given
        };
        let giver = start(gives);
        assert!((0..1_000).all(|number| taker.take() == Some(number)));
        assert_eq!((taker.take(), giver.join().unwrap()), (None, 1_000));

        let (giver, taker) = ahead(10);
        let waits = start(move || {
            let mut given = 0;
            while giver.has_room() {
                giver.give(given, 3);
                given += 1;
            }
            given
        });
        assert_eq!(taker.take(), Some(0));
        drop(taker);
        assert!((1..=5).contains(&waits.join().unwrap()));
    }
}
