use pinfeed::DataLoader;

fn main() {
    let loader = DataLoader::builder(vec![0.5f32; 10]);
    let _ = loader;
}
