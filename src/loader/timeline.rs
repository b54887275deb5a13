//! A timeline: what each thread did when, as a page for a browser.

use std::fmt::Write;

use crate::meter::{Activity, Event, Meters, More, Row, Tape};
use crate::sync::{Arc, Mutex};
use crate::system::Process;

/// The page, with a place for what was recorded.
const PAGE: &str = include_str!("timeline/page.html");
const PLACE: &str = "/*DATA*/";

/// Records what the threads of a loader do, until [`finish`](Recording::finish):
/// [`DataLoader::record`](crate::DataLoader::record) begins it.
///
/// # Examples
///
/// ```
/// use pinfeed::{BoxError, DataLoader, Device, from_fn};
///
/// # let folder = tempfile::tempdir()?;
/// let device = Device::cpu();
/// let samples = from_fn(1_000, |index, _| Ok(vec![index as f32; 256]));
/// let loader = DataLoader::builder(samples).batch_size(50).num_workers(2).pin_memory(&device).build()?;
///
/// let recording = loader.record();
/// for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
///     let batch = batch?; // the training step
///     # drop(batch);
/// }
/// let timeline = recording.finish();
/// let page = std::path::Path::new("timeline.html");
/// # let page = folder.path().join(page);
/// std::fs::write(page, timeline.to_html())?; // open it in a browser
/// # assert!(timeline.len() > 20);
/// # Ok::<(), BoxError>(())
/// ```
#[derive(Debug)]
#[must_use = "it records until it is dropped"]
pub struct Recording {
    meters: Arc<Meters>,
    tape: Arc<Mutex<Tape>>,
    /// That of the threads that record, if there are any beside the consumers.
    process: Option<Process>,
}

impl Recording {
    /// `has_workers`: of its process, which another that is forked from it has not.
    pub(super) fn start(meters: &Arc<Meters>, has_workers: bool) -> Recording {
        Recording {
            meters: Arc::clone(meters),
            tape: meters.recorder.start(),
            process: has_workers.then(Process::this),
        }
    }

    /// Whether threads of another process may hold its locks.
    fn has_lost_threads(&self) -> bool {
        self.process.is_some_and(|process| !process.is_this())
    }

    /// Ends the recording, and returns what was recorded. What is going on at this moment, and copies that are in flight, are left out. In
    /// a forked child of a loader with workers, nothing was recorded.
    pub fn finish(self) -> Timeline {
        if self.has_lost_threads() {
            return Timeline {
                rows: Vec::new(),
                events: Vec::new(),
                dropped: 0,
            };
        }
        self.meters.settle(); // copies that are over
        self.meters.recorder.stop(&self.tape);
        let mut tape = self.tape.lock();
        let mut events = std::mem::take(&mut tape.events);
        events.sort_by_key(|event| event.begin_ns);
        Timeline {
            rows: tape.rows.clone(),
            events,
            dropped: tape.dropped,
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.has_lost_threads() {
            return;
        }
        self.meters.recorder.stop(&self.tape);
    }
}

/// What the threads of a loader did when: [`Recording::finish`] makes it.
///
/// # Reading it
///
/// There is a row for each consumer, worker and pin thread, for the batches that wait for a slab, and for the copies to each device. (The
/// rows of threads that have the same name, or none, are numbered. A thread that has ended leaves its row to the next of its name.)
///
/// - A *load* is a run of samples of one batch, or a whole batch that one worker makes; its colours show how much of it was loading,
///   decoding and filling rows, not in which order.
/// - A *copy* is as long as the device's events say. It begins when it was enqueued, or when the copy before it ended. (One that the
///   program starts by `to_device` of a batch has no batch number.)
/// - The consumer *waits* until the call of `next` has the batch, and is *at work* until the next call.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64))).batch_size(10).build()?;
/// let recording = loader.record();
/// for batch in loader.epoch(0) {
///     batch?;
/// }
/// let timeline = recording.finish();
/// let page = timeline.to_html(); // for a browser
/// let trace = timeline.to_chrome_trace(); // for https://ui.perfetto.dev
/// # assert!(page.len() > trace.len() && timeline.dropped() == 0);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Timeline {
    rows: Vec<Row>,
    /// By when they began.
    events: Vec<Event>,
    dropped: u64,
}

