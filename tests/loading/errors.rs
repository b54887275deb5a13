//! What errors say: in one line, in a report of the chain, and at the end of a program that returns them from `main`.

use std::error::Error as StdError;
use std::{fmt, io};

use pinfeed::rng::RngKey;
use pinfeed::sampler::Sampler;
use pinfeed::{Batch, BoxError, DataLoader, Dataset, Device, Error, SampleRng, Tensor, from_fn};

/// A cause with a cause, as `anyhow::Context` makes them.
#[derive(Debug)]
struct Context(&'static str, io::Error);

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl StdError for Context {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.1)
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no such file")
}

/// A report as anyhow prints it: the error, and what lies behind it.
fn report(error: &dyn StdError) -> Vec<String> {
    let chain = std::iter::successors(Some(error), |&error| error.source());
    chain.map(ToString::to_string).collect()
}

/// The error of the second of three batches; the others come.
fn second(samples: impl Dataset<Sample = i64>) -> Error {
    let loader = DataLoader::builder(samples).batch_size(2).build().unwrap();
    the_second_of(loader.epoch(7).collect())
}

fn the_second_of(batches: Vec<Result<Tensor<i64>, Error>>) -> Error {
    let [Ok(_), Err(error), Ok(_)] = <[_; 3]>::try_from(batches).unwrap() else {
        panic!("only the second batch fails");
    };
    error
}

fn failing_at_3(error: impl Fn() -> BoxError + Send + Sync + 'static) -> Error {
    second(from_fn(6, move |index, _| match index {
        3 => Err(error()),
        _ => Ok(index as i64),
    }))
}

const WHERE: &str = "sample 3, row 1 of batch 1 in epoch 7,";

#[test]
fn a_sample_error_ends_in_its_reason() {
    let error = failing_at_3(|| gone().into());
    let said = format!("{WHERE} failed to load: no such file");
    assert_eq!(format!("{error}"), said);
    assert_eq!(format!("{error:#}"), said);
    assert_eq!(format!("{error:?}"), said);
    assert_eq!(report(&error), [said]);
    let Error::Sample(id, cause) = error else {
        panic!("{error}");
    };
    assert_eq!(id.index, 3);
    let cause = cause.downcast_ref::<io::Error>().unwrap();
    assert_eq!(cause.kind(), io::ErrorKind::NotFound);
}

#[test]
fn deeper_reasons_follow_where_they_are_asked_for() {
    let error = failing_at_3(|| Context("reading the header", gone()).into());
    let first = format!("{WHERE} failed to load: reading the header");
    let all = format!("{first}: no such file");
    assert_eq!(format!("{error}"), first);
    assert_eq!(format!("{error:#}"), all);
    assert_eq!(format!("{error:?}"), all);
    assert_eq!(report(&error), [first.as_str(), "no such file"]);
}

/// The library's own error as the reason, as data sets of files return it.
#[test]
fn nothing_is_said_twice() {
    let error = failing_at_3(|| {
        let path = "cats/3.jpg".into();
        let source = gone();
        Error::Io { path, source }.into()
    });
    let said = format!("{WHERE} failed to load: cats/3.jpg cannot be read: no such file");
    assert_eq!(format!("{error:#}"), said);
    assert_eq!(report(&error), [said]);
}

/// A file's error begins with its path, which is also how the data set describes the sample.
#[cfg(feature = "image")]
#[test]
fn a_path_is_not_said_twice() {
    use pinfeed::image::{ImageFolder, ImageTransform};

    let root = tempfile::tempdir().unwrap();
    let class = root.path().join("cats");
    std::fs::create_dir(&class).unwrap();
    for name in ["broken.jpg", "gone.jpg", "large.jpg"] {
        std::fs::write(class.join(name), b"<html>404</html>").unwrap();
    }
    std::fs::write(class.join("large.jpg"), [0; 100]).unwrap();
    let data = ImageFolder::open(root.path())
        .unwrap()
        .with_max_file_bytes(99);
    std::fs::remove_file(class.join("gone.jpg")).unwrap();
    // The header is read in `get` without a transform, and when the row is filled with one.
    for data in [data.clone(), data.with_transform(ImageTransform::eval(8))] {
        let errors = DataLoader::builder(data).batch_size(1).build().unwrap();
        let said: Vec<_> = errors
            .epoch(0)
            .filter_map(Result::err)
            .map(|error| error.to_string())
            .collect();
        assert_eq!(said.len(), 3);
        for (at, (said, name)) in said.iter().zip(["broken", "gone", "large"]).enumerate() {
            let path = class.join(format!("{name}.jpg")).display().to_string();
            let start =
                format!("sample {at}, row 0 of batch {at} in epoch 0, failed to load: {path}");
            assert!(said.starts_with(&start), "{said}");
            assert_eq!(said.matches(&path).count(), 1, "{said}");
        }
    }
}

