//! A device step of a fixed length: a kernel that spins on CUDA, a function that sleeps on the CPU device.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pinfeed::Stream;

use crate::Outcome;
use crate::target::Target;

/// How many steps the host runs ahead of the device.
const AHEAD: u64 = 2;

/// Launches steps on a stream of the library's, as a training program would.
pub struct Stepper<'a> {
    engine: Engine<'a>,
    stream: Stream,
    length: Duration,
    launched: u64,
    /// Without CUDA, nothing else names it.
    _target: &'a Target,
}

enum Engine<'a> {
    Cpu(Arc<Done>),
    #[cfg(feature = "cuda")]
    Cuda(cuda::Engine<'a>),
    #[cfg(not(feature = "cuda"))]
    _Never(std::convert::Infallible, &'a ()),
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
        #[cfg(feature = "cuda")]
        let engine = match &target.bare {
            Some(bare) => Engine::Cuda(cuda::Engine::new(bare, stream)?),
            None => Engine::Cpu(Arc::default()),
        };
        #[cfg(not(feature = "cuda"))]
        let engine = Engine::Cpu(Arc::default());
        Ok(Stepper {
            engine,
            stream: stream.clone(),
            length,
            launched: 0,
            _target: target,
        })
    }

    /// Launches a step, and waits until no more than two are under way.
    pub fn step(&mut self) -> Outcome {
        self.launched += 1;
        match &mut self.engine {
            Engine::Cpu(done) => {
                let (over, length) = (Arc::clone(done), self.length);
                self.stream.host_fn(move || {
                    thread::sleep(length);
                    over.one_more();
                })?;
                done.wait_for(self.launched.saturating_sub(AHEAD));
                Ok(())
            }
            #[cfg(feature = "cuda")]
            Engine::Cuda(engine) => engine.step(self.length, AHEAD as usize),
        }
    }

    /// Launches work that does nothing.
    pub fn launch_nothing(&self) -> Outcome {
        match &self.engine {
            Engine::Cpu(_) => Ok(self.stream.host_fn(|| {})?),
            #[cfg(feature = "cuda")]
            Engine::Cuda(engine) => engine.launch(Duration::ZERO),
        }
    }

    /// Waits until all steps are over.
    pub fn drain(&self) -> Outcome {
        Ok(self.stream.synchronize()?)
    }
}

impl Drop for Stepper<'_> {
    fn drop(&mut self) {
        // The kernels write memory of the engine's.
        if let Err(error) = self.stream.synchronize() {
            eprintln!("note: {error}");
        }
    }
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

    pub struct Engine<'a> {
        bare: &'a Bare,
        stream: Arc<CudaStream>,
        scratch: DeviceBlock<'a>,
        /// The ends of the steps under way, and events to use again.
        ends: VecDeque<CudaEvent>,
        spare: Vec<CudaEvent>,
    }

    impl<'a> Engine<'a> {
        pub fn new(bare: &'a Bare, stream: &Stream) -> Outcome<Engine<'a>> {
            Ok(Engine {
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
