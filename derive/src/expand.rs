//! The code that the macros generate: the batch types, and how samples become them.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote};
use syn::ext::IdentExt;
use syn::{Index, Member, WhereClause, WherePredicate, parse_quote};

use crate::input::{Field, Input, Kind};

/// For the sample `struct Example`, generates the structs `ExampleBatch` and `ExampleDeviceBatch`, with the same field
/// names, and the implementations of `Sample` and `Batch` that convert one into the next.
pub(crate) fn sample(input: &Input) -> TokenStream {
    let name = input.name.unraw();
    let batch = Generated::new(
        input,
        format_ident!("{name}Batch"),
        format!(" A batch of [`{name}`]s."),
        Field::batch,
    );
    let device_batch = Generated::new(
        input,
        format_ident!("{name}DeviceBatch"),
        format!(" A batch of [`{name}`]s on a device."),
        Field::on_device,
    );
    let definitions = [
        batch.definition(input, false),
        device_batch.definition(input, true),
    ];
    let implementations = [
        collating(input, &batch.name),
        transfer(input, &batch.name, &device_batch.name),
        sharing(input, &batch.name),
        batch.debug(input, false),
        device_batch.debug(input, true),
    ];
    quote! {
        #(#definitions)*
        const _: () = { #(#implementations)* };
    }
}

/// For the batch `struct Example`, generates the struct `ExampleOnDevice`, with the same field names, and the
/// implementation of `Batch` that converts to it.
pub(crate) fn batch(input: &Input) -> TokenStream {
    let name = input.name.unraw();
    let on_device = Generated::new(
        input,
        match &input.on_device {
            Some(name) => name.clone(),
            None => format_ident!("{name}OnDevice"),
        },
        format!(" [`{name}`] on a device."),
        Field::on_device,
    );
    let definition = on_device.definition(input, true);
    let implementations = [
        transfer(input, &input.name, &on_device.name),
        sharing(input, &input.name),
        on_device.debug(input, true),
    ];
    quote! {
        #definition
        const _: () = { #(#implementations)* };
    }
}

/// A struct with the fields of the input, each with another type.
struct Generated {
    name: Ident,
    docs: String,
    types: Vec<TokenStream>,
}

impl Generated {
    fn new(input: &Input, name: Ident, docs: String, ty: fn(&Field) -> TokenStream) -> Generated {
        Generated {
            name: generated(&name),
            docs,
            types: input.fields.iter().map(ty).collect(),
        }
    }

    fn definition(&self, input: &Input, on_device: bool) -> TokenStream {
        let Generated { name, docs, types } = self;
        let (vis, generics) = (&input.vis, &input.generics);
        let fields = input.fields.iter().zip(types).map(|(field, ty)| {
            let (vis, docs) = (&field.vis, &field.docs);
            let summary = match input.kind {
                Kind::Sample => format!(" The samples' `{}`.", label(field)),
                Kind::Batch => format!(" The batch's `{}`.", label(field)),
            };
            let name = match &field.member {
                Member::Named(name) => Some(generated(name)),
                Member::Unnamed(_) => None,
            };
            let colon = name.as_ref().map(|_| quote!(:));
            quote!(#[doc = #summary] #[doc = ""] #(#docs)* #vis #name #colon #ty)
        });
        let fields: Vec<TokenStream> = fields.collect();
        let definition = |bounds: &WhereClause| {
            let body = match input.fields[0].member {
                Member::Named(_) => quote!(#bounds { #(#fields),* }),
                Member::Unnamed(_) => quote!((#(#fields),*) #bounds;),
            };
            quote!(#[doc = #docs] #vis struct #name #generics #body)
        };
        let with_bounds = definition(&input.bounds(on_device));
        let Some(documented) = input.documented_bounds() else {
            return with_bounds;
        };
        let documented = definition(&documented);
        quote!(#[cfg(not(doc))] #with_bounds #[cfg(doc)] #documented)
    }

    /// Implements `Debug` if all fields do. A single bound covers all fields together, because separate bounds for
    /// fields of one type would be ambiguous to the compiler. The lifetime keeps the bound from being an error if it
    /// does not hold, even for types without parameters.
    fn debug(&self, input: &Input, on_device: bool) -> TokenStream {
        let (name, types) = (&self.name, &self.types);
        let (impl_generics, arguments, _) = input.generics.split_for_impl();
        let mut bounds = input.bounds(on_device);
        let debug: WherePredicate =
            parse_quote!(for<'__a> __Fields<'__a, #(#types),*>: ::core::fmt::Debug);
        bounds.predicates.push(debug);
        let members = input.fields.iter().map(|field| &field.member);
        let title = name.to_string();
        let labels = input.fields.iter().map(label);
        let (parameters, numbers): (Vec<Ident>, Vec<Index>) = (0..types.len())
            .map(|i| (format_ident!("__T{i}"), Index::from(i)))
            .unzip();
        quote! {
            const _: () = {
                pub struct __Fields<'__a, #(#parameters),*>(#(&'__a #parameters),*);

                impl<#(#parameters: ::core::fmt::Debug),*> ::core::fmt::Debug for __Fields<'_, #(#parameters),*> {
                    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                        f.debug_struct(#title) #(.field(#labels, self.#numbers))* .finish()
                    }
                }

                impl #impl_generics ::core::fmt::Debug for #name #arguments #bounds {
                    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                        ::core::fmt::Debug::fmt(&__Fields(#(&self.#members),*), f)
                    }
                }
            };
        }
    }
}

/// The implementation of `Sample`. Its plan and rest are structs that cannot be named outside: tuples could not hold
/// what belongs to private types.
fn collating(input: &Input, batch: &Ident) -> TokenStream {
    let (name, krate, fields) = (&input.name, &input.krate, &input.fields);
    let (impl_generics, arguments, _) = input.generics.split_for_impl();
    let generics = &input.generics;
    let bounds = input.bounds(false);

    let each = |item| fields.iter().map(move |field| field.sample(item));
    let (plan_types, rest_types) = (each("Plan"), each("Rest"));
    let (alikes, denses) = (each("ALIKE"), each("DENSE"));
    let (plans, fills, finishes) = (each("plan"), each("fill"), each("finish"));
    let labels = fields.iter().map(label);
    let members = fields.iter().map(|field| &field.member);
    let numbers: Vec<Index> = (0..fields.len()).map(Index::from).collect();
    let columns: Vec<Ident> = (0..fields.len())
        .map(|i| format_ident!("column_{i}"))
        .collect();
    let samples = fields.iter().map(|Field { host, member, .. }| match host {
        true => quote!(::core::iter::empty()),
        false => quote! {
            ::core::iter::Iterator::map(::core::clone::Clone::clone(&samples), |sample| &sample.#member)
        },
    });
    let values = fields.iter().map(|Field { host, member, .. }| match host {
        true => quote!(#krate::Host(self.#member)),
        false => quote!(self.#member),
    });
    quote! {
        pub struct __Plan #generics (#(#plan_types),*) #bounds;
        pub struct __Rest #generics (#(#rest_types),*) #bounds;

        #[automatically_derived]
        impl #impl_generics #krate::Sample for #name #arguments #bounds {
            type Batch = #batch #arguments;
            type Plan = __Plan #arguments;
            type Rest = __Rest #arguments;
            const ALIKE: bool = #(#alikes)&&*;
            const DENSE: bool = #(#denses)&&*;

            fn plan<'__a>(
                samples: impl ::core::iter::Iterator<Item = &'__a Self> + ::core::clone::Clone,
                layout: &mut #krate::sample::Layout,
            ) -> ::core::result::Result<Self::Plan, #krate::error::CollateError> {
                ::core::result::Result::Ok(__Plan(
                    #(layout.named(#labels, |layout| #plans(#samples, layout))?,)*
                ))
            }

            fn fill(
                self,
                plan: &Self::Plan,
                row: &mut #krate::sample::Row<'_>,
            ) -> ::core::result::Result<Self::Rest, #krate::error::CollateError> {
                ::core::result::Result::Ok(__Rest(#(#fills(#values, &plan.#numbers, row)?,)*))
            }

            fn finish(
                plan: Self::Plan,
                rest: ::std::vec::Vec<Self::Rest>,
                filled: &mut #krate::sample::Filled,
            ) -> Self::Batch {
                #(let mut #columns = ::std::vec::Vec::with_capacity(rest.len());)*
                for rest in rest {
                    #(#columns.push(rest.#numbers);)*
                }
                #batch { #(#members: #finishes(plan.#numbers, #columns, filled),)* }
            }
        }
    }
}

/// The implementation of `Batch`.
fn transfer(input: &Input, batch: &Ident, device_batch: &Ident) -> TokenStream {
    let krate = &input.krate;
    let (impl_generics, arguments, _) = input.generics.split_for_impl();
    let bounds = input.bounds(true);
    let members: Vec<&Member> = input.fields.iter().map(|field| &field.member).collect();
    let sent = input.fields.iter().filter(|field| !field.is_carried());
    let sent = sent.map(|field| &field.member);
    let moved = |how: TokenStream| {
        let values = input.fields.iter().map(move |field| {
            let member = &field.member;
            match field.is_carried() {
                true => quote!(self.#member),
                false => quote!(#krate::Batch::#how(self.#member, to)),
            }
        });
        values.collect::<Vec<_>>()
    };
    let (relocated, uploaded) = (moved(quote!(relocate)), moved(quote!(upload)));
    quote! {
        #[automatically_derived]
        #[allow(unused_variables)]
        impl #impl_generics #krate::Batch for #batch #arguments #bounds {
            type OnDevice = #device_batch #arguments;

            fn tensors(&self, visit: &mut #krate::collate::Tensors<'_>) {
                #(#krate::Batch::tensors(&self.#sent, visit);)*
            }

            fn relocate(self, to: &mut #krate::collate::Relocation) -> Self {
                #batch { #(#members: #relocated,)* }
            }

            fn upload(self, to: &mut #krate::collate::Upload) -> Self::OnDevice {
                #device_batch { #(#members: #uploaded,)* }
            }
        }
    }
}

/// The implementation of `Share`, if all fields can be shared. It has one bound for all of them, as `Debug` has.
fn sharing(input: &Input, batch: &Ident) -> TokenStream {
    let krate = &input.krate;
    let (impl_generics, arguments, _) = input.generics.split_for_impl();
    let types: Vec<TokenStream> = input.fields.iter().map(Field::batch).collect();
    let members: Vec<&Member> = input.fields.iter().map(|field| &field.member).collect();
    let mut bounds = input.bounds(true);
    let shares: WherePredicate =
        parse_quote!(for<'__a> __Fields<'__a, #(#types),*>: __Share<(#(#types,)*)>);
    bounds.predicates.push(shares);
    let (parameters, numbers): (Vec<Ident>, Vec<Index>) = (0..types.len())
        .map(|i| (format_ident!("__T{i}"), Index::from(i)))
        .unzip();
    let each = input.fields.iter().map(|field| match field.is_carried() {
        true => (quote!(::core::clone::Clone), quote!(clone)),
        false => (quote!(#krate::collate::Share), quote!(share)),
    });
    let (traits, methods): (Vec<TokenStream>, Vec<TokenStream>) = each.unzip();
    quote! {
        const _: () = {
            pub struct __Fields<'__a, #(#parameters),*>(#(&'__a #parameters),*);

            pub trait __Share<__All> {
                fn share(&self) -> __All;
            }

            impl<#(#parameters: #traits),*> __Share<(#(#parameters,)*)> for __Fields<'_, #(#parameters),*> {
                fn share(&self) -> (#(#parameters,)*) {
                    (#(<#parameters as #traits>::#methods(self.#numbers),)*)
                }
            }

            #[automatically_derived]
            impl #impl_generics #krate::collate::Share for #batch #arguments #bounds {
                fn share(&self) -> Self {
                    let shared = __Share::share(&__Fields(#(&self.#members),*));
                    #batch { #(#members: shared.#numbers,)* }
                }
            }
        };
    }
}

/// The field's name or number, as text.
fn label(field: &Field) -> String {
    match &field.member {
        Member::Named(name) => name.unraw().to_string(),
        Member::Unnamed(number) => number.index.to_string(),
    }
}

/// A user's name for generated code, with a span that keeps the user's lints quiet about it.
fn generated(name: &Ident) -> Ident {
    let mut name = name.clone();
    name.set_span(name.span().resolved_at(Span::call_site()));
    name
}