#[test]
fn a_panic_is_told_by_its_message() {
    let error = second(from_fn(6, |index, _| {
        assert!(index != 3, "three is too many");
        Ok(index as i64)
    }));
    let said = format!("{WHERE} panicked while loading: three is too many");
    assert_eq!(format!("{error}"), said);
    assert_eq!(format!("{error:#}"), said);
    assert_eq!(report(&error), [said]);
}

#[test]
fn a_collate_fn_error_ends_in_its_reason() {
    let samples: Vec<i64> = (0..6).collect();
    let collate = |samples: Vec<i64>, _: &mut pinfeed::collate::Arena| match samples[..] {
        [2, _] => Err(Context("padding", gone()).into()),
        _ => Ok(Tensor::from(samples)),
    };
    let builder = DataLoader::builder(samples).batch_size(2);
    let loader = builder.collate_fn(collate).build().unwrap();
    let error = the_second_of(loader.epoch(7).collect());
    let first = "collate_fn failed on batch 1 of epoch 7: padding";
    assert_eq!(format!("{error}"), first);
    assert_eq!(format!("{error:#}"), format!("{first}: no such file"));
    assert_eq!(report(&error), [first, "no such file"]);
}

#[test]
fn a_sample_that_does_not_fit_says_why() {
    let samples = vec![vec![1u8, 2], vec![3]];
    let loader = DataLoader::builder(samples).batch_size(2).build().unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("its shape is [1]"), "{text}");
    assert!(text.contains("pinfeed::Padded"), "{text}"); // what to do
    assert_eq!(report(&error), [text]);
}

/// A function's samples have the names that it is told, wherever something goes wrong with them, and only then.
#[test]
fn described_samples_are_named() {
    let data = from_fn(6, |index, _| match index {
        3 => Err("it is broken".into()),
        5 => panic!("it is odd"),
        _ => Ok(index as i64),
    });
    let name = |index: u64| {
        assert!(matches!(index, 3 | 5), "nobody asked for {index}");
        format!("cats/{index}.jpg")
    };
    let changed = data.clone().map(|sample, _| Ok(sample)).describe(name);
    let described = data.describe(name);
    assert_eq!(described.describe(5).as_deref(), Some("cats/5.jpg"));
    assert_eq!(described.len(), 6);
    assert!(
        described
            .get(
                0,
                &mut SampleRng::for_sample(RngKey {
                    seed: 0,
                    epoch: 0,
                    position: 0
                })
            )
            .is_ok()
    );
    let mapped = described.clone().map(|sample, _| Ok(sample + 1));

    fn errors(data: impl Dataset<Sample = i64>, workers: usize) -> Vec<String> {
        let builder = DataLoader::builder(data).batch_size(2);
        let loader = builder.num_workers(workers).build().unwrap();
        let errors = loader.epoch(0).filter_map(Result::err);
        errors.map(|error| error.to_string()).collect()
    }
    let expected = [
        "sample 3 (cats/3.jpg), row 1 of batch 1 in epoch 0, failed to load: it is broken",
        "sample 5 (cats/5.jpg), row 1 of batch 2 in epoch 0, panicked while loading: it is odd",
    ];
    assert_eq!(errors(described.clone(), 0), expected);
    assert_eq!(errors(described, 2), expected);
    assert_eq!(errors(mapped, 0), expected);
    assert_eq!(errors(changed, 0), expected);
}

