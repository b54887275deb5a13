//! Derived samples: what their batches hold, on the host and on a device.

#![cfg(feature = "derive")]

use pinfeed::tensor::Element;
use pinfeed::{Batch, DataLoader, Device, Error, Sample, Tensor, from_fn};

/// Collates `len` samples into one batch.
fn batch_of<S>(
    len: u64,
    sample: impl Fn(u64) -> S + Send + Sync + 'static,
) -> Result<S::Batch, Error>
where
    S: Sample,
    S::Batch: Batch,
{
    let samples = from_fn(len, move |index, _| Ok(sample(index)));
    let loader = DataLoader::builder(samples)
        .batch_size(len as usize)
        .build()?;
    let mut batches = (&loader).into_iter();
    batches.next().unwrap()
}

#[derive(Sample)]
struct Example {
    image: Tensor<u8>,
    label: i64,
    path: String,
}

fn example(index: u64) -> Example {
    Example {
        image: Tensor::from_vec(vec![index as u8; 6], &[2, 3]).unwrap(),
        label: -(index as i64),
        path: format!("{index}.jpg"),
    }
}

#[test]
fn each_field_is_collated_as_its_type_is() {
    let ExampleBatch { image, label, path } = batch_of(3, example).unwrap();
    assert_eq!(image.shape()[..], [3, 2, 3]);
    assert_eq!(image.row(2), example(2).image);
    assert_eq!(label, Tensor::from(vec![0, -1, -2]));
    assert_eq!(path, ["0.jpg", "1.jpg", "2.jpg"]);
}

#[test]
fn a_batch_goes_to_the_device_field_by_field() {
    let batch: ExampleBatch = batch_of(3, example).unwrap();
    let batch: ExampleDeviceBatch = batch.to_device(&Device::cpu(), true).unwrap();
    assert_eq!(batch.image.shape()[..], [3, 2, 3]);
    let label = batch.label.to_host(false).unwrap().wait().unwrap();
    assert_eq!(label, Tensor::from(vec![0, -1, -2]));
    assert_eq!(batch.path, ["0.jpg", "1.jpg", "2.jpg"]);
}

#[test]
fn an_error_names_the_field_that_does_not_fit() {
    let error = batch_of(3, |index| Example {
        image: Tensor::zeros(&[2, 3 + index as usize]),
        ..example(index)
    })
    .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("field `image`") && text.contains("[2, 4]"),
        "{text}"
    );
}

/// A tuple struct, of which only one field is public.
#[derive(Sample)]
struct Scores(pub [f32; 2], bool);

#[test]
fn a_tuple_struct_has_a_tuple_struct_as_its_batch() {
    let batch = batch_of(2, |index| Scores([index as f32, 0.5], index == 1)).unwrap();
    let ScoresBatch(scores, flags) = batch;
    assert_eq!(
        scores,
        Tensor::from_vec(vec![0.0, 0.5, 1.0, 0.5], &[2, 2]).unwrap()
    );
    assert_eq!(flags, Tensor::from(vec![0u8, 1]));
}

#[derive(Sample)]
struct Nested {
    example: Example,
    scores: Scores,
    pair: (u8, String),
}

#[test]
fn derived_structs_are_fields_of_derived_structs() {
    let batch: NestedBatch = batch_of(4, |index| Nested {
        example: example(index),
        scores: Scores([0.0, 1.0], true),
        pair: (7, index.to_string()),
    })
    .unwrap();
    assert_eq!(batch.example.path[3], "3.jpg");
    assert_eq!(batch.scores.0.shape()[..], [4, 2]);
    assert_eq!(batch.pair.1, ["0", "1", "2", "3"]);

    let batch: NestedDeviceBatch = batch.to_device(&Device::cpu(), true).unwrap();
    assert_eq!(batch.example.image.shape()[..], [4, 2, 3]);
    assert_eq!(batch.scores.1.shape()[..], [4]);
    assert_eq!(batch.pair.1.len(), 4);
}

