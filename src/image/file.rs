//! Files in memory, in buffers that are used again.
//!
//! A buffer of its own for each file costs more than reading it: the allocator gives memory of this size back to the system, and the next
//! file's pages are mapped anew, one fault each. All the more where the decoder's thread frees what workers allocated. (It does where a
//! file is larger than its picture's row.)

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

/// A buffer has this many bytes, or twice as many, and so on up to 4 MiB: a small file does not hold what a large one needed. (A larger
/// file has a buffer of its own, which is not kept.)
const LEAST: usize = 64 << 10;
const SIZES: usize = 7;

/// The most bytes that are kept.
const MOST: usize = 64 << 20;

/// Buffers that wait for files.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Those of each size. The last that came is the next to go: it is in the cache.
    buffers: [Vec<Vec<u8>>; SIZES],
    bytes: usize,
}

/// The content of a file.
#[derive(Default)]
pub(super) struct FileBytes {
    /// All of it is initialized.
    buffer: Vec<u8>,
    content: Range<usize>,
    home: Option<Arc<Buffers>>,
}

/// Why a file was not read.
#[derive(Debug)]
pub(super) enum ReadFault {
    Io(io::Error),
    /// It has so many bytes, or more.
    TooLarge(u64),
}

impl From<io::Error> for ReadFault {
    fn from(error: io::Error) -> ReadFault {
        ReadFault::Io(error)
    }
}

