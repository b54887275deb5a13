//! Reads indexes with invalid content.

use proptest::prelude::*;

use super::super::files::FileListBuilder;
use super::*;

const ROOT: &str = "root";

fn list(items: &[(&str, &str)]) -> FileList {
    let mut builder = FileListBuilder::default();
    for (path, class) in items {
        builder.push(Path::new(path), class, 0).unwrap();
    }
    let numbers = items.iter().all(|(_, class)| class.parse::<i64>().is_ok());
    builder.finish(Path::new(ROOT), numbers).unwrap()
}

fn animals() -> FileList {
    list(&[("b/2.png", "dog"), ("a/1.png", "cat"), ("b/3.png", "dog")])
}

fn written(files: &FileList) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_to(files, &mut bytes).unwrap();
    bytes
}

/// Reads an index; the error says what is wrong.
fn read_bytes(bytes: &[u8]) -> Result<FileList, String> {
    read_from(bytes, bytes.len() as u64, Path::new(ROOT)).map_err(|fault| match fault {
        IndexFault::Content(reason) => reason,
        IndexFault::Io(error) => error.to_string(),
    })
}

type Parts<'a> = (Vec<PathBuf>, &'a [i64], &'a [String]);

fn parts(files: &FileList) -> Parts<'_> {
    let paths = (0..files.len()).map(|index| files.path(index).unwrap());
    (paths.collect(), files.labels(), files.classes())
}

/// Writes the right checksum after changed content, section by section as a writer does, if the header still describes
/// the sections. Otherwise no checksum would be right.
fn sign(bytes: &mut [u8]) {
    let header: Vec<u64> = words(&bytes[8..8 * HEADER]).collect();
    let sizes = [
        8,
        48,
        4 * header[1],
        4 * header[3],
        16 * header[5],
        header[2],
        header[4],
    ];
    let (mut sum, mut start) = (Checksum::default(), 0);
    for size in sizes {
        sum.add(&bytes[start..start + size as usize]);
        start += size as usize;
    }
    bytes[start..].copy_from_slice(&sum.0.to_le_bytes());
}

#[test]
fn an_index_is_read_as_it_was_written() {
    let numbers = list(&[("a", "7"), ("b", "-1"), ("c", "7")]);
    for files in [animals(), numbers] {
        let again = read_bytes(&written(&files)).unwrap();
        assert_eq!(parts(&again), parts(&files));
    }
}

#[test]
fn the_format_does_not_change_by_accident() {
    let mut expected = b"\x89pinf\r\n\x1A".to_vec();
    for word in [1_u64, 2, 3, 1, 1, 1] {
        expected.extend(word.to_le_bytes());
    }
    for len in [1_u32, 2, 1] {
        expected.extend(len.to_le_bytes());
    }
    expected.extend(2_u64.to_le_bytes());
    expected.extend(0_u64.to_le_bytes());
    expected.extend(b"abcx");
    let bytes = written(&list(&[("a", "x"), ("bc", "x")]));
    let (content, sum) = bytes.split_at(bytes.len() - 8);
    assert_eq!(content, expected);
    assert_eq!(sum, [97, 144, 154, 219, 230, 72, 83, 153]);
}

#[test]
fn what_is_no_index_says_so() {
    let whole = written(&animals());
    let said = |bytes: &[u8]| read_bytes(bytes).map(|files| files.len()).unwrap_err();
    for foreign in [
        &b""[..],
        b"pinfeed",
        &[0; 200],
        b"n01440764/n01440764_10026.JPEG\n",
    ] {
        assert_eq!(said(foreign), "it is not an index of pictures");
    }
    for len in 8..whole.len() {
        assert_eq!(said(&whole[..len]), "the index is cut off", "at {len}");
    }
    assert!(said(&[&whole[..], b"x"].concat()).contains("its size"));
    let mut newer = whole.clone();
    newer[8] = 2;
    assert!(said(&newer).contains("version 2"));
}

#[test]
fn a_header_takes_no_memory_that_the_file_does_not_fill() {
    let whole = written(&animals());
    for word in 2..HEADER {
        for number in [u64::MAX, 1 << 62, u64::MAX / 4, u64::MAX / 16 + 1, 1 << 40] {
            let mut bytes = whole.clone();
            bytes[8 * word..][..8].copy_from_slice(&number.to_le_bytes());
            let said = read_bytes(&bytes).map(|files| files.len()).unwrap_err();
            assert!(
                said.contains("cut off") || said.contains("its size"),
                "{said}"
            );
        }
    }
}

#[test]
fn runs_of_labels_fill_what_there_are_of_files() {
    let whole = written(&animals());
    let runs = whole.len() - 8 - 21 - 6 - 3 * 16;
    for count in [0_u64, 2, u64::MAX, 1 << 40] {
        let mut bytes = whole.clone();
        bytes[runs..][..8].copy_from_slice(&count.to_le_bytes());
        sign(&mut bytes);
        assert_eq!(
            read_bytes(&bytes).map(|_| ()).unwrap_err(),
            "the index makes no sense"
        );
    }
    // A label without a class.
    let mut bytes = whole.clone();
    bytes[runs + 8] = 2;
    sign(&mut bytes);
    assert!(read_bytes(&bytes).is_err());
    // `sign` restores a damaged checksum.
    let mut bytes = whole.clone();
    bytes[whole.len() - 1] ^= 1;
    assert!(read_bytes(&bytes).is_err());
    sign(&mut bytes);
    assert_eq!(bytes, whole);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_list_comes_back(
        items in prop::collection::vec(("[a-zé/]{0,9}", "[a-c]{1,2}|[0-3]"), 1..40),
    ) {
        let items: Vec<(&str, &str)> = items.iter().map(|(path, class)| (&**path, &**class)).collect();
        let files = list(&items);
        let again = read_bytes(&written(&files)).unwrap();
        prop_assert_eq!(parts(&again), parts(&files));
    }

    /// A single damaged place is always detected.
    #[test]
    fn damage_is_found(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let mut bytes = written(&animals());
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(read_bytes(&bytes).is_err());
    }

    /// Content with a valid checksum: whatever it says, the list read from it is consistent.
    #[test]
    fn forged_content_is_refused_or_whole(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = written(&animals());
        let (header, end) = (8 * HEADER, bytes.len() - 8);
        for (at, value) in changes {
            bytes[header + at.index(end - header)] = value;
        }
        sign(&mut bytes);
        if let Ok(files) = read_bytes(&bytes) {
            prop_assert_eq!((parts(&files).0.len(), files.labels().len()), (3, 3));
            prop_assert!(files.labels().iter().all(|label| [0, 1].contains(label)));
        }
    }
}
