//! A small library of C stands in for nvJPEG, on the CPU device: tests/drivers/libnvjpeg.c.

mod gpu;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use tempfile::TempDir;

use super::*;
use crate::SampleRng;
use crate::driver::cpu::Cpu;
use crate::driver::{Driver, RawStream};
use crate::picture::{Change, Colour, Cut, Drawing, Filter, Planes, Sampling, Warp};
use crate::rng::RngKey;
use crate::sync::{Arc, OnceLock};

/// Builds the stand-in. Each has its own folder, and so its own counts.
fn stub(defines: &[&str]) -> TempDir {
    static PLAIN: OnceLock<TempDir> = OnceLock::new();
    if !defines.is_empty() {
        return built(defines);
    }
    let folder = tempfile::tempdir().unwrap();
    let plain = PLAIN.get_or_init(|| built(&[])).path().join(NAME);
    std::fs::copy(plain, folder.path().join(NAME)).unwrap();
    folder
}

const NAME: &str = "libnvjpeg.so.13";

fn built(defines: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers/libnvjpeg.c");
    let built = Command::new("cc")
        .args([
            "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o",
        ])
        .arg(folder.path().join(NAME))
        .arg(source)
        .args(defines)
        .status()
        .expect("the stand-in is compiled by a C compiler");
    assert!(built.success());
    folder
}

fn refused(defines: &[&str], driver: Option<i32>) -> String {
    let folder = stub(defines);
    match Library::open(Some(folder.path()), driver) {
        Ok(library) => panic!("{:?} was taken", library.path()),
        Err(fault) => fault.to_string(),
    }
}

#[track_caller]
fn assert_says(said: &str, words: &[&str]) {
    for words in words {
        assert!(said.contains(words), "`{said}` lacks `{words}`");
    }
}

#[test]
fn a_library_that_cannot_be_used_says_where_to_get_another() {
    let said = refused(&["-DMAJOR=11", "-DMINOR=9"], None);
    assert_says(
        &said,
        &["libnvjpeg.so.13 is nvJPEG 11.9", "12.0 or newer is needed"],
    );
    let said = refused(&["-DPROPERTY_RESULT=1"], None);
    assert_says(
        &said,
        &[
            "libnvjpeg.so.13",
            "nvjpegGetProperty",
            "NOT_INITIALIZED (1)",
        ],
    );
    let said = refused(&["-DLACKS_DECODE"], None);
    assert_says(&said, &["lacks `nvjpegDecodeBatched`", "CUDA 12 or 13"]);
    let said = refused(&["-DLACKS_INFO"], None);
    assert_says(&said, &["lacks `nvjpegGetHardwareDecoderInfo`"]);
    let said = refused(&[], Some(12_080));
    assert_says(
        &said,
        &["is of CUDA 13", "supports 12.8", "nvidia-nvjpeg-cu12"],
    );

    let nowhere = tempfile::tempdir().unwrap();
    for path in [
        nowhere.path().to_owned(),
        nowhere.path().join("libnvjpeg.so.12"),
    ] {
        let said = Library::open(Some(&path), None).err().unwrap().to_string();
        assert_says(
            &said,
            &[
                "nvJPEG was not found",
                "libnvjpeg.so.12",
                "nvidia-nvjpeg",
                "LD_LIBRARY_PATH",
            ],
        );
    }
    std::fs::write(nowhere.path().join("libnvjpeg.so.12"), "no library").unwrap();
    let said = Library::open(Some(nowhere.path()), None)
        .err()
        .unwrap()
        .to_string();
    assert_says(
        &said,
        &["nvJPEG was not found", "libnvjpeg.so.13", "libnvjpeg.so.12"],
    );
}

#[test]
fn a_path_is_that_of_the_library_or_its_folder() {
    let folder = stub(&["-DMINOR=2"]);
    for path in [folder.path().to_owned(), folder.path().join(NAME)] {
        let library = Library::open(Some(&path), Some(13_000)).unwrap();
        assert_eq!(library.version(), (13, 2));
        assert_eq!(library.path(), folder.path().join(NAME));
    }
}

/// A folder may have the libraries of several versions of CUDA.
#[test]
fn a_folder_has_the_library_that_the_driver_takes() {
    let folder = stub(&[]);
    let old = built(&["-DMAJOR=12", "-DMINOR=4"]);
    let old_name = "libnvjpeg.so.12";
    std::fs::copy(old.path().join(NAME), folder.path().join(old_name)).unwrap();
    for (driver, version, name) in [
        (Some(12_080), (12, 4), old_name),
        (Some(13_000), (13, 0), NAME),
        (None, (13, 0), NAME),
    ] {
        let library = Library::open(Some(folder.path()), driver).unwrap();
        assert_eq!(library.version(), version);
        assert_eq!(library.path(), folder.path().join(name));
    }
}

/// In a process of its own, whose environment is the test's.
#[test]
fn an_empty_variable_is_not_set() {
    const HERE: &str = "PINFEED_TEST_OF_VARIABLES";
    if std::env::var_os(HERE).is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["an_empty_variable_is_not_set", "--nocapture"])
            .env(HERE, "1")
            .env("CUDA_HOME", "")
            .env("CUDA_PATH", "/of/cuda")
            .env("PINFEED_NVJPEG", "")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        assert_says(&said, &["1 passed"]);
        return;
    }
    assert_eq!(variable("PINFEED_NVJPEG"), None);
    let candidates = candidates(None);
    let tried = |path: &str| candidates.iter().any(|(tried, _)| tried == Path::new(path));
    assert!(tried("libnvjpeg.so.13")); // wherever the loader finds it
    assert!(tried("/of/cuda/lib64/libnvjpeg.so.13"));
    // What has a folder is no file of the one that the program runs in.
    assert!(
        candidates
            .iter()
            .all(|(path, _)| path.is_absolute() || path.components().count() == 1)
    );
}

/// Memory that counts what is out.
#[derive(Default)]
struct Counted {
    out: AtomicUsize,
    most: AtomicUsize,
    /// How much may be out.
    all: AtomicUsize,
    /// What nvJPEG takes without asking.
    reserved: AtomicUsize,
    /// Allocations panic.
    panics: std::sync::atomic::AtomicBool,
}

