use pinfeed::Sample;

#[derive(Sample)]
struct Example(u8);

fn main() {}