impl Buffers {
    /// Reads a file of at most `most` bytes.
    pub(super) fn read(
        self: &Arc<Buffers>,
        path: &Path,
        most: u64,
    ) -> Result<FileBytes, ReadFault> {
        let mut file = File::open(path)?;
        let expected = file.metadata()?.len();
        if expected > most {
            return Err(ReadFault::TooLarge(expected));
        }
        let expected = usize::try_from(expected).unwrap_or(usize::MAX);
        let mut bytes = FileBytes {
            // (One byte more: the end is found when nothing is read into it.)
            buffer: self.take(expected.saturating_add(1))?,
            content: 0..0,
            home: Some(Arc::clone(self)),
        };
        loop {
            let end = bytes.content.end;
            // It may be longer than it says: a pipe or a device has no end.
            if end as u64 > most {
                return Err(ReadFault::TooLarge(end as u64));
            }
            if end == bytes.buffer.len() {
                grow(&mut bytes.buffer, 2 * end)?;
            }
            match file.read(&mut bytes.buffer[end..]) {
                Ok(0) => return Ok(bytes),
                Ok(read) => bytes.content.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A buffer of at least so many bytes.
    fn take(&self, bytes: usize) -> io::Result<Vec<u8>> {
        let Some(size) = (0..SIZES).find(|size| LEAST << size >= bytes) else {
            return new(bytes);
        };
        let bytes = LEAST << size;
        let mut kept = self.0.lock();
        if let Some(buffer) = kept.buffers[size].pop() {
            kept.bytes -= bytes;
            return Ok(buffer);
        }
        drop(kept);
        new(bytes)
    }

    fn give_back(&self, buffer: Vec<u8>) {
        // (One of another size is a giant's, or was too small for a frame.)
        let Some(size) = (0..SIZES).find(|size| LEAST << size == buffer.len()) else {
            return;
        };
        let mut kept = self.0.lock();
        if kept.bytes + buffer.len() <= MOST {
            kept.bytes += buffer.len();
            kept.buffers[size].push(buffer);
        }
    }
}

fn new(bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::new();
    grow(&mut buffer, bytes)?;
    Ok(buffer)
}

fn grow(buffer: &mut Vec<u8>, bytes: usize) -> io::Result<()> {
    if buffer.try_reserve_exact(bytes - buffer.len()).is_err() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    buffer.resize(bytes, 0);
    Ok(())
}

impl FileBytes {
    /// Puts other bytes around a part of the content, which stays where it is if there is room.
    #[cfg(feature = "nvjpeg")]
    pub(super) fn frame(&mut self, before: &[u8], part: Range<usize>, behind: &[u8]) {
        let part = self.content.start + part.start..self.content.start + part.end;
        assert!(part.end <= self.content.end);
        let begin = part.start.saturating_sub(before.len());
        let at = begin + before.len();
        let end = at + part.len() + behind.len();
        if end > self.buffer.len() {
            self.buffer.resize(end, 0);
        }
        if at != part.start {
            self.buffer.copy_within(part.clone(), at);
        }
        self.buffer[begin..at].copy_from_slice(before);
        self.buffer[at + part.len()..end].copy_from_slice(behind);
        self.content = begin..end;
    }
}

impl From<Vec<u8>> for FileBytes {
    fn from(buffer: Vec<u8>) -> FileBytes {
        FileBytes {
            content: 0..buffer.len(),
            buffer,
            home: None,
        }
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.content.clone()]
    }
}

impl Drop for FileBytes {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.give_back(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn numbers(count: usize) -> Vec<u8> {
        (0..count)
            .map(|number| (number * 7 + count) as u8)
            .collect()
    }

    /// A small file behind a large one, none at all, an empty one, and files whose size is that of a buffer.
    #[test]
    fn a_file_is_read_whole_whatever_was_read_before() {
        let buffers = Arc::new(Buffers::default());
        let edges = [
            200_000,
            10,
            0,
            LEAST,
            LEAST - 1,
            3 * LEAST,
            LEAST + 1,
            5 << 20,
            1,
        ];
        for size in edges {
            let content = numbers(size);
            let path = file(&content);
            assert!(buffers.read(Path::new("/nonexistent"), u64::MAX).is_err());
            assert!(
                buffers.read(path.path(), u64::MAX).unwrap().as_ref() == content,
                "{size}"
            );
            let two = [(); 2].map(|()| buffers.read(path.path(), u64::MAX).unwrap());
            assert!(two.iter().all(|one| one.as_ref() == content), "{size}");
        }
    }

    /// A file without a known length: the kernel says 0.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_file_may_be_longer_than_it_says() {
        let buffers = Arc::new(Buffers::default());
        let read = buffers
            .read(Path::new("/proc/self/maps"), u64::MAX)
            .unwrap();
        assert!(read.as_ref().ends_with(b"\n"));
        assert!(
            buffers.read(Path::new("/proc"), u64::MAX).is_err(),
            "a folder"
        );
    }

    #[test]
    fn a_file_may_not_be_larger_than_the_limit() {
        let buffers = Arc::new(Buffers::default());
        let path = file(&numbers(1_000));
        assert_eq!(
            buffers.read(path.path(), 1_000).unwrap().as_ref(),
            numbers(1_000)
        );
        let error = buffers.read(path.path(), 999);
        assert!(matches!(error, Err(ReadFault::TooLarge(1_000))));
        // Sparse: it takes no room on the disk, and would take all memory.
        path.as_file().set_len(20 << 30).unwrap();
        let error = buffers.read(path.path(), 1 << 30);
        assert!(matches!(error, Err(ReadFault::TooLarge(bytes)) if bytes == 20 << 30));
        assert_eq!(buffers.0.lock().bytes, LEAST);
    }

    /// The kernel says that it has no bytes, and gives them without end.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_file_without_an_end_ends_at_the_limit() {
        let buffers = Arc::new(Buffers::default());
        let error = buffers.read(Path::new("/dev/zero"), 1 << 20);
        assert!(matches!(error, Err(ReadFault::TooLarge(_))));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let buffers = Arc::new(Buffers::default());
        let path = file(&numbers(1 << 20));
        let kept = || buffers.0.lock().bytes;
        let many: Vec<FileBytes> = (0..70)
            .map(|_| buffers.read(path.path(), u64::MAX).unwrap())
            .collect();
        assert_eq!(kept(), 0);
        drop(many);
        assert_eq!(kept(), MOST);
        let one = buffers.read(path.path(), u64::MAX).unwrap();
        assert_eq!(kept(), MOST - (2 << 20));
        let giant = file(&numbers(LEAST << (SIZES - 1)));
        drop(buffers.read(giant.path(), u64::MAX).unwrap());
        assert_eq!(kept(), MOST - (2 << 20), "what is larger is not kept");
        drop(one);
        assert_eq!(kept(), MOST);
    }

    /// Many small files behind a few large ones take no more memory than they are.
    #[test]
    fn a_small_file_has_a_small_buffer() {
        let buffers = Arc::new(Buffers::default());
        let [large, small] = [3 << 20, 1_000].map(|size| file(&numbers(size)));
        drop(buffers.read(large.path(), u64::MAX).unwrap());
        let many = [(); 3].map(|()| buffers.read(small.path(), u64::MAX).unwrap());
        assert!(many.iter().all(|file| file.buffer.len() == LEAST));
        assert_eq!(buffers.0.lock().bytes, 4 << 20, "the large one waits");
        assert_eq!(
            buffers.read(large.path(), u64::MAX).unwrap().as_ref(),
            numbers(3 << 20)
        );
    }

    #[cfg(feature = "nvjpeg")]
    #[test]
    fn a_part_is_framed() {
        let buffers = Arc::new(Buffers::default());
        let content = numbers(1_000);
        let path = file(&content);
        for from in [
            FileBytes::from(content.clone()),
            buffers.read(path.path(), u64::MAX).unwrap(),
        ] {
            let mut bytes = from;
            bytes.frame(b"before", 100..900, b"!");
            assert_eq!(
                bytes.as_ref(),
                [b"before", &content[100..900], b"!"].concat()
            );
            // Twice, and with no room on either side.
            let long = [1; 200];
            bytes.frame(&long, 6..806, &long);
            assert_eq!(bytes.as_ref(), [&long, &content[100..900], &long].concat());
            bytes.frame(b"", 200..1_000, b"");
            assert_eq!(bytes.as_ref(), &content[100..900]);
        }
        let mut tight = FileBytes::from(content.clone());
        tight.frame(&[2; 9], 0..1_000, &[3; 5]);
        assert_eq!(tight.as_ref(), [&[2; 9], &content[..], &[3; 5]].concat());
    }
}