impl Counted {
    fn take(&self, bytes: usize) -> Option<*mut u8> {
        assert!(!self.panics.load(Ordering::SeqCst), "as a pool might");
        let all = self.out.load(Ordering::SeqCst) + bytes;
        if bytes > self.most.load(Ordering::SeqCst) || all > self.all.load(Ordering::SeqCst) {
            return None;
        }
        self.out.fetch_add(bytes, Ordering::SeqCst);
        Some(Box::leak(vec![0u8; bytes].into_boxed_slice()).as_mut_ptr())
    }

    fn give_back(&self, address: *mut u8, bytes: usize) {
        self.out.fetch_sub(bytes, Ordering::SeqCst);
        let slice = std::ptr::slice_from_raw_parts_mut(address, bytes);
        // SAFETY: `take` made it of a box of that size.
        drop(unsafe { Box::from_raw(slice) });
    }
}

/// The most that may be reserved.
const MOST_RESERVED: usize = 500 << 20;

struct Shared(Arc<Counted>);

impl Memory for Shared {
    fn take(&self, bytes: usize) -> Option<u64> {
        self.0.take(bytes).map(|address| address as u64)
    }

    fn give_back(&self, address: u64, bytes: usize) {
        self.0.give_back(address as *mut u8, bytes);
    }

    fn reserve(&self, bytes: usize) -> bool {
        let with = |reserved: usize| Some(reserved + bytes).filter(|all| *all <= MOST_RESERVED);
        let (relaxed, reserved) = (Ordering::Relaxed, &self.0.reserved);
        reserved.fetch_update(relaxed, relaxed, with).is_ok()
    }

