//! Files that are none, or do not belong together: what errors name, and what they say to do.

use std::sync::Arc;

use pinfeed_parquet::{Parquet, ParquetBuilder, ParquetError};

use crate::common::{Memory, all, fixture, open};

fn refusal(builder: ParquetBuilder) -> String {
    builder.build(|_, _| Ok(())).unwrap_err().to_string()
}

fn of_bytes(bytes: Vec<u8>) -> String {
    refusal(Parquet::builder(
        Memory::of([("a.parquet", bytes)]),
        "a.parquet",
    ))
}

#[test]
fn files_that_are_none_say_what_they_are() {
    let whole = fixture("types.parquet");
    for (bytes, said) in [
        (Vec::new(), "it has no bytes"),
        (whole[..whole.len() - 1].to_vec(), "it is cut off"),
        (whole[..20_000].to_vec(), "it is cut off"),
        (b"PAR1".to_vec(), "it is cut off"),
        (b"PAR1PAR1".to_vec(), "it is cut off"),
        (b"ARROW1\0\0 and so on".to_vec(), "it is an Arrow file"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n".to_vec(),
            "git lfs pull",
        ),
        (b"<html>404 Not Found</html>".to_vec(), "web page"),
        (b"x,y\n1,2\n1,2\n".to_vec(), "four letters PAR1"),
        (
            [&b"PAR1"[..], &[0; 100], &b"\xff\xff\x00\x00PAR1"[..]].concat(),
            "its footer is damaged",
        ),
        (
            [&b"PAR1"[..], &[0; 100], &b"\x08\x00\x00\x00PARE"[..]].concat(),
            "encrypted",
        ),
    ] {
        let error = of_bytes(bytes);
        assert!(
            error.starts_with("a.parquet: ") || error.contains(" a.parquet: "),
            "{error}"
        );
        assert!(error.contains(said), "{error}");
    }
}

/// Whatever byte of a footer is another: an error, or a file, and never a panic.
#[test]
fn a_damaged_footer_never_panics() {
    let whole = fixture("schemas/int64.parquet");
    for at in 0..whole.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            let data = Parquet::builder(Memory::of([("a.parquet", bytes)]), "a.parquet")
                .build(|row, _| Ok(row.get::<Option<i64>>("x")?));
            let _ = data.map(|data| data.len());
        }
    }
}

