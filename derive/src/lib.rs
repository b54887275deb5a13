//! The derive macro of pinfeed. It is documented, and used, as `pinfeed::Sample`.

mod expand;
mod input;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// # Attributes
///
/// - `#[pinfeed(host)]` on a field keeps its values on the host, whatever their type: in the batch they are a `Vec`, as
///   with `pinfeed::Host`.
/// - `#[pinfeed(crate = "path")]` on the struct says where `pinfeed` is found, where it is not `::pinfeed`.
#[proc_macro_derive(Sample, attributes(pinfeed))]
pub fn derive_sample(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    input::Input::parse(item)
        .map(|input| expand::expand(&input))
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