    fn release(&self, bytes: usize) {
        self.0.reserved.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl HostMemory for Shared {
    fn take(&self, bytes: usize) -> Option<*mut u8> {
        self.0.take(bytes)
    }

    fn give_back(&self, address: *mut u8, bytes: usize) {
        self.0.give_back(address, bytes);
    }
}

/// A decoder with the stand-in, on the CPU device.
struct Bench {
    driver: Driver,
    stream: RawStream,
    memory: Arc<Counted>,
    host: Arc<Counted>,
    library: Arc<Library>,
    counts: libloading::Library,
    _folder: TempDir,
}

impl Bench {
    fn new(defines: &[&str]) -> Bench {
        Bench::on(Cpu::new(None), defines)
    }

    fn on(device: Cpu, defines: &[&str]) -> Bench {
        let folder = stub(defines);
        let driver = Driver::Cpu(device);
        let counted = || {
            Arc::new(Counted {
                most: usize::MAX.into(),
                all: usize::MAX.into(),
                ..Counted::default()
            })
        };
        let path = folder.path().join(NAME);
        Bench {
            stream: driver.create_stream().unwrap(),
            driver,
            memory: counted(),
            host: counted(),
            library: Arc::new(Library::open(Some(folder.path()), None).unwrap()),
            // SAFETY: it is loaded already, and has no constructors.
            counts: unsafe { libloading::Library::new(path) }.unwrap(),
            _folder: folder,
        }
    }

    fn open(&self, backend: Backend) -> Result<Decoder, DecoderFault> {
        let (memory, host) = (Shared(self.memory.clone()), Shared(self.host.clone()));
        Decoder::open(
            self.library.clone(),
            &self.driver,
            backend,
            Box::new(memory),
            Box::new(host),
        )
    }

    fn number(&self, name: &str) -> &AtomicI32 {
        // SAFETY: the stand-in has these, as integers, for as long as it is loaded.
        unsafe { AtomicI32::from_ptr(*self.counts.get::<*mut i32>(name.as_bytes()).unwrap()) }
    }

    fn count(&self, name: &str) -> i32 {
        self.number(name).load(Ordering::SeqCst)
    }

    /// How many handles and states there are.
    fn alive(&self) -> (i32, i32) {
        (self.count("stub_handles"), self.count("stub_states"))
    }

    fn set(&self, name: &str, value: i32) {
        self.number(name).store(value, Ordering::SeqCst);
    }
}

/// A picture of 5 x 4 pixels in 4:2:0.
struct Picture {
    file: [u8; 8],
    planes: [Vec<u8>; 3],
}

const UNTOUCHED: u8 = 0xEE;

impl Picture {
    fn new(kind: char, number: u8) -> Picture {
        Picture {
            file: [kind as u8, number, 4, 0, 2, 0, 0, 0],
            planes: [20, 6, 6].map(|bytes| vec![UNTOUCHED; bytes]),
        }
    }

    fn all(kinds: &str) -> Vec<Picture> {
        (1..)
            .zip(kinds.chars())
            .map(|(number, kind)| Picture::new(kind, number))
            .collect()
    }

    fn coded(&mut self) -> Coded<'_> {
        Coded {
            size: [5, 4],
            planes: self
                .planes
                .each_mut()
                .map(|plane| plane.as_mut_ptr() as u64),
            pitch: [5, 3, 3],
            bytes: &self.file,
        }
    }

    fn is_decoded(&self) -> bool {
        let planes = self.planes.iter().enumerate();
        let mut bytes = planes.flat_map(|(plane, bytes)| {
            bytes
                .iter()
                .enumerate()
                .map(move |(at, byte)| (31 * plane + 7 * at, *byte))
        });
        bytes.all(|(added, byte)| byte == (usize::from(self.file[1]) + added) as u8)
    }

    fn is_untouched(&self) -> bool {
        self.planes.iter().flatten().all(|byte| *byte == UNTOUCHED)
    }
}

fn decode(
    bench: &Bench,
    state: &mut State,
    pictures: &mut [Picture],
) -> Result<Vec<Verdict>, DecoderFault> {
    let coded: Vec<_> = pictures.iter_mut().map(Picture::coded).collect();
    // SAFETY: the planes and files are the test's, and the CPU device's stand-in is done when it returns.
    let verdicts = unsafe { state.decode(&bench.stream, &coded) }?;
    judge(&bench.driver, &verdicts).map(|()| verdicts)
}

/// Each letter is a picture, and what becomes of it: `d`ecoded, or its letter again.
fn told(verdicts: &[Verdict]) -> String {
    let letter = |verdict: &Verdict| match verdict {
        Verdict::Decoded => 'd',
        Verdict::NoMemory => 'm',
        Verdict::Refused(Status(3)) => 'b',
        Verdict::Refused(Status(4)) => 'u',
        Verdict::Refused(Status(8)) => 'x',
        Verdict::Refused(_) => '?',
    };
    verdicts.iter().map(letter).collect()
}

#[test]
fn pictures_that_are_refused_cost_no_other_picture_anything() {
    let bench = Bench::new(&[]);
    let mut state = State::new(&bench.open(Backend::Hardware).unwrap(), Sampling::Both).unwrap();
    let clean = "d".repeat(64);
    let one_bad = format!("{}b{}", "d".repeat(40), "d".repeat(23));
    for kinds in [
        &*clean,
        &one_bad,
        "",
        "d",
        "b",
        "db",
        "bd",
        "dubxd",
        "bbbbb",
        "ddddddddddbd",
        &clean,
    ] {
        let mut pictures = Picture::all(kinds);
        let verdicts = decode(&bench, &mut state, &mut pictures).unwrap();
        assert_eq!(told(&verdicts), kinds);
        for (picture, verdict) in pictures.iter().zip(&verdicts) {
            assert_eq!(
                picture.is_decoded(),
                *verdict == Verdict::Decoded,
                "{kinds}"
            );
            assert!(picture.is_decoded() || picture.is_untouched());
        }
    }
}

/// A decoder that decodes nothing, and says nothing of the pictures, is itself at fault.
#[test]
fn a_decoder_that_fails_at_everything_is_a_fault() {
    let bench = Bench::new(&[]);
    let mut state = State::new(&bench.open(Backend::Hardware).unwrap(), Sampling::Both).unwrap();
    let with = |number: u8| Picture::new('#', number);
    for (status, name) in [
        (1, "NOT_INITIALIZED (1)"),
        (2, "INVALID_PARAMETER (2)"),
        (6, "EXECUTION_FAILED (6)"),
        (7, "ARCH_MISMATCH (7)"),
        (8, "INTERNAL_ERROR (8)"),
        (99, "status 99"),
    ] {
        for mut pictures in [
            vec![with(status)],
            vec![with(status), with(status), with(status)],
            vec![Picture::new('b', 1), with(status), with(4)],
        ] {
            let fault = decode(&bench, &mut state, &mut pictures).unwrap_err();
            let said = fault.to_string();
            assert_says(&said, &["nvjpegDecodeBatched failed on cpu", name]);
        }
        // It decodes another: so it is the picture's.
        let mut pictures = [with(status), Picture::new('d', 1), with(3)];
        let verdicts = decode(&bench, &mut state, &mut pictures).unwrap();
        let refused = |status: u8| Verdict::Refused(Status(status.into()));
        assert_eq!(verdicts, [refused(status), Verdict::Decoded, refused(3)]);
    }
    for status in [3, 4, 9, 10] {
        let mut pictures = [with(status), with(status)];
        let verdicts = decode(&bench, &mut state, &mut pictures).unwrap();
        assert_eq!(verdicts, [Verdict::Refused(Status(status.into())); 2]);
    }
}

/// A chunk without a fault is one call, and chunks of one size are initialized once.
#[test]
fn nothing_is_asked_twice_without_need() {
    let bench = Bench::new(&[]);
    let decoder = bench.open(Backend::Hardware).unwrap();
    let mut state = State::new(&decoder, Sampling::Both).unwrap();
    for _ in 0..5 {
        decode(&bench, &mut state, &mut Picture::all(&"d".repeat(64))).unwrap();
    }
    // (And one of blank pictures.)
    assert_eq!(
        (bench.count("stub_calls"), bench.count("stub_initialized")),
        (5 + 1, 1)
    );
    // One fault in 64: at most two calls for each of the six halvings, and the first; and blank pictures behind those that were refused.
    let one_bad = format!("{}b{}", "d".repeat(40), "d".repeat(23));
    decode(&bench, &mut state, &mut Picture::all(&one_bad)).unwrap();
    assert!(
        bench.count("stub_calls") <= 5 + 1 + 13 + 7,
        "{}",
        bench.count("stub_calls")
    );
}

/// The decoder says nothing of these: the kernel finds them.
#[test]
fn a_picture_that_is_skipped_looks_decoded() {
    let bench = Bench::new(&[]);
    let mut state = State::new(&bench.open(Backend::Hardware).unwrap(), Sampling::Both).unwrap();
    let mut pictures = Picture::all("dsd");
    let verdicts = decode(&bench, &mut state, &mut pictures).unwrap();
    assert_eq!(told(&verdicts), "ddd");
    let decoded: Vec<_> = pictures.iter().map(Picture::is_decoded).collect();
    assert_eq!(decoded, [true, false, true]);
    assert!(pictures[1].is_untouched());
}

#[test]
fn without_memory_for_all_there_are_smaller_chunks() {
    let bench = Bench::new(&[]);
    let mut state = State::new(&bench.open(Backend::Hardware).unwrap(), Sampling::Both).unwrap();
    bench.set("stub_most", 10);
    for _ in 0..2 {
        let mut pictures = Picture::all(&"d".repeat(33));
        let verdicts = decode(&bench, &mut state, &mut pictures).unwrap();
        assert_eq!(told(&verdicts), "d".repeat(33));
        assert!(pictures.iter().all(Picture::is_decoded));
    }
    // The size is known by now: none is refused.
    let before = bench.count("stub_initialized");
    decode(&bench, &mut state, &mut Picture::all(&"d".repeat(32))).unwrap();
    assert_eq!(bench.count("stub_initialized") - before, 1);
    assert!(bench.count("stub_calls") >= 12);
    // Memory that was short for a while is not short for ever.
    bench.set("stub_most", 64);
    for _ in 0..100 {
        decode(&bench, &mut state, &mut Picture::all(&"d".repeat(32))).unwrap();
    }
    let before = bench.count("stub_calls");
    decode(&bench, &mut state, &mut Picture::all(&"d".repeat(32))).unwrap();
    assert_eq!(bench.count("stub_calls") - before, 1);
}

/// nvJPEG's kernels need some memory for a call of any size, and a state that was refused memory is broken.
#[test]
fn without_memory_for_all_kernels_are_given_fewer_and_a_new_state() {
    let bench = Bench::new(&[]);
    let mut state = State::new(&bench.open(Backend::Gpu).unwrap(), Sampling::Both).unwrap();
    // What is told of so many, how many calls there were, those that were refused before they decoded included, and how many new states.
    let mut asks = |pictures: usize| {
        let counts =
            || ["stub_initialized", "stub_calls", "stub_states_made"].map(|name| bench.count(name));
        let before = counts();
        let mut pictures = Picture::all(&"d".repeat(pictures));
        let verdicts = decode(&bench, &mut state, &mut pictures).unwrap();
        let told = told(&verdicts);
        for (picture, letter) in pictures.iter().zip(told.chars()) {
            assert!(picture.is_decoded() == (letter == 'd'));
        }
        let after = counts();
        (told, [0, 1, 2].map(|at| after[at] - before[at]))
    };
    let all = |letter: &str, count: usize| letter.repeat(count);
    assert_eq!(asks(200), (all("d", 200), [1, 1, 0]));
    bench.memory.most.store(110_000, Ordering::SeqCst);
    // One call is refused, and from then on there are two.
    assert_eq!(asks(210), (all("d", 210), [2, 3, 1]));
    assert_eq!(asks(210), (all("d", 210), [0, 2, 0]));
    // None at all, not even for the fewest: it is not tried again for some time.
    bench.host.most.store(60_000, Ordering::SeqCst);
    assert_eq!(asks(100), (all("m", 100), [2, 0, 1]));
    for _ in 0..64 {
        assert_eq!(asks(10), (all("m", 10), [0, 0, 0]));
    }
    assert_eq!(asks(10), (all("m", 10), [1, 0, 1]));
    for memory in [&bench.memory, &bench.host] {
        memory.most.store(usize::MAX, Ordering::SeqCst);
    }
    // Memory that was short is not short for ever: first for the fewest, and then for more.
    let mut calls = Vec::new();
    while calls.last() != Some(&1) {
        let (told, [_, asked, _]) = asks(200);
        assert!(calls.len() < 3_000 && (told == all("d", 200) || asked == 0));
        calls.push(asked);
    }
    calls.dedup();
    assert_eq!(calls, [0, 4, 3, 2, 1]); // of 64, of 128 behind one of these, of all
    drop(state);
    assert_eq!(bench.memory.out.load(Ordering::SeqCst), 0);
}

/// nvJPEG's two blocks never become smaller, so a chunk of many small files is followed by one of a few large ones with less memory than
/// both have alone. A file that is too large for them does not affect the others.
#[test]
fn kernels_have_memory_for_what_fits() {
    const ARENA: usize = 1 << 23;
    let bench = Bench::new(&["-DEACH=797952"]);
    let all = crate::tuning::nvjpeg::DECODER_MOST_BYTES - Station::own_bytes(ARENA)[0];
    bench.memory.all.store(all, Ordering::SeqCst);
    let decoder = bench.open(Backend::Gpu).unwrap();
    let mut station = Station::new(&decoder, &bench.driver, ARENA).unwrap();
    // How many states there were, when so many files of so many bytes were decoded.
    let mut decodes = |files: &[(usize, usize)], expected: &[Outcome]| {
        let sizes = files.iter().flat_map(|(count, bytes)| vec![*bytes; *count]);
        let order = |(number, bytes): (usize, usize)| {
            let mut order = Order::new(&bench.driver, 'd', number as u8, Sampling::Both);
            order.file.resize(bytes, 0);
            order
        };
        let mut orders: Vec<Order> = sizes.enumerate().map(order).collect();
        let mut outcomes = Vec::new();
        while !orders.is_empty() {
            let fits = station.fits(orders.iter().map(Order::work));
            let mut chunk: Vec<Order> = orders.drain(..fits).collect();
            begin(&mut station, &mut chunk).unwrap();
            outcomes.extend(station.end().unwrap().unwrap());
        }
        assert_eq!(
            outcomes.len(),
            files.iter().map(|(count, _)| count).sum::<usize>()
        );
        outcomes.dedup();
        assert_eq!(outcomes, expected);
        bench.count("stub_states_made")
    };
    const DRAWN: Outcome = Outcome::Drawn;
    for files in [
        &[(300, 40_000)][..],
        &[(200, 110_000)],
        &[(256, 8)],
        &[(40, 1_360_000)],
        &[(9, 7_200_000)],
        &[(150, 8), (14, 2_000_000), (100, 110_000)],
    ] {
        assert_eq!(decodes(files, &[DRAWN]), 1, "{files:?}");
    }
    let large = [(100, 110_000), (1, 60_000_000), (200, 110_000)];
    let expected = [DRAWN, Outcome::NoMemory, DRAWN];
    let states = decodes(&large, &expected);
    let calls = bench.count("stub_calls");
    assert_eq!(decodes(&[(200, 110_000)], &[DRAWN]), states);
    assert_eq!(
        bench.count("stub_calls") - calls,
        1,
        "as many at once as ever"
    );
}

/// With few pictures, nvJPEG does most of the work on the CPU.
#[test]
fn kernels_are_not_given_few_pictures() {
    for (backend, fewest) in [(Backend::Gpu, 64), (Backend::Hardware, 1)] {
        let bench = Bench::new(&[]);
        let mut state = State::new(&bench.open(backend).unwrap(), Sampling::Both).unwrap();
        for kinds in ["d", "dbd", &*"d".repeat(63), &*"d".repeat(64), "", "d"] {
            let mut pictures = Picture::all(kinds);
            let verdicts = decode(&bench, &mut state, &mut pictures).unwrap();
            assert_eq!(told(&verdicts), kinds);
            let decoded = pictures.iter().filter(|picture| picture.is_decoded());
            assert_eq!(decoded.count(), kinds.matches('d').count());
        }
        assert_eq!(bench.count("stub_fewest"), fewest);
    }
}

/// They take any at once.
#[test]
fn kernels_have_one_state_for_all_kinds_of_chroma() {
    let bench = Bench::new(&[]);
    let decoder = bench.open(Backend::Gpu).unwrap();
    let mut station = Station::new(&decoder, &bench.driver, 1 << 20).unwrap();
    for round in 0..3 {
        let order = |number: u8| {
            let sampling = Sampling::ALL[usize::from(number + round) % 5];
            Order::new(&bench.driver, 'd', number, sampling)
        };
        let mut orders: Vec<Order> = (1..20).map(order).collect();
        begin(&mut station, &mut orders).unwrap();
        let outcomes = station.end().unwrap().unwrap();
        let checked = orders.iter().zip(outcomes);
        checked.for_each(|(order, outcome)| order.check(outcome));
    }
    assert_eq!(
        (bench.count("stub_states_made"), bench.count("stub_calls")),
        (1, 3)
    );
}

#[test]
fn memory_comes_from_the_allocators_and_goes_back_to_them() {
    let bench = Bench::new(&[]);
    let decoder = bench.open(Backend::Hardware).unwrap();
    let mut state = State::new(&decoder, Sampling::Both).unwrap();
    decode(&bench, &mut state, &mut Picture::all("dddd")).unwrap();
    let out = || [&bench.memory, &bench.host].map(|memory| memory.out.load(Ordering::SeqCst));
    assert_eq!(out(), [4_000, 4_000]);
    // None for one picture, whether of the device or page-locked: the CPU's.
    for memory in [&bench.memory, &bench.host] {
        memory.most.store(0, Ordering::SeqCst);
        let verdicts = decode(&bench, &mut state, &mut Picture::all("dd")).unwrap();
        assert_eq!(told(&verdicts), "mm");
        memory.most.store(usize::MAX, Ordering::SeqCst);
    }
    // A panic does not cross the library.
    bench.memory.panics.store(true, Ordering::SeqCst);
    let verdicts = decode(&bench, &mut state, &mut Picture::all("d")).unwrap();
    assert_eq!(told(&verdicts), "m");
    bench.memory.panics.store(false, Ordering::SeqCst);
    let verdicts = decode(&bench, &mut state, &mut Picture::all("dd")).unwrap();
    assert_eq!(told(&verdicts), "dd");

    drop(decoder);
    assert_eq!(bench.count("stub_handles"), 1, "the state keeps it");
    drop(state);
    assert_eq!(out(), [0, 0]);
    assert_eq!(bench.alive(), (0, 0));
}

/// nvJPEG exchanges memory whenever a picture needs more than those before it, and the device's other users wait.
#[test]
fn memory_is_seldom_exchanged_whatever_comes() {
    let bench = Bench::new(&[]);
    let decoder = bench.open(Backend::Hardware).unwrap();
    let mut station = Station::new(&decoder, &bench.driver, 1 << 26).unwrap();
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 0,
        epoch: 0,
        position: 0,
    });
    let mut chunk = |pictures: usize, sides: std::ops::Range<u32>| {
        let mut order = |number: usize| {
            let size = [(); 2].map(|()| rng.range(sides.clone()));
            let sampling = Sampling::ALL[number % 5];
            let mut order = Order::of(&bench.driver, 'd', 5, sampling, size);
            order
                .file
                .resize(8 + rng.range(0..200 * sides.end) as usize, 0);
            order
        };
        let mut orders: Vec<Order> = (0..pictures).map(&mut order).collect();
        begin(&mut station, &mut orders).unwrap();
        let outcomes = station.end().unwrap().unwrap();
        let outcomes = orders.iter().zip(outcomes);
        outcomes.for_each(|(order, outcome)| order.check(outcome));
    };
    chunk(64, 8..100);
    assert_eq!(bench.count("stub_blanks"), 5 * 64, "once for each kind");
    // Larger and larger ones, of all kinds in turns.
    for most in [120, 200, 250, 300] {
        chunk(64, 8..most);
    }
    chunk(10, 900..1_024);
    let counts = || ["stub_blanks", "stub_exchanged"].map(|name| bench.count(name));
    assert_eq!(counts(), [5 * 64, 0]);
    let reserved = || bench.memory.reserved.load(Ordering::Relaxed);
    let before = reserved();
    // All slots once more.
    chunk(10, 1_030..1_100);
    assert_eq!(counts(), [2 * 5 * 64, 5 * 14]);
    assert!(reserved() > before);
    for sides in [8..300, 1_000..1_536] {
        chunk(10, sides);
    }
    assert_eq!(counts(), [2 * 5 * 64, 5 * 14]);
    drop((station, decoder));
    assert_eq!(reserved(), 0);
}

