//! Which rows are taken: by folders, by statistics, by values; and that nothing is read for what is left out.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pinfeed::DataLoader;
use pinfeed::store::{LocalFiles, Store};
use pinfeed_parquet::{Filter, Parquet, ParquetBuilder};

use crate::common::{Memory, all, fixtures, open};

/// The files in folders, in memory.
fn partitioned() -> Memory {
    let files = LocalFiles::open(fixtures().join("partitioned")).unwrap();
    let objects = files.list("").unwrap();
    let objects = objects.iter().map(|object| {
        (
            object.key.as_str(),
            files.read(object, 0..object.bytes).unwrap(),
        )
    });
    Memory::of(objects)
}

fn rows(builder: ParquetBuilder) -> Vec<i64> {
    let data = builder.build(|row, _| Ok(row.get::<i64>("x")?)).unwrap();
    let len = data.len();
    let mut rows = all(data).unwrap();
    assert_eq!(rows.len() as u64, len);
    rows.sort_unstable();
    rows
}

/// Rows as they were written.
fn expected(meets: impl Fn(i64, i64, &str, Option<f64>, &str) -> bool) -> Vec<i64> {
    let rows = 0..60i64;
    let is_met = |at: &i64| {
        let score = (at % 10 != 9).then_some(*at as f64 / 60.0);
        let lang = ["de", "en"][(at % 2) as usize];
        meets(*at, 2022 + at / 20, lang, score, &format!("w{}", at % 6))
    };
    rows.filter(is_met).collect()
}

#[test]
fn folders_are_columns() {
    let data = open("partitioned")
        .build(|row, _| {
            Ok((
                row.get::<i64>("x")?,
                row.get::<i32>("year")?,
                row.str("lang")?.to_owned(),
            ))
        })
        .unwrap();
    assert_eq!(data.files().count(), 6);
    let found = all(data).unwrap();
    assert_eq!(found.len(), 60);
    for (x, year, lang) in found {
        assert_eq!(
            (i64::from(year), lang.as_str()),
            (2022 + x / 20, ["de", "en"][(x % 2) as usize])
        );
    }
    // They take part in batches as any other.
    let data = open("partitioned")
        .columns(["year"])
        .build(|row, _| Ok(row.get::<i64>("year")?))
        .unwrap();
    let batch = DataLoader::builder(data)
        .batch_size(60)
        .build()
        .unwrap()
        .epoch(0)
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(
        batch
            .as_slice()
            .iter()
            .filter(|year| **year == 2023)
            .count(),
        20
    );
}

#[test]
fn rows_that_meet_conditions() {
    let of = || open("partitioned");
    assert_eq!(
        rows(of().filter(Filter::equals("lang", "de"))),
        expected(|_, _, lang, _, _| lang == "de")
    );
    assert_eq!(
        rows(of().filter(Filter::within("year", 2023..))),
        expected(|_, year, _, _, _| year >= 2023)
    );
    assert_eq!(
        rows(of().filter(Filter::within("x", 10..=47))),
        expected(|x, _, _, _, _| (10..=47).contains(&x))
    );
    assert_eq!(
        rows(of().filter(Filter::within("score", 0.3..0.5))),
        expected(|_, _, _, score, _| score.is_some_and(|score| (0.3..0.5).contains(&score)))
    );
    assert_eq!(
        rows(of().filter(Filter::present("score"))),
        expected(|_, _, _, score, _| score.is_some())
    );
    assert_eq!(
        rows(of().filter(Filter::one_of("word", ["w1", "w4"]))),
        expected(|_, _, _, _, word| word == "w1" || word == "w4")
    );
    let several = of()
        .filter(Filter::equals("lang", "en"))
        .filter(Filter::within("x", ..40))
        .filter(Filter::equals("word", "w3"));
    assert_eq!(
        rows(several),
        expected(|x, _, lang, _, word| lang == "en" && x < 40 && word == "w3")
    );
    // (A whole number and a float compare as numbers.)
    assert_eq!(rows(of().filter(Filter::within("x", 9.5..11.0))), [10]);
    assert_eq!(rows(of().filter(Filter::equals("score", 0))), [0]);
}

