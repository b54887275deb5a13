//! The macros' input: a struct, parsed and checked.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote};
use syn::meta::ParseNestedMeta;
use syn::{
    Attribute, Data, DeriveInput, Error, Generics, LitStr, Member, Path, Result, Visibility,
    WhereClause, parse_quote,
};

/// Which macro runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The struct is a sample, and batches are made of its fields' batches.
    Sample,
    /// The struct is a batch itself.
    Batch,
}

pub(crate) struct Input {
    pub(crate) kind: Kind,
    pub(crate) vis: Visibility,
    pub(crate) name: Ident,
    pub(crate) generics: Generics,
    pub(crate) fields: Vec<Field>,
    /// The path of `pinfeed`.
    pub(crate) krate: Path,
    /// The name of the struct on a device, if the attribute gives one.
    pub(crate) on_device: Option<Ident>,
}

pub(crate) struct Field {
    pub(crate) vis: Visibility,
    pub(crate) member: Member,
    pub(crate) docs: Vec<Attribute>,
    /// Whether the values stay on the host, whatever their type.
    pub(crate) host: bool,
    kind: Kind,
    /// The field's own type, or `Host` of it for a sample's field that stays on the host.
    ty: TokenStream,
    /// The traits `Sample` and `Batch`, with the span of the type's end.
    traits: [TokenStream; 2],
    /// The spans of the type's first and last token: the compiler's errors about the type point there.
    span: (Span, Span),
}

impl Input {
    pub(crate) fn parse(item: DeriveInput, kind: Kind) -> Result<Input> {
        let what = match kind {
            Kind::Sample => "sample",
            Kind::Batch => "batch",
        };
        let fields = match &item.data {
            Data::Struct(data) if !data.fields.is_empty() => &data.fields,
            Data::Struct(_) => {
                let why = match kind {
                    Kind::Sample => "there is nothing to collate",
                    Kind::Batch => "there is nothing to send",
                };
                let message = format!("a {what} without fields: {why}");
                return Err(Error::new_spanned(&item.ident, message));
            }
            Data::Enum(_) | Data::Union(_) => {
                let message = match kind {
                    Kind::Sample => {
                        "only structs are collated field by field: implement pinfeed::Sample by hand, or give \
                         the builder a collate_fn"
                    }
                    Kind::Batch => {
                        "only structs are sent field by field: make it a struct, or implement pinfeed::Batch by hand"
                    }
                };
                return Err(Error::new_spanned(&item.ident, message));
            }
        };
        if let Some(lifetime) = item.generics.lifetimes().next() {
            let message =
                format!("a {what} owns what it holds, and cannot have a lifetime parameter");
            return Err(Error::new_spanned(lifetime, message));
        }

        let (mut krate, mut on_device) = (parse_quote!(::pinfeed), None);
        options(&item.attrs, |option| {
            if option.path.is_ident("crate") {
                krate = option.value()?.parse::<LitStr>()?.parse()?;
            } else if option.path.is_ident("on_device") && kind == Kind::Batch {
                on_device = Some(option.value()?.parse::<LitStr>()?.parse()?);
            } else {
                return Err(option.error(match kind {
                    Kind::Sample => "the option of a sample is `crate = \"path\"`",
                    Kind::Batch => {
                        "the options of a batch are `on_device = \"Name\"` and `crate = \"path\"`"
                    }
                }));
            }
            Ok(())
        })?;
        let fields = fields.members().zip(fields);
        let fields = fields.map(|(member, field)| Field::parse(member, field, kind, &krate));
        Ok(Input {
            kind,
            fields: fields.collect::<Result<_>>()?,
            vis: item.vis,
            name: item.ident,
            generics: item.generics,
            krate,
            on_device,
        })
    }

