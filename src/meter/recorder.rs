//! A recorder of what each thread does when, for a timeline. It is off unless the program asked for one: then an event costs one look at
//! a flag.

use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Instant, Mutex, Ordering, Weak, is_own_thread, thread, thread_local};

/// How many events are kept. The first ones are, so that what was recorded has no holes.
const MOST_EVENTS: usize = 1 << 17;

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Items are pulled from an iterable.
    Pull,
    /// Samples are loaded, decoded and filled into their rows; perhaps the whole batch is made.
    Load,
    /// The batch is laid out from all of its samples.
    LayOut,
    /// The batch is made of its rows.
    Collate,
    /// The batch is copied into page-locked memory.
    Pin,
    /// A slab is taken, or made.
    Slab,
    /// The batch waits for its slab.
    SlabWait,
    /// The batch's copies are enqueued.
    Send,
    /// The copies run.
    Copy,
    /// The consumer waits for the batch.
    Wait,
    /// The consumer is at work on the batch before.
    Step,
}

/// Something that took its time.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// The row of the timeline that it is in.
    pub(crate) row: usize,
    pub(crate) kind: Activity,
    pub(crate) epoch: u64,
    pub(crate) batch: Option<u64>,
    /// Since the recording began, in nanoseconds.
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) more: More,
}

/// What else is known of an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum More {
    #[default]
    Nothing,
    /// How long the samples of the run took to load and to decode, and their rows to fill, in nanoseconds.
    Spent([u64; 3]),
    /// How many batches were ready.
    Ready(u64),
    /// How many bytes were copied.
    Bytes(u64),
}

/// The rows of a timeline, by what is in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Row {
    Consumer(String),
    /// A thread of the library's.
    Thread(String),
    /// The batches that wait for their slabs.
    Slabs,
    /// The copies to a device.
    Copies(String),
}

/// What was recorded.
#[derive(Debug)]
pub(crate) struct Tape {
    began: Instant,
    pub(crate) rows: Vec<Row>,
    /// The thread of each row, if it is a thread's: several may have one name. It dangles once the thread has ended.
    threads: Vec<Weak<()>>,
    pub(crate) events: Vec<Event>,
    /// Events for which there was no room.
    pub(crate) dropped: u64,
}

/// Records for all epochs of a loader.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// 1 while it records.
    is_on: AtomicU64,
    tape: Mutex<Option<Arc<Mutex<Tape>>>>,
}

/// The recorder of an event, and the batch and epoch that the event belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(super) recorder: &'a Recorder,
    pub(super) epoch: u64,
    pub(crate) batch: Option<u64>,
}

/// An event of this thread that ends when it is dropped.
pub(crate) struct Bar<'a> {
    subject: Subject<'a>,
    kind: Activity,
    begin: Instant,
    pub(crate) more: More,
}

/// A copy that was enqueued while the recorder was on.
pub(crate) struct Enqueued {
    at: Instant,
    batch: Option<u64>,
    device: String,
    bytes: u64,
}

thread_local! {
    /// The batch that this thread is sending.
    static SENDING: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
    /// Tells this thread from others, as long as it runs.
    static THREAD: Arc<()> = Arc::new(());
}

impl Recorder {
    /// Begins a tape. One that was running ends, and keeps what it has.
    pub(crate) fn start(&self) -> Arc<Mutex<Tape>> {
        let tape = Arc::new(Mutex::new(Tape {
            began: Instant::now(),
            rows: Vec::new(),
            threads: Vec::new(),
            events: Vec::new(),
            dropped: 0,
        }));
        *self.tape.lock() = Some(Arc::clone(&tape));
        self.is_on.store(1, Ordering::Relaxed);
        tape
    }

    /// Ends a tape, if it is the one that is running.
    pub(crate) fn stop(&self, tape: &Arc<Mutex<Tape>>) {
        let mut running = self.tape.lock();
        if running.as_ref().is_some_and(|own| Arc::ptr_eq(own, tape)) {
            self.is_on.store(0, Ordering::Relaxed);
            *running = None;
        }
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed) > 0
    }

    fn add(&self, row: Row, event: impl FnOnce(&Tape, usize) -> Event) {
        let tape = self.tape.lock().clone();
        let Some(tape) = tape else { return };
        let mut tape = tape.lock();
        if tape.events.len() >= MOST_EVENTS {
            tape.dropped += 1;
            return;
        }
        let row = tape.row(row);
        let event = event(&tape, row);
        if event.end_ns > event.begin_ns {
            tape.events.push(event);
        }
    }
}

