//! nvJPEG, which drives the GPU's hardware decoder, or decodes by kernels where there is none: the library, found at run time, and decoders
//! that use it.
//!
//! What it does was probed on an H200 with driver 580 and nvJPEG 13.0, and this folder relies on it:
//!
//! - **It ignores the order of streams.** Planes are written when [`State::decode`](state::State::decode) is called, whatever the stream
//!   still holds. What is put on the stream *behind* the call is ordered.
//! - The call blocks for the whole decode, so one thread calls it, and a second thread would only wait for it.
//! - **One status is for all pictures of a call.** Those before the picture at fault are written, those behind it are not.
//!   `State::decode` therefore asks again with halves, until each picture has an answer of its own.
//! - **It frees memory when a picture needs more** than those before it did in the same slot, and does not use the allocators that it is
//!   given: `slots.rs` says what is done about it.
//! - Damage in the data of a scan gives no error.
//!
//! All of that is the hardware backend. The kernel backend was probed on an H100, with the same library:
//!
//! - A call takes 22 ms with 50 pictures of 110 KB, and 29 with 256. It returns after 5, with kernels behind it on the stream.
//! - With fewer than 50 pictures, the CPU decodes their Huffman codes. So blank ones are put behind fewer.
//! - **A state that was refused memory is broken.** It frees memory before it asks for more, and the next call uses what was freed: it
//!   fails, or the process ends. So a state is exchanged for a new one then, and a chunk has no more than there should be memory for.
//! - It takes pictures of any chroma in one call, and tells of a bad file before it decodes any.
//!
//! A status that does not speak of the picture (`EXECUTION_FAILED`, for example) is the decoder's fault, unless it decodes another picture
//! of the chunk. Otherwise a decoder that fails at everything would look like one that takes nothing, and the CPU would do its work in
//! silence.

mod decoder;
mod fault;
mod library;
mod memory;
mod slots;
mod state;
mod station;

pub(crate) use decoder::{Backend, Decoder};
pub(crate) use fault::DecoderFault;
#[cfg(test)]
use fault::Status;
#[cfg(test)]
use library::candidates;
pub(crate) use library::{CONNECTIONS, Library, variable};
pub(crate) use memory::{HostMemory, Memory};
#[cfg(test)]
use state::{Coded, State, Verdict, judge};
pub(crate) use station::{Outcome, Station, Work};

#[cfg(test)]
mod tests;
