//! Columns of all types, and what they are taken for.

use std::fs;

use half::f16;
use pinfeed::{BoxError, DataLoader, Padded, Ragged, Tensor};
use pinfeed_parquet::{Filter, Parquet, Value};
use serde_json::{Value as Json, json};

use crate::common::{Memory, all, fixture, fixtures, open};

fn expected() -> Json {
    serde_json::from_str(&fs::read_to_string(fixtures().join("types.json")).unwrap()).unwrap()
}

fn column<T: Value + Send + 'static>(file: &str, name: &'static str) -> Result<Vec<T>, BoxError> {
    all(open(file)
        .columns([name])
        .build(move |row, _| Ok(row.get::<T>(name)?))?)
}

/// Each column, as pyarrow reads it.
#[test]
fn what_pyarrow_wrote_is_read_as_pyarrow_reads_it() {
    let expected = expected();
    macro_rules! same {
        ($file:expr, $($name:literal: $type:ty,)*) => {$(
            let found = column::<$type>($file, $name).unwrap();
            assert_eq!(json!(found), expected[$name], "{}: {}", $file, $name);
        )*};
    }
    // The second has other pages, encodings and compression, and nothing of Arrow's own types.
    for file in ["types.parquet", "types-v2.parquet"] {
        same!(file,
            "id": i64, "a": f32, "b": f64, "score": Option<f32>, "tokens": Vec<i32>,
            "i8": i8, "i16": i16, "i32": i32, "u8": u8, "u16": u16, "u32": u32, "u64": u64,
            "bool": Option<bool>, "text": Option<String>, "large_text": String,
            "date": i32, "time_ms": i32, "time_us": i64, "category": Option<String>, "nothing": Option<i64>,
            "maybe_list": Option<Vec<f32>>, "holes": Vec<Option<i64>>, "matrix": Vec<Vec<i16>>, "matrix": Vec<[i16; 2]>,
            "large_list": Vec<String>, "vector": [f32; 3], "vector": Vec<f32>,
        );
    }
    same!("types.parquet", "at_ms": i64, "at_us": i64, "at_ns": i64,);
    // (As Impala and Spark write timestamps: in 96 bits, which are read as microseconds, whatever they were.)
    let milliseconds = expected["at_ms"].as_array().unwrap().iter();
    let expected_ms = milliseconds.map(|value| value.as_i64().unwrap() * 1_000);
    assert_eq!(
        column::<i64>("types-v2.parquet", "at_ms").unwrap(),
        expected_ms.collect::<Vec<i64>>()
    );
    let found = column::<i64>("types-v2.parquet", "at_us").unwrap();
    assert_eq!(json!(found), expected["at_us"]);
}

/// The years 1 to 9999, which 64 bits of nanoseconds do not hold.
#[test]
fn timestamps_of_96_bits_are_in_microseconds() {
    let text = fs::read_to_string(fixtures().join("int96.json")).unwrap();
    let expected: Json = serde_json::from_str(&text).unwrap();
    let found = column::<i64>("int96.parquet", "at").unwrap();
    assert_eq!(json!(found), expected["at"]);
    let lists = column::<Vec<Option<i64>>>("int96.parquet", "list").unwrap();
    for (list, at) in lists.iter().zip(&found) {
        assert_eq!(list[..], [Some(*at), None]);
    }
    let data = open("int96.parquet").build(|_, _| Ok(())).unwrap();
    let types: Vec<String> = data.columns().map(|(_, of)| of).collect();
    assert_eq!(types, ["timestamp[us]", "list<timestamp[us]>"]);
}

