//! Whole small programs, as somebody writes them who has read the README: each file is one, and can be copied as it stands. They
//! are compiled into one test binary, and run.

#![allow(unreachable_pub)] // modules of a program: what is `pub` in them is for the others

#[macro_use]
extern crate watch;

macro_rules! programs {
    ($($program:ident),* $(,)?) => {$(
        mod $program;

        #[test]
        #[allow(clippy::needless_match)] // some end with a `BoxError`, which `?` does not turn into the other
        fn $program() -> Result<(), Box<dyn std::error::Error>> {
            match $program::main() {
                Ok(()) => Ok(()),
                Err(error) => Err(error),
            }
        }
    )*};
}

programs! {
    a_store_of_ones_own,
    another_library,
    array_files,
    auto_lines,
    auto_workers,
    bad_lines,
    bad_pictures,
    beside_a_framework,
    bootstrap,
    blocks_on_ranks,
    both_kinds,
    broken_file,
    busy_store,
    bucketed_predictions,
    cached_features,
    cached_files,
    cached_images,
    captured_step,
    ceiling,
    chats,
    checkpoint,
    class_colours,
    clean_corpus,
    corpora_in_rows,
    cross_validation,
    csv_files,
    data_parallel,
    days_without_sales,
    depth,
    dirty_logs,
    dlpack_consumer,
    dlpack_predictions,
    dlpack_table,
    epoch_log,
    evaluation,
    evaluation_on_devices,
    event_loop,
    exact_evaluation,
    failing_disk,
    features_and_labels,
    few_labels,
    fewer_devices,
    fine_tuning,
    fixed_steps,
    flaky_source,
    folder_in_a_bucket,
    held_batches,
    images,
    in_a_thread,
    json_lines,
    languages,
    lines,
    long_documents,
    matrices,
    megatron_documents,
    missing_values,
    mixed_ranks,
    ndarrays,
    new_names,
    next_letter,
    npy,
    object_store,
    on_the_node,
    one_batch,
    own_cores,
    own_items,
    own_memory,
    owned_batches,
    packed_attention,
    pairs_in_batches,
    panoptic,
    patience,
    picture_sizes,
    pictures_in_a_store,
    pictures_in_arrays,
    point_clouds,
    predictions,
    pretraining,
    private_training,
    queries,
    ranks,
    ranks_with_one_cache,
    rare_class,
    readme,
    record_files,
    recorded_evaluation,
    records_in_shards,
    rehearsal,
    remote_archive,
    replay_buffer,
    replay_on_the_device,
    row_groups,
    samplers,
    segments,
    sentences,
    sentiment,
    server_gone,
    shards,
    shards_of_text,
    shared_machine,
    similar_lengths,
    slow_labels,
    slow_reads,
    slow_samples,
    slow_steps,
    speech,
    stall_trace,
    stopped_with_ctrl_c,
    steady_memory,
    strict_evaluation,
    structs,
    table_on_the_device,
    table_split_on_the_device,
    tabular,
    tabular_struct,
    text,
    their_tensors,
    timeline_page,
    token_budget,
    token_windows,
    tokens_of_two_corpora,
    tokenised_ahead,
    tokio_tasks,
    train_val_test,
    validation_in_a_bucket,
    translation,
    two_cameras,
    two_corpora,
    two_loaders,
    two_sources,
    unordered_checkpoint,
    utterances,
    warm_start,
    warm_up,
    where_time_goes,
    which_knob,
}

/// What the README shows compiles, line by line.
#[test]
fn the_readme_shows_lines_of_its_program() {
    let readme = include_str!("../../README.md");
    let blocks: Vec<_> = readme.split("\n```rust\n").skip(1).collect();
    let candles = |block: &&str| block.contains("candle_core"); // compiled by examples/training/tests/candle.rs
    let blocks: Vec<_> = blocks.into_iter().filter(|block| !candles(block)).collect();
    assert_eq!(blocks.len(), 7);
    let mut program = include_str!("readme.rs").lines().map(str::trim);
    for block in blocks {
        let block = block.split("\n```\n").next().unwrap_or_default();
        for line in block.lines().map(str::trim).filter(|line| !line.is_empty()) {
            assert!(
                program.any(|other| other == line),
                "not in readme.rs, or not there: {line}"
            );
        }
    }
}

#[cfg(feature = "webdataset")]
programs! {
    captions,
    compressed_shards,
    crawled_text,
    fewer_machines,
    killed_with_a_cache,
    shards_on_ranks,
    shards_with_a_cache,
    tar_shards,
}

#[cfg(feature = "nvjpeg")]
programs! {
    both_decoders,
    found_on_the_web,
    masked_on_the_device,
    two_views,
}
