//! The attribute of [`watch`](../watch/index.html), in a crate of its own because it is a macro.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// `#[test]`, for a function that begins with `let _watch = watch::on(its name)`.
#[proc_macro_attribute]
pub fn test(_: TokenStream, function: TokenStream) -> TokenStream {
    let mut function: Vec<TokenTree> = function.into_iter().collect();
    let name = function
        .windows(2)
        .find(|pair| pair[0].to_string() == "fn")
        .map(|pair| pair[1].to_string());
    let (Some(name), Some(TokenTree::Group(body))) = (name, function.pop()) else {
        return parsed("compile_error!(\"a test is a function\");");
    };
    let mut watched = parsed(&format!(
        "let _watch = ::watch::on(concat!(module_path!(), \"::{name}\"));"
    ));
    watched.extend(body.stream());
    let mut watched = Group::new(Delimiter::Brace, watched);
    watched.set_span(body.span());

    let mut test = parsed("#[::core::prelude::v1::test]");
    test.extend(function);
    test.extend([TokenTree::Group(watched)]);
    test
}

#[expect(clippy::expect_used, reason = "the code is written above")]
fn parsed(code: &str) -> TokenStream {
    code.parse().expect("it is Rust")
}
