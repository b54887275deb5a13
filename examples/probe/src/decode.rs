//! How fast JPEG files become pictures of one size: by one core, by all, and by a GPU's decoder.
//!
//! The files are drawn and in memory, so no disk is measured. Each is decoded, cropped at random and resized to a square, as for training.

use std::f32::consts::TAU;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use image::codecs::jpeg::JpegEncoder;
use image::{Rgb, RgbImage};
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::rng::RngKey;
use pinfeed::{Device, SampleRng};

use crate::Result;
use crate::effort::Effort;
use crate::report::{Decode, DecodePoint, GpuDecode};

const SIDE: usize = 224;
const WIDTH: u32 = 500;
const HEIGHT: u32 = 375;
const QUALITY: u8 = 90;

type Files = Arc<[Arc<[u8]>]>;

pub fn measure(effort: &Effort, cores: usize, gpu: Option<&Device>) -> Result<Decode> {
    let files = draw(effort.pictures, cores)?;
    let mut threads = vec![1, cores];
    threads.dedup();
    let points = threads.into_iter().map(|threads| {
        Ok(DecodePoint {
            threads,
            images_s: effort.repeat(effort.windows, || by_cores(effort, &files, threads))?,
        })
    });
    let bytes: usize = files.iter().map(|file| file.len()).sum();
    Ok(Decode {
        side: SIDE,
        mean_file_bytes: bytes / files.len().max(1),
        mean_pixels: (WIDTH * HEIGHT) as usize,
        cpu: points.collect::<Result<_>>()?,
        gpu: match gpu {
            None => GpuDecode::NotMeasured {
                why: "there is no GPU".to_owned(),
            },
            Some(device) => by_gpu(effort, &files, device, cores).unwrap_or_else(|error| {
                GpuDecode::NotMeasured {
                    why: error.to_string(),
                }
            }),
        },
    })
}

/// Pictures a second of so many threads.
fn by_cores(effort: &Effort, files: &Files, threads: usize) -> Result<f64> {
    let transform = ImageTransform::train(SIDE);
    let (next, begun) = (AtomicUsize::new(0), Instant::now());
    let decode = || -> Result<usize> {
        let mut decoded = 0;
        while decoded == 0 || begun.elapsed() < effort.window {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let mut rng = SampleRng::for_sample(RngKey {
                seed: 0,
                epoch: 0,
                position: number as u64,
            });
            let file = Arc::clone(&files[number % files.len()]);
            black_box(
                LazyImage::encoded(file)
                    .transform(&transform, &mut rng)
                    .decode()?,
            );
            decoded += 1;
        }
        Ok(decoded)
    };
    let decoded: Result<usize> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(decode)).collect();
        let joined = threads.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|_| Err("a decoding thread panicked".into()))
        });
        joined.sum()
    });
    Ok(decoded? as f64 / begun.elapsed().as_secs_f64())
}

#[cfg(not(feature = "nvjpeg"))]
fn by_gpu(_: &Effort, _: &Files, _: &Device, _: usize) -> Result<GpuDecode> {
    Err("this program was built without the feature nvjpeg (--features nvjpeg)".into())
}

/// Pictures a second of a loader whose batches the device decodes.
#[cfg(feature = "nvjpeg")]
fn by_gpu(effort: &Effort, files: &Files, device: &Device, cores: usize) -> Result<GpuDecode> {
    use pinfeed::DataLoader;
    use pinfeed::dataset::from_fn;
    use pinfeed::image::Decode;

    const BATCH: usize = 64;
    const BATCHES: u64 = 16;
    let (files, transform) = (Arc::clone(files), ImageTransform::train(SIDE));
    let pictures = from_fn(BATCH as u64 * BATCHES, move |index, rng| {
        let file = Arc::clone(&files[index as usize % files.len()]);
        let picture = LazyImage::encoded(file).transform(&transform, rng);
        Ok(picture.with_decode(Decode::Device))
    });
    let loader = DataLoader::builder(pictures)
        .batch_size(BATCH)
        .num_workers(cores)
        .pin_memory(device)
        .build()?;
    // The decoder opens with the first batches. (`repeat` leaves out one more measurement.)
    for batch in loader.epoch(0).prefetch_to_device(device, 4) {
        batch?;
    }
    let mut epoch = 1;
    let before = loader.total_stats();
    let images_s = effort.repeat(effort.windows, || {
        let (mut pictures, begun) = (0, Instant::now());
        while pictures == 0 || begun.elapsed() < effort.window {
            for batch in loader.epoch(epoch).prefetch_to_device(device, 4) {
                batch?;
                pictures += BATCH;
            }
            epoch += 1;
        }
        Ok(pictures as f64 / begun.elapsed().as_secs_f64())
    })?;
    let after = loader.total_stats();
    let (all, decoded) = (
        after.samples - before.samples,
        after.decoder.decoded - before.decoder.decoded,
    );
    if decoded < all {
        return Err(format!(
            "the GPU decoded only {decoded} of {all} pictures; the processor had the others: {:?}",
            after.decoder.left_to_cpu
        )
        .into());
    }
    Ok(GpuDecode::Measured {
        images_s,
        by_kernels: after.decoder.by_kernels > 0,
    })
}

/// Draws pictures that cost a decoder about what photographs cost: gradients, some edges, and noise.
fn draw(pictures: usize, cores: usize) -> Result<Files> {
    let next = AtomicUsize::new(0);
    let draw = || -> Result<Vec<Arc<[u8]>>> {
        let mut files = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= pictures {
                return Ok(files);
            }
            let mut jpeg = Vec::new();
            JpegEncoder::new_with_quality(&mut jpeg, QUALITY).encode_image(&paint(index))?;
            files.push(jpeg.into());
        }
    };
    let drawn: Result<Vec<_>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(draw)).collect();
        let joined = threads.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|_| Err("drawing panicked".into()))
        });
        joined.collect()
    });
    Ok(drawn?.into_iter().flatten().collect())
}

/// Waves of light, a few of them cut off sharply, under noise.
fn paint(index: usize) -> RgbImage {
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 1,
        epoch: 0,
        position: index as u64,
    });
    let waves: Vec<_> = (0..6)
        .map(|wave| {
            let (sin, cos) = (rng.f32() * TAU).sin_cos();
            let frequency = (1.0 + rng.f32() * 6.0) / WIDTH as f32;
            let colour = [0; 3].map(|_| rng.f32() * 60.0 - 30.0);
            (
                [sin * frequency, cos * frequency],
                rng.f32() * TAU,
                colour,
                wave < 2,
            )
        })
        .collect();
    RgbImage::from_fn(WIDTH, HEIGHT, |x, y| {
        let mut pixel = [128.0; 3];
        for ([by_x, by_y], phase, colour, has_edge) in &waves {
            let wave = (by_x * x as f32 + by_y * y as f32 + phase).sin();
            let height = if *has_edge { wave.signum() } else { wave };
            for (channel, colour) in pixel.iter_mut().zip(colour) {
                *channel += height * colour;
            }
        }
        // Grey for the most part, as a camera's noise is.
        let grey = (rng.f32() - 0.5) * 57.0;
        Rgb(pixel.map(|channel| (channel + grey + (rng.f32() - 0.5) * 17.0) as u8))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn drawn_pictures_differ_and_are_decoded() {
        let files = draw(2, 2).unwrap();
        assert_eq!(files.len(), 2);
        assert_ne!(files[0], files[1]);
        let pixels = LazyImage::encoded(Arc::clone(&files[0])).decode().unwrap();
        assert_eq!(pixels.shape()[..], [HEIGHT as usize, WIDTH as usize, 3]);
    }
}