/// Several conditions on one column, which is read once.
#[test]
fn several_conditions_on_a_column() {
    let of = || open("partitioned");
    let between = of()
        .filter(Filter::within("x", 13..))
        .filter(Filter::within("x", ..37))
        .filter(Filter::present("x"));
    assert_eq!(
        rows(between),
        expected(|x, _, _, _, _| (13..37).contains(&x))
    );
    // (Beside others, which lie before and behind it in the file.)
    let several = of()
        .filter(Filter::one_of("word", ["w1", "w2", "w3"]))
        .filter(Filter::within("x", 5..50))
        .filter(Filter::one_of("word", ["w3", "w4"]))
        .filter(Filter::present("score"))
        .filter(Filter::within("x", 7..));
    assert_eq!(
        rows(several),
        expected(|x, _, _, score, word| word == "w3" && (7..50).contains(&x) && score.is_some())
    );
}

/// A row has its own values, whichever others of its row group are left out.
#[test]
fn filtered_rows_are_whole() {
    let data = open("partitioned")
        .filter(Filter::equals("word", "w2"))
        .build(|row, _| {
            let error = row.get::<i64>("score").unwrap_err();
            assert_eq!(error.row(), Some(row.number()));
            Ok((
                row.get::<i64>("x")?,
                row.get::<Option<f64>>("score")?,
                row.number(),
            ))
        });
    for (x, score, number) in all(data.unwrap()).unwrap() {
        assert_eq!(score, (x % 10 != 9).then_some(x as f64 / 60.0));
        assert_eq!(number as i64, x % 20 / 2);
    }
}

#[test]
fn what_is_left_out_is_not_read() {
    let store = Arc::new(partitioned());
    let builder = || Parquet::builder(Arc::clone(&store), "").columns(["x"]);
    // One file in a folder of that year, of that language: one footer.
    let _ = rows(
        builder()
            .filter(Filter::equals("year", 2024))
            .filter(Filter::equals("lang", "de")),
    );
    store.restart();
    let builder_of = || {
        builder()
            .filter(Filter::equals("year", 2024))
            .filter(Filter::equals("lang", "de"))
    };
    let data = builder_of()
        .build(|row, _| Ok(row.get::<i64>("x")?))
        .unwrap();
    assert_eq!(
        (
            store.lists.load(Ordering::SeqCst),
            store.reads.load(Ordering::SeqCst)
        ),
        (1, 1)
    );
    assert_eq!(data.len(), 10);
    // Statistics decide: of 18 row groups one has these, and all of its rows do.
    store.restart();
    let data = builder()
        .filter(Filter::within("x", 0..8))
        .filter(Filter::equals("lang", "de"))
        .build(|row, _| Ok(row.get::<i64>("x")?))
        .unwrap();
    assert_eq!(
        (data.len(), store.reads.load(Ordering::SeqCst)),
        (4, 3),
        "the footers of three files"
    );
    // They do not: the column is read in the row groups that may have it.
    store.restart();
    let data = builder()
        .filter(Filter::equals("x", 3))
        .build(|row, _| Ok(row.get::<i64>("x")?))
        .unwrap();
    assert_eq!((data.len(), store.reads.load(Ordering::SeqCst)), (1, 6 + 2));
}

#[test]
fn filters_that_do_not_fit() {
    for (filter, said) in [
        (
            Filter::equals("word", 3),
            "column \"word\": it is string, and the filter compares it with a number (3)",
        ),
        (
            Filter::equals("x", "3"),
            "column \"x\": it is int64, and the filter compares it with text (\"3\")",
        ),
        (
            Filter::equals("words", 3),
            "column \"words\": there is no such column",
        ),
        (
            Filter::equals("year", "2024"),
            "column \"year\": it comes from the folders' names; it is int64, and the filter compares it with text (\"2024\")",
        ),
        (
            Filter::within("lang", 0..),
            "column \"lang\": it comes from the folders' names; it is string, and the filter compares it with a number (0)",
        ),
        (Filter::equals("x", 999), "none meets [x == 999]"),
        (Filter::equals("year", 1999), "none meets [year == 1999]"),
    ] {
        let error = open("partitioned")
            .filter(filter)
            .build(|_, _| Ok(()))
            .unwrap_err()
            .to_string();
        assert!(error.contains(said), "{error}");
    }
    let error = open("types.parquet")
        .filter(Filter::equals("tokens", 1))
        .build(|_, _| Ok(()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("column \"tokens\": it is list<int32>, and a filter compares single values"),
        "{error}"
    );
    // A type that is not taken cannot be asked for anything.
    let error = open("schemas/decimal256.parquet")
        .columns(["z"])
        .filter(Filter::present("x"))
        .build(|_, _| Ok(()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("column \"x\": its type decimal(50, 2) is not taken: write it with"),
        "{error}"
    );
}
