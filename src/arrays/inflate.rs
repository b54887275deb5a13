//! Decompression, into as many bytes as were promised.

use std::io::Read;

use flate2::read::{DeflateDecoder, MultiGzDecoder};

use super::file::Aligned;

/// What a byte can become, at most: deflate has 258 bytes in two bits.
const MOST_FOR_A_BYTE: u64 = 1_032;

/// Decompresses deflated data that is to have so many bytes, and aligns the one at `place`.
pub(super) fn deflated(compressed: &[u8], length: u64, place: usize) -> Result<Aligned, String> {
    inflate(
        DeflateDecoder::new(compressed),
        compressed.len(),
        length,
        place,
    )
}

/// Decompresses a gzip file that is to have so many bytes.
pub(super) fn gzip(compressed: &[u8], length: u64) -> Result<Aligned, String> {
    inflate(MultiGzDecoder::new(compressed), compressed.len(), length, 0)
}

/// The first bytes of deflated data, as many as there are of those asked for.
pub(super) fn first_deflated(compressed: &[u8], count: usize) -> Result<Vec<u8>, String> {
    first(DeflateDecoder::new(compressed), count)
}

/// The first bytes of a gzip file, as many as there are of those asked for.
pub(super) fn first_gzip(compressed: &[u8], count: usize) -> Result<Vec<u8>, String> {
    first(MultiGzDecoder::new(compressed), count)
}

fn first(decoder: impl Read, count: usize) -> Result<Vec<u8>, String> {
    let mut found = Vec::new();
    let read = decoder.take(count as u64).read_to_end(&mut found);
    read.map_err(|cause| format!("it cannot be decompressed: {cause}"))?;
    Ok(found)
}

fn inflate(
    decoder: impl Read,
    compressed: usize,
    length: u64,
    place: usize,
) -> Result<Aligned, String> {
    if length / MOST_FOR_A_BYTE > compressed as u64 {
        return Err(format!(
            "it is to have {length} bytes, and its {compressed} compressed ones cannot become as many"
        ));
    }
    let room = Aligned::with_room(length, place);
    let mut bytes = room.map_err(|no_room| format!("decompressing it takes {no_room}"))?;
    // One more than there should be, which says whether there are more. It also reads the checksum.
    let read = decoder
        .take(length.saturating_add(1))
        .read_to_end(&mut bytes.bytes);
    let read = read.map_err(|cause| format!("it cannot be decompressed: {cause}"))?;
    match read as u64 == length {
        true => Ok(bytes),
        false if read as u64 > length => Err(format!(
            "it has more than {length} bytes when it is decompressed"
        )),
        false => Err(format!(
            "it has {read} bytes when it is decompressed, and should have {length}"
        )),
    }
}
