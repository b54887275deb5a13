//~ ERROR
//~ says: there is nothing to collate

use pinfeed::Sample;

#[derive(Sample)]
struct Example; //~ HERE

fn main() {}