/// Whatever is empty of them, lists of lists have the rank that their column has.
#[test]
fn empty_lists_of_lists_have_a_rank() {
    let shapes = |name: &'static str| -> Vec<Vec<usize>> {
        let data = open("lists.parquet").build(move |row, _| {
            let tensor: Tensor<i32> = match name {
                "grid" => row.get(name)?,
                _ => {
                    let deep: Tensor<f32> = row.get(name)?;
                    return Ok(deep.shape().to_vec());
                }
            };
            Ok(tensor.shape().to_vec())
        });
        all(data.unwrap()).unwrap()
    };
    assert_eq!(
        shapes("grid"),
        [vec![2, 2], vec![0, 0], vec![2, 0], vec![1, 1]]
    );
    assert_eq!(
        shapes("deep"),
        [vec![1, 1, 1], vec![0, 0, 0], vec![1, 0, 0], vec![1, 2, 0]]
    );
}

#[test]
fn bytes_decimals_and_halves() {
    let expected = expected();
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    for file in ["types.parquet", "types-v2.parquet"] {
        for name in ["binary", "fixed"] {
            let found: Vec<Vec<u8>> = column(file, name).unwrap();
            assert_eq!(
                json!(found.iter().map(|bytes| hex(bytes)).collect::<Vec<_>>()),
                expected[name]
            );
        }
        let prices = expected["price"].as_array().unwrap().iter();
        let prices: Vec<f64> = prices
            .map(|price| price.as_str().unwrap().parse().unwrap())
            .collect();
        assert_eq!(column::<f64>(file, "price").unwrap(), prices);
        let halves: Vec<f16> = column(file, "f16").unwrap();
        assert!(
            halves.into_iter().map(f64::from).eq(expected["f16"]
                .as_array()
                .unwrap()
                .iter()
                .map(|half| half.as_f64().unwrap()))
        );
    }
    // 10^30 is rounded, and too large for any integer.
    assert_eq!(column::<f64>("types.parquet", "count").unwrap()[0], 1e30);
    let error = column::<i64>("types.parquet", "count")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(
            "it is 1000000000000000000000000000000 (decimal(38, 0)), which i64 does not hold"
        ),
        "{error}"
    );
    let error = column::<i64>("types.parquet", "price")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("row 1, column \"price\": it is -3.75"),
        "{error}"
    );
}

#[test]
fn fields_of_structures_and_of_lists_of_structures() {
    let data = open("types.parquet")
        .columns(["place", "objects", "tags"])
        .build(|row, _| {
            let place = (
                row.get::<Option<String>>("place.name")?,
                row.get::<Option<i32>>("place.at.x")?,
                row.get::<Option<i32>>("place.at.y")?,
            );
            let objects = (
                row.list::<i64>("objects.label")?,
                row.get::<Vec<[f32; 4]>>("objects.box")?,
            );
            let tags = (
                row.list::<String>("tags.key")?,
                row.list::<i32>("tags.value")?,
            );
            Ok((json!(place), json!(objects), json!(tags)))
        });
    let (expected, found) = (expected(), all(data.unwrap()).unwrap());
    assert_eq!(found.len(), 20);
    for (row, (place, objects, tags)) in found.iter().enumerate() {
        let of = &expected["place"][row];
        assert_eq!(
            *place,
            json!([of["name"], of["at"]["x"], of["at"]["y"]]),
            "row {row}"
        );
        let of = expected["objects"][row].as_array().unwrap().iter();
        let parts: (Vec<&Json>, Vec<&Json>) =
            of.map(|object| (&object["label"], &object["box"])).unzip();
        assert_eq!(*objects, json!(parts), "row {row}");
        let of = expected["tags"][row].as_array().unwrap().iter();
        let parts: (Vec<&Json>, Vec<&Json>) = of.map(|tag| (&tag[0], &tag[1])).unzip();
        assert_eq!(*tags, json!(parts), "row {row}");
    }
}

