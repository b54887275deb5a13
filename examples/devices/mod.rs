//! All CUDA devices of the machine.

use pinfeed::{Device, Error};

/// Opens every CUDA device, in the driver's order. The second part says what could not be opened: without a GPU, why there is none.
pub fn all_cuda() -> (Vec<Device>, Vec<String>) {
    let (mut devices, mut problems) = (Vec::new(), Vec::new());
    let mut failed_in_a_row = 0;
    for ordinal in 0.. {
        match Device::cuda(ordinal) {
            Ok(device) => {
                devices.push(device);
                failed_in_a_row = 0;
            }
            // There are no more.
            Err(Error::NoDevice { .. }) if !devices.is_empty() || !problems.is_empty() => break,
            Err(error) => {
                let concerns_all = matches!(
                    error,
                    Error::NoDevice { .. }
                        | Error::NoDriver { .. }
                        | Error::DriverTooOld { .. }
                        | Error::StubDriver
                        | Error::FeatureMissing { .. }
                );
                problems.push(error.to_string());
                failed_in_a_row += 1;
                // One device may be broken or taken. If the next one does not open either, the driver is to blame.
                if concerns_all || failed_in_a_row == 2 {
                    break;
                }
            }
        }
    }
    (devices, problems)
}
