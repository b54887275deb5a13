//! The numbers of nvJPEG's decoders.

use super::DECODER_PICTURE_BYTES;

/// The most pictures that kernels are given at once, and the least: blank ones are put behind fewer. A call of 50 pictures (110 KB, 476 x
/// 404) takes 22 ms on an H100, and one of 256 takes 29; with fewer than 50, nvJPEG has its CPU decode the Huffman codes, for 1.3 ms each.
///
/// Chosen: memory bounds how many there are, [`KERNELS_PICTURE_BYTES`].
/// Elsewhere: not measured.
pub(crate) const KERNELS_CHUNK: usize = 256;
pub(crate) const KERNELS_LEAST: usize = 64;

/// nvJPEG has two blocks of device memory for the pictures that kernels decode at once. The first has the files, and so much for each
/// picture; the second has the files this many times.
///
/// Chosen: the first takes 797,952 bytes for each (and lists 824), the second 10.0 to 11.1 times the files (nvJPEG 13.0, files of 2.6 KB to
/// 1.4 MB, grey, 4:2:0 and 4:4:4).
/// Elsewhere: another nvJPEG may take more. Where there is no memory, fewer pictures are decoded at once, after a stall of half a second.
pub(crate) const KERNELS_PICTURE_BYTES: usize = 784 << 10;
pub(crate) const KERNELS_FILES_TIMES: usize = 12;

/// How much of the memory for both is the first's. Neither becomes smaller again, so a chunk of many small files and then one of a few
/// large ones need the most of each.
///
/// Chosen: 160 photographs of 110 KB need 146 and 211 MB.
/// Elsewhere: the same.
pub(crate) const KERNELS_FIRST_BLOCK: f64 = 0.41;

/// How much device memory a decoder has for the pictures of a chunk; it has three of these.
pub(crate) const DECODER_ARENA_BYTES: usize = 112 << 20;

/// The arenas of a decoder that is kernels, which need more for themselves.
///
/// Chosen: pictures of 476 x 404 take 300 KB of it. What is left of [`DECODER_MOST_BYTES`], 342 MiB, is for 160 such of 110 KB.
/// Elsewhere: the same.
pub(crate) const KERNELS_ARENA_BYTES: usize = 56 << 20;

const _: () = assert!(DECODER_PICTURE_BYTES <= KERNELS_ARENA_BYTES);

/// The most device memory that a decoder has: its three [arenas](DECODER_ARENA_BYTES), and what nvJPEG's slots have room for, or its
/// kernels take. Beyond it, slots are not made larger (`driver/nvjpeg/slots.rs`): a picture that needs more takes it for its slot alone.
///
/// Chosen: 176 MiB are left for nvJPEG's hardware. All kinds of chroma have 168 MiB where there are seven engines and pictures have up to
/// 1024 x 1024.
/// Elsewhere: the same.
pub(crate) const DECODER_MOST_BYTES: usize = 512 << 20;