/// With a bound, without one, with a default, and with a constant.
#[derive(Sample)]
struct Generic<A: Sample, B, T = f32, const N: usize = 2>
where
    T: Element,
{
    a: A,
    b: Option2<B>,
    t: [T; N],
}

/// A generic type in a generic type.
#[derive(Sample)]
struct Option2<B>(B, B);

#[test]
fn structs_can_have_parameters() {
    let batch: GenericBatch<i64, String> = batch_of(2, |index| Generic {
        a: index as i64,
        b: Option2(index.to_string(), String::new()),
        t: [0.5, 1.5],
    })
    .unwrap();
    assert_eq!(batch.a, Tensor::from(vec![0, 1]));
    assert_eq!(batch.b.0, ["0", "1"]);
    assert_eq!(batch.t.shape()[..], [2, 2]);

    fn goes_to_a_device<A>(batch: GenericBatch<A, u8>) -> GenericDeviceBatch<A, u8>
    where
        A: Sample<Batch: Batch>,
    {
        batch.to_device(&Device::cpu(), false).unwrap()
    }
    let batch = batch_of(2, |index| Generic {
        a: index as i64,
        b: Option2(1, 2),
        t: [0.5, 1.5],
    });
    let batch = goes_to_a_device(batch.unwrap());
    assert_eq!((batch.a.shape()[0], batch.b.1.shape()[0]), (2, 2));
}

/// Of no trait that the macro could need.
struct Opaque(u64);

#[derive(Sample)]
struct WithOpaque {
    x: f32,
    #[pinfeed(host)]
    opaque: Opaque,
    #[pinfeed(host)]
    number: u32,
}

