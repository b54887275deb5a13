//! With nvJPEG itself, on a GPU with a hardware decoder, and by kernels on the same: docs/gpu.md says how to run it.

use super::*;
use crate::SampleRng;
use crate::driver::RawCopy;
use crate::driver::cuda::Cuda;
use crate::image::{Encoded, ImageTransform, LazyImage};
use crate::picture::{Change, DecoderLimits};
use crate::rng::RngKey;

const LIMITS: DecoderLimits = DecoderLimits {
    least_side: 1,
    most_side: 16_384,
    picture_bytes: 1 << 24,
};

/// Where nvJPEG is, if the loader does not find it.
const PATH: &str = "PINFEED_NVJPEG";

/// nvJPEG's own memory: how much it has, how often it took some and gave it back, and how much it may have.
#[derive(Clone)]
struct Metered(Driver, Arc<[AtomicUsize; 4]>);

impl Metered {
    fn counts(&self) -> [usize; 4] {
        self.1
            .each_ref()
            .map(|number| number.load(Ordering::Relaxed))
    }
}

impl Memory for Metered {
    fn take(&self, bytes: usize) -> Option<u64> {
        self.reserve(bytes).then_some(())?;
        self.1[1].fetch_add(1, Ordering::Relaxed);
        Memory::take(&self.0, bytes)
    }

    fn give_back(&self, address: u64, bytes: usize) {
        self.release(bytes);
        self.1[2].fetch_add(1, Ordering::Relaxed);
        Memory::give_back(&self.0, address, bytes);
    }

    fn reserve(&self, bytes: usize) -> bool {
        let (relaxed, has) = (Ordering::Relaxed, &self.1[0]);
        let most = self.1[3].load(relaxed);
        let with = |has: usize| Some(has + bytes).filter(|all| *all <= most);
        has.fetch_update(relaxed, relaxed, with).is_ok()
    }

