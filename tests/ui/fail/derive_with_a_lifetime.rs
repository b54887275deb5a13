//~ ERROR
//~ says: a sample owns what it holds

use pinfeed::Sample;

#[derive(Sample)]
struct Example<'a> {
    //~ HERE
    text: &'a str,
}

fn main() {}
