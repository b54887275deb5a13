//! The derive macros of pinfeed, documented and used as `pinfeed::Sample` and `pinfeed::Batch`.

mod expand;
mod input;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

use input::{Input, Kind};

/// # Attributes
///
/// - `#[pinfeed(host)]` on a field keeps its values on the host, whatever their type: in the batch they are a `Vec`, as
///   with `pinfeed::Host`.
/// - `#[pinfeed(crate = "path")]` on the struct gives the path of `pinfeed` if it is not `::pinfeed`.
#[proc_macro_derive(Sample, attributes(pinfeed))]
pub fn derive_sample(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    derived(Input::parse(item, Kind::Sample), expand::sample)
}

/// # Attributes
///
/// - `#[pinfeed(host)]` on a field keeps its value as it is, whatever its type (`Send` and `'static`).
/// - `#[pinfeed(on_device = "Name")]` on the struct names the generated struct on a device.
/// - `#[pinfeed(crate = "path")]` on the struct gives the path of `pinfeed` if it is not `::pinfeed`.
#[proc_macro_derive(Batch, attributes(pinfeed))]
pub fn derive_batch(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    derived(Input::parse(item, Kind::Batch), expand::batch)
}

fn derived(
    input: syn::Result<Input>,
    expand: fn(&Input) -> proc_macro2::TokenStream,
) -> TokenStream {
    let expanded = input.map(|input| expand(&input));
    expanded
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