impl Timeline {
    /// Returns how many events there are.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns how many events came after the recording was full: it keeps the first 131,072.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns a page that shows the timeline in a browser. It is one file, and needs no network.
    pub fn to_html(&self) -> String {
        let mut data = String::with_capacity(64 * self.events.len() + 1024);
        data.push_str("{\"rows\":[");
        for (number, (row, name)) in self.rows.iter().zip(self.names()).enumerate() {
            data.push_str(if number > 0 { ",[" } else { "[" });
            quote(&mut data, &name);
            _ = write!(data, ",\"{}\"]", row_kind(row));
        }
        data.push_str("],\"events\":[");
        for (number, event) in self.events.iter().enumerate() {
            let (row, kind, epoch) = (event.row, event.kind as usize, event.epoch);
            let batch = or_null(event.batch);
            let (begin, length) = (event.begin_ns, event.end_ns - event.begin_ns);
            let more = match event.more {
                More::Nothing => "null".to_owned(),
                More::Spent([load, decode, fill]) => format!("[{load},{decode},{fill}]"),
                More::Ready(number) | More::Bytes(number) => number.to_string(),
            };
            data.push_str(if number > 0 { ",\n" } else { "\n" });
            _ = write!(
                data,
                "[{row},{kind},{epoch},{batch},{begin},{length},{more}]"
            );
        }
        _ = write!(data, "],\"dropped\":{}}}", self.dropped);
        PAGE.replacen(PLACE, &data, 1)
    }

    /// Returns the timeline in the trace event format, which Perfetto and Chrome's own viewer read.
    pub fn to_chrome_trace(&self) -> String {
        let mut trace = String::with_capacity(160 * self.events.len() + 1024);
        trace.push_str("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
        for (number, name) in self.names().enumerate() {
            _ = write!(
                trace,
                "{{\"ph\":\"M\",\"pid\":1,\"tid\":{number},\"name\":\"thread_name\",\"args\":{{\"name\":"
            );
            quote(&mut trace, &name);
            trace.push_str("}},\n");
        }
        for event in &self.events {
            let (name, row, epoch) = (activity_name(event.kind), event.row, event.epoch);
            let batch = or_null(event.batch);
            let us = |ns: u64| ns as f64 / 1e3;
            let (begin, length) = (us(event.begin_ns), us(event.end_ns - event.begin_ns));
            _ = write!(
                trace,
                "{{\"ph\":\"X\",\"pid\":1,\"tid\":{row},\"name\":\"{name}\",\"cat\":\"pinfeed\",\"ts\":{begin:.3},\"dur\":{length:.3},\
                 \"args\":{{\"epoch\":{epoch},\"batch\":{batch}"
            );
            _ = match event.more {
                More::Nothing => Ok(()),
                More::Spent([load, decode, fill]) => write!(
                    trace,
                    ",\"loading_ns\":{load},\"decoding_ns\":{decode},\"filling_ns\":{fill}"
                ),
                More::Ready(number) => write!(trace, ",\"ready\":{number}"),
                More::Bytes(number) => write!(trace, ",\"bytes\":{number}"),
            };
            trace.push_str("}},\n");
        }
        trace.push_str(
            "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"pinfeed\"}}\n]}",
        );
        trace
    }
}

impl Timeline {
    /// The names of the rows: those that would have the same are numbered.
    fn names(&self) -> impl Iterator<Item = String> {
        self.rows.iter().enumerate().map(|(at, row)| {
            let before = self.rows[..at].iter().filter(|before| *before == row);
            match before.count() {
                0 => row_name(row),
                before => format!("{} ({})", row_name(row), before + 1),
            }
        })
    }
}

fn row_name(row: &Row) -> String {
    match row {
        Row::Consumer(name) if name.is_empty() || name == "main" => "consumer".to_owned(),
        Row::Consumer(name) => format!("consumer ({name})"),
        Row::Thread(name) => match name.split_once('-') {
            Some(("worker", number)) => format!("worker {number}"),
            Some(("pin", device)) => format!("pin thread {device}"),
            None if name == "pin" => "pin thread".to_owned(),
            _ => name.clone(),
        },
        Row::Slabs => "slab waits".to_owned(),
        Row::Copies(device) => format!("copies to {device}"),
    }
}

fn row_kind(row: &Row) -> &'static str {
    match row {
        Row::Consumer(_) => "consumer",
        Row::Thread(name) if name.starts_with("worker") => "worker",
        Row::Thread(_) => "pin",
        Row::Slabs => "slabs",
        Row::Copies(_) => "copies",
    }
}

/// As in the spans of the feature `tracing`, where there is one.
fn activity_name(activity: Activity) -> &'static str {
    match activity {
        Activity::Pull => "pull",
        Activity::Load => "load",
        Activity::LayOut => "lay out",
        Activity::Collate => "collate",
        Activity::Pin => "pin",
        Activity::Slab => "slab",
        Activity::SlabWait => "slab wait",
        Activity::Send => "send",
        Activity::Copy => "copy",
        Activity::Wait => "wait",
        Activity::Step => "step",
    }
}

fn or_null(number: Option<u64>) -> String {
    number.map_or("null".to_owned(), |number| number.to_string())
}

/// Adds a string of JSON that may also stand in a script of a page: the names of threads are the program's.
fn quote(to: &mut String, text: &str) {
    to.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => to.extend(['\\', letter]),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => _ = write!(to, "\\u{:04x}", letter as u32),
            letter if letter.is_control() => _ = write!(to, "\\u{:04x}", letter as u32),
            letter => to.push(letter),
        }
    }
    to.push('"');
}
