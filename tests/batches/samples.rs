//! Kinds of samples, and what their batches are.

use std::path::PathBuf;

use pinfeed::{Batch, DataLoader, Error, Sample, Tensor, from_fn};

/// Collates `len` samples into one batch.
fn batch_of<S: Sample<Batch: Batch>>(
    len: u64,
    sample: impl Fn(u64) -> S + Send + Sync + 'static,
) -> Result<S::Batch, Error> {
    let samples = from_fn(len, move |index, _| Ok(sample(index)));
    let loader = DataLoader::builder(samples).batch_size(len as usize);
    loader.build()?.epoch(0).next().unwrap()
}

/// What the error says of the sample, and of its cause.
fn cause<B: std::fmt::Debug>(batch: Result<B, Error>) -> (String, String) {
    let error = batch.unwrap_err();
    let Error::Collate(misfit) = &error else {
        panic!("{error}")
    };
    let (said, cause) = (error.to_string(), misfit.source.to_string());
    assert!(said.ends_with(&cause), "{said}");
    (said, cause)
}

#[test]
fn whole_numbers_of_the_machine_travel_as_i64() {
    let (big, size, signed) =
        batch_of(3, |index| (index, index as usize * 2, -(index as isize))).unwrap();
    assert_eq!(big, Tensor::from(vec![0i64, 1, 2]));
    assert_eq!(size, Tensor::from(vec![0i64, 2, 4]));
    assert_eq!(signed, Tensor::from(vec![0i64, -1, -2]));
    let (tokens, pair) = batch_of(2, |index| (vec![index; 3], [7usize, 8])).unwrap();
    assert_eq!(
        tokens,
        Tensor::from_vec(vec![0i64, 0, 0, 1, 1, 1], &[2, 3]).unwrap()
    );
    assert_eq!(pair.as_slice(), [7, 8, 7, 8]);
}

#[test]
fn a_number_that_does_not_fit_is_its_samples_error() {
    let (error, cause) = cause(batch_of(4, |index| (1.0f32, u64::MAX * (index / 2))));
    assert!(error.starts_with("sample 2, row 2"), "{error}");
    assert!(
        cause.starts_with("field `1`: 18446744073709551615 does not fit into an i64"),
        "{cause}"
    );
    assert!(batch_of(1, |_| [i64::MAX as u64; 2]).is_ok());
    assert!(batch_of(1, |_| vec![i64::MAX as u64 + 1]).is_err());
}

#[test]
fn arrays_of_arrays_have_a_dimension_each() {
    let matrix = |index: u64| [[index as f32, 1.0, 2.0], [3.0, 4.0, 5.0]];
    let batch = batch_of(3, matrix).unwrap();
    assert_eq!(batch.shape()[..], [3, 2, 3]);
    assert_eq!(batch.row(2).as_slice(), [2.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let deep = batch_of(2, |_| [[[[1u8; 5]; 4]; 3]; 2]).unwrap();
    assert_eq!(deep.shape()[..], [2, 2, 3, 4, 5]);
    let flags = batch_of(2, |index| [[true, index == 1]; 2]).unwrap();
    assert_eq!(flags.as_slice(), [1u8, 0, 1, 0, 1, 1, 1, 1]);
    assert_eq!(
        batch_of(2, |_| [[0f64; 0]; 3]).unwrap().shape()[..],
        [2, 3, 0]
    );
}

#[test]
fn vectors_of_arrays_are_as_long_as_each_other() {
    let points = batch_of(2, |index| vec![[index as f32, 0.5]; 3]).unwrap();
    assert_eq!(points.shape()[..], [2, 3, 2]);
    assert_eq!(points.row(1).as_slice(), [1.0, 0.5, 1.0, 0.5, 1.0, 0.5]);
    let (_, cause) = cause(batch_of(2, |index| vec![[0u8; 4]; 2 + index as usize]));
    assert!(
        cause.starts_with("its shape is [3, 4], and the batch's rows are [2, 4]"),
        "{cause}"
    );
    let (_, cause) = self::cause(batch_of(2, |index| vec![true; 2 + index as usize]));
    assert!(
        cause.starts_with("its shape is [3], and the batch's rows are [2]"),
        "{cause}"
    );
}

#[test]
fn what_is_made_of_text_stays_on_the_host() {
    let (words, label, files) = batch_of(2, |index| {
        let words = vec!["a".to_owned(); index as usize];
        let label = (index > 0).then(|| "cat".to_owned());
        (words, label, vec![PathBuf::from("x")])
    })
    .unwrap();
    assert_eq!(words, [vec![], vec!["a".to_owned()]]);
    assert_eq!(label, [None, Some("cat".to_owned())]);
    assert_eq!(files, [["x"], ["x"]].map(|files| files.map(PathBuf::from)));
}
