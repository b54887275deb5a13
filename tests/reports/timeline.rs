//! Timelines: what is recorded of which thread, and what the page holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use pinfeed::loader::Timeline;
use pinfeed::{DataLoader, Device, from_fn, iterable};
use serde_json::Value;

/// An event of the trace: its row, its name, epoch and batch, and when it began and ended.
#[derive(Debug, Clone)]
struct Event {
    row: String,
    name: String,
    epoch: u64,
    batch: Option<u64>,
    begin: f64,
    end: f64,
    args: Value,
}

fn events(timeline: &Timeline) -> Vec<Event> {
    let trace: Value = serde_json::from_str(&timeline.to_chrome_trace()).unwrap();
    let trace = trace["traceEvents"].as_array().unwrap();
    let names = trace.iter().filter(|event| event["name"] == "thread_name");
    let names: BTreeMap<u64, &str> = names
        .map(|event| {
            let name = event["args"]["name"].as_str().unwrap();
            (event["tid"].as_u64().unwrap(), name)
        })
        .collect();
    let spans = trace.iter().filter(|event| event["ph"] == "X");
    let spans = spans.map(|event| {
        let begin = event["ts"].as_f64().unwrap();
        Event {
            row: names[&event["tid"].as_u64().unwrap()].to_owned(),
            name: event["name"].as_str().unwrap().to_owned(),
            epoch: event["args"]["epoch"].as_u64().unwrap(),
            batch: event["args"]["batch"].as_u64(),
            begin,
            end: begin + event["dur"].as_f64().unwrap(),
            args: event["args"].clone(),
        }
    });
    let spans: Vec<Event> = spans.collect();
    assert_eq!(spans.len(), timeline.len());
    spans
}

/// The batches that have events of this name.
fn batches(events: &[Event], name: &str) -> Vec<u64> {
    let events = events.iter().filter(|event| event.name == name);
    let batches: BTreeSet<u64> = events.filter_map(|event| event.batch).collect();
    batches.into_iter().collect()
}

fn all<T>(epoch: impl Iterator<Item = pinfeed::Result<T>>) {
    epoch.for_each(|batch| drop(batch.unwrap()));
}

#[test]
fn each_batch_is_loaded_collated_sent_copied_and_waited_for() {
    let device = Device::cpu();
    // (Batches that take microseconds are made from end to end, and are one bar.)
    let samples = from_fn(40, |index, _| {
        thread::sleep(Duration::from_millis(1));
        Ok(vec![index as f32; 256])
    });
    let loader = DataLoader::builder(samples)
        .batch_size(4)
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    let recording = loader.record();
    let mut epoch = loader.epoch(3).prefetch_to_device(&device, 2);
    for batch in epoch.by_ref() {
        batch.unwrap().to_host(true).unwrap().wait().unwrap(); // its copy is over
    }
    drop(epoch);
    let timeline = recording.finish();
    assert_eq!(timeline.dropped(), 0);
    let events = events(&timeline);
    assert!(events.iter().all(|event| event.epoch == 3));
    let every: Vec<u64> = (0..10).collect();
    for name in [
        "load",
        "collate",
        "slab wait",
        "send",
        "copy",
        "wait",
        "step",
    ] {
        assert_eq!(batches(&events, name), every, "{name}: {events:#?}");
    }
    let rows: BTreeSet<&str> = events.iter().map(|event| &*event.row).collect();
    assert!(
        rows.contains("copies to CPU") || rows.contains("copies to cpu"),
        "{rows:?}"
    );
    assert!(
        rows.iter().any(|row| row.starts_with("consumer")),
        "{rows:?}"
    );
    assert!(
        rows.contains("worker 0") || rows.contains("worker 1"),
        "{rows:?}"
    );

    for event in &events {
        assert!(event.begin <= event.end);
        let is_consumers = ["wait", "step"].contains(&&*event.name);
        assert!(!is_consumers || event.row.starts_with("consumer"));
        assert!(event.name != "copy" || event.args["bytes"] == 4 * 256 * 4);
    }
    // A batch is loaded before it is sent, and sent before the wait for it is over.
    for batch in every {
        let of = |name: &str| -> Vec<&Event> {
            let own = |event: &&Event| event.name == name && event.batch == Some(batch);
            events.iter().filter(own).collect()
        };
        let (sent, waited) = (of("send"), of("wait"));
        assert!(of("load").iter().all(|load| load.begin <= sent[0].begin));
        assert!(sent[0].begin <= waited.last().unwrap().end);
        assert!(of("copy")[0].begin >= sent[0].begin);
    }
    // The consumer does one thing at a time, and so does the stream of the copies.
    for row in ["consumer", "copies"] {
        let names = ["wait", "step", "copy"];
        let own = |event: &&Event| event.row.starts_with(row) && names.contains(&&*event.name);
        let own: Vec<_> = events.iter().filter(own).collect();
        let follows = |pair: &[&Event]| pair[0].end <= pair[1].begin + 0.01;
        assert!(own.windows(2).all(follows), "{own:#?}");
    }
}

#[test]
fn nothing_is_recorded_unless_it_is_asked_for() {
    let loader = DataLoader::builder(from_fn(40, |index, _| Ok(index as i64)))
        .batch_size(4)
        .num_workers(2)
        .build()
        .unwrap();
    all(loader.epoch(0));
    let recording = loader.record();
    all(loader.epoch(1));
    let timeline = recording.finish();
    all(loader.epoch(2));
    let epochs: BTreeSet<u64> = events(&timeline).iter().map(|event| event.epoch).collect();
    assert_eq!(epochs, [1].into());
    // One that was dropped is over, and one behind it begins anew.
    drop(loader.record());
    all(loader.epoch(3));
    let (first, second) = (loader.record(), loader.record());
    all(loader.epoch(4));
    assert!(first.finish().is_empty()); // the second ended it
    all(loader.epoch(5));
    let epochs: BTreeSet<u64> = events(&second.finish())
        .iter()
        .map(|event| event.epoch)
        .collect();
    assert_eq!(epochs, [4, 5].into());
}

