//! A device step of a fixed length: a kernel that spins on CUDA, a function that sleeps on the CPU device.

use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pinfeed::Stream;

use crate::Outcome;
use crate::target::Target;
use crate::window::{Measured, Waits, Window};

/// Steps before the clock runs.
const WARM_UP: u64 = 10;

/// How many steps the host runs ahead of the device.
const AHEAD: u64 = 2;

/// Launches steps on a stream of the library's, as a training program would.
pub struct Stepper<'a> {
    target: PhantomData<&'a Target>,
    stream: Stream,
    length: Duration,
    launched: u64,
    done: Arc<Done>,
    #[cfg(feature = "cuda")]
    kernel: Option<cuda::Kernel<'a>>,
}

/// How many steps are over.
#[derive(Default)]
struct Done {
    steps: Mutex<u64>,
    change: Condvar,
}

impl Done {
    fn one_more(&self) {
        *self.steps.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.change.notify_all();
    }

    fn wait_for(&self, steps: u64) {
        let mut done = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        while *done < steps {
            done = self
                .change
                .wait(done)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<'a> Stepper<'a> {
    pub fn new(target: &'a Target, stream: &Stream, length: Duration) -> Outcome<Stepper<'a>> {
        #[cfg(not(feature = "cuda"))]
        let _ = target;
        Ok(Stepper {
            target: PhantomData,
            stream: stream.clone(),
            length,
            launched: 0,
            done: Arc::default(),
            #[cfg(feature = "cuda")]
            kernel: match &target.bare {
                Some(bare) => Some(cuda::Kernel::new(bare, stream)?),
                None => None,
            },
        })
    }

    /// Launches a step, and waits until no more than two are under way.
    pub fn step(&mut self) -> Outcome {
        #[cfg(feature = "cuda")]
        if let Some(kernel) = &mut self.kernel {
            return kernel.step(self.length, AHEAD as usize);
        }
        self.launched += 1;
        let (done, length) = (Arc::clone(&self.done), self.length);
        self.stream.host_fn(move || {
            thread::sleep(length);
            done.one_more();
        })?;
        self.done.wait_for(self.launched.saturating_sub(AHEAD));
        Ok(())
    }

    /// Launches work that does nothing.
    pub fn launch_nothing(&self) -> Outcome {
        #[cfg(feature = "cuda")]
        if let Some(kernel) = &self.kernel {
            return kernel.launch(Duration::ZERO);
        }
        Ok(self.stream.host_fn(|| {})?)
    }

    /// Waits until all steps are over.
    pub fn drain(&self) -> Outcome {
        Ok(self.stream.synchronize()?)
    }
}

impl Drop for Stepper<'_> {
    fn drop(&mut self) {
        // The kernels write memory that goes now.
        if let Err(error) = self.stream.synchronize() {
            eprintln!("note: {error}");
        }
    }
}

/// What so many steps took.
pub struct Run {
    pub seconds_per_step: f64,
    pub waits: Waits,
    pub measured: Measured,
}

/// Has `step` launch one step after the other.
pub fn run(
    target: &Target,
    stream: &Stream,
    length: Duration,
    steps: u64,
    mut step: impl FnMut(&mut Stepper<'_>, &mut Waits) -> Outcome,
) -> Outcome<Run> {
    let mut stepper = Stepper::new(target, stream, length)?;
    for _ in 0..WARM_UP {
        step(&mut stepper, &mut Waits::default())?;
    }
    // The clock runs between two equal moments of the loop: a step was launched, and the one two before it is over.
    // A stream that is drained, or loading that begins, would be in the figure otherwise.
    let (window, mut waits) = (Window::begin(), Waits::default());
    for _ in 0..steps {
        step(&mut stepper, &mut waits)?;
    }
    let measured = window.end();
    stepper.drain()?;
    Ok(Run {
        seconds_per_step: measured.window_s / steps as f64,
        waits,
        measured,
    })
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::Duration;

    use cudarc::driver::{CudaEvent, CudaStream};
    use pinfeed::Stream;

    use crate::Outcome;
    use crate::bare::{Bare, DeviceBlock};

    /// The kernel that spins, on one stream.
    pub struct Kernel<'a> {
        bare: &'a Bare,
        stream: Arc<CudaStream>,
        scratch: DeviceBlock<'a>,
        /// The ends of the steps under way, and events to use again.
        ends: VecDeque<CudaEvent>,
        spare: Vec<CudaEvent>,
    }

    impl<'a> Kernel<'a> {
        pub fn new(bare: &'a Bare, stream: &Stream) -> Outcome<Kernel<'a>> {
            Ok(Kernel {
                bare,
                stream: bare.wrap(stream)?,
                scratch: bare.device_block(4)?,
                ends: VecDeque::new(),
                spare: Vec::new(),
            })
        }

        pub fn launch(&self, length: Duration) -> Outcome {
            self.bare.spin(&self.stream, &self.scratch, length)
        }

        pub fn step(&mut self, length: Duration, ahead: usize) -> Outcome {
            self.launch(length)?;
            let end = match self.spare.pop() {
                Some(event) => event,
                None => self.bare.event()?,
            };
            end.record(&self.stream)?;
            self.ends.push_back(end);
            if self.ends.len() > ahead
                && let Some(oldest) = self.ends.pop_front()
            {
                oldest.synchronize()?;
                self.spare.push(oldest);
            }
            Ok(())
        }
    }
}