#[test]
fn a_host_field_stays_on_the_host_whatever_its_type() {
    let batch = batch_of(3, |index| WithOpaque {
        x: 1.0,
        opaque: Opaque(index),
        number: index as u32,
    });
    let batch = match batch {
        Ok(batch) => batch.to_device(&Device::cpu(), true).unwrap(),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(batch.x.shape()[..], [3]);
    assert_eq!(batch.opaque[2].0, 2);
    assert_eq!(batch.number, [0, 1, 2]);
}

#[test]
fn a_batch_is_debug_where_its_fields_are() {
    let batch = batch_of(1, example).unwrap();
    let shown = format!("{batch:?}");
    assert!(
        shown.starts_with("ExampleBatch { image: Tensor {"),
        "{shown}"
    );
    assert!(shown.ends_with(r#"path: ["0.jpg"] }"#), "{shown}");
}

/// A sample whose batch has rows as long as its longest.
struct Padded(Vec<f32>);

impl Sample for Padded {
    type Batch = Tensor<f32>;
    type Plan = pinfeed::sample::Field<f32>;
    type Rest = ();
    const ALIKE: bool = false;

    fn plan<'a>(
        samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut pinfeed::sample::Layout,
    ) -> Result<Self::Plan, pinfeed::error::CollateError> {
        layout.field(&[samples.map(|sample| sample.0.len()).max().unwrap_or(0)])
    }

    fn fill(
        self,
        plan: &Self::Plan,
        row: &mut pinfeed::sample::Row<'_>,
    ) -> Result<(), pinfeed::error::CollateError> {
        let row = row.slice_mut(plan)?;
        row.fill(0.0);
        row[..self.0.len()].copy_from_slice(&self.0);
        Ok(())
    }

    fn finish(plan: Self::Plan, _: Vec<()>, filled: &mut pinfeed::sample::Filled) -> Tensor<f32> {
        filled.take(plan)
    }
}

#[derive(Sample)]
struct Varying {
    label: i64,
    signal: Padded,
}

#[test]
fn one_field_that_varies_has_the_batch_planned_from_all_samples() {
    const { assert!(Example::ALIKE && !Varying::ALIKE) };
    let batch = batch_of(3, |index| Varying {
        label: 0,
        signal: Padded(vec![1.0; index as usize]),
    })
    .unwrap();
    let rows = vec![0.0, 0.0, 1.0, 0.0, 1.0, 1.0];
    assert_eq!(batch.signal, Tensor::from_vec(rows, &[3, 2]).unwrap());
    assert_eq!(batch.label.len(), 3);
}

#[derive(Sample)]
struct Detection<T: Element> {
    image: Tensor<u8>,
    boxes: pinfeed::Ragged<T>,
    #[pinfeed(host)]
    path: String,
}

#[test]
fn a_ragged_field_has_as_many_rows_as_it_has() {
    const { assert!(!Detection::<f32>::ALIKE) };
    let batch = batch_of(3, |index| Detection {
        image: Tensor::zeros(&[2, 2]),
        boxes: vec![[index as f32; 4]; 2 * index as usize].into(),
        path: index.to_string(),
    });
    let batch: DetectionBatch<f32> = batch.unwrap();
    assert_eq!(batch.boxes.row(1), [1.0; 8]);
    assert_eq!(batch.boxes.offsets.as_slice(), [0, 0, 2, 6]);
    let batch = batch.to_device(&Device::cpu(), true).unwrap();
    assert_eq!(batch.boxes.values.shape()[..], [6, 4]);
    let offsets = batch.boxes.offsets.to_host(false).unwrap().wait().unwrap();
    assert_eq!(offsets.as_slice(), [0, 0, 2, 6]);
    assert_eq!(batch.image.shape()[..], [3, 2, 2]);
    assert_eq!(batch.path, ["0", "1", "2"]);
}

mod elsewhere {
    /// As if another crate had re-exported it.
    pub(super) mod facade {
        pub(in super::super) use ::pinfeed as feed;
    }

    /// Its names are those that the macro uses too.
    #[derive(pinfeed::Sample)]
    #[pinfeed(crate = "super::elsewhere::facade::feed")]
    pub(super) struct Batch {
        pub(super) r#type: u8,
        pub(crate) layout: f32,
        pub samples: Vec<f64>,
        column_0: Private,
    }

    #[derive(pinfeed::Sample)]
    struct Private(i32);

    pub(super) fn batch() -> Batch {
        Batch {
            r#type: 3,
            layout: 1.0,
            samples: vec![2.0],
            column_0: Private(4),
        }
    }

    pub(super) fn private(batch: &BatchBatch) -> &[i32] {
        batch.column_0.0.as_slice()
    }
}

#[test]
fn names_and_visibilities_are_those_of_the_struct() {
    let batch = batch_of(1, |_| elsewhere::batch()).unwrap();
    assert_eq!(batch.r#type.as_slice(), [3]);
    assert_eq!(batch.layout.as_slice(), [1.0]);
    assert_eq!(batch.samples.as_slice(), [2.0]);
    assert_eq!(elsewhere::private(&batch), [4]);
}

#[test]
fn a_struct_inside_of_a_function_can_be_derived() {
    #[derive(Sample)]
    struct Local {
        x: u16,
    }
    assert_eq!(
        batch_of(2, |_| Local { x: 5 }).unwrap().x.as_slice(),
        [5, 5]
    );
}

/// Large batches of these travel to a device in parts, for which they must be nothing but their samples' rows.
#[test]
fn a_struct_is_dense_if_all_of_its_fields_are() {
    use pinfeed::collate::{Collate, Stack};

    const fn in_parts<S: Sample<Batch: Batch>>() -> bool {
        <Stack as Collate<S>>::IN_PARTS
    }
    #[derive(pinfeed::Sample)]
    struct Numbers {
        image: Tensor<u8>,
        label: i64,
        more: (f32, [u8; 3]),
    }
    #[derive(pinfeed::Sample)]
    struct Outer<A: Sample>(Numbers, A);

    const { assert!(in_parts::<Numbers>() && in_parts::<Outer<bool>>()) };
    const { assert!(!in_parts::<Outer<String>>() && !in_parts::<(i64, Example)>()) };
    // Who implements the trait by hand is never asked.
    const { assert!(!in_parts::<Padded>() && !in_parts::<Outer<Padded>>()) };
}