/// Where there is no room for all slots, pictures take what they need, and larger slots are not asked for each time.
#[test]
fn without_room_for_all_slots_pictures_are_decoded_all_the_same() {
    for (refuses, large) in [(1, 100), (0, 6_000)] {
        let bench = Bench::new(&[]);
        bench.set("stub_refuses_blanks", refuses);
        let decoder = bench.open(Backend::Hardware).unwrap();
        let mut state = State::new(&decoder, Sampling::Both).unwrap();
        let reserved = || bench.memory.reserved.load(Ordering::Relaxed);
        for round in 0..3 {
            let mut pictures = Picture::all("dddd");
            let mut coded: Vec<_> = pictures.iter_mut().map(Picture::coded).collect();
            coded.iter_mut().for_each(|one| one.size = [large; 2]); // or so it says
            // SAFETY: as in `decode`.
            let verdicts = unsafe { state.decode(&bench.stream, &coded) }.unwrap();
            assert_eq!(told(&verdicts), "dddd");
            drop(coded);
            assert!(pictures.iter().all(Picture::is_decoded), "round {round}");
            assert_eq!((bench.count("stub_blanks"), reserved()), (refuses, 0));
        }
    }
}

#[test]
fn a_library_that_fails_as_a_whole_is_a_fault() {
    let bench = Bench::new(&[]);
    let mut state = State::new(&bench.open(Backend::Hardware).unwrap(), Sampling::Both).unwrap();
    bench.set("stub_fails_initialize", 1);
    let fault = decode(&bench, &mut state, &mut Picture::all("dd")).unwrap_err();
    assert_says(
        &fault.to_string(),
        &[
            "nvjpegDecodeBatchedInitialize failed on cpu",
            "INTERNAL_ERROR (8)",
        ],
    );
    bench.set("stub_fails_initialize", 0);
    let verdicts = decode(&bench, &mut state, &mut Picture::all("dd")).unwrap();
    assert_eq!(told(&verdicts), "dd");
}