impl Tape {
    /// The number of a row; of a thread's, the calling thread's own. A thread that has ended leaves its row to the next of its name, or a
    /// loop that starts threads for each epoch would have rows without end.
    fn row(&mut self, row: Row) -> usize {
        let thread = match row {
            Row::Consumer(_) | Row::Thread(_) => THREAD.try_with(Arc::downgrade).ok(),
            Row::Slabs | Row::Copies(_) => None,
        };
        let thread = thread.unwrap_or_default();
        let find = |is_it: &dyn Fn(&Weak<()>) -> bool| {
            let mut rows = self.rows.iter().zip(&self.threads);
            rows.position(|(known, thread)| *known == row && is_it(thread))
        };
        let own = find(&|known| known.ptr_eq(&thread));
        let known = own.or_else(|| find(&|known| known.strong_count() == 0));
        match known {
            Some(known) => self.threads[known] = thread,
            None => {
                self.rows.push(row);
                self.threads.push(thread);
            }
        }
        known.unwrap_or(self.rows.len() - 1)
    }

    /// (What began before the recording is cut.)
    fn ns(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_nanos() as u64
    }
}

impl<'a> Subject<'a> {
    pub(crate) fn begin(self, kind: Activity) -> Bar<'a> {
        Bar {
            subject: self,
            kind,
            begin: Instant::now(),
            more: More::Nothing,
        }
    }

    /// Records an event of this thread.
    pub(crate) fn add(self, kind: Activity, begin: Instant, end: Instant, more: More) {
        self.add_to(own_row(), kind, begin, end, more);
    }

    /// Records that the batch waited for a slab.
    pub(crate) fn waited_for_slab(self, since: Instant) {
        let now = Instant::now();
        self.add_to(Row::Slabs, Activity::SlabWait, since, now, More::Nothing);
    }

    fn add_to(self, row: Row, kind: Activity, begin: Instant, end: Instant, more: More) {
        self.recorder.add(row, |tape, row| Event {
            row,
            kind,
            epoch: self.epoch,
            batch: self.batch,
            begin_ns: tape.ns(begin),
            end_ns: tape.ns(end),
            more,
        });
    }

    /// Records copies that are over, and took so long. They run one after the other, so they began when they were enqueued, or when
    /// those before them ended; and they ended before now.
    pub(crate) fn copied(self, copy: Enqueued, elapsed_ns: u64) {
        let now = Instant::now();
        self.recorder.add(Row::Copies(copy.device), |tape, row| {
            let mut before = tape.events.iter().rev();
            let before = before.find(|event| event.row == row);
            let free_ns = before.map_or(0, |event| event.end_ns);
            let last_ns = tape.ns(now).saturating_sub(elapsed_ns);
            let begin_ns = tape.ns(copy.at).max(free_ns).min(last_ns);
            Event {
                row,
                kind: Activity::Copy,
                epoch: self.epoch,
                batch: copy.batch,
                begin_ns,
                end_ns: begin_ns + elapsed_ns,
                more: More::Bytes(copy.bytes),
            }
        });
    }

    /// Runs `send`, whose copies are this batch's.
    pub(crate) fn sends<R>(self, send: impl FnOnce() -> R) -> R {
        let _bar = self.begin(Activity::Send);
        let before = SENDING.with(|sending| sending.replace(self.batch));
        let result = send();
        SENDING.with(|sending| sending.set(before));
        result
    }
}

impl Enqueued {
    pub(crate) fn now(device: String, bytes: u64) -> Enqueued {
        Enqueued {
            at: Instant::now(),
            batch: SENDING.with(std::cell::Cell::get),
            device,
            bytes,
        }
    }
}

impl Drop for Bar<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        self.subject.add(self.kind, self.begin, now, self.more);
    }
}

/// The row of the calling thread.
fn own_row() -> Row {
    let thread = thread::current();
    let name = thread.name().unwrap_or_default();
    match is_own_thread() {
        true => Row::Thread(name.trim_start_matches("pinfeed-").to_owned()),
        false => Row::Consumer(name.to_owned()),
    }
}
