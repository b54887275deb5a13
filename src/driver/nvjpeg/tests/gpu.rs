//! With nvJPEG itself, on a GPU with a hardware decoder, and by kernels on the same: docs/gpu.md says how to run it.

use super::*;
use crate::SampleRng;
use crate::driver::RawCopy;
use crate::driver::cuda::Cuda;
use crate::image::{Encoded, ImageTransform, LazyImage};
use crate::picture::{Change, DecoderLimits};

const LIMITS: DecoderLimits = DecoderLimits {
    least_side: 1,
    most_side: 16_384,
    picture_bytes: 1 << 24,
};

/// Where nvJPEG is, if the loader does not find it.
const PATH: &str = "PINFEED_NVJPEG";

fn open(backend: Backend) -> (Driver, Station) {
    let driver = Driver::Cuda(Cuda::open(0).unwrap());
    let path = variable(PATH).map(std::path::PathBuf::from);
    let version = driver.info().unwrap().driver_version;
    let library = Library::open(path.as_deref(), version).unwrap();
    println!(
        "nvJPEG {:?} at {}",
        library.version(),
        library.path().display()
    );
    let (memory, host) = (Box::new(driver.clone()), Box::new(driver.clone()));
    let decoder = Decoder::open(Arc::new(library), &driver, backend, memory, host).unwrap();
    println!("{} engines", decoder.engines());
    let station = Station::new(&decoder, &driver, 1 << 26).unwrap();
    (driver, station)
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
    let (driver, mut station) = open(backend);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures");
    let folder = std::env::var_os("PINFEED_PICTURES").map_or(folder, Into::into);
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    let (mut compared, mut sum, mut most, mut refused) = (0u64, 0u64, 0, Vec::new());
    let plans = [
        ImageTransform::new(),
        ImageTransform::train(64),
        ImageTransform::eval(48),
    ];
    for (number, plan) in (0..).zip(plans) {
        let image = |path: &std::path::PathBuf| {
            let image = LazyImage::encoded(std::fs::read(path).unwrap());
            image.transform(&plan, &mut SampleRng::new(number, 0, 0))
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
        for size in [1, 7, MOST_PICTURES] {
            for files in files.chunks(size) {
                let rows: Vec<Row> = files
                    .iter()
                    .map(|(_, _, (_, drawing, changes))| {
                        Row::new(&driver, Change::row_bytes(changes, drawing.size))
                    })
                    .collect();
                let works =
                    files
                        .iter()
                        .zip(&rows)
                        .map(|((_, _, (bytes, drawing, changes)), row)| Work {
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
                for (((path, _, (bytes, drawing, _)), made), outcome) in
                    files.iter().zip(&rows).zip(outcomes)
                {
                    if outcome != Outcome::Drawn {
                        refused.push(format!(
                            "{} {:?} {size}: {outcome:?}",
                            path.display(),
                            drawing.source
                        ));
                        continue;
                    }
                    let same = LazyImage::encoded(bytes.clone())
                        .transform(&plan, &mut SampleRng::new(number, 0, 0));
                    let expected = same.decode().unwrap();
                    for (made, expected) in row(&driver, made).iter().zip(expected.as_slice()) {
                        let off = made.abs_diff(*expected);
                        compared += 1;
                        sum += u64::from(off);
                        most = most.max(off);
                    }
                }
            }
        }
    }
    println!(
        "{compared} bytes, off by {:.3} in the mean, by {most} at most",
        sum as f64 / compared as f64
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
    let (driver, mut station) = open(backend);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures/420-37x11.jpg");
    let image = LazyImage::encoded(std::fs::read(file).unwrap());
    let encoded = image.for_device(LIMITS).unwrap();
    let good = encoded.to_vec();
    // Neither a file nor its beginning.
    let bad: Vec<u8> = (0..1_000u32).map(|at| (at * 37 % 251) as u8).collect();
    let drawing = *encoded.drawing();
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