/// It is made while the engines are counted, for both take long.
#[test]
fn a_decoder_comes_with_its_first_state() {
    let bench = Bench::new(&[]);
    let decoder = bench.open(Backend::Hardware).unwrap();
    assert_eq!((decoder.engines(), bench.alive()), (7, (1, 1)));
    let mut state = State::new(&decoder, Sampling::Both).unwrap();
    decode(&bench, &mut state, &mut Picture::all("d")).unwrap();
    assert_eq!(bench.count("stub_states_made"), 1);
    let another = State::new(&decoder, Sampling::Grey).unwrap();
    assert_eq!(bench.alive(), (1, 2));
    drop((state, another, decoder));
    assert_eq!(bench.alive(), (0, 0));
    // A state that was not needed is destroyed.
    drop(bench.open(Backend::Hardware).unwrap());
    assert_eq!(bench.alive(), (0, 0));
    let kernels = bench.open(Backend::Gpu).unwrap();
    assert_eq!((kernels.engines(), bench.alive()), (0, (1, 0)));
}

#[test]
fn without_engines_the_fault_says_what_may_be_missing() {
    for defines in [&["-DENGINES=0"][..], &["-DHARDWARE_RESULT=7"]] {
        let bench = Bench::new(defines);
        let fault = bench.open(Backend::Hardware).err().unwrap();
        assert!(matches!(fault, DecoderFault::NoEngine { .. }));
        assert_says(
            &fault.to_string(),
            &["no hardware decoder on cpu", "capability `video`"],
        );
        assert_eq!(bench.alive(), (0, 0));
        assert_eq!(bench.open(Backend::Gpu).unwrap().engines(), 0);
    }
    let bench = Bench::new(&["-DCREATE_RESULT=6"]);
    let fault = bench.open(Backend::Hardware).err().unwrap();
    assert_says(
        &fault.to_string(),
        &["nvjpegCreateExV2 failed on cpu: EXECUTION_FAILED (6)"],
    );
    let decoder = Bench::new(&[]).open(Backend::Hardware).unwrap();
    assert_eq!(
        (decoder.engines(), decoder.library().version()),
        (7, (13, 0))
    );
}

