use super::*;

/// What is counted of batches of 256, if decoding takes the CPU and the decoder so long, in microseconds.
fn counted(batches: u64, share: u8, [cpu, decoder]: [u64; 2]) -> Counted {
    let samples = batches * 256;
    let decoded = samples * u64::from(share) / 64;
    Counted {
        samples,
        decoding_ns: (samples - decoded) * cpu * 1_000,
        other_ns: samples * 50_000,
        left_to_cpu: 0,
        decoded,
        decoder_ns: decoded * decoder * 1_000,
        host_ns: 0,
    }
}

#[test]
fn decoder_and_workers_end_together() {
    // A program that only waits. (Workers take 50 us for a picture that they do not decode.)
    for (cpu, decoder, workers, expected) in [
        (1_450, 50, 14, 45), // 1,500 / (700 + 1,450): the decoder has two thirds
        (1_450, 50, 1, 64),
        (1_450, 50, 64, 21),
        (950, 1_000, 1, 33),
        (10, 1_000_000, 4, 1),
    ] {
        for share in [1, 16, 32, 63] {
            let seen = counted(8, share, [cpu, decoder]);
            assert_eq!(
                seen.best_share(share, workers, 0.0),
                Some(expected),
                "{cpu} {decoder}"
            );
        }
    }
}

#[test]
fn the_device_decodes_no_more_than_is_needed() {
    // Without the device, 4 workers make a picture in 375 us, and are to be busy for less.
    for (host, expected) in [
        (10_000.0, 0),
        (500.0, 0),
        (200.0, 37),
        (100.0, 52),
        (20.0, 59),
    ] {
        let seen = counted(8, 32, [1_450, 50]);
        let best = seen.best_share(32, 4, host * 1_000.0);
        assert_eq!(best, Some(expected), "{host}");
    }
}

/// While workers catch up with the program, or it with them, batches that were made and batches that were given out are not as many.
#[test]
fn the_programs_time_is_that_of_batches_that_it_had() {
    let [mut few, mut many] = [6, 10].map(|made| {
        let mut found = Found {
            steps: vec![((0, 0), 32)],
            is_fixed: false,
            opened: (0, 1 << 20),
            mark: None,
            seen: Counted::default(),
            watched: 0,
            host_ns: Vec::new(),
            batches: 0,
            likes: 0,
        };
        for (given, made) in [(0, 0), (BATCHES_WATCHED, made)] {
            let watched = Watched {
                epoch: 0,
                position: given * 256,
                rows: 256,
                given,
                workers: 4,
                is_decoder_ready: true,
            };
            let host_ns = given * 256 * 200_000;
            found.watch(
                watched,
                Counted {
                    host_ns,
                    ..counted(made, 32, [1_450, 50])
                },
            );
        }
        found.steps
    });
    assert_eq!([few.pop(), many.pop()], [Some(((0, 1 << 20), 37)); 2]);
}

/// A step in which the program does something else, too, does not make it look slow: with the share that would do for that, it would wait
/// at all others.
#[test]
fn a_long_step_among_others_changes_nothing() {
    let shares = [0, 3].map(|long| {
        let share = DecoderShare::new(None);
        share.0.lock().steps = vec![((0, 0), 32)];
        let mut total = Counted::default();
        for given in 0..5 * BATCHES_WATCHED {
            let mut found = share.0.lock();
            found.opened = (0, given * 256);
            let position = given * 256;
            let watched = Watched {
                epoch: 0,
                position,
                rows: 256,
                given,
                workers: 4,
                is_decoder_ready: true,
            };
            found.watch(watched, total);
            let current = found.steps.last().unwrap().1;
            total.add(counted(1, current, [1_450, 50]));
            let second = u64::from(long > 0 && given % BATCHES_WATCHED == long);
            total.host_ns += 256 * 200_000 + second * 1_000_000_000;
        }
        share.fixed()
    });
    assert_eq!(shares, [Some(37); 2]);
}

#[test]
fn what_nobody_counted_changes_nothing() {
    assert_eq!(Counted::default().best_share(32, 4, 0.0), None);
    // All is the device's.
    let all = counted(8, 64, [1_450, 50]);
    assert_eq!(all.best_share(64, 4, 0.0), Some(64));
    // It decodes none of these pictures.
    let none = Counted {
        decoded: 0,
        left_to_cpu: 1_024,
        ..counted(8, 32, [1_450, 50])
    };
    assert_eq!(none.best_share(32, 4, 0.0), Some(0));
    // A program that was slow at first, and needs the device now.
    let idle = counted(8, 0, [1_450, 50]);
    assert_eq!(idle.best_share(0, 4, 100_000.0), Some(FIRST_DECODER_SHARE));
    assert_eq!(idle.best_share(0, 4, 10_000_000.0), Some(0));
}

fn place(epoch: u64, batch: u64) -> Place {
    Place {
        epoch,
        batch,
        start: batch * 256,
        step: 1,
        rows: 256,
        first_row: 0,
        batch_rows: 256,
        samples: 1 << 40,
    }
}

