use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);
const LIMITS: Limits = Limits {
    in_flight: 2,
    ahead: None,
    max_bytes: 1 << 30,
};

/// Requests for samples of a pass with a timeout; how large they are is known.
fn state(samples: u64) -> State<()> {
    let mut state = State::<()> {
        largest: Some(1),
        ..State::default()
    };
    let pass = Pass {
        timeout: Some(TIMEOUT),
        ..Pass::new(1, 0)
    };
    let all: Vec<u64> = (0..samples).collect();
    state.announce(&all, pass);
    state
}

fn start_all(state: &mut State<()>, now: Instant) -> Vec<u64> {
    std::iter::from_fn(|| state.start(&LIMITS, now))
        .map(|(_, index)| index)
        .collect()
}

#[test]
fn requests_that_run_for_long_give_way_and_keep_their_threads() {
    let mut state = state(10);
    let start = Instant::now();
    assert_eq!(start_all(&mut state, start), [0, 1]);
    assert!(start_all(&mut state, start + TIMEOUT / 3).is_empty());
    assert_eq!(state.next_expiry(), Some(start + TIMEOUT / 2));
    assert_eq!(start_all(&mut state, start + TIMEOUT / 2), [2, 3]);
    assert_eq!(state.most_threads(&LIMITS), 4);
    assert_eq!((state.stats().running, state.stats().overdue), (4, 2));
    // One comes back, and is wanted.
    assert!(state.finish(1, Ok(Ok(())), 1).is_none());
    assert_eq!((state.stats().running, state.stats().overdue), (3, 1));
    assert!(start_all(&mut state, start + TIMEOUT / 2).is_empty());
    // Dropping the data set waits for each until its time is over.
    assert_eq!(state.hanging(start), (0, Some(start + TIMEOUT)));
    let second = start + TIMEOUT / 2 + TIMEOUT;
    assert_eq!(state.hanging(start + TIMEOUT), (1, Some(second)));
    assert_eq!(state.hanging(second), (3, None));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of requests, each seen again and again")]
fn no_more_than_a_bounded_number_is_left_behind() {
    let mut state = state(4 * MOST_OVERDUE as u64);
    let mut now = Instant::now();
    let mut begun = 0;
    for _ in 0..2 * MOST_OVERDUE {
        begun += start_all(&mut state, now).len();
        now += TIMEOUT;
    }
    assert_eq!(begun, MOST_OVERDUE + LIMITS.in_flight);
    assert_eq!(state.stats().overdue, MOST_OVERDUE);
    assert!(state.is_news_of_most() && !state.is_news_of_most());
    assert_eq!(state.next_expiry(), None, "nobody wakes up in vain");
    // For each that comes back, another may begin.
    assert!(state.finish(1, Ok(Ok(())), 1).is_none());
    assert_eq!(start_all(&mut state, now).len(), 1);
}

#[test]
fn without_a_timeout_all_keep_their_places() {
    let mut state = State::<()>::default();
    state.announce(&[0, 1, 2], Pass::new(1, 0));
    let start = Instant::now();
    state.largest = Some(1);
    assert_eq!(start_all(&mut state, start), [0, 1]);
    assert!(start_all(&mut state, start + 1000 * TIMEOUT).is_empty());
    assert_eq!(
        (state.next_expiry(), state.hanging(start)),
        (None, (0, None))
    );
}

/// A source may say of each sample that it is larger than memory: the sum is right, and comes back to nothing.
#[test]
fn sizes_add_up_whatever_they_are() {
    let limits = Limits {
        in_flight: 3,
        max_bytes: usize::MAX - 1,
        ..LIMITS
    };
    let (mut state, now) = (state(3), Instant::now());
    let started: Vec<_> = std::iter::from_fn(|| state.start(&limits, now)).collect();
    assert_eq!(started.len(), 3);
    for (number, _) in started {
        assert!(state.finish(number, Ok(Ok(())), usize::MAX).is_none());
    }
    assert_eq!(state.held_bytes, 3 * usize::MAX as u128);
    let stats = state.stats();
    assert_eq!(
        (stats.held_bytes, stats.most_bytes),
        (usize::MAX, usize::MAX)
    );
    let waiter = Arc::default();
    for index in 0..3 {
        let number = state.take_on(index, 0, None);
        let Found::Done(_, counted) = state.find(number, &waiter, now) else {
            panic!("it is done");
        };
        state.release(counted);
    }
    assert_eq!(state.held_bytes, 0);
}