#[test]
fn a_backend_has_nvjpegs_name() {
    for (name, backend) in [
        ("hardware", Backend::Hardware),
        ("gpu_hybrid", Backend::Gpu),
    ] {
        assert_eq!(Backend::named(name.as_ref()).unwrap(), backend);
    }
    for name in ["", "Hardware", "gpu"] {
        let said = Backend::named(name.as_ref()).unwrap_err().to_string();
        assert_says(
            &said,
            &[
                "PINFEED_NVJPEG_BACKEND is",
                &format!("{name:?}"),
                "`gpu_hybrid`",
            ],
        );
    }
}

/// A picture, what becomes of it, and its row.
struct Order {
    kind: char,
    drawing: Drawing,
    changes: Vec<Change>,
    file: Vec<u8>,
    row: Row,
}

/// Changes of a drawing of 12 x 9: none, in place, counted, moved, and to another size.
fn changes(number: u8) -> Vec<Change> {
    let colour = Change::Colour;
    let warp = Change::Warp {
        warp: Warp {
            from: [0.9, 0.3, 0.5, -0.3, 0.9, 2.0],
            smooth: true,
        },
        fill: [1, 2, 3],
    };
    let cut = Change::Cut(Cut {
        start: [2, 1],
        place: [1, 2, 10, 8],
        size: [14, 12],
        flip: [true, false],
        fill: [90, 80, 70],
    });
    match number % 5 {
        0 => vec![],
        1 => vec![colour(Colour::Brightness(1.3)), colour(Colour::Hue(20))],
        2 => vec![colour(Colour::Contrast(0.5)), colour(Colour::Equalize)],
        3 => vec![warp, colour(Colour::Sharpness(1.9))],
        _ => vec![
            colour(Colour::AutoContrast),
            warp,
            cut,
            colour(Colour::Contrast(1.5)),
        ],
    }
}

/// A row of the device, which waits for its streams before it frees memory.
struct Row {
    driver: Driver,
    address: u64,
    bytes: usize,
}

impl Row {
    fn new(driver: &Driver, bytes: usize) -> Row {
        // (An error of this call is not what is tested here.)
        let address = std::iter::repeat_with(|| driver.alloc_device(bytes)).take(2);
        Row {
            address: address.flatten().next().unwrap_or(0),
            driver: driver.clone(),
            bytes,
        }
    }

    /// Nothing may be enqueued that writes it.
    fn pixels(&self) -> &[u8] {
        // SAFETY: it is memory of the CPU device, initialized, and ours.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: it was allocated with this size.
            let _ = unsafe { self.driver.free_device(self.address, self.bytes) };
        }
    }
}

impl Order {
    fn new(driver: &Driver, kind: char, number: u8, sampling: Sampling) -> Order {
        Order::of(driver, kind, number, sampling, [30 + u32::from(number), 25])
    }

    fn of(driver: &Driver, kind: char, number: u8, sampling: Sampling, source: [u32; 2]) -> Order {
        let drawing = Drawing {
            source,
            sampling,
            bounds: [1, 1, source[0] - 1, source[1] - 1],
            window: [
                0.5,
                0.0,
                f64::from(source[0].min(22) - 2),
                f64::from(source[1] - 1),
            ],
            place: [0, 0, 12, 9],
            size: [12, 9],
            filter: Filter::Bilinear,
            flip: [number.is_multiple_of(2), false],
            fill: [0; 3],
        };
        let changes = changes(number);
        let [luma, chroma] = [source, sampling.chroma(source)];
        let ([low, high], [chroma_low, chroma_high]) = (
            (luma[1] as u16).to_le_bytes(),
            (chroma[1] as u16).to_le_bytes(),
        );
        Order {
            kind,
            drawing,
            file: vec![kind as u8, number, low, high, chroma_low, chroma_high, 0, 0],
            row: Row::new(driver, Change::row_bytes(&changes, drawing.size)),
            changes,
        }
    }

    fn all(bench: &Bench, kinds: &str) -> Vec<Order> {
        let samplings = Sampling::ALL.into_iter().cycle();
        let numbered = (1..).zip(kinds.chars()).zip(samplings);
        numbered
            .map(|((number, kind), sampling)| Order::new(&bench.driver, kind, number, sampling))
            .collect()
    }

