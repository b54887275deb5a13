//! Sending a group of tasks: one, or whole batches that go together.

use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::traits::{Each, SendOutcome, TransferQueue};
use crate::trace::span;

/// Sends tasks that follow each other. `waits`: the consumer has come to the first of them, and waits for device memory.
pub(crate) fn send<B>(
    queue: &dyn TransferQueue<B>,
    context: &EpochContext,
    mut tasks: Each<B>,
    waits: bool,
) -> Each<SendOutcome<B>> {
    if tasks.len() == 1 {
        let one = tasks.pop();
        let send = |(task, made)| (task, send_one(queue, context, task, made, waits));
        return one.map(send).into_iter().collect();
    }
    span!(
        "send",
        epoch = context.epoch,
        task = tasks[0].0.0,
        count = tasks.len()
    );
    let outcomes = queue.send_together(context, tasks).into_iter();
    let again = |(index, (task, outcome))| match outcome {
        SendOutcome::NotNow(made) if waits && index == 0 => {
            (task, send_one(queue, context, task, made, true))
        }
        outcome => (task, outcome),
    };
    outcomes.enumerate().map(again).collect()
}

fn send_one<B>(
    queue: &dyn TransferQueue<B>,
    context: &EpochContext,
    task: TaskId,
    made: B,
    waits: bool,
) -> SendOutcome<B> {
    span!("send", epoch = context.epoch, task = task.0);
    let send = || queue.send(context, task, made, waits);
    match context.subject(task) {
        None => send(),
        Some(subject) => subject.sends(send),
    }
}
