//! What a run has measured.

use pinfeed::Stats;

pub struct Report {
    /// The share of validation images that were classified right.
    pub accuracy: f64,
    /// Training images per second of the training loop.
    pub images_per_s: f64,
    /// Where the time of the last training epoch went.
    pub stats: Stats,
}

impl Report {
    pub fn print(&self) {
        println!(
            "\nvalidation accuracy {:.1} %, {:.0} images/s\n",
            100.0 * self.accuracy,
            self.images_per_s
        );
        println!("{}", self.stats);
    }

    /// One line: the results, and the stages of the last epoch in milliseconds.
    pub fn json(&self) -> String {
        let stats = &self.stats;
        let stages = [
            ("loading", stats.loading_ns),
            ("collating", stats.collating_ns),
            ("pinning", stats.pinning_ns),
            ("slab_wait", stats.slab_wait_ns),
            ("transfer", stats.transfer_ns),
            ("processing", stats.processing_ns),
            ("host", stats.host_ns),
            ("consumer_wait", stats.consumer_wait_ns),
        ];
        let stages: String = stages
            .iter()
            .map(|(stage, ns)| format!(r#","{stage}_ms":{:.1}"#, *ns as f64 / 1e6))
            .collect();
        format!(
            r#"{{"accuracy":{:.4},"images_per_s":{:.1}{stages}}}"#,
            self.accuracy, self.images_per_s
        )
    }
}