/// A column's type is its own, and another one is taken if nothing is lost but digits of a float.
#[test]
fn numbers_become_other_numbers() {
    assert_eq!(
        column::<f32>("types.parquet", "id").unwrap()[..2],
        [100.0, 101.0]
    );
    assert_eq!(column::<u8>("types.parquet", "id").unwrap()[19], 119);
    assert_eq!(
        column::<i64>("types.parquet", "u32").unwrap()[0],
        i64::from(u32::MAX)
    );
    assert_eq!(
        column::<u8>("types.parquet", "bool")
            .unwrap_err()
            .to_string()
            .matches("null")
            .count(),
        1
    );
    assert_eq!(
        column::<Option<u8>>("types.parquet", "bool").unwrap()[0],
        Some(1)
    );
    let b = column::<f64>("types.parquet", "b").unwrap();
    assert!(
        column::<f32>("types.parquet", "b")
            .unwrap()
            .into_iter()
            .eq(b.into_iter().map(|value| value as f32))
    );
    for (error, said) in [
        (
            column::<i8>("types.parquet", "u8").unwrap_err(),
            "row 0, column \"u8\": it is 255 (uint8), which i8 does not hold",
        ),
        (
            column::<u8>("types.parquet", "i8").unwrap_err(),
            "row 0, column \"i8\": it is -10 (int8), which u8 does not hold",
        ),
        (
            column::<i64>("types.parquet", "a").unwrap_err(),
            "it is float32, and cannot be taken for i64",
        ),
        (
            column::<f32>("types.parquet", "date").unwrap_err(),
            "it is date32, and cannot be taken for f32",
        ),
        (
            column::<f64>("types.parquet", "at_us").unwrap_err(),
            "it is timestamp[us, UTC], and cannot be taken for f64",
        ),
        (
            column::<String>("types.parquet", "id").unwrap_err(),
            "it is int64, and cannot be taken for text",
        ),
        (
            column::<f32>("types.parquet", "score").unwrap_err(),
            "row 3, column \"score\": it is null: take it as an Option",
        ),
        (
            column::<i32>("types.parquet", "tokens").unwrap_err(),
            "it is a list (list<int32>), of 0 values",
        ),
        (
            column::<Vec<i64>>("types.parquet", "id").unwrap_err(),
            "it is int64, and no list",
        ),
        (
            column::<[f32; 4]>("types.parquet", "vector").unwrap_err(),
            "of 3 values where 4 are expected",
        ),
        (
            column::<Vec<i64>>("types.parquet", "holes").unwrap_err(),
            "it is null: take it as an Option",
        ),
    ] {
        assert!(error.to_string().contains(said), "{error}");
    }
}

/// Lists become ragged and padded batches, and tensors.
#[test]
fn lists_are_collated() {
    let data = open("types.parquet")
        .columns(["tokens", "matrix", "vector", "maybe_list"])
        .build(|row, _| {
            let tokens: Ragged<i32> = row.get("tokens")?;
            let padded: Padded<i32> = row.get("tokens")?;
            let matrix: Tensor<i16> = row.get("matrix")?;
            let (vector, list): (Vec<f32>, Option<Vec<f32>>) =
                (row.get("vector")?, row.get("maybe_list")?);
            Ok((
                tokens,
                padded,
                matrix,
                vector,
                Ragged::from(list.unwrap_or_default()),
            ))
        });
    let loader = DataLoader::builder(data.unwrap())
        .batch_size(20)
        .build()
        .unwrap();
    let (tokens, padded, matrix, vector, lists) = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!(tokens.offsets.as_slice()[..6], [0, 0, 1, 3, 6, 6]);
    assert_eq!(padded.values.shape()[..], [20, 3]);
    assert_eq!(matrix.shape()[..], [20, 3, 2]);
    assert_eq!(vector.shape()[..], [20, 3]);
    assert_eq!(lists.offsets.len(), 21);
}

#[test]
fn all_codecs_are_there() {
    for codec in ["none", "snappy", "gzip", "brotli", "zstd", "lz4"] {
        let found = all(open(&format!("codecs/{codec}.parquet"))
            .build(|row, _| Ok(row.get::<i64>("x")?))
            .unwrap());
        assert!(found.unwrap().into_iter().eq(0..50), "{codec}");
    }
}