    fn release(&self, bytes: usize) {
        self.1[0].fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn open(backend: Backend) -> (Driver, Station, Metered) {
    let driver = Driver::Cuda(Cuda::open(0).unwrap());
    let path = variable(PATH).map(std::path::PathBuf::from);
    let version = driver.info().unwrap().driver_version;
    let library = Library::open(path.as_deref(), version).unwrap();
    println!(
        "nvJPEG {:?} at {}",
        library.version(),
        library.path().display()
    );
    let arena_bytes = match backend {
        Backend::Hardware => crate::tuning::nvjpeg::DECODER_ARENA_BYTES,
        Backend::Gpu => crate::tuning::nvjpeg::KERNELS_ARENA_BYTES,
    };
    // As much as it has beside a loader.
    let most = crate::tuning::nvjpeg::DECODER_MOST_BYTES - Station::own_bytes(arena_bytes)[0];
    let metered = Metered(
        driver.clone(),
        Arc::new([0, 0, 0, most].map(AtomicUsize::new)),
    );
    let (memory, host) = (Box::new(metered.clone()), Box::new(driver.clone()));
    let decoder = Decoder::open(Arc::new(library), &driver, backend, memory, host).unwrap();
    println!("{} engines", decoder.engines());
    assert_eq!(Station::arena_bytes(&decoder), arena_bytes);
    let station = Station::new(&decoder, &driver, arena_bytes).unwrap();
    (driver, station, metered)
}

fn row(driver: &Driver, row: &Row) -> Vec<u8> {
    let stream = driver.create_stream().unwrap();
    let mut pixels = vec![0; row.bytes];
    let copy = RawCopy::ToHost {
        from: row.address,
        to: pixels.as_mut_ptr(),
        bytes: row.bytes,
    };
    // SAFETY: nothing writes the row any more, and the copy is waited for.
    unsafe { driver.copy(&stream, copy) }.unwrap();
    driver.synchronize(&stream).unwrap();
    pixels
}

/// A file in the decoder's form, and how it is drawn.
fn prepared(file: Vec<u8>) -> (Vec<u8>, Drawing) {
    let image = LazyImage::encoded(file);
    let encoded = image.for_device(LIMITS).unwrap();
    (encoded.to_vec(), *encoded.drawing())
}

fn small_picture() -> (Vec<u8>, Drawing) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures/420-37x11.jpg");
    prepared(std::fs::read(file).unwrap())
}

/// A file of noise.
fn noise(rng: &mut SampleRng, width: u32, height: u32, quality: u8) -> Vec<u8> {
    let mut noise = || rng.range(0..256) as u8;
    let pixels: Vec<u8> = (0..width * height * 3).map(|_| noise()).collect();
    let mut file = Vec::new();
    let mut encoder = ::image::codecs::jpeg::JpegEncoder::new_with_quality(&mut file, quality);
    let colour = ::image::ExtendedColorType::Rgb8;
    encoder.encode(&pixels, width, height, colour).unwrap();
    file
}

#[test]
#[ignore = "needs a GPU with a hardware decoder"]
fn the_hardware_decodes_what_is_accepted() {
    decodes_what_is_accepted(Backend::Hardware);
}

#[test]
#[ignore = "needs a GPU"]
fn kernels_decode_what_is_accepted() {
    decodes_what_is_accepted(Backend::Gpu);
}

/// Every file that is accepted is decoded, alone and in chunks, to the CPU's pixels but for the rounding of the inverse transform; what
/// that comes to is printed.
fn decodes_what_is_accepted(backend: Backend) {
    let (driver, mut station, metered) = open(backend);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures");
    let folder = std::env::var_os("PINFEED_PICTURES").map_or(folder, Into::into);
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    // How many bytes are off by so much.
    let mut by_difference = [0u64; 256];
    let mut refused = Vec::new();
    let plans = [
        ImageTransform::new(),
        ImageTransform::train(64),
        ImageTransform::eval(48),
    ];
    for (number, plan) in (0..).zip(plans) {
        let image = |path: &std::path::PathBuf| {
            let image = LazyImage::encoded(std::fs::read(path).unwrap());
            image.transform(
                &plan,
                &mut SampleRng::for_sample(RngKey {
                    seed: number,
                    epoch: 0,
                    position: 0,
                }),
            )
        };
        // (Damaged files are garbage, and each decoder's garbage is its own.)
        let named = names
            .iter()
            .filter(|path| !path.to_string_lossy().contains("damaged"));
        let images: Vec<_> = named.map(|path| (path, image(path))).collect();
        let read = |image: &LazyImage| {
            let encoded: Encoded<'_> = image.for_device(LIMITS).ok()?;
            let drawing = *encoded.drawing();
            Some((encoded.to_vec(), drawing, encoded.changes().to_vec()))
        };
        let files: Vec<_> = images
            .iter()
            .filter_map(|(path, image)| Some((path, image, read(image)?)))
            .collect();
        let whole = station.most_pictures();
        let fits = |files: &[_]| {
            let works = files.iter().map(
                |(_, _, (bytes, drawing, changes)): &&(_, _, (Vec<u8>, Drawing, Vec<Change>))| {
                    Work {
                        bytes,
                        drawing: *drawing,
                        changes,
                        row: 0,
                    }
                },
            );
            station.fits(works)
        };
        let mut chunks = Vec::new();
        for size in [1, 7, whole] {
            let mut left: Vec<_> = files.iter().collect();
            while !left.is_empty() {
                let count = fits(&left[..size.min(left.len())]);
                chunks.push(left.drain(..count).collect::<Vec<_>>());
            }
        }
        // Full ones that are alike, for which kernels have another way.
        for sampling in Sampling::ALL {
            let of_it = |file: &&(_, _, (_, Drawing, _))| file.2.1.sampling == sampling;
            let alike: Vec<_> = files.iter().filter(of_it).cycle().take(whole).collect();
            chunks.push(alike[..fits(&alike)].to_vec());
        }
        for files in chunks.iter().filter(|files| !files.is_empty()) {
            let [_, taken, given_back, _] = metered.counts();
            let rows = files.iter().map(|(_, _, (_, drawing, changes))| {
                Row::new(&driver, Change::row_bytes(changes, drawing.size))
            });
            let rows: Vec<Row> = rows.collect();
            let works = files.iter().zip(&rows);
            let works = works.map(|((_, _, (bytes, drawing, changes)), row)| Work {
                bytes,
                drawing: *drawing,
                changes,
                row: row.address,
            });
            let works: Vec<Work<'_>> = works.collect();
            station.prepare(&works).unwrap();
            // SAFETY: the rows are device memory, and the chunk is ended before they go.
            unsafe { station.decode(&works, &[]) }.unwrap();
            let outcomes = station.end().unwrap().unwrap();
            if files.len() > 7 {
                let [has, now_taken, now_given_back, _] = metered.counts();
                println!(
                    "{} pictures of {:?}: {has} bytes; {} blocks taken, {} given back",
                    files.len(),
                    files[0].2.1.sampling,
                    now_taken - taken,
                    now_given_back - given_back
                );
            }
            for ((file, made), outcome) in files.iter().zip(&rows).zip(outcomes) {
                let (path, _, (bytes, drawing, _)) = file;
                if outcome != Outcome::Drawn {
                    let (path, size) = (path.display(), files.len());
                    refused.push(format!(
                        "{path} {:?} of {size}: {outcome:?}",
                        drawing.source
                    ));
                    continue;
                }
                let same = LazyImage::encoded(bytes.clone()).transform(
                    &plan,
                    &mut SampleRng::for_sample(RngKey {
                        seed: number,
                        epoch: 0,
                        position: 0,
                    }),
                );
                let expected = same.decode().unwrap();
                for (made, expected) in row(&driver, made).iter().zip(expected.as_slice()) {
                    by_difference[usize::from(made.abs_diff(*expected))] += 1;
                }
            }
        }
    }
    let compared: u64 = by_difference.iter().sum();
    let sum: u64 = (0..)
        .zip(by_difference)
        .map(|(off, count)| off * count)
        .sum();
    let most = by_difference.iter().rposition(|count| *count > 0).unwrap();
    let within = |off: &usize| by_difference[..=*off].iter().sum::<u64>() * 100 >= compared * 99;
    println!(
        "{compared} bytes, off by {:.3} in the mean, 99 % of them by {} at most, none by more than {most}",
        sum as f64 / compared as f64,
        (0..256).find(within).unwrap()
    );
    assert!(
        refused.is_empty(),
        "accepted, and not decoded:\n{}",
        refused.join("\n")
    );
    assert!(compared > 10_000 && most <= 8 && sum < compared, "{most}");
}

#[test]
#[ignore = "needs a GPU with a hardware decoder"]
fn one_bad_file_of_a_chunk_is_told_from_the_others() {
    tells_bad_files_from_others(Backend::Hardware);
}

#[test]
#[ignore = "needs a GPU"]
fn kernels_tell_one_bad_file_from_the_others() {
    tells_bad_files_from_others(Backend::Gpu);
}

/// What the decoder refuses costs the others nothing, and it goes on.
fn tells_bad_files_from_others(backend: Backend) {
    let (driver, mut station, _) = open(backend);
    let (good, drawing) = small_picture();
    // Neither a file nor its beginning.
    let bad: Vec<u8> = (0..1_000u32).map(|at| (at * 37 % 251) as u8).collect();
    let mut rows = Vec::new();
    for bad_ones in [vec![7], vec![], vec![0, 1, 63], (0..64).collect(), vec![]] {
        let these: Vec<Row> = (0..64)
            .map(|_| Row::new(&driver, drawing.row_bytes()))
            .collect();
        let works = these.iter().enumerate().map(|(at, row)| Work {
            bytes: if bad_ones.contains(&at) { &bad } else { &good },
            drawing,
            changes: &[],
            row: row.address,
        });
        let works: Vec<Work<'_>> = works.collect();
        station.prepare(&works).unwrap();
        // SAFETY: the rows are device memory, and the chunk is ended before they go.
        unsafe { station.decode(&works, &[]) }.unwrap();
        let outcomes = station.end().unwrap().unwrap();
        for (at, outcome) in outcomes.iter().enumerate() {
            assert_eq!(
                *outcome == Outcome::Drawn,
                !bad_ones.contains(&at),
                "{at}: {outcome:?}"
            );
        }
        rows.extend(
            (0..64)
                .filter(|at| !bad_ones.contains(at))
                .map(|at| row(&driver, &these[at])),
        );
    }
    assert!(
        rows.iter().all(|row| *row == rows[0]),
        "each is decoded to the same pixels"
    );
}

/// nvJPEG 13.0 frees memory before it asks for more, and if it gets none, the next call uses what was freed, unless it has a new state.
#[test]
#[ignore = "needs a GPU"]
fn kernels_go_on_where_memory_is_short() {
    // Larger than the blank ones that fill a call up, or those would need more memory than it had.
    let (bytes, drawing) = prepared(noise(
        &mut SampleRng::for_sample(RngKey {
            seed: 6,
            epoch: 0,
            position: 0,
        }),
        96,
        96,
        80,
    ));
    let mut expected: Option<Vec<u8>> = None;
    // How many of so many are drawn, with so much memory.
    let mut drawn = |opened: &mut (Driver, Station, Metered), count: usize, most: usize| {
        let (driver, station, metered) = opened;
        metered.1[3].store(most, Ordering::Relaxed);
        let rows: Vec<Row> = (0..count)
            .map(|_| Row::new(driver, drawing.row_bytes()))
            .collect();
        let works = rows.iter().map(|row| Work {
            bytes: &bytes,
            drawing,
            changes: &[],
            row: row.address,
        });
        let works: Vec<Work<'_>> = works.collect();
        station.prepare(&works).unwrap();
        // SAFETY: the rows are device memory, and the chunk is ended before they go.
        unsafe { station.decode(&works, &[]) }.unwrap();
        let mut drawn = 0;
        for (made, outcome) in rows.iter().zip(station.end().unwrap().unwrap()) {
            match outcome {
                Outcome::Drawn => {
                    let pixels = row(driver, made);
                    assert_eq!(*expected.get_or_insert_with(|| pixels.clone()), pixels);
                    drawn += 1;
                }
                outcome => assert_eq!(outcome, Outcome::NoMemory),
            }
        }
        println!("{drawn} of {count}, {:?}", metered.counts());
        drawn
    };
    let (enough, none) = (300 << 20, 1 << 20);
    // What pictures take depends on the device: on an H100, 64 take 51 MB and 180 take 144.
    let mut takes = |count| {
        let mut opened = open(Backend::Gpu);
        assert_eq!(drawn(&mut opened, count, enough), count);
        opened.2.counts()[0]
    };
    let (few, many) = (takes(64), takes(180));
    let (little, more) = (few + (many - few) / 5, few + (many - few) * 3 / 4);
    let mut opened = open(Backend::Gpu);
    for (count, most) in [
        (64, enough),
        (180, little),
        (64, little),
        (180, more),
        (20, none), // it has memory for these
        (180, enough),
    ] {
        assert_eq!(drawn(&mut opened, count, most), count);
    }
    let mut opened = open(Backend::Gpu);
    for (count, most) in [(180, none), (64, none), (20, none)] {
        assert_eq!(drawn(&mut opened, count, most), 0);
    }
}

/// What fits is decoded, whatever came before, with the memory that a loader's decoder has: many small pictures, then a few large ones, and
/// photographs.
#[test]
#[ignore = "needs a GPU"]
fn kernels_have_memory_for_what_fits() {
    let (driver, mut station, metered) = open(Backend::Gpu);
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 5,
        epoch: 0,
        position: 0,
    });
    let mut file = |width, height, quality| noise(&mut rng, width, height, quality);
    let files = [
        (file(64, 64, 80), 256),
        (file(1200, 900, 90), 10),
        (file(240, 200, 80), 300),
        (file(2400, 1800, 90), 3),
        (file(64, 64, 80), 256),
    ];
    for (file, count) in files {
        let length = file.len();
        let (bytes, drawing) = prepared(file);
        let mut left = count;
        let mut most = 0;
        while left > 0 {
            let work = |row: u64| Work {
                bytes: &bytes,
                drawing,
                changes: &[],
                row,
            };
            let count = station.fits(vec![work(0); left]);
            let rows: Vec<Row> = (0..count)
                .map(|_| Row::new(&driver, drawing.row_bytes()))
                .collect();
            let works: Vec<Work<'_>> = rows.iter().map(|row| work(row.address)).collect();
            station.prepare(&works).unwrap();
            // SAFETY: the rows are device memory, and the chunk is ended before they go.
            unsafe { station.decode(&works, &[]) }.unwrap();
            let outcomes = station.end().unwrap().unwrap();
            assert!(outcomes.iter().all(|one| *one == Outcome::Drawn));
            left -= count;
            most = most.max(count);
        }
        let [has, taken, given_back, all] = metered.counts();
        println!(
            "{count} files of {length} bytes, {most} at once: has {has} of {all} bytes; {taken} blocks taken, {given_back} given back"
        );
    }
}