#[test]
fn files_that_do_not_belong_together() {
    let of = |names: &[&str]| {
        let files = names
            .iter()
            .map(|name| (*name, fixture(&format!("schemas/{name}.parquet"))));
        let files: Vec<(String, Vec<u8>)> = files
            .enumerate()
            .map(|(at, (name, bytes))| (format!("{at}-{name}.parquet"), bytes))
            .collect();
        Parquet::builder(
            Memory::of(
                files
                    .iter()
                    .map(|(name, bytes)| (name.as_str(), bytes.clone())),
            ),
            "",
        )
    };
    let error = refusal(of(&["int64", "int32"]));
    assert!(error.contains("1-int32.parquet, column \"x\": it has the type int32 here, and int64 in 0-int64.parquet"), "{error}");
    let error = refusal(of(&["int64", "lacks_y"]));
    assert!(
        error.contains("1-lacks_y.parquet, column \"y\": there is no such column, but \"x\""),
        "{error}"
    );
    // Of columns that are not chosen, nothing is asked.
    let data = of(&["int64", "lacks_y"])
        .columns(["x"])
        .build(|row, _| Ok(row.get::<i64>("x")?));
    assert_eq!(all(data.unwrap()).unwrap(), [1, 2, 5, 6]);
    // A column without a value has no type; columns have any order; a file may have no rows.
    let rows = |names: &[&str]| {
        let data = of(names)
            .columns(["y", "x"])
            .build(|row, _| Ok((row.get::<i64>("x")?, row.get::<Option<String>>("y")?)));
        all(data.unwrap()).unwrap()
    };
    let text = |text: &str| Some(text.to_owned());
    let expected = [
        (7, None),
        (8, None),
        (9, text("e")),
        (10, None),
        (1, text("a")),
        (2, text("b")),
    ];
    assert_eq!(rows(&["null_y", "other_order", "empty", "int64"]), expected);
    let data = of(&["null_y", "int64"]).build(|_, _| Ok(())).unwrap();
    assert!(
        data.columns()
            .any(|column| column == ("y", "string".to_owned()))
    );
    let error = refusal(of(&["empty"]));
    assert!(error.contains("there are no rows in 1 files"), "{error}");
    let error = refusal(of(&["dotted"]));
    assert!(
        error.contains("column \"a.b\": two of its columns have this name"),
        "{error}"
    );
    // So two columns of one name are, in whichever file, if they are chosen.
    let columns = |files: &[&str], column: &str| of(files).columns([column]);
    let error = refusal(columns(&["not_dotted", "dotted"], "a.b"));
    assert!(
        error.contains("1-dotted.parquet, column \"a.b\": two of its columns have this name"),
        "{error}"
    );
    for files in [["dotted", "not_dotted"], ["not_dotted", "dotted"]] {
        let data = columns(&files, "c").build(|row, _| Ok(row.get::<i64>("c")?));
        let mut found = all(data.unwrap()).unwrap();
        found.sort_unstable();
        assert_eq!(found, [3, 5]);
    }
    // A column without a value has no type that is not taken.
    let error = refusal(columns(&["null_y", "decimal_y"], "y"));
    assert!(
        error.contains("1-decimal_y.parquet, column \"y\": its type decimal(50, 2) is not taken"),
        "{error}"
    );
    let data = of(&["null_y", "decimal_y", "null_y"]);
    let data = data.build(|row, _| Ok(row.get::<i64>("x")?)).unwrap();
    assert_eq!(data.columns().count(), 1);
    assert_eq!(all(data).unwrap(), [7, 8, 11, 7, 8]);
    // A type that is not taken is refused where it is chosen, and left out where nothing is.
    let error = refusal(of(&["decimal256"]).columns(["x"]));
    assert!(
        error.contains(
            "column \"x\": its type decimal(50, 2) is not taken: write it with at most 38 digits"
        ),
        "{error}"
    );
    let data = of(&["decimal256"])
        .build(|row, _| Ok(row.get::<i64>("z")?))
        .unwrap();
    assert_eq!(data.columns().count(), 1);
    assert_eq!(all(data).unwrap(), [1]);
}

#[test]
fn what_is_not_there() {
    let store = Arc::new(Memory::of([
        ("data/notes.txt", vec![1]),
        ("data/_SUCCESS", vec![]),
        ("data/.part.parquet", vec![1]),
    ]));
    let error = refusal(Parquet::builder(Arc::clone(&store), "data/"));
    assert!(
        error.contains("there is no Parquet file in data: of its 3 files, none ends with .parquet"),
        "{error}"
    );
    let error = refusal(Parquet::builder(Arc::clone(&store), "data/train-*.parquet"));
    assert!(
        error.contains("no file matches \"data/train-*.parquet\" in data, which has 3"),
        "{error}"
    );
    let error = refusal(Parquet::builder(store, "b.parquet"));
    assert!(error.contains("b.parquet"), "{error}");
    let error = Parquet::open("/nowhere/at/all").unwrap_err().to_string();
    assert!(error.contains("/nowhere/at/all"), "{error}");
    let error = refusal(open("types.parquet").columns(["ids"]));
    assert!(
        error.contains("column \"ids\": there is no such column, but \"id\", \"a\","),
        "{error}"
    );
    let error = refusal(open("types.parquet").block_bytes(0));
    assert!(error.contains("block_bytes"), "{error}");
    let error = open("schemas").build(|_, _| Ok(())).unwrap_err();
    let fault = ParquetError::of(&error).unwrap();
    assert!(
        fault.file().ends_with(".parquet") && fault.column().is_some(),
        "{fault}"
    );
}