    fn work(&self) -> Work<'_> {
        Work {
            row: self.row.address,
            bytes: &self.file,
            drawing: self.drawing,
            changes: &self.changes,
        }
    }

    /// As the stand-in decodes it, and the plain code draws it.
    fn expected(&self) -> Vec<u8> {
        let sizes = self.drawing.sampling.sizes(self.drawing.source);
        let planes = [0, 1, 2].map(|plane: usize| {
            let bytes = (sizes[plane][0] * sizes[plane][1]) as usize;
            let byte = |at: usize| (usize::from(self.file[1]) + 31 * plane + 7 * at) as u8;
            (0..bytes).map(byte).collect::<Vec<u8>>()
        });
        let mut row = vec![0; self.drawing.row_bytes()];
        let bytes = planes.each_ref().map(Vec::as_slice);
        let pitch = sizes.map(|[width, _]| width as usize);
        self.drawing.render(Planes { bytes, pitch }, &mut row);
        let mut size = self.drawing.size;
        for change in &self.changes {
            change.apply(&mut row, &mut size);
        }
        row
    }

    #[track_caller]
    fn check(&self, outcome: Outcome) {
        let (expected, why) = match self.kind {
            'd' => (Outcome::Drawn, None),
            's' => (Outcome::Skipped, Some("the decoder skipped it")),
            'b' => (Outcome::Refused(Status(3)), Some("the decoder refused it")),
            'm' => (Outcome::NoMemory, Some("the decoder had no memory for it")),
            _ => (Outcome::Refused(Status(8)), Some("the decoder refused it")),
        };
        assert_eq!((outcome, outcome.why_not_drawn()), (expected, why));
        if outcome == Outcome::Drawn {
            assert!(self.row.pixels() == self.expected());
        }
    }
}

fn begin(station: &mut Station, orders: &mut [Order]) -> Result<(), DecoderFault> {
    let works: Vec<Work<'_>> = orders.iter().map(Order::work).collect();
    station.prepare(&works)?;
    // SAFETY: the tests end each chunk before they look at its orders, which stay where they are.
    unsafe { station.decode(&works, &[]) }
}

/// A device whose streams are late, so that what does not wait is seen; and which fails at a call.
fn hostile(seed: u64, fail_call: Option<u64>, sticky: bool) -> Cpu {
    Cpu::new(Some(crate::device::Hostile {
        seed,
        max_delay: std::time::Duration::from_micros(if fail_call.is_some() { 50 } else { 2_000 }),
        fail_call,
        sticky,
        ..Default::default()
    }))
}

/// Two chunks are under way, as in a run; the decoder writes at once, and the stream comes when it likes.
#[test]
fn each_file_of_a_chunk_becomes_its_row_or_says_why_not() {
    for (seed, device, backend) in [
        (0, Cpu::new(None), Backend::Hardware),
        (1, hostile(1, None, false), Backend::Hardware),
        (2, hostile(2, None, false), Backend::Hardware),
        (3, hostile(3, None, false), Backend::Hardware),
        (4, hostile(4, None, false), Backend::Gpu),
    ] {
        let bench = Bench::on(device, &[]);
        let decoder = bench.open(backend).unwrap();
        let mut station = Station::new(&decoder, &bench.driver, 1 << 20).unwrap();
        let kinds = [
            "ddddd",
            "dsd",
            "b",
            "ddbxds",
            "dddddddddd",
            "sssss",
            "",
            "ddddd",
        ];
        let mut chunks: Vec<Vec<Order>> = kinds.map(|kinds| Order::all(&bench, kinds)).into();
        let mut ended = 0;
        for at in 0..chunks.len() {
            if !station.is_free() {
                let outcomes = station.end().unwrap().unwrap();
                assert_eq!(outcomes.len(), chunks[ended].len(), "seed {seed}");
                chunks[ended]
                    .iter()
                    .zip(outcomes)
                    .for_each(|(order, outcome)| order.check(outcome));
                ended += 1;
            }
            begin(&mut station, &mut chunks[at]).unwrap();
        }
        while let Some(outcomes) = station.end() {
            chunks[ended]
                .iter()
                .zip(outcomes.unwrap())
                .for_each(|(order, outcome)| order.check(outcome));
            ended += 1;
        }
        assert_eq!(ended, chunks.len());
        // A station that is dropped in the middle leaves nothing behind.
        begin(&mut station, &mut chunks[0]).unwrap();
        drop(station);
        assert!(
            chunks[0]
                .iter()
                .all(|order| order.row.pixels() == order.expected()),
            "seed {seed}"
        );
    }
}

/// Chunks of many pictures, and of few behind them: the lists in a set's memory are as long as the chunk.
#[test]
fn kernels_take_more_pictures_at_once() {
    let bench = Bench::on(hostile(5, None, false), &[]);
    let decoder = bench.open(Backend::Gpu).unwrap();
    let mut station = Station::new(&decoder, &bench.driver, 1 << 23).unwrap();
    let many = format!("{}s{}x", "d".repeat(150), "d".repeat(49));
    for kinds in [&*many, "dsd", &*many, "d", "s", &*many] {
        let mut orders = Order::all(&bench, kinds);
        begin(&mut station, &mut orders).unwrap();
        let outcomes = station.end().unwrap().unwrap();
        assert_eq!(outcomes.len(), kinds.len());
        let checked = orders.iter().zip(outcomes);
        checked.for_each(|(order, outcome)| order.check(outcome));
    }
}

#[test]
fn a_picture_without_memory_says_so() {
    let bench = Bench::new(&[]);
    let decoder = bench.open(Backend::Hardware).unwrap();
    let mut station = Station::new(&decoder, &bench.driver, 1 << 20).unwrap();
    bench.memory.most.store(0, Ordering::SeqCst);
    let mut orders = Order::all(&bench, "mm");
    begin(&mut station, &mut orders).unwrap();
    let outcomes = station.end().unwrap().unwrap();
    orders
        .iter()
        .zip(outcomes)
        .for_each(|(order, outcome)| order.check(outcome));
}