    /// The bounds that definitions and implementations put on each field's type, with or without type parameters; with
    /// `batches`, also on its batch type. So a type that is not a sample violates only the bound, at the field. The
    /// bound is the same in all places, so the compiler reports it once.
    pub(crate) fn bounds(&self, batches: bool) -> WhereClause {
        let mut generics = self.generics.clone();
        let bounds = generics.make_where_clause();
        for field in &self.fields {
            let (ty, batch, [sample_trait, batch_trait]) =
                (&field.ty, field.batch(), &field.traits);
            match field.kind {
                Kind::Sample => {
                    bounds.predicates.push(parse_quote!(#ty: #sample_trait));
                    if batches {
                        bounds.predicates.push(parse_quote!(#batch: #batch_trait));
                    }
                }
                Kind::Batch if field.host => {
                    let (send, life) = (
                        at(field.span.1, quote!(::core::marker::Send)),
                        quote!('static),
                    );
                    bounds.predicates.push(parse_quote!(#ty: #send + #life));
                }
                Kind::Batch => bounds.predicates.push(parse_quote!(#ty: #batch_trait)),
            }
        }
        bounds.clone()
    }

    /// The bounds that a definition's documentation shows, if they differ: without type parameters, the bounds above
    /// tell the reader nothing.
    pub(crate) fn documented_bounds(&self) -> Option<WhereClause> {
        let is_generic = self.generics.type_params().next().is_some();
        let mut generics = self.generics.clone();
        (!is_generic).then(|| generics.make_where_clause().clone())
    }
}

impl Field {
    fn parse(member: Member, field: &syn::Field, kind: Kind, krate: &Path) -> Result<Field> {
        let mut host = false;
        options(&field.attrs, |option| {
            if !option.path.is_ident("host") {
                return Err(option.error("the option of a field is `host`"));
            }
            host = true;
            Ok(())
        })?;
        let ty = field.ty.to_token_stream();
        let mut spans = ty.clone().into_iter().map(|token| token.span());
        let begin = spans.next().unwrap_or_else(Span::call_site);
        let end = spans.last().unwrap_or(begin);
        let docs = field
            .attrs
            .iter()
            .filter(|attr| attr.path().is_ident("doc"));
        Ok(Field {
            vis: field.vis.clone(),
            member,
            docs: docs.cloned().collect(),
            host,
            kind,
            ty: match kind {
                Kind::Sample if host => quote!(#krate::Host<#ty>),
                _ => ty,
            },
            traits: [quote!(#krate::Sample), quote!(#krate::Batch)].map(|path| at(end, path)),
            span: (begin, end),
        })
    }

    /// `<Type as Sample>::item`.
    pub(crate) fn sample(&self, item: &str) -> TokenStream {
        self.project(&self.ty, &self.traits[0], item)
    }

    /// The type of the field in a batch.
    pub(crate) fn batch(&self) -> TokenStream {
        match self.kind {
            Kind::Sample => self.sample("Batch"),
            Kind::Batch => self.ty.clone(),
        }
    }

    /// The type of the field in a batch on a device.
    pub(crate) fn on_device(&self) -> TokenStream {
        if self.is_carried() {
            return self.ty.clone();
        }
        self.project(&self.batch(), &self.traits[1], "OnDevice")
    }

    /// Whether a batch keeps the value as it is.
    pub(crate) fn is_carried(&self) -> bool {
        self.host && self.kind == Kind::Batch
    }

    fn project(&self, ty: &TokenStream, path: &TokenStream, item: &str) -> TokenStream {
        let (begin, end) = self.span;
        let item = Ident::new(item, end);
        let (open, close) = (at(begin, quote!(<)), at(end, quote!(>::#item)));
        quote!(#open #ty as #path #close)
    }
}

/// The tokens, with this span.
fn at(span: Span, tokens: TokenStream) -> TokenStream {
    let moved = tokens.into_iter().map(|mut token| {
        token.set_span(span);
        token
    });
    moved.collect()
}

/// Reads the `#[pinfeed(..)]` attributes.
fn options(
    attributes: &[Attribute],
    mut option: impl FnMut(ParseNestedMeta<'_>) -> Result<()>,
) -> Result<()> {
    let mut ours = attributes
        .iter()
        .filter(|attr| attr.path().is_ident("pinfeed"));
    ours.try_for_each(|attr| attr.parse_nested_meta(&mut option))
}