/// Columns that were not chosen, or do not exist, are named.
#[test]
fn a_row_says_what_it_has() {
    let data = open("types.parquet")
        .columns(["id", "text"])
        .build(|row, _| {
            assert_eq!(row.file(), "types.parquet");
            Ok((
                row.number(),
                row.str("text").unwrap_or("none").to_owned(),
                row.is_null("text")?,
                row.get::<f32>("a")?,
            ))
        });
    let data = data.unwrap();
    let columns: Vec<String> = data
        .columns()
        .map(|(name, of)| format!("{name}: {of}"))
        .collect();
    assert_eq!(columns, ["id: int64", "text: string"]);
    let error = all(data).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "types.parquet, row 0, column \"a\": there is no such column, but \"id\", \"text\""
        ),
        "{error}"
    );
}

/// All rows at once, for numbers that fit into memory.
#[test]
fn numbers_as_one_tensor() {
    let of = |columns: &[&'static str]| open("types.parquet").columns(columns.iter().copied());
    let (a, b, ids): (Vec<f32>, Vec<f32>, Vec<f32>) = (
        column("types.parquet", "a").unwrap(),
        column("types.parquet", "b").unwrap(),
        column("types.parquet", "id").unwrap(),
    );
    let table = of(&["b", "id", "a"]).tensor::<f32>().unwrap();
    assert_eq!(table.shape()[..], [20, 3]);
    for (row, values) in table.as_slice().chunks(3).enumerate() {
        assert_eq!(values, [b[row], ids[row], a[row]]);
    }
    assert_eq!(of(&["id"]).tensor::<u16>().unwrap().shape()[..], [20]);
    let filtered = of(&["id"])
        .filter(Filter::within("id", 103..=105))
        .tensor::<i64>()
        .unwrap();
    assert_eq!(filtered.as_slice(), [103, 104, 105]);
    // More rows than are written at once, beside a column that a folder makes.
    let store = Memory::of([("year=2024/0.parquet", fixture("paged.parquet"))]);
    let table = Parquet::builder(store, "")
        .columns(["x", "year"])
        .block_bytes(1_000)
        .tensor::<i64>()
        .unwrap();
    assert_eq!(table.shape()[..], [3_000, 2]);
    assert!(
        table
            .as_slice()
            .chunks(2)
            .zip(0..)
            .all(|(row, x)| row == [x, 2024])
    );
    // A folder's column is there if it is asked for, where it is asked for.
    let of_folders = |columns: &[&'static str]| {
        let builder = open("partitioned").columns(columns.iter().copied());
        builder.filter(Filter::equals("lang", "de")).tensor::<i64>()
    };
    assert_eq!(of_folders(&["x"]).unwrap().shape()[..], [30]);
    let table = of_folders(&["year", "x"]).unwrap();
    assert_eq!(table.shape()[..], [30, 2]);
    assert!(
        table
            .as_slice()
            .chunks(2)
            .all(|row| row[0] == 2022 + row[1] / 20)
    );
    // Many rows are decoded in several batches.
    let dense = open("dense.parquet").block_bytes(1 << 30);
    let dense = dense.tensor::<f64>().unwrap();
    assert_eq!(dense.shape()[..], [200_000]);
    let is_right = |(at, x): (usize, &f64)| *x as usize == at / 1000 * 1000;
    assert!(dense.as_slice().iter().enumerate().all(is_right));
    // Without a column there is none.
    for error in [
        open("types.parquet")
            .columns([] as [&str; 0])
            .tensor::<i64>(),
        of_folders(&[]),
    ]
    .map(|tensor| tensor.err().map(|error| error.to_string()))
    {
        let said = error.unwrap_or_default();
        assert!(
            said.contains("columns") && said.contains("at least one"),
            "{said}"
        );
    }
    for (columns, said) in [
        (["id", "score"], "row 3, column \"score\": it is null"),
        (["id", "tokens"], "row 0, column \"tokens\": it is a list"),
        (
            ["id", "text"],
            "row 0, column \"text\": it is string, and cannot be taken for f32",
        ),
        (["id", "none"], "column \"none\": there is no such column"),
    ] {
        let error = of(&columns).tensor::<f32>().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
