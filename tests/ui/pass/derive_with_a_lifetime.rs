use pinfeed::Sample;

#[derive(Sample)]
struct Example {
    text: &'static str,
}

fn main() {}