/// A loop of epochs whose workers are four batches ahead. Returns the shares of each epoch's batches, in order.
fn run(share: &DecoderShare, batches: u64, epochs: u64, ready_at: u64) -> Vec<Vec<u8>> {
    let mut shares = Vec::new();
    let mut given_before = 0;
    for epoch in 0..epochs {
        let mut of_epoch: Vec<u8> = Vec::new();
        let mut total = Counted::default();
        for batch in 0..batches {
            while (of_epoch.len() as u64) < batches.min(batch + 4) {
                let opened = place(epoch, of_epoch.len() as u64);
                of_epoch.push(share.of_task(7, &opened).share);
            }
            total.add(counted(1, of_epoch[batch as usize], [1_450, 50]));
            let mut found = share.0.lock();
            if !found.is_fixed {
                let watched = Watched {
                    epoch,
                    position: batch * 256,
                    rows: 256,
                    given: batch,
                    workers: 14,
                    is_decoder_ready: given_before >= ready_at,
                };
                found.watch(watched, total);
            }
            given_before += 1;
        }
        shares.push(of_epoch);
    }
    shares
}

/// Nothing for the device until its decoder is ready; then what is measured; and what was opened before keeps its share.
#[test]
fn it_is_measured_and_stays() {
    let share = DecoderShare::new(None);
    assert_eq!((share.fixed(), share.from(0, 0)), (None, None));
    let shares = run(&share, 200, 2, 5);
    assert_eq!(share.fixed(), Some(45));
    let changes: Vec<(usize, u8)> = (1..200)
        .filter(|at| shares[0][*at] != shares[0][at - 1])
        .map(|at| (at, shares[0][at]))
        .collect();
    assert_eq!(shares[0][0], 0);
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert_eq!([changes[0].1, changes[1].1], [FIRST_DECODER_SHARE, 45]);
    assert_eq!(shares[1], [45; 200]);
    // A state that was saved before says nothing of it, and all that come later do.
    let since = changes[1].0 as u64;
    assert_eq!(share.from(0, since * 256 - 1), None);
    assert_eq!(share.from(0, since * 256), Some(45));
    assert_eq!(share.from(1, 0), Some(45));
    // What was opened before the share was known keeps what it had, whichever worker makes it, and whenever.
    assert_eq!(share.of_task(7, &place(0, 0)).share, 0);
    assert_eq!(
        share.of_task(7, &place(0, since - 1)).share,
        FIRST_DECODER_SHARE
    );
}

/// A program whose epochs all have the same number is not left with what held before the first measurement.
#[test]
fn an_epoch_may_come_again() {
    let share = DecoderShare::new(None);
    let mut shares = Vec::new();
    for _ in 0..3 {
        share.begins(&place(0, 0));
        shares.extend(run(&share, 2 * BATCHES_WATCHED, 1, 0));
    }
    let (first, later) = (shares[0][0], &shares[1..]);
    assert_eq!((first, share.fixed()), (0, Some(45)));
    assert!(later.iter().flatten().all(|share| *share > 0), "{later:?}");
    assert_eq!(shares[2].last(), Some(&45));
    share.begins(&place(0, 0));
    assert_eq!(share.from(0, 0), Some(45));
    // Epochs in turn change nothing.
    let before = share.of_task(7, &place(3, 0)).share;
    share.begins(&place(4, 0));
    assert_eq!((share.of_task(7, &place(4, 0)).share, before), (45, 45));
}

/// Three consumers, each at another epoch: all have the program's share, in whatever order they began.
#[test]
fn epochs_may_be_under_way_together() {
    let share = DecoderShare::new(Some(9));
    for epoch in [2, 5, 3] {
        share.begins(&place(epoch, 0));
        assert_eq!(share.of_task(7, &place(epoch, 0)).share, 9);
    }
    for epoch in [2, 5, 3] {
        assert_eq!(share.of_task(7, &place(epoch, 1)).share, 9, "{epoch}");
        assert_eq!(share.from(epoch, 0), Some(9));
    }
}

/// A measurement goes on in the next epoch.
#[test]
fn epochs_may_be_short() {
    for batches in [2, 3, BATCHES_WATCHED, 2 * BATCHES_WATCHED] {
        let share = DecoderShare::new(None);
        let shares = run(&share, batches, 6 * BATCHES_WATCHED, 0);
        assert_eq!(share.fixed(), Some(45), "{batches}");
        assert_eq!(shares.last(), Some(&vec![45; batches as usize]));
    }
    // A program that is given one batch of each epoch leaves nothing to compare.
    let share = DecoderShare::new(None);
    let shares = run(&share, 1, 50, 0);
    assert_eq!(
        (share.fixed(), &shares[49]),
        (None, &vec![FIRST_DECODER_SHARE])
    );
}

#[test]
fn a_run_goes_on_with_its_share() {
    let share = DecoderShare::new(None);
    share.resume(20);
    assert_eq!(run(&share, 20, 1, 0), [[20; 20]]);
    share.resume(21);
    assert_eq!(share.fixed(), Some(20));
    // What the program says goes first.
    let share = DecoderShare::new(Some(9));
    share.resume(20);
    assert_eq!((share.fixed(), share.from(0, 0)), (Some(9), Some(9)));
}