/// The library may use a stream that it was given until its state is gone.
#[test]
fn a_state_goes_before_its_stream() {
    struct Watched(Cpu, Arc<std::sync::Mutex<Vec<usize>>>, Shared);
    impl Memory for Watched {
        fn take(&self, bytes: usize) -> Option<u64> {
            Memory::take(&self.2, bytes)
        }

        fn give_back(&self, address: u64, bytes: usize) {
            self.1.lock().unwrap().push(self.0.live_streams());
            Memory::give_back(&self.2, address, bytes);
        }

        fn reserve(&self, bytes: usize) -> bool {
            self.2.reserve(bytes)
        }

        fn release(&self, bytes: usize) {
            self.2.release(bytes);
        }
    }
    let device = Cpu::new(None);
    let bench = Bench::on(device.clone(), &[]);
    let seen = Arc::default();
    let memory = Watched(device, Arc::clone(&seen), Shared(bench.memory.clone()));
    let host = Shared(bench.host.clone());
    let (library, driver) = (bench.library.clone(), &bench.driver);
    let (memory, host) = (Box::new(memory), Box::new(host));
    let decoder = Decoder::open(library, driver, Backend::Hardware, memory, host).unwrap();
    let mut station = Station::new(&decoder, driver, 1 << 20).unwrap();
    let mut chunks = [Order::all(&bench, "dd"), Order::all(&bench, "dd")];
    for chunk in &mut chunks {
        begin(&mut station, chunk).unwrap();
    }
    drop(station);
    // (The bench has a stream, too.)
    let seen = seen.lock().unwrap();
    assert!(
        seen.len() > 2 && seen.iter().all(|streams| *streams == 3),
        "{seen:?}"
    );
}

#[test]
fn a_chunk_is_what_fits_the_arena() {
    let bench = Bench::new(&[]);
    let decoder = bench.open(Backend::Hardware).unwrap();
    let order = Order::new(&bench.driver, 'd', 1, Sampling::Both);
    let work = order.work();
    let each = order.drawing.decoder_bytes(&order.changes);
    let fits = |arena: usize, count: usize| {
        let station = Station::new(&decoder, &bench.driver, arena).unwrap();
        station.fits(vec![work; count])
    };
    assert_eq!(
        [
            fits(each, 3),
            fits(each - 1, 3),
            fits(3 * each, 3),
            fits(3 * each, 2)
        ],
        [1, 0, 3, 2]
    );
    assert_eq!(fits(1 << 24, 300), 64);
    // Kernels are faster with more, and each takes memory beyond the arena: about 0.8 MB, and 12 times its file.
    let decoder = Bench::new(&[]).open(Backend::Gpu).unwrap();
    let station = Station::new(&decoder, &bench.driver, 1 << 24).unwrap();
    let small = station.fits(vec![work; 300]);
    assert!((240..=256).contains(&small), "{small}");
    let with_file = |bytes: usize| {
        let file = vec![0; bytes];
        let work = Work {
            bytes: &file,
            ..work
        };
        station.fits(vec![work; 300])
    };
    let (photographs, large) = (with_file(110_000), with_file(10_000_000));
    assert!((180..240).contains(&photographs), "{photographs}");
    assert_eq!(large, 2);
    // One is always tried.
    assert_eq!(with_file(100_000_000), 1);
}

#[test]
fn a_station_goes_on_after_a_fault() {
    let bench = Bench::new(&[]);
    let decoder = bench.open(Backend::Hardware).unwrap();
    let mut station = Station::new(&decoder, &bench.driver, 1 << 20).unwrap();
    bench.set("stub_fails_initialize", 1);
    assert!(begin(&mut station, &mut Order::all(&bench, "dd")).is_err());
    assert!(station.is_free() && station.end().is_none());
    bench.set("stub_fails_initialize", 0);
    let mut orders = Order::all(&bench, "dd");
    begin(&mut station, &mut orders).unwrap();
    let outcomes = station.end().unwrap().unwrap();
    orders
        .iter()
        .zip(outcomes)
        .for_each(|(order, outcome)| order.check(outcome));
}

/// Whichever call of the device fails: what is reported as drawn is right, and nothing hangs.
#[test]
fn a_device_that_fails_gives_no_wrong_row() {
    for (call, sticky) in (1..60).flat_map(|call| [(call, false), (call, true)]) {
        let bench = Bench::on(hostile(call, Some(call), sticky), &[]);
        let run = || -> Result<usize, DecoderFault> {
            let decoder = bench.open(Backend::Hardware)?;
            let mut station = Station::new(&decoder, &bench.driver, 1 << 20)?;
            let mut drawn = 0;
            for _ in 0..3 {
                let mut orders = Order::all(&bench, "ddbdsd");
                if orders.iter().any(|order| order.row.address == 0) {
                    return Ok(12); // the device is broken before a chunk begins
                }
                begin(&mut station, &mut orders)?;
                for (order, outcome) in orders.iter().zip(station.end().unwrap()?) {
                    order.check(outcome);
                    drawn += usize::from(outcome == Outcome::Drawn);
                }
            }
            Ok(drawn)
        };
        match run() {
            Ok(drawn) => assert_eq!(drawn, 12, "{call} {sticky}"),
            Err(DecoderFault::Device(_)) => {}
            Err(fault) => panic!("{call} {sticky}: {fault}"),
        }
        assert_eq!(
            (bench.count("stub_handles"), bench.count("stub_states")),
            (0, 0)
        );
    }
}

/// A device that no longer says when it is done may still be at work: memory that it uses stays until it is not.
#[test]
fn memory_outlives_what_a_lost_device_still_does() {
    for seed in 0..6 {
        let device = Cpu::new(Some(crate::device::Hostile {
            seed,
            max_delay: std::time::Duration::from_millis(40),
            fail_operation: Some("record_event"),
            fail_call: Some(1), // (the first is behind the blank pictures)
            sticky: true,
            ..Default::default()
        }));
        let bench = Bench::on(device, &[]);
        let decoder = bench.open(Backend::Hardware).unwrap();
        let mut station = Station::new(&decoder, &bench.driver, 1 << 24).unwrap();
        let mut orders = Order::all(&bench, "ddd");
        // The weights are being computed when the event behind them cannot be recorded.
        assert!(begin(&mut station, &mut orders).is_err());
        drop(station);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
