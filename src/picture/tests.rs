use super::*;

fn drawing() -> Drawing {
    Drawing {
        source: [40, 30],
        sampling: Sampling::Both,
        bounds: [4, 2, 30, 20],
        window: [1.5, 0.25, 20.0, 19.5],
        place: [0, 3, 7, 5],
        size: [7, 9],
        filter: Filter::Bicubic,
        flip: [false, true],
        fill: [1, 2, 255],
    }
}

#[test]
fn a_drawing_survives_as_words() {
    assert_eq!(Drawing::from_words(&drawing().words()), Some(drawing()));
    for sampling in Sampling::ALL {
        let drawing = Drawing {
            sampling,
            filter: Filter::Bilinear,
            flip: [true, false],
            ..drawing()
        };
        assert_eq!(Drawing::from_words(&drawing.words()), Some(drawing));
    }
}

#[test]
fn words_that_reach_outside_are_refused() {
    let unsound = [
        Drawing {
            source: [0, 30],
            ..drawing()
        },
        Drawing {
            source: [70_000, 30],
            ..drawing()
        },
        Drawing {
            bounds: [11, 2, 30, 20],
            ..drawing()
        },
        Drawing {
            bounds: [4, u32::MAX, 30, 20],
            ..drawing()
        },
        Drawing {
            window: [-0.1, 0.25, 20.0, 19.5],
            ..drawing()
        },
        Drawing {
            window: [1.5, 0.75, 20.0, 19.5],
            ..drawing()
        },
        Drawing {
            window: [f64::NAN, 0.25, 20.0, 19.5],
            ..drawing()
        },
        Drawing {
            window: [1.5, 0.25, f64::INFINITY, 19.5],
            ..drawing()
        },
        Drawing {
            window: [1.5, 0.25, 0.0, 19.5],
            ..drawing()
        },
        Drawing {
            place: [1, 3, 7, 5],
            ..drawing()
        },
        // More tiles than the kernel counts.
        Drawing {
            size: [1 << 20, 1 << 20],
            ..drawing()
        },
        Drawing {
            place: [0, 3, 7, u32::MAX],
            ..drawing()
        },
        Drawing {
            size: [1 << 21, 9],
            ..drawing()
        },
    ];
    for drawing in unsound {
        assert_eq!(Drawing::from_words(&drawing.words()), None, "{drawing:?}");
    }
    for (word, value) in [(10, 5), (10, 2 << 8), (10, 4 << 16), (10, 1 << 60)] {
        let mut words = drawing().words();
        words[word] = value;
        assert_eq!(Drawing::from_words(&words), None, "{value:#x}");
    }
    // What shows nothing of the picture reads nothing; but its weights are as many as its window says.
    let empty = |place, window| Drawing {
        place,
        window,
        ..drawing()
    };
    for sound in [
        empty([7, 3, 0, 5], [0.0; 4]),
        empty([0, 0, 5, 0], [0.0; 4]),
        empty([0, 0, 5, 0], [1.5, f64::NAN, 20.0, f64::INFINITY]),
        empty([0; 4], [f64::INFINITY; 4]),
    ] {
        let words = sound.words();
        let read = Drawing::from_words(&words).unwrap();
        assert_eq!(read.words(), words);
        assert!(read.decoder_bytes(&[]) < 1 << 16);
    }
    for unsound in [
        empty([0, 0, 5, 0], [0.0, 0.0, f64::INFINITY, 0.0]),
        empty([0, 0, 5, 0], [0.0, 0.0, f64::NAN, 0.0]),
        empty([0, 0, 5, 0], [0.0, 0.0, 1e300, 0.0]),
        empty([0, 0, 5, 0], [0.0, 0.0, -1.0, 0.0]),
        empty([0, 0, 0, 5], [0.0, 0.0, 0.0, f64::INFINITY]),
        empty([0, 0, 0, 5], [0.0, f64::NEG_INFINITY, 0.0, f64::INFINITY]),
    ] {
        assert_eq!(Drawing::from_words(&unsound.words()), None, "{unsound:?}");
    }
}