#[test]
fn the_consumer_does_everything_without_workers() {
    let loader = DataLoader::builder(from_fn(12, |index, _| Ok(index as i64)))
        .batch_size(4)
        .build()
        .unwrap();
    let recording = loader.record();
    all(loader.epoch(0));
    let events = events(&recording.finish());
    assert!(events.iter().all(|event| event.row.starts_with("consumer")));
    assert_eq!(batches(&events, "load"), [0, 1, 2]);
    assert_eq!(batches(&events, "wait"), [0, 1, 2]);
}

#[test]
fn pulls_of_a_stream_are_there() {
    let items = iterable::from_fn(|_, _| Ok((0..12i64).map(Ok)));
    let loader = DataLoader::iterable(items)
        .batch_size(4)
        .num_workers(2)
        .build()
        .unwrap();
    let recording = loader.record();
    for epoch in loader.epochs(0..2) {
        all(epoch);
    }
    let events = events(&recording.finish());
    for epoch in 0..2 {
        let own = events.iter().filter(|event| event.epoch == epoch);
        let own: Vec<Event> = own.cloned().collect();
        assert_eq!(batches(&own, "load"), [0, 1, 2]);
        assert_eq!(batches(&own, "pull")[..3], [0, 1, 2]);
    }
}

#[test]
fn a_recording_is_bounded() {
    let loader = DataLoader::builder(from_fn(50_000, |index, _| Ok(index as u8)))
        .batch_size(1)
        .build()
        .unwrap();
    let recording = loader.record();
    all(loader.epoch(0));
    let timeline = recording.finish();
    assert_eq!(timeline.len(), 1 << 17);
    assert!(timeline.dropped() > 0);
    let trace = timeline.to_chrome_trace();
    assert!(trace.contains("\"batch\":1000") && !trace.contains("\"batch\":49999")); // the first ones are kept
}

/// What the script of the page gets.
fn data(page: &str) -> Value {
    let (_, rest) = page
        .split_once("<script id=\"data\" type=\"application/json\">")
        .unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

#[test]
fn the_page_stands_alone_whatever_threads_are_called() {
    let loader = DataLoader::builder(from_fn(12, |index, _| Ok(index as i64)))
        .batch_size(4)
        .build()
        .unwrap();
    let recording = loader.record();
    let name = "a \"trainer\" \\ </script><script>alert(1)</script>\n/*DATA*/";
    let thread = std::thread::Builder::new().name(name.to_owned());
    std::thread::scope(|scope| {
        let run = || all(loader.epoch(0));
        thread.spawn_scoped(scope, run).unwrap().join().unwrap();
    });
    let timeline = recording.finish();
    let page = timeline.to_html();
    let data = data(&page);
    assert_eq!(data["rows"][0][0], format!("consumer ({name})"));
    assert_eq!(data["events"].as_array().unwrap().len(), timeline.len());
    assert!(!page.contains("alert(1)</script>"));
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(events(&timeline)[0].row, format!("consumer ({name})"));
}

/// Consumers of one loader on threads without names, each with a row of its own; and so has the pin thread of each device. Threads that
/// are started anew for each epoch take the rows of those that have ended.
#[test]
fn threads_of_one_name_have_rows_of_their_own() {
    let devices = [Device::cpu(), Device::cpu()];
    let samples = from_fn(40, |index, _| Ok(vec![index as f32; 256]));
    let loader = DataLoader::builder(samples)
        .batch_size(4)
        .num_workers(2)
        .pin_memory(&devices)
        .pin_by_copy(true)
        .build()
        .unwrap();
    let recording = loader.record();
    for epoch in 0..3 {
        let both = Barrier::new(2);
        thread::scope(|scope| {
            let epochs = loader.epoch(epoch).split(&devices, 1).into_iter();
            let threads: Vec<_> = epochs
                .map(|mut epoch| {
                    scope.spawn(|| {
                        all(epoch.by_ref().take(2));
                        both.wait(); // neither is over before the other has begun
                        all(epoch);
                    })
                })
                .collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        });
    }
    let events = events(&recording.finish());
    let rows: BTreeSet<&str> = events.iter().map(|event| &*event.row).collect();
    // (This thread sends what is ready when it says where the epochs go.)
    let this = thread::current();
    let of = |kind: &str| -> Vec<&str> {
        let rows = rows.iter().copied().filter(|row| row.starts_with(kind));
        rows.filter(|row| !row.contains(this.name().unwrap()))
            .collect()
    };
    assert_eq!(of("consumer"), ["consumer", "consumer (2)"]);
    assert_eq!(of("pin"), ["pin thread 0", "pin thread 1"]);
    for row in of("consumer") {
        let is_own = |event: &&Event| event.row == row && ["wait", "step"].contains(&&*event.name);
        let mut own: Vec<&Event> = events.iter().filter(is_own).collect();
        own.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        // (They are in microseconds, rounded to nanoseconds.)
        assert!(
            own.windows(2).all(|two| two[0].end <= two[1].begin + 0.002),
            "{own:#?}"
        );
        let steps = own.iter().filter(|event| event.name == "step");
        assert_eq!(steps.count(), 3 * 5);
    }
}