/// Where the sampler panics, nobody knows which sample it would have been: no made-up one is named.
#[test]
fn a_sampler_that_panics_is_said_to() {
    struct Odd;
    impl Sampler for Odd {
        fn len(&self) -> u64 {
            6
        }

        fn index(&self, _: u64, position: u64) -> u64 {
            assert!(position != 3, "nothing stands at three");
            position
        }
    }

    for workers in [0, 2] {
        let data = from_fn(6, |index, _| Ok(index as i64)).describe(|index| {
            panic!("nobody asked for {index}");
        });
        let builder = DataLoader::builder(data).batch_size(2).sampler(Odd);
        let loader = builder.num_workers(workers).build().unwrap();
        let error = the_second_of(loader.epoch(7).collect());
        let said =
            "the sampler panicked at position 3 of epoch 7, in batch 1: nothing stands at three";
        assert_eq!(error.to_string(), said);
        assert!(matches!(error, Error::SamplerPanicked { position: 3, .. }));
        assert!(loader.epoch(8).next().unwrap().is_ok());
    }
}

/// A data set is not asked to describe what it does not have: `paths[index]` would panic, and say so on the terminal.
#[test]
fn an_index_that_the_data_set_does_not_have_is_not_described() {
    let data = from_fn(6, |index, _| Ok(index as i64)).describe(|index| format!("{index}.jpg"));
    let builder = DataLoader::builder(data).batch_size(2);
    let loader = builder.sampler(vec![0, 1, 2, 60, 4, 5]).build().unwrap();
    let error = the_second_of(loader.epoch(7).collect());
    assert_eq!(
        error.to_string(),
        "sample 60, row 1 of batch 1 in epoch 7, failed to load: the sampler gave index 60, and the data set has 6 samples"
    );
}

/// `stack` names the row that differs, as `collate` does. In a `collate_fn`, to give one is no advice.
#[test]
fn rows_that_cannot_be_stacked_are_named() {
    let rows = |samples: &[Vec<f32>]| -> Vec<Tensor<f32>> {
        samples
            .iter()
            .map(|sample| Tensor::from(sample.clone()))
            .collect()
    };
    let samples = vec![vec![1.0f32; 3], vec![1.0; 3], vec![1.0; 2]];
    let said = "collate_fn failed on batch 0 of epoch 0: of 3 samples to stack, number 2 does not fit the others, \
                whose layout was planned from number 0: its shape is [2], and the batch's rows are [3]: \
                make all samples of one shape, or where lengths differ use pinfeed::Padded or pinfeed::Ragged";
    let builder = DataLoader::builder(samples.clone()).batch_size(3);
    let stacked = builder.collate_fn(move |samples, arena| Ok(arena.stack(&rows(&samples))?));
    let builder = DataLoader::builder(samples).batch_size(3);
    let collated = builder.collate_fn(|samples: Vec<Vec<f32>>, arena| Ok(arena.collate(samples)?));
    for loader in [stacked.build().unwrap(), collated.build().unwrap()] {
        let error = loader.epoch(0).next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), said);
    }
}

/// Pictures of unlike sizes are not padded: the advice is a transform.
#[test]
fn pictures_of_unlike_sizes_want_a_transform() {
    let pictures = from_fn(2, |index, _| {
        Ok(Tensor::<u8>::zeros(&[
            40 + index as usize,
            50 - index as usize,
            3,
        ]))
    });
    let loader = DataLoader::builder(pictures).batch_size(2).build().unwrap();
    let said = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(
        said.contains(
            "its shape is [41, 49, 3], and the batch's rows are [40, 50, 3]: pictures need one size"
        ),
        "{said}"
    );
    assert!(
        said.contains("`.transform(..)`") && !said.contains("Padded"),
        "{said}"
    );
}

/// What `main` prints of an error by `?`, and `unwrap` of one.
#[cfg(feature = "image")]
#[test]
fn a_picture_error_says_the_same_by_its_debug() {
    let page = pinfeed::image::LazyImage::encoded(b"<html>404</html>").with_path("cat.jpg");
    let error = page.decode().unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(
        error
            .to_string()
            .starts_with("cat.jpg: its content is an HTML page")
    );
}

/// A program that holds nothing has nothing to drop.
#[test]
fn a_device_budget_below_one_batch_is_said_to_be() {
    let device = Device::cpu();
    device.set_device_budget_bytes(1_000);
    let loader = DataLoader::builder(vec![[0.0f32; 100]; 10])
        .batch_size(10)
        .build()
        .unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let text = batch.to_device(&device, true).unwrap_err().to_string();
    assert!(text.contains("budget of 1000"), "{text}");
    assert!(
        text.ends_with("Lower batch_size, or raise the budget (Device::set_device_budget_bytes)"),
        "{text}"
    );
    assert!(!text.contains("Drop"), "{text}");
}
